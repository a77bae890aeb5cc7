"""The signatures of an exported folder, made of an object that is called like a translator."""

from itertools import cycle, islice
from typing import Any

import numpy as np

from keras_transformer.decoding.search_settings import MOST_ALPHA
from keras_transformer.serving.errors import RequestError
from keras_transformer.serving.model import Model
from keras_transformer.serving.signature import NUMPY_TYPES, PADDING, Signature, Spec

TEXT, NUMBER, COUNT, FLAG = (Spec(kind, (-1,)) for kind in ("string", "float32", "int32", "bool"))
TEXTS, NUMBERS, COUNTS = (Spec(one.dtype, (-1, -1)) for one in (TEXT, NUMBER, COUNT))
MOST_TOKENS = 1_000_000  # a larger `max_length` is taken as this
# {name: (inputs, outputs)}; options of `translate_n_best` have defaults.
SIGNATURES: dict[str, tuple[dict[str, Spec], dict[str, Spec]]] = {
    "serving_default": (
        {"text": TEXT},
        {"translation": TEXT, "score": NUMBER, "truncated": FLAG},
    ),
    "translate_n_best": (
        {"text": TEXT},
        {"translations": TEXTS, "scores": NUMBERS, "lengths": COUNTS, "truncated": FLAG},
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

    Args:
        translator: is called like `Translator`; has `card`, the model card, and `settings`, those
            of its search.
    """

    def __init__(self, translator: Any) -> None:
        self._translator = translator
        search = translator.settings
        most = search.max_length or MOST_TOKENS
        options = {"n_best": (COUNT, search.beam_size), "alpha": (NUMBER, search.alpha)}
        options |= {"max_length": (COUNT, most), "target_prefix": (TEXT, "")}
        if translator.card["target_languages"]:
            options["target_language"] = (TEXT, "")
        specs = {name: spec for name, (spec, _) in options.items()}
        defaults = {name: _array([value], spec) for name, (spec, value) in options.items()}
        self.signatures = {
            name: Signature(name, inputs, outputs, {})
            for name, (inputs, outputs) in SIGNATURES.items()
        }
        name, (inputs, outputs) = "translate_n_best", SIGNATURES["translate_n_best"]
        self.signatures[name] = Signature(name, inputs | specs, outputs, defaults)
        described = {
            name: {"inputs": _described(one.inputs), "outputs": _described(one.outputs)}
            for name, one in self.signatures.items()
        }
        self.card = translator.card | {"signatures": described}
        self.name = self.card["name"]

    def call(self, name: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Calls a signature; see `Model`."""
        signature = self.signatures[name]
        values = {key: _values(array) for key, array in (signature.defaults | inputs).items()}
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
            yield best.text, best.score, best.dropped_tokens > 0

    def _translate_n_best(self, text, **options):
        """Yields the rows; lines with the same options are translated together."""
        count, most = len(text), self._translator.settings.beam_size
        columns = {name: list(islice(cycle(each), count)) for name, each in options.items()}
        prefixes, rows = columns.pop("target_prefix"), {}
        keys = list(zip(*columns.values(), strict=True))
        for key in dict.fromkeys(keys):
            lines = [line for line in range(count) if keys[line] == key]
            asked = dict(zip(columns, key, strict=True))
            found = self._translator(
                [text[line] for line in lines],
                n_best=min(max(asked["n_best"], 1), most),
                target_prefix=[prefixes[line] for line in lines],
                target_language=asked.get("target_language") or None,
                alpha=min(max(asked["alpha"], -MOST_ALPHA), MOST_ALPHA),
                max_length=min(max(asked["max_length"], 1), MOST_TOKENS),
            )
            rows |= zip(lines, found, strict=True)
        for ranks in (rows[line] for line in range(count)):
            yield (
                [each.text for each in ranks],
                [each.score for each in ranks],
                [len(each.tokens) for each in ranks],
                ranks[0].dropped_tokens > 0,
            )

    def _score(self, source, target):
        for one in self._translator.score(source, target):
            yield one.log_prob, len(one.tokens), one.perplexity

    def _tokenize(self, text):
        # As the translator: a line of spaces has no tokens.
        lines = [line if line.strip() else "" for line in text]
        for row in self._translator.source_tokenizer.encode(lines):
            yield row, len(row)

    def _detokenize(self, token_ids):
        size = self._translator.target_tokenizer.vocabulary_size
        if not all(0 <= each < size for row in token_ids for each in row):
            raise ValueError(f"`token_ids` must be from 0 to {size - 1}")
        for text in self._translator.target_tokenizer.decode(token_ids):
            yield (text,)


def _described(specs):
    """As in the model card of a SavedModel."""
    shape = {1: "(None,)", 2: "(None, None)"}
    return {name: f"{spec.dtype} {shape[len(spec.shape)]}" for name, spec in specs.items()}


def _values(array):
    """Returns an array as lists; bytes that are not UTF-8 become U+FFFD."""
    is_text = array.dtype == object
    return [one.decode("utf-8", "replace") for one in array] if is_text else array.tolist()


def _array(values, spec):
    """Returns rows as an array, padded to the longest."""
    kind = NUMPY_TYPES[spec.dtype]
    if spec.dtype == "string":
        values = [
            one.encode() if isinstance(one, str) else [each.encode() for each in one]
            for one in values
        ]
    if len(spec.shape) == 1:
        return np.array(values, kind)
    padded = np.full((len(values), max(map(len, values), default=0)), PADDING[spec.dtype], kind)
    for row, value in zip(padded, values, strict=True):
        row[: len(value)] = value
    return padded
