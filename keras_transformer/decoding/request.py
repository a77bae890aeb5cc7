"""From lines of text to rows of token ids, and from hypotheses back to lines.

Plain Python and NumPy: imports neither Keras nor a backend.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from keras_transformer.data.placeholders import count_symbols
from keras_transformer.decoding.batches import LONGEST_ROW
from keras_transformer.decoding.hypothesis import Hypothesis
from keras_transformer.decoding.languages import language_tokens
from keras_transformer.decoding.lines import (
    NO_ROOM,
    encode_lines,
    learned_positions,
    longest_target,
    require_at_most,
)
from keras_transformer.decoding.long_lines import LineCutter
from keras_transformer.decoding.protected_text import find_unknown, mask
from keras_transformer.decoding.search_settings import SearchSettings
from keras_transformer.decoding.text_lines import Line
from keras_transformer.decoding.text_settings import TextSettings

_TRUNCATE = 'or truncate it: `on_too_long="truncate"` (`--on-too-long truncate`)'


@dataclass(frozen=True)
class Languages:
    """The language tokens of lines, for a model that has such tokens.

    Args:
        source, target: lists of ints: the token of each line, and the token of its translation.
    """

    source: list[int]
    target: list[int]

    def of(self, numbers: Sequence[int] | np.ndarray) -> "Languages":
        """Returns the languages of the lines with these numbers."""
        return Languages([self.source[n] for n in numbers], [self.target[n] for n in numbers])


class LineReader:
    """Reads lines into rows of token ids, by the tokenizers and the bounds of an engine.

    Args:
        tokenizers: those of source and target.
        config: special token ids and positions, as in `TransformerConfig`.

    Attributes:
        languages: list of codes: the target languages that the source's tokenizer has tags for.
        language_ids: dict from the codes of languages to tokens, see `TokenizerLike`.
        positions: int, the most tokens of a line that the model has learned positions for, with the
            end token; `None`: any number.
        symbols: int, how many symbols for protected text both vocabularies hold.
        joiner: str, what stands between translations where nothing stood between the sources.
    """

    def __init__(self, tokenizers: tuple[Any, Any], config: Any) -> None:
        source, target = self._tokenizers = tokenizers
        self._config = config
        self._cutter = LineCutter(source)
        self.languages = [*source.languages]
        self.language_ids = dict(source.language_ids)
        self._num_languages = int(bool(self.language_ids))
        self.positions = learned_positions(config, self._num_languages)
        self.symbols = count_symbols(source.vocabulary, target.vocabulary)
        self.joiner = target.joiner

    def lines(
        self,
        texts: list[str],
        settings: TextSettings,
        is_whole: bool,
        symbols: int,
        language_ids: list[int] | None = None,
    ) -> list[Line]:
        """Returns lines that are split into parts, and the parts into pieces of token ids.

        Args:
            texts: list of strings, with the tags of their languages.
            settings: `TextSettings`, with `max_source_tokens`.
            is_whole: whether no line may be split or cut.
            symbols: as in `Line.read`.
            language_ids: the language token of each line, if the model has language tokens.

        Raises:
            ValueError: if a line is too long, and may not be split.
        """
        split = "lines" if is_whole else settings.split
        protect = () if is_whole else tuple(settings.protect or ())
        has_tags = bool(self.languages)
        if language_ids:
            masks = [self._mask(protect, token_id) for token_id in language_ids]
        else:
            masks = [self._mask(protect, None)] * len(texts)
        lines = [
            Line.read(text, split, has_tags, mask_line, symbols)
            for text, mask_line in zip(texts, masks, strict=True)
        ]
        parts = [part for line in lines for part in line.parts]
        numbers = [number for number, line in enumerate(lines) for _ in line.parts]
        ids_of_parts = language_ids and [language_ids[number] for number in numbers]
        rows = encode_lines(self._tokenizers[0], [part.text for part in parts], ids_of_parts)
        max_tokens, on_too_long = settings.max_source_tokens or 0, settings.on_too_long
        if on_too_long == "error" or (is_whole and on_too_long == "split"):
            why = ", because attention is returned" if is_whole else ""
            require_at_most(
                max_tokens, f"`max_source_tokens`{why}", rows, "lines", _TRUNCATE, lines=numbers
            )
        for part, row in zip(parts, rows, strict=True):
            part.pieces, part.dropped = self._cutter.cut(row, max_tokens - 1, on_too_long)
        return lines

    def _mask(self, protect, language_id):
        """Returns the function that masks protected text; `None` if nothing is protected."""
        if not protect:
            return None
        source = self._tokenizers[0]
        source = source if language_id is None else source.for_language(language_id)
        return partial(mask, protect, partial(find_unknown, source, self._config.unk_token_id))

    def languages_of(self, source: Any, target: Any, count: int) -> Languages | None:
        """Returns the languages of lines; `None` if the model has no tokens of languages.

        Args:
            source, target: one code for all lines, or a code for each line; `None` if not given.
            count: the number of lines.

        Raises:
            ValueError: if a language is missing, or is not one of the model's.
        """
        if self.language_ids:
            return Languages(
                language_tokens(source, "source_language", self.language_ids, count),
                language_tokens(target, "target_language", self.language_ids, count),
            )
        if source is not None:
            must = "`source_language` must not be given: the model has no tokens of languages."
            raise ValueError(f"{must} Received: source_language={source!r}")
        return None

    def prefixes(
        self,
        texts: list[str],
        lines: list[Line],
        settings: SearchSettings,
        language_ids: list[int] | None = None,
    ) -> list[Any]:
        """Returns the forced first ids of each piece.

        Only the first piece with tokens of each line gets any.

        Args:
            texts: list of strings, the prefix of each line.
            lines: list of `Line`, with pieces.
            settings: `SearchSettings`.
            language_ids: the language token of each prefix, if the model has language tokens.

        Raises:
            ValueError: if a prefix leaves no room for another token.
        """
        if len(texts) != len(lines):
            raise ValueError(
                "`target_prefix` must be one string, or one for each line. "
                f"Received: {len(texts)} prefixes, {len(lines)} lines"
            )
        bound, num_languages = self.positions or LONGEST_ROW, self._num_languages
        whole = self.whole_lines(texts, "target_prefix", 1, language_ids=language_ids)
        rows = []
        for number, (line, ids) in enumerate(zip(lines, whole, strict=True), start=1):
            prefix, no_prefix = ids[:-1], ids[:0]
            for piece in line.pieces:
                if not len(piece):  # an empty source gets no prefix
                    rows.append(no_prefix)
                    continue
                longest = longest_target(len(piece) + 1, settings, self._config, num_languages)
                room = min(bound, longest)
                if len(prefix) >= room:
                    raise ValueError(NO_ROOM.format(number, len(prefix), room))
                rows.append(prefix)
                prefix = no_prefix
        return rows

    def whole_lines(
        self,
        texts: list[str],
        name: str,
        side: int,
        most_tokens: int | None = None,
        language_ids: list[int] | None = None,
    ) -> list[Any]:
        """Returns the ids of lines with their end tokens; raises if one is too long to be decoded.

        Args:
            texts: list of strings.
            name: that of the argument, for the error.
            side: 0 for the source, 1 for the target.
            most_tokens: int, `max_source_tokens`: maximum tokens of a line if the model has no
                learned positions; below 2,048, it counts as 2,048. Defaults to 2,048, which this
                setting does not change.
            language_ids: the language token of each line, if the model has language tokens.
        """
        token_ids = encode_lines(self._tokenizers[side], texts, language_ids)
        most = self.positions
        if most is not None:
            require_at_most(most, "the model's positions", token_ids, name)
        else:
            most, advice = max(LONGEST_ROW, most_tokens or 0), ""
            if most_tokens is not None:
                advice = "or give a larger `max_source_tokens` (`--max-source-tokens`)"
            require_at_most(most, "to fit into memory", token_ids, name, advice)
        return self.with_end(token_ids)

    def with_end(self, rows: Any) -> list[np.ndarray]:
        """Returns rows of ids with their end tokens."""
        return [np.append(row, self._config.end_token_id).astype("int32") for row in rows]

    def with_languages(self, rows: Any, language_ids: Iterable[int]) -> list[np.ndarray]:
        """Returns rows with the tokens of their languages in front.

        Rows with no token but the end token get none.
        """
        pairs = zip(rows, language_ids, strict=True)
        return [np.insert(row, 0, token) if len(row) > 1 else row for row, token in pairs]


@dataclass(frozen=True, kw_only=True)
class Request:
    """Lines to translate: makes rows for an engine, and joins their hypotheses to those of lines.

        answers = [[]] * len(lines)
        while request is not None:
            request.fill(answers, [... the hypotheses of each row of `request.columns` ...])
            request = request.again(answers)

    Args:
        reader: `LineReader`.
        texts: list of strings, the lines with the tags of their languages.
        prefixes: list of strings, the forced beginnings of their translations. Optional.
        settings: `SearchSettings`.
        text_settings: `TextSettings`, with `max_source_tokens`.
        n_best: int. Hypotheses of each line.
        languages: `Languages` of the lines, if the model has such tokens.
        returns_attention: whether the hypotheses have attention: then no line is split or cut.
            Defaults to `False`.
        places: list of ints, the index in `answers` of each line. Defaults to the line's own index.
        lost: list of lists of strings: the protected text that the model lost in each line. The
            lines are then cut around it. Defaults to `None`: a first translation.

    Attributes:
        lines: list of `Line`, with pieces.
        columns: lists of rows of token ids, one row for each piece, as arguments of
            `Translator.search_rows`: sources; then prefixes, if there are any or the model has
            tokens of languages; then these tokens.
    """

    reader: LineReader
    texts: list[str]
    settings: SearchSettings
    text_settings: TextSettings
    n_best: int
    prefixes: list[str] | None = None
    languages: Languages | None = None
    returns_attention: bool = False
    places: Sequence[int] = ()
    lost: list[list[str]] | None = None
    lines: list[Line] = field(init=False)
    columns: list[list[Any]] = field(init=False)

    def __post_init__(self) -> None:
        reader, languages = self.reader, self.languages
        source_languages = None if languages is None else languages.source
        target_languages = None if languages is None else languages.target
        symbols = reader.symbols if self.lost is None else 0
        lines = reader.lines(
            self.texts, self.text_settings, self.returns_attention, symbols, source_languages
        )
        object.__setattr__(self, "lines", lines)
        rows = reader.with_end(piece for line in lines for piece in line.pieces)
        prefixes: list[Any] = [()] * len(rows)
        if self.prefixes is not None:
            prefixes = reader.prefixes(self.prefixes, lines, self.settings, target_languages)
        columns: list[list[Any]] = [rows]
        if languages is not None:
            row_languages = languages.of(self.line_of_row)
            rows = reader.with_languages(rows, row_languages.source)
            columns = [rows, prefixes, [[token_id] for token_id in row_languages.target]]
        elif self.prefixes is not None:
            columns = [rows, prefixes]
        object.__setattr__(self, "columns", columns)

    @property
    def line_of_row(self) -> np.ndarray:
        """The line of each row, int array `(P,)`, ascending."""
        return np.repeat(np.arange(len(self.lines)), [len(line.pieces) for line in self.lines])

    def fill(self, answers: list[list[Hypothesis]], hypotheses: list[list[Hypothesis]]) -> None:
        """Puts the hypotheses of each line into its place of `answers`.

        Args:
            answers: list of the hypotheses of all lines.
            hypotheses: list of the hypotheses of each row.
        """
        rows = iter(hypotheses)
        for number, line in enumerate(self.lines):
            piece_hypotheses = list(itertools.islice(rows, len(line.pieces)))
            ranks = line.join(piece_hypotheses, self.reader.joiner, self.settings)
            if self.lost is not None:
                ranks = [replace(hypothesis, protected=self.lost[number]) for hypothesis in ranks]
            # Joined pieces may be equal, and symbols in another order, of equal text.
            if self.text_settings.distinct_texts:
                best_of_text: dict[str, Hypothesis] = {}
                for hypothesis in ranks:
                    best_of_text.setdefault(hypothesis.text, hypothesis)
                ranks = [*best_of_text.values()]
            answers[self.places[number] if self.places else number] = ranks

    def again(self, answers: list[list[Hypothesis]]) -> "Request | None":
        """Returns a request for the lines whose protected text the model lost; `None` without any.

        It cuts them around this text, and so loses none: its own `again` returns `None`. A line
        keeps its answer if its prefix leaves no room in the first part.
        """
        if self.lost is not None:
            return None
        wrong = [number for number, (best, *_) in enumerate(answers) if best.protected]
        if self.prefixes is not None:
            wrong = [number for number in wrong if self._may_be_cut(number, answers)]
        return self._cut(wrong, answers) if wrong else None

    def _may_be_cut(self, number, answers):
        """Whether the prefix of a line leaves room in the first part of the line."""
        try:
            self._cut([number], answers)
        except ValueError:
            return False
        return True

    def _cut(self, numbers, answers):
        """Returns a request that cuts lines around the protected text that the model lost."""
        return replace(
            self,
            texts=[self.texts[number] for number in numbers],
            prefixes=self.prefixes and [self.prefixes[number] for number in numbers],
            languages=self.languages and self.languages.of(numbers),
            places=numbers,
            lost=[answers[number][0].protected for number in numbers],
        )
