"""`SearchSettings`: how token ids are searched.

Pure Python, so that errors are raised before TensorFlow is imported.
"""

import inspect
import numbers
import types
import weakref
from collections.abc import Hashable
from dataclasses import dataclass, fields

from keras_transformer.settings import Settings, setting

_NAMED = types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type
_CONSTANT = (numbers.Number, str, bytes, *_NAMED)  # types of values that cannot change
# {code and values: a copy of the first function that has them}
_first_copies: weakref.WeakValueDictionary = weakref.WeakValueDictionary()


@dataclass(frozen=True, kw_only=True)
class SearchSettings(Settings):
    """The settings of the search of `Translator`, `load_run` and `beam_search`, or of one call.

    `alpha`, `length_ratio`, `extra_length` and `max_length` may change from call to call at no
    cost, except that a compiled search is compiled for its maximum length. Any other change, such
    as another processor or sampler, traces another graph. Two functions are the same processor if
    their code and the values that it uses are equal and cannot change; other processors are
    compared by `==`.

    Raises:
        ValueError: if a value is of another type or out of its range.

    Example:

    >>> SearchSettings(beam_size=8, alpha=1.0, max_length=200).max_hypotheses
    8
    """

    beam_size: int = setting(
        4,
        "Hypotheses that are extended side by side; 1 is greedy search.",
        at_least=1,
        default_text="`4`, the paper's",
    )
    length_penalty: str | None = setting(
        "gnmt",
        "The score is the sum of the log-probs divided by this penalty: `((5 + n) / 6)^alpha` as "
        "in the paper, `n^alpha`, or 1. `n` is the number of tokens, the end token included.",
        choices=("gnmt", "mean", None),
    )
    alpha: float = setting(
        0.6,
        "Exponent of the length penalty: a larger one favours longer translations.",
        at_least=-10,
        at_most=10,
        default_text="`0.6`, the paper's",
        may_change=True,
    )
    stopping: str = setting(
        "exhaustive",
        "When the search of a sentence ends: when nothing better is possible, or when `beam_size` "
        "hypotheses have ended. The latter is the rule of CTranslate2 and fairseq: a hypothesis "
        "may end only among the best `beam_size` of a step. Greedy search ignores it.",
        choices=("exhaustive", "first_beams"),
    )
    length_ratio: float = setting(
        1.0,
        "A translation has at most `length_ratio * source + extra_length` tokens, the product "
        "rounded down.",
        at_least=0,
        at_most=1_000,
        default_text="`1.0`, or what 99.9% of the training pairs of a run need",
        may_change=True,
    )
    extra_length: int = setting(
        50,
        "Tokens that a translation may have beyond `length_ratio` times the source's.",
        at_least=0,
        at_most=1_000_000,
        default_text="`50`, the paper's",
        may_change=True,
    )
    max_length: int | None = setting(
        None,
        "A translation also has at most this number of tokens, the end token and a target prefix "
        "included.",
        at_least=1,
        at_most=1_000_000,
        default_text="no such limit",
        may_change=True,
    )
    processors: tuple | list = setting(
        (),
        "Callables that constrain the next token, such as those of `decoding.processors`.",
    )
    suppressed_tokens: tuple | list = setting(
        (),
        "Ids of tokens that no translation has, unless its target prefix has them. The other "
        "tokens are not renormalised.",
    )
    force_end: bool = setting(
        False,
        "Whether a translation that reaches its maximum length ends with a forced end token of "
        "log-prob 0, as by `forced_eos_token_id` of `transformers`. If not, it has no end token.",
    )
    sampler: object = setting(
        None,
        "Sampler of KerasHub, such as `keras_hub.samplers.TopKSampler(k=5, seed=1)`, that draws "
        "the tokens. `beam_size` is then ignored. The draws depend on the other lines of the "
        "batch.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(callable(p) and isinstance(p, Hashable) for p in self.processors):
            self._reject("processors", "a tuple of callables that can be hashed")
        if not all(type(token) is int and token >= 0 for token in self.suppressed_tokens):
            self._reject("suppressed_tokens", "a list of token ids, ints of at least 0")
        if self.sampler is not None and not _draws_tokens(self.sampler):
            self._reject("sampler", "a sampler of KerasHub that draws single tokens")
        # A tuple can be hashed: the settings are the key of the traced graphs.
        for name in ("processors", "suppressed_tokens"):
            object.__setattr__(self, name, tuple(getattr(self, name)))

    def require_ids_below(self, vocabulary_size: int) -> None:
        """Raises a `ValueError` if a suppressed token is not in the model's vocabulary."""
        is_valid = max(self.suppressed_tokens, default=0) < vocabulary_size
        self._require("suppressed_tokens", is_valid, f"ids less than {vocabulary_size}")

    @property
    def max_hypotheses(self) -> int:
        """The number of hypotheses of a sentence: 1 if the search is greedy or draws."""
        return self.beam_size if self.sampler is None else 1

    def require_n_best(self, n_best: int) -> None:
        """Raises a `ValueError` if a search of these settings cannot return `n_best` hypotheses."""
        if not 1 <= n_best <= self.max_hypotheses:
            raise ValueError(
                "`n_best` must be from 1 to `beam_size`, and 1 with a sampler. Received: "
                f"{n_best=}, beam_size={self.beam_size}, sampler={self.sampler!r}"
            )

    @property
    def most_tokens(self) -> int:
        """`max_length`, or the greatest int32 without one."""
        return self.max_length or 2**31 - 1

    @property
    def graph_settings(self) -> "SearchSettings":
        """A copy that keeps `GRAPH_SETTINGS` only; the others have their defaults."""
        values = {name: getattr(self, name) for name in GRAPH_SETTINGS}
        return SearchSettings(**values | {"processors": tuple(map(_first_copy, self.processors))})


# The settings that a graph is traced for: a change of their values traces another graph.
GRAPH_SETTINGS = [
    field.name for field in fields(SearchSettings) if not SearchSettings.rule(field.name).may_change
]


def _first_copy(processor):
    """Returns one function for the same code and values, so that a graph is traced once.

    It is a copy: if a global variable changes, the function itself needs another graph. A function
    that uses a value that may change, such as a list, is equal only to itself.
    """
    if not isinstance(processor, types.FunctionType):
        return processor
    code, variables = processor.__code__, inspect.getclosurevars(processor)
    defaults = processor.__kwdefaults__ or {}
    mappings = variables.globals, variables.nonlocals, defaults, vars(processor)
    pairs = [pair for mapping in mappings for pair in mapping.items()]
    pairs += enumerate(processor.__defaults__ or ())
    # `getclosurevars` does not look into inner functions.
    has_inner = any(isinstance(constant, types.CodeType) for constant in code.co_consts)
    if has_inner or not all(_is_constant(value) for _, value in pairs):
        return processor
    typed_pairs = tuple((name, type(value), value) for name, value in pairs)  # since 1 == 1.0
    key = code, id(processor.__globals__), typed_pairs
    return _first_copies.setdefault(key, _copy_of(processor))


def _copy_of(function):
    """Returns another function with the same code, whose closure has the present values.

    Other functions with equal values use the copy too, so it must not follow this function's
    variables.
    """
    cells = function.__closure__ or ()
    copy = types.FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        tuple(types.CellType(cell.cell_contents) for cell in cells),
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    vars(copy).update(vars(function))
    return copy


def _is_constant(value):
    if isinstance(value, tuple):
        return all(map(_is_constant, value))
    return value is None or isinstance(value, _CONSTANT)


def _draws_tokens(sampler):
    """Whether a sampler has its own `get_next_token`: that of the base class raises an error."""
    owners = [kind for kind in type(sampler).__mro__ if "get_next_token" in vars(kind)]
    return bool(owners) and owners[0].__name__ != "Sampler"
