"""Settings of a run's vocabulary: the section `vocabulary` of a recipe. Pure Python."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from keras_transformer.data.pieces import NORMALIZATIONS, SYMBOL_NORMALIZATIONS
from keras_transformer.data.training_lines import LEAST_COVERAGE
from keras_transformer.settings import Settings, setting

CHARACTERS = ("characters", "graphemes")
KINDS = ("subwords", *CHARACTERS, "words")
# The settings that a vocabulary is trained with. With an existing vocabulary, they must be unset.
TRAINED = (
    "size",
    "symbols",
    "model_type",
    "normalization",
    "character_coverage",
    "protected_symbols",
)


@dataclass(frozen=True, kw_only=True)
class VocabularySettings(Settings):
    """Settings of the vocabulary."""

    source: str = setting(
        "subwords",
        "What a token of the source is: `characters` are code points, `graphemes` are letters with "
        "their accents, `words` are separated by white space. See `Tokenizer`.",
        choices=KINDS,
    )
    target: str = setting("subwords", "What a token of the target is.", choices=KINDS)
    size: int = setting(
        8000,
        "Number of tokens, including special tokens and bytes. For all but subwords, it is the "
        "maximum number.",
        at_least=8,
    )
    joint: bool = setting(
        True,
        "One vocabulary for both sides, if both are of one kind. If not, `tie_embeddings` of a "
        "preset is `decoder`.",
    )
    symbols: list | None = setting(
        None,
        "Texts that are one token each, such as `[V;PST, <en>]`. For characters and graphemes.",
    )
    model_type: str = setting(
        "bpe", "How subwords are learned; `bpe` is the paper's.", choices=("unigram", "bpe")
    )
    normalization: str | list | None = setting(
        None,
        "`nfc`, `nfkc` or `identity` for subwords, `nfc`, `nfd` or `identity` for the other kinds; "
        "or a list of two, for source and target.",
        default_text="`nfc` for subwords, to `identity` for the other kinds",
    )
    character_coverage: float = setting(
        1.0,
        "Fraction of the text's characters that get a token; the rarest ones are written as bytes.",
        at_least=LEAST_COVERAGE,
        at_most=1,
    )
    protected_symbols: int = setting(
        0,
        "Number of symbols that take the place of protected text, 0 or at least 2. A line with "
        "more protected texts is cut around them.",
    )
    files: list | None = setting(
        None,
        "Existing vocabularies, relative to the data folder: one if `joint`, else source and "
        "target. No vocabulary is then trained, and the keys for its training must be left out, as "
        "with `init_from`.",
    )

    def __post_init__(self):
        self._make_lists("files")
        super().__post_init__()
        if self.source != self.target:
            object.__setattr__(self, "joint", False)
        elif self.normalization is None:
            object.__setattr__(self, "normalization", self.sides[0][1])
        if isinstance(self.normalization, list):
            is_valid = len(self.normalization) == 2 and not self.joint
            self._require("normalization", is_valid, "one; or two, if the vocabulary is not joint")
        for kind, rule in self.sides:
            rules = NORMALIZATIONS if kind == "subwords" else SYMBOL_NORMALIZATIONS
            self._require("normalization", rule in rules, f"one of {', '.join(rules)} for {kind}")
        if self.protected_symbols:
            is_valid = 2 <= self.protected_symbols < self.size
            is_valid = is_valid and self.source == self.target == "subwords"
            must = "0, or at least 2 and less than `size`, of subwords"
            self._require("protected_symbols", is_valid, must)
        if self.symbols is not None:
            is_valid = all(isinstance(symbol, str) for symbol in self.symbols)
            is_valid = is_valid and not {self.source, self.target}.isdisjoint(CHARACTERS)
            self._require("symbols", is_valid, "a list of texts, if a side has characters")
        if self.files is not None:
            is_valid = len(self.files) == (1 if self.joint else 2)
            is_valid = is_valid and all(isinstance(path, str) for path in self.files)
            self._require("files", is_valid, "one file, or two if not joint")

    def require_inherited(
        self, origin: str, tokenizers: Sequence[Any], other: "VocabularySettings | None"
    ) -> None:
        """Raises a `ValueError` unless each key has its default or the existing vocabulary's value.

        Args:
            origin: where the vocabulary is from, for the error.
            tokenizers: its tokenizers.
            other: the settings that it was trained with; `None` if unknown.
        """
        # The default of `normalization` depends on the kinds, so set these.
        unset = VocabularySettings(source=self.source, target=self.target, joint=self.joint)
        defaults = unset.to_dict() | {"source": KINDS[0], "target": KINDS[0]}
        rules = [tokenizer.normalization for tokenizer in tokenizers]
        sizes = [tokenizer.vocabulary_size for tokenizer in tokenizers]
        # `normalization` may be one rule, or the list of both.
        actual: dict[str, list[Any]] = {"size": sizes, "normalization": [rules, *rules]}
        for name in TRAINED if other is None else (*TRAINED, "source", "target", "files"):
            other_value = None if other is None else getattr(other, name)
            allowed = [defaults[name], other_value, *actual.get(name, ())]
            value = getattr(self, name)
            if value not in allowed:
                raise ValueError(
                    f"`{name}` of `vocabulary` must be left out: the vocabulary is that of "
                    f"{origin}. Received: {name}={value!r}"
                )

    @property
    def sides(self) -> list[tuple[str, str]]:
        """Kind and normalization of source and target."""
        rules = self.normalization
        if not isinstance(rules, list):
            rules = [rules, rules]
        return [
            (kind, rule or ("nfc" if kind == "subwords" else "identity"))
            for kind, rule in zip((self.source, self.target), rules, strict=False)
        ]
