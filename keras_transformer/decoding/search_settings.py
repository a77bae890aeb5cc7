"""`SearchSettings`: how token ids are searched.

Pure Python, so that errors are raised before TensorFlow is imported.
"""

import inspect
import numbers
import types
import weakref
from collections.abc import Hashable
from dataclasses import dataclass

from keras_transformer.settings import Settings

MOST_ALPHA = 10
LENGTH_LIMITS = {"length_ratio": 1_000, "extra_length": 1_000_000}  # and their greatest values
CHOICES = {
    "length_penalty": ("gnmt", "mean", None),
    "stopping": ("exhaustive", "first_beams"),
}
GRAPH_SETTINGS = (
    "beam_size length_penalty stopping processors suppressed_tokens force_end sampler"
).split()
_NAMED = types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type
_CONSTANT = (numbers.Number, str, bytes, *_NAMED)  # what a processor uses and cannot change
_first_made: weakref.WeakValueDictionary = weakref.WeakValueDictionary()


@dataclass(frozen=True, kw_only=True)
class SearchSettings(Settings):
    """The settings of `Translator`, `load_run` and `beam_search`, and of each call.

    Args:
        beam_size: int. Hypotheses that are extended side by side; 1 is greedy search. Defaults to
            `4`, the paper's.
        length_penalty: `"gnmt"`: scores are sums of log-probs divided by `((5 + n) / 6)^alpha`, the
            paper's; `"mean"`: divided by `n^alpha`; `None`: sums. `n` is the number of tokens, the
            end token included.
        alpha: float from -10 to 10. A larger one favours longer translations. Defaults to `0.6`,
            the paper's.
        stopping: `"exhaustive"`: a sentence is done when no active hypothesis can still win;
            `"first_beams"`, the rule of CTranslate2 and fairseq: when `beam_size` hypotheses have
            ended, of those among the best `beam_size` of a step. Greedy search ignores it. Defaults
            to `"exhaustive"`.
        length_ratio: float from 0 to 1,000. A translation has at most `length_ratio * source +
            extra_length` tokens, the product rounded down. Defaults to `1.0`; for `load_run` to
            more if 99.9% of the training pairs needed it.
        extra_length: int from 0 to 1,000,000, in tokens. Defaults to `50`, the paper's.
        max_length: int from 1 to 1,000,000. A translation also has at most this number of tokens,
            the end token and a target prefix included. Defaults to no such limit.
        processors: tuple of callables that constrain the next token, such as those of
            `decoding.processors`. Defaults to none.
        suppressed_tokens: tuple or list of token ids that no translation has, unless its target
            prefix has them. The other tokens are not renormalised. Defaults to none.
        force_end: bool. Whether the end token is forced, with log-prob 0, as the last token of the
            maximum length, as by `forced_eos_token_id` of `transformers`. If not, a translation
            that reaches its maximum length has no end token. Defaults to `False`.
        sampler: KerasHub sampler, such as `keras_hub.samplers.TopKSampler(k=5, seed=1)`, that draws
            the tokens. `beam_size` is then ignored. The draws depend on the other lines of the
            batch. Optional.

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

    beam_size: int = 4
    length_penalty: str | None = "gnmt"
    alpha: float = 0.6
    stopping: str = "exhaustive"
    length_ratio: float = 1.0
    extra_length: int = 50
    max_length: int | None = None
    processors: tuple | list = ()
    suppressed_tokens: tuple | list = ()
    force_end: bool = False
    sampler: object = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("beam_size", self.beam_size >= 1, "at least 1")
        most = MOST_ALPHA
        self._require("alpha", -most <= self.alpha <= most, f"from -{most} to {most}")
        if self.max_length is not None and not 1 <= self.max_length <= 1_000_000:
            self._reject("max_length", "from 1 to 1,000,000")
        for name, most in LENGTH_LIMITS.items():
            self._require(name, 0 <= getattr(self, name) <= most, f"from 0 to {most:,}")
        if not all(callable(p) and isinstance(p, Hashable) for p in self.processors):
            self._reject("processors", "a tuple of callables that can be hashed")
        if not all(type(token) is int and token >= 0 for token in self.suppressed_tokens):
            self._reject("suppressed_tokens", "a list of token ids, ints of at least 0")
        if self.sampler is not None and not _draws_tokens(self.sampler):
            self._reject("sampler", "a sampler of KerasHub that draws single tokens")
        for name, choices in CHOICES.items():
            self._require_choice(name, choices)
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
        """Raises a `ValueError` if a search of these settings does not have `n_best` hypotheses."""
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
        """The settings that a graph is traced for; the others are the defaults."""
        values = {name: getattr(self, name) for name in GRAPH_SETTINGS}
        return SearchSettings(**values | {"processors": tuple(map(_first_equal, self.processors))})


def _first_equal(processor):
    """Returns the first function with the same code and values, so that a graph is made once.

    A function that uses a value that may change, such as a list, is equal to none but itself.
    """
    if not isinstance(processor, types.FunctionType):
        return processor
    code, used = processor.__code__, inspect.getclosurevars(processor)
    mappings = used.globals, used.nonlocals, processor.__kwdefaults__ or {}, vars(processor)
    pairs = [pair for mapping in mappings for pair in mapping.items()]
    pairs += enumerate(processor.__defaults__ or ())
    # `getclosurevars` does not look into inner functions.
    has_inner = any(isinstance(constant, types.CodeType) for constant in code.co_consts)
    if has_inner or not all(_is_constant(value) for _, value in pairs):
        return processor
    typed = tuple((name, type(value), value) for name, value in pairs)  # since 1 == 1.0
    return _first_made.setdefault((code, id(processor.__globals__), typed), processor)


def _is_constant(value):
    if isinstance(value, tuple):
        return all(map(_is_constant, value))
    return value is None or isinstance(value, _CONSTANT)


def _draws_tokens(sampler):
    """Whether a sampler has its own `get_next_token`: that of the base class raises an error."""
    owners = [kind for kind in type(sampler).__mro__ if "get_next_token" in vars(kind)]
    return bool(owners) and owners[0].__name__ != "Sampler"
