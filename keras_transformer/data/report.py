"""`DatasetReport`: what a dataset holds, and warnings about the text that it loses or changes."""

import collections
import dataclasses
import os
from collections.abc import Iterable, Sequence
from typing import Any

from keras_transformer.data.pieces import UNICODE
from keras_transformer.data.tokenizer_like import TokenizerLike, encode_in_languages
from keras_transformer.texts import EXAMPLES, SHOWN, shown, shown_pairs, shown_symbol

MAX_LOST = 0.01  # from this fraction of dropped pairs, or of changed lines, there is a warning
MAX_UNKNOWN = 0.01  # above this fraction of tokens that are unknown or bytes, there is a warning
SAMPLE_SIZE = 1000
LONGEST_SAMPLED = 1000  # characters; longer lines are left out of a sample
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]


@dataclasses.dataclass(frozen=True)
class TextChanges:
    """What a tokenizer loses of the lines of a sample.

    Attributes:
        name: what the lines are, such as `"source"`.
        lines: number of lines of the sample.
        changed: number of lines that are not the same after tokenizing and detokenizing.
        examples: some of the changed lines, before and after, as text.
        unknown_tokens: fraction of the tokens that are the unknown token.
        byte_tokens: fraction of the tokens that are bytes of characters without a token.
    """

    name: str
    lines: int
    changed: int
    examples: tuple[str, ...]
    unknown_tokens: float = 0.0
    byte_tokens: float = 0.0

    @property
    def lacks_characters(self) -> bool:
        """Whether too many tokens are unknown or bytes."""
        return self.unknown_tokens + self.byte_tokens > MAX_UNKNOWN

    @property
    def shares(self) -> str:
        """The fractions of unknown tokens and of byte tokens, as text."""
        unknown, in_bytes = self.unknown_tokens, self.byte_tokens
        return f"{unknown:.2%} of the {self.name} tokens are unknown, {in_bytes:.2%} are bytes"

    @property
    def warnings(self) -> list[str]:
        """A line if the vocabulary lacks too many characters, and one if too much is changed."""
        warnings = []
        if self.lacks_characters:
            warnings.append(f"{self.shares}: train the vocabulary on this text")
        share = self.changed / max(1, self.lines)
        if share >= MAX_LOST:
            warnings.append(
                f"the tokenizer changes {share:.1%} of the {self.name} lines ({self.changed:,} of "
                f"{self.lines:,}): {', '.join(self.examples)}; the model never sees or writes "
                "the former: train the vocabulary with `normalization: nfc` or `identity`, or "
                "clean the text"
            )
        return warnings


@dataclasses.dataclass(frozen=True)
class DatasetReport:
    """Statistics of a dataset: pairs kept and dropped, tokens, padding. `print` shows them.

    Attributes:
        pairs_read: sentence pairs of the corpus.
        pairs_kept: sentence pairs of the dataset, each counted once, whatever the weight of its
            corpus.
        dropped: number of pairs for each reason: `"empty"`, `"too long"`, `"length ratio"`.
        batches_per_epoch: number of batches, the same in every epoch.
        source_tokens: tokens of the encoder's side per epoch, END included, without BPE-dropout,
            which makes more.
        target_tokens: labels per epoch, END included, without BPE-dropout.
        source_slots: token slots of the encoder in the first epoch, padding included.
        target_slots: token slots of the decoder in the first epoch, padding included.
        changes: the `TextChanges` of source and target, of at most 1,000 lines of each side.
        warnings: lines of text, with examples: from 1% of dropped pairs on, from 1% of lines
            that a tokenizer changes, and from 1% of unknown and byte tokens.
        shapes: the shapes `(B, S, T)` of all batches, if their number is limited.
        notes: lines on the corpora: passes and pairs of each, what was left out, with examples, and
            how many pairs are in other splits too.
        overlaps: how many pairs, and how many of their sources, are in other splits too:
            `{name of the split: {"sources": number, "pairs": number}}`.
    """

    pairs_read: int
    pairs_kept: int
    dropped: dict[str, int]
    batches_per_epoch: int
    source_tokens: int
    target_tokens: int
    source_slots: int
    target_slots: int
    changes: tuple[TextChanges, ...] = ()
    warnings: tuple[str, ...] = ()
    shapes: tuple[tuple[int, int, int], ...] = ()
    notes: tuple[str, ...] = ()
    overlaps: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)

    @property
    def efficiency(self) -> float:
        """Fraction of all token slots that hold tokens; the rest is padding."""
        tokens = self.source_tokens + self.target_tokens
        return tokens / (self.source_slots + self.target_slots)

    def __str__(self):
        source = self.source_tokens / self.source_slots
        target = self.target_tokens / self.target_slots
        shapes = f", in {len(self.shapes)} shapes of batches" if self.shapes else ""
        lines = [
            f"{self.pairs_kept:,} of {self.pairs_read:,} pairs kept "
            f"(dropped: {described(self.dropped)})",
            f"{self.batches_per_epoch:,} batches per epoch, {self.source_tokens:,} source and "
            f"{self.target_tokens:,} target tokens",
            f"{self.efficiency:.1%} of the token slots are real tokens "
            f"(source {source:.1%}, target {target:.1%}){shapes}",
            *(
                change.shares
                for change in self.changes
                if change.unknown_tokens or change.byte_tokens
            ),
            *self.notes,
        ]
        return "\n".join([*lines, *(f"Warning: {warning}" for warning in self.warnings)])


class Sample:
    """Every n-th item of a stream; n doubles when the sample exceeds `SAMPLE_SIZE`.

    Args:
        stream: iterable of items. Iterating over a `Sample` yields them all. Optional.

    Attributes:
        items: the items of the sample.
        number: number of all items so far.
    """

    def __init__(self, stream: Iterable[Any] = ()) -> None:
        self.items: list[Any] = []
        self._stream, self._every, self.number = stream, 1, 0

    def __iter__(self):
        for item in self._stream:
            self.extend([item])
            yield item

    def __repr__(self):
        return repr(self._stream)

    def extend(self, items: Sequence[Any]) -> None:
        """Adds every n-th of the next items."""
        # An item is in the sample if the number of items before it is a multiple of `_every`.
        self.items += items[-self.number % self._every :: self._every]
        self.number += len(items)
        while len(self.items) > SAMPLE_SIZE:
            self.items, self._every = self.items[::2], 2 * self._every


def text_changes(
    name: str,
    tokenizer: TokenizerLike,
    lines: Iterable[str],
    language_ids: Sequence[int] | None = None,
) -> TextChanges:
    """Tokenizes and detokenizes lines of text, and compares the results with the lines.

    Args:
        name: what the lines are, such as `"source"`.
        tokenizer: `TokenizerLike`.
        lines: strings. Those of more than 1,000 characters are left out.
        language_ids: the language token of each line, if lines are split by language. Optional.
    """
    lines = list(lines)
    indices = [index for index, line in enumerate(lines) if len(line) <= LONGEST_SAMPLED]
    languages = None if language_ids is None else [language_ids[index] for index in indices]
    lines = [lines[index] for index in indices]
    rows = encode_in_languages(tokenizer, lines, languages)
    texts = tokenizer.decode(rows)
    changed = [pair for pair in zip(lines, texts, strict=True) if pair[0] != pair[1]]
    examples = tuple(_difference(*pair) for pair in changed[:EXAMPLES])
    shares = _shares_of_tokens(tokenizer, rows)
    return TextChanges(name, len(lines), len(changed), examples, *shares)


def _shares_of_tokens(tokenizer, rows):
    """Returns the fractions of unknown tokens and of byte tokens in rows of token ids."""
    vocabulary = tokenizer.vocabulary
    counts = collections.Counter(vocabulary[i] for row in rows for i in row)
    unknown_id = tokenizer.unk_token_id
    unknown = "<unk>" if unknown_id is None else vocabulary[unknown_id]
    in_bytes = sum(counts[token] for token in BYTE_TOKENS)
    total = max(1, counts.total())
    return counts[unknown] / total, in_bytes / total


class UnknownSymbols:
    """Counts the symbols of lines that a tokenizer of symbols lacks; other tokenizers lack none.

    Args:
        tokenizer: `TokenizerLike`.
        lines: lines whose symbols are counted first. Defaults to none.

    Attributes:
        counts: how often each unknown symbol stands in the lines.
    """

    def __init__(self, tokenizer: Any, lines: Iterable[str] = ()) -> None:
        self._count: Any = tokenizer.unknown
        self.counts: collections.Counter[str] = collections.Counter()
        self._lines: dict[str, tuple[int, str]] = {}  # where each symbol stands first
        self.add(lines)

    def add(self, lines: Iterable[str], first: int = 1) -> None:
        """Counts the symbols of more lines; `first` is the number of the first of these lines."""
        for number, line in enumerate(lines if self._count else (), first):
            for symbol, times in self._count([line]).items():
                self.counts[symbol] += times
                self._lines.setdefault(symbol, (number, line))

    def note(self, name: str) -> str | None:
        """Returns a line of text on the unknown symbols, `None` if there are none.

        Args:
            name: name of the counted lines, such as `"the source"`.
        """
        if not self.counts:
            return None
        frequent = [symbol for symbol, _ in self.counts.most_common(5)]
        examples = ", ".join(
            f"{shown_symbol(symbol)} {self.counts[symbol]:,} times "
            f"(line {self._lines[symbol][0]:,})"
            for symbol in frequent
        )
        note = (
            f"{self.counts.total():,} symbols of {name} are not in the vocabulary, and are <unk> "
            f"to the model; {len(self.counts):,} different ones: {examples}"
        )
        if any(self._has_other_form(self._lines[symbol][1]) for symbol in frequent):
            note += ". Train with `normalization: nfc`: the text spells accents otherwise"
        return note

    def _has_other_form(self, line):
        """Whether the vocabulary lacks fewer symbols of a line in another form of Unicode."""
        forms = [UNICODE.normalize(form, line) for form in ("NFC", "NFD")]
        return min(self._count([form]).total() for form in forms) < self._count([line]).total()


def dropped_warnings(dropped, examples, total, longest, ratio):
    """Returns a warning for each reason if too many pairs are dropped in all, else `[]`.

    Args:
        dropped: {reason: number of pairs}.
        examples: {reason: list of (source, target) texts}.
        total: number of all pairs.
        longest: maximum tokens of a side.
        ratio: `max_length_ratio` of `make_dataset`.
    """
    if sum(dropped.values()) < MAX_LOST * total:
        return []
    advice = {
        "empty": "mend the files",
        "too long": "raise `max_length`, `batch_tokens` or the model's `max_sequence_length`, "
        f"which allow {longest} tokens",
        "length ratio": f"raise `max_length_ratio` (now {ratio})",
    }
    return [
        f"{number / total:.1%} of the pairs ({number:,} of {total:,}) are dropped, {reason}: "
        + shown_pairs(examples[reason])
        + f"; {advice[reason]}"
        for reason, number in dropped.items()
        if number
    ]


def sample_notes(tokenizers):
    """Returns a line for each sample of lines that a vocabulary was learned from."""
    samples = dict.fromkeys(tokenizer.learned_from for tokenizer in tokenizers)
    return [f"the vocabulary is learned from {sample}" for sample in samples if sample]


def described(dropped):
    """Returns `{reason: number of pairs}` as text."""
    return ", ".join(f"{reason} {number:,}" for reason, number in dropped.items())


def _difference(before, after):
    """Returns two texts, shortened, from a little before the place where they differ."""
    start = max(0, len(os.path.commonprefix([before, after])) - SHOWN // 2)
    return f"{shown(before[start:])} -> {shown(after[start:])}"
