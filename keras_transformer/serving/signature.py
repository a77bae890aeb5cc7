"""The functions that TensorFlow Serving's protocol calls by name: their inputs and outputs.

Names, inputs and outputs are those of an exported SavedModel, but `Service` computes the outputs,
so they work with any engine.
"""

import asyncio
import dataclasses
import functools
import itertools
import math
from collections.abc import Awaitable, Callable, Hashable
from typing import Any

from starlette.concurrency import run_in_threadpool

from keras_transformer.decoding.lines import encode_lines
from keras_transformer.decoding.search_settings import SearchSettings
from keras_transformer.decoding.text_settings import LANGUAGES
from keras_transformer.serving.errors import RequestError
from keras_transformer.serving.service import Service

LONGEST_ALIGNED = 256  # tokens: longer alignments are unreadable as a picture
FLOAT32_MAX = 3.4028234663852886e38
# dtype -> name in errors, types of the values in JSON, padding of the shorter rows of an answer.
KINDS: dict[str, tuple[str, Any, Any]] = {
    "string": ("text", str, ""),
    "float32": ("numbers", int | float, None),
    "int32": ("integers", int, 0),
    "bool": ("booleans", bool, False),
}


@dataclasses.dataclass(frozen=True)
class Spec:
    """A named tensor.

    Args:
        dtype: str, a key of `KINDS`.
        axes: int, number of axes; the first has the lines.
    """

    dtype: str
    axes: int = 1

    def __str__(self) -> str:
        """As in the model card of a SavedModel, such as `string (None,)`."""
        return f"{self.dtype} {(None,) * self.axes}"


TEXT, NUMBER, COUNT, FLAG = map(Spec, ("string", "float32", "int32", "bool"))
TEXTS, NUMBERS, COUNTS, FLAGS = (Spec(spec.dtype, 2) for spec in (TEXT, NUMBER, COUNT, FLAG))

Call = Callable[..., Awaitable[list[tuple]]]  # (service, client, **columns) -> a tuple for each row


@dataclasses.dataclass(frozen=True)
class Signature:
    """A function of named tensors with a row for each line.

    Args:
        name: str.
        inputs: dict from names to `Spec`.
        outputs: dict from names to `Spec`, in the order of what `call` returns.
        call: coroutine function of the service, the client and the columns.
        options: dict from the name of each input that has a default to the default. A request may
            give one value for all lines.
    """

    name: str
    inputs: dict[str, Spec]
    outputs: dict[str, Spec]
    call: Call
    options: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def required(self) -> list[str]:
        """The names of the inputs that have no default."""
        return [name for name in self.inputs if name not in self.options]

    def described(self) -> dict[str, dict[str, str]]:
        """Returns inputs and outputs as the model card of a SavedModel has them."""
        sides = {"inputs": self.inputs, "outputs": self.outputs}
        return {side: {n: str(spec) for n, spec in specs.items()} for side, specs in sides.items()}

    async def run(
        self, service: Service, values: dict[str, Any], client: Hashable = None
    ) -> dict[str, list]:
        """Returns the outputs as JSON lists.

        Args:
            service: `Service`.
            values: dict from the names of inputs to JSON lists, one element for each line. An
                option may have one element for all lines.
            client: who asks. Optional.

        Raises:
            RequestError: if a name is unknown or missing, or a value has another type or length;
                and the errors of `Service`.
        """
        if not set(self.required) <= values.keys() <= self.inputs.keys():
            must = f"{self.name!r} takes {self.required} and the options {sorted(self.options)}."
            raise RequestError(400, must, list(values))
        self._check_sizes(service.limits, values)
        rows = await self.call(service, client, **self._columns(values))
        outputs = list(zip(*rows, strict=True)) or [()] * len(self.outputs)
        pairs = zip(self.outputs.items(), outputs, strict=True)
        return {name: to_json(list(column), spec) for (name, spec), column in pairs}

    def _check_sizes(self, limits, values):
        """Raises `RequestError` if values are too many or too long, before anything is computed."""
        lists = {name: value for name, value in values.items() if isinstance(value, list)}
        lines = max(map(len, lists.values()), default=0)
        limits.check_lines(lines)

        def lengths(name):
            """Returns the length of each item; that of one item is the length for all lines."""
            found = [len(item) if _has_length(item) else 0 for item in lists.get(name, ())]
            return found * lines if name in self.options and len(found) == 1 else found

        columns = [
            itertools.zip_longest(*map(lengths, names), fillvalue=0)
            for names in (self.required, self.options.keys() - {*LANGUAGES})
        ]
        rows = itertools.zip_longest(*columns, fillvalue=(0,))
        limits.check_longest(max(texts) + max(prefixes) for texts, prefixes in rows)
        for name in self.options.keys() & {*LANGUAGES}:  # a code is no part of a line
            limits.check_longest(lengths(name))

    def _columns(self, values):
        """Returns inputs with an element for each line; missing ones have their defaults."""
        columns = {name: checked(name, value, self.inputs[name]) for name, value in values.items()}
        lines = len(columns[self.required[0]])
        columns = {name: [value] for name, value in self.options.items()} | columns
        for name, column in columns.items():
            if len(column) == 1 and name in self.options:
                columns[name] = column * lines
            elif len(column) != lines:
                must = f"{name!r} must have {lines} elements, one for each line."
                raise RequestError(400, f"{must} Received: {len(column)}")
        return columns


def checked(name: str, value: Any, spec: Spec) -> list:
    """Returns a value if it is a nested JSON list for a tensor, and raises otherwise.

    Args:
        name: str, of the input, for errors.
        value: list, nested as deep as the tensor has axes.
        spec: `Spec`.

    Raises:
        RequestError: if types or lengths are wrong.
    """
    what, kind, _ = KINDS[spec.dtype]

    def is_right(value: Any, axes: int) -> bool:
        if axes:
            is_list = isinstance(value, list) and all(is_right(item, axes - 1) for item in value)
            return is_list and (axes == 1 or len({*map(len, value)}) <= 1)
        if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
            return False
        if spec.dtype == "int32":
            return -(2**31) <= value < 2**31
        # The comparison is false for NaN too.
        return spec.dtype != "float32" or abs(value) <= FLOAT32_MAX

    if not is_right(value, spec.axes):
        shape = " of equally long lists" if spec.axes > 1 else ""
        raise RequestError(400, f"{name!r} must be a list{shape} of {what} ({spec.dtype}).", value)
    if spec.dtype == "string":
        try:
            "".join(value).encode()
        except UnicodeEncodeError as error:
            must = f"{name!r} must be text that UTF-8 can encode."
            raise RequestError(400, f"{must} Received: half of a surrogate pair") from error
    return value


def to_json(rows: list, spec: Spec) -> list:
    """Returns rows as JSON lists: padded to the longest; numbers that are not finite are `None`."""
    return _padded(rows, [len(rows), *_longest(rows, spec.axes - 1)], KINDS[spec.dtype][2])


def _longest(rows, axes):
    """Returns the length of the longest row on each of the next `axes` levels of nested lists."""
    if not axes:
        return []
    inner_rows = [value for row in rows for value in row]
    return [max(map(len, rows), default=0), *_longest(inner_rows, axes - 1)]


def _padded(value, shape, padding):
    """Returns nested lists padded to a shape; numbers that are not finite are `None`."""
    if not shape:
        return None if isinstance(value, float) and not math.isfinite(value) else value
    size, *item_shape = shape
    filler = padding
    for length in reversed(item_shape):
        filler = [filler] * length
    items = [_padded(item, item_shape, padding) for item in value]
    return items + [filler] * (size - len(value))


def _has_length(value):
    return isinstance(value, str | list)


async def _serving_default(service, client, text):
    answers = await service.translate(text, client)
    return [
        (best.text, best.score, best.dropped_tokens > 0, best.unfinished, best.protected)
        for best, *_ in answers
    ]


async def _translate_n_best(service, client, text, **options):
    """Lines with the same options are one request of the service."""
    max_hypotheses = service.translator.settings.max_hypotheses
    groups: dict[tuple, list[int]] = {}  # values of the options -> numbers of the lines
    for number, values in enumerate(zip(*options.values(), strict=True)):
        groups.setdefault(values, []).append(number)

    async def translate(values, numbers):
        arguments = dict(zip(options, values, strict=True))
        try:
            return await service.translate(
                [text[number] for number in numbers],
                client,
                n_best=min(max(arguments["n_best"], 1), max_hypotheses),
                target_prefix=arguments["target_prefix"] or None,
                **{name: arguments.get(name) or None for name in LANGUAGES},
                alpha=SearchSettings.rule("alpha").nearest(arguments["alpha"]),
                max_length=SearchSettings.rule("max_length").nearest(arguments["max_length"]),
            )
        except RequestError as error:
            if error.status != 400 or len(groups) == 1:
                raise
            # The message may count the lines of its group.
            of_request = ", ".join(str(number + 1) for number in numbers)
            counted = f"among those with the same options, {of_request} of the request"
            raise RequestError(400, f"Below, lines are counted {counted}: {error}") from error

    requests = [
        asyncio.ensure_future(translate(values, numbers)) for values, numbers in groups.items()
    ]
    try:
        lines_of_groups = await asyncio.gather(*requests)
    finally:
        for request in requests:  # if one is refused, nobody waits for the others
            request.cancel()
    answers: list[Any] = [None] * len(text)
    for numbers, lines in zip(groups.values(), lines_of_groups, strict=True):
        for number, ranks in zip(numbers, lines, strict=True):
            rank_values = [(h.text, h.score, len(h.tokens), h.unfinished) for h in ranks]
            line_values = ranks[0].dropped_tokens > 0, ranks[0].protected
            answers[number] = *zip(*rank_values, strict=True), *line_values
    return answers


async def _score(service, client, source, target, **languages):
    defaults = service.translator.text_settings
    codes = {
        name: [code or getattr(defaults, name) for code in column]
        for name, column in languages.items()
    }
    hypotheses = await service.score(source, target, client, **codes)
    return [
        (hypothesis.log_prob, len(hypothesis.tokens), hypothesis.perplexity)
        for hypothesis in hypotheses
    ]


async def _tokenize(service, client, text):
    rows = await run_in_threadpool(encode_lines, service.translator.source_tokenizer, text)
    return [(row.tolist(), len(row)) for row in rows]


async def _detokenize(service, client, token_ids):
    tokenizer = service.translator.target_tokenizer
    size = tokenizer.vocabulary_size
    if not all(0 <= token_id < size for row in token_ids for token_id in row):
        raise RequestError(400, f"`token_ids` must be from 0 to {size - 1}.", token_ids)
    return [(text,) for text in await run_in_threadpool(tokenizer.decode, token_ids)]


async def _align(service, client, text, target):
    longest = max(map(len, [*text, *target]), default=0)
    service.limits.check_square(len(text), longest)
    source_names, target_names = (
        tokenizer.vocabulary for tokenizer in service.translator.tokenizers
    )
    alignments = await service.attend(text, target, LONGEST_ALIGNED, client)
    return [
        (
            scores.tolist(),
            [source_names[i] for i in source_ids],
            [target_names[i] for i in target_ids],
            len(source_ids),
            len(target_ids),
        )
        for source_ids, target_ids, scores in alignments
    ]


async def _search_tree(service, client, text):
    service.limits.check_square(len(text), max(map(len, text), default=0))
    vocabulary = service.translator.target_tokenizer.vocabulary
    answers = []
    for tree in await service.search_tree(text, client):
        is_filled = tree.log_probs != -math.inf  # an empty beam slot has no token
        tokens = [
            [vocabulary[i] if filled else "" for i, filled in zip(*step, strict=True)]
            for step in zip(tree.token_ids.tolist(), is_filled.tolist(), strict=True)
        ]
        numbers = tree.parents, tree.log_probs, tree.is_winner
        answers.append((tokens, *(array.tolist() for array in numbers)))
    return answers


@functools.lru_cache(maxsize=1)  # each request asks, and a server has one translator
def signatures_of(translator: Any) -> dict[str, Signature]:
    """Returns the signatures of a translator by their names.

    `align` and `search_tree` are missing if the engine cannot compute them.
    """
    settings, engine = translator.settings, translator.engine
    options = {
        "n_best": (COUNT, settings.max_hypotheses),
        "alpha": (NUMBER, settings.alpha),
        "max_length": (COUNT, settings.max_length or SearchSettings.rule("max_length").at_most),
        "target_prefix": (TEXT, ""),
    }
    if engine.card.get("target_languages"):
        options["target_language"] = TEXT, ""
    if engine.card.get("source_languages"):
        options["source_language"] = TEXT, ""
    # Those of `score`: a model with tags reads them from the lines.
    languages = [name for name in LANGUAGES if "source_language" in options]
    line_outputs = {"truncated": FLAG, "protected": TEXTS}
    signatures = [
        Signature(
            "serving_default",
            {"text": TEXT},
            {"translation": TEXT, "score": NUMBER, "truncated": FLAG, "unfinished": FLAG}
            | {"protected": TEXTS},
            _serving_default,
        ),
        Signature(
            "translate_n_best",
            {"text": TEXT} | {name: spec for name, (spec, _) in options.items()},
            {"translations": TEXTS, "scores": NUMBERS, "lengths": COUNTS, "unfinished": FLAGS}
            | line_outputs,
            _translate_n_best,
            {name: value for name, (_, value) in options.items()},
        ),
        Signature(
            "score",
            {"source": TEXT, "target": TEXT} | dict.fromkeys(languages, TEXT),
            {"log_prob": NUMBER, "tokens": COUNT, "perplexity": NUMBER},
            _score,
            dict.fromkeys(languages, ""),
        ),
        Signature("tokenize", {"text": TEXT}, {"token_ids": COUNTS, "lengths": COUNT}, _tokenize),
        Signature("detokenize", {"token_ids": COUNTS}, {"text": TEXT}, _detokenize),
    ]
    if "return_attention" not in engine.held:
        outputs = {"attention": Spec("float32", 3), "source_tokens": TEXTS, "target_tokens": TEXTS}
        outputs |= {"source_lengths": COUNT, "target_lengths": COUNT}
        signatures.append(Signature("align", {"text": TEXT, "target": TEXT}, outputs, _align))
    if engine.has_search_tree:
        outputs = {"tokens": Spec("string", 3), "parents": Spec("int32", 3)}
        outputs |= {"log_probs": Spec("float32", 3), "is_winner": Spec("bool", 3)}
        signatures.append(Signature("search_tree", {"text": TEXT}, outputs, _search_tree))
    return {signature.name: signature for signature in signatures}
