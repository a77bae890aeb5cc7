"""The signatures of an exported folder, made of an object that is called like a translator."""

from typing import Any

import numpy as np

from keras_transformer.decoding.lines import encode_lines
from keras_transformer.decoding.search_settings import MOST_ALPHA
from keras_transformer.serving.errors import RequestError
from keras_transformer.serving.model import Model
from keras_transformer.serving.signature import NUMPY_TYPES, Signature, Spec, joined, to_json

TEXT, NUMBER, COUNT, FLAG = (Spec(kind, (-1,)) for kind in ("string", "float32", "int32", "bool"))
TEXTS, NUMBERS, COUNTS, FLAGS = (Spec(one.dtype, (-1, -1)) for one in (TEXT, NUMBER, COUNT, FLAG))
MOST_TOKENS = 1_000_000  # a larger `max_length` is taken as this
# {name: (inputs, outputs)}; options of `translate_n_best` have defaults.
SIGNATURES: dict[str, tuple[dict[str, Spec], dict[str, Spec]]] = {
    "serving_default": (
        {"text": TEXT},
        {"translation": TEXT, "score": NUMBER, "truncated": FLAG, "unfinished": FLAG}
        | {"protected": TEXTS},
    ),
    "translate_n_best": (
        {"text": TEXT},
        {"translations": TEXTS, "scores": NUMBERS, "lengths": COUNTS, "unfinished": FLAGS}
        | {"truncated": FLAG, "protected": TEXTS},
    ),
    "score": (
        {"source": TEXT, "target": TEXT},
        {"log_prob": NUMBER, "tokens": COUNT, "perplexity": NUMBER},
    ),
    "tokenize": ({"text": TEXT}, {"token_ids": COUNTS, "lengths": COUNT}),
    "detokenize": ({"token_ids": COUNTS}, {"text": TEXT}),
}


class TranslatorModel(Model):
    """A translator with the signatures that a SavedModel has, but for `align` and `search_tree`.

    Also has the output `protected`, see `Hypothesis`.

    Args:
        translator: is called like `Translator`; has `card`, the model card, and `settings`, those
            of its search.
    """

    def __init__(self, translator: Any) -> None:
        self._translator = translator
        search = translator.settings
        options = {
            "n_best": (COUNT, search.beam_size),
            "alpha": (NUMBER, search.alpha),
            "max_length": (COUNT, search.max_length or MOST_TOKENS),
            "target_prefix": (TEXT, ""),
        }
        if translator.engine.card["target_languages"]:
            options["target_language"] = (TEXT, "")
        self.signatures, described = {}, {}
        for name, (inputs, outputs) in SIGNATURES.items():
            own = options if name == "translate_n_best" else {}
            inputs = inputs | {key: spec for key, (spec, _) in own.items()}
            defaults = {key: _array([value], spec) for key, (spec, value) in own.items()}
            self.signatures[name] = Signature(name, inputs, outputs, defaults)
            sides = {"inputs": inputs, "outputs": outputs}.items()
            described[name] = {side: {k: str(v) for k, v in specs.items()} for side, specs in sides}
        self.card = translator.engine.card | {"signatures": described}
        self.name = self.card["name"]

    def call(self, name: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Calls a signature; see `Model`."""
        signature = self.signatures[name]
        values = {key: to_json(array) for key, array in (signature.defaults | inputs).items()}
        try:
            rows = list(getattr(self, f"_{name}")(**values))
        except ValueError as error:
            raise RequestError(400, f"The model failed: {error}") from error
        except (RuntimeError, MemoryError) as error:
            raise RequestError(503, f"The model failed: {error}") from error
        columns = list(zip(*rows, strict=True)) or [()] * len(signature.outputs)
        outputs = zip(signature.outputs.items(), columns, strict=True)
        return {key: _array(column, spec) for (key, spec), column in outputs}

    def _serving_default(self, text):
        for best, *_ in self._translator(text, n_best=1):
            is_truncated = best.dropped_tokens > 0
            yield best.text, best.score, is_truncated, best.unfinished, best.protected

    def _translate_n_best(self, text, **options):
        asked = {name: value for name, (value,) in options.items()}
        for ranks in self._translator(
            text,
            n_best=min(max(asked["n_best"], 1), self._translator.settings.beam_size),
            target_prefix=asked["target_prefix"] or None,
            target_language=asked.get("target_language") or None,
            alpha=min(max(asked["alpha"], -MOST_ALPHA), MOST_ALPHA),
            max_length=min(max(asked["max_length"], 1), MOST_TOKENS),
        ):
            numbers = [(h.text, h.score, len(h.tokens), h.unfinished) for h in ranks]
            yield *zip(*numbers, strict=True), ranks[0].dropped_tokens > 0, ranks[0].protected

    def _score(self, source, target):
        for one in self._translator.score(source, target):
            yield one.log_prob, len(one.tokens), one.perplexity

    def _tokenize(self, text):
        for row in encode_lines(self._translator.source_tokenizer, text):
            yield row, len(row)

    def _detokenize(self, token_ids):
        size = self._translator.target_tokenizer.vocabulary_size
        if not all(0 <= each < size for row in token_ids for each in row):
            raise ValueError(f"`token_ids` must be from 0 to {size - 1}")
        for text in self._translator.target_tokenizer.decode(token_ids):
            yield (text,)


def _array(values, spec):
    """Returns rows as an array, padded to the longest."""
    if len(spec.shape) > 1:
        return joined([_array(row, Spec(spec.dtype, (-1,)))[None] for row in values], spec)
    values = [one.encode() if isinstance(one, str) else one for one in values]
    return np.array(values, NUMPY_TYPES[spec.dtype])
