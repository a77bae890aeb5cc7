"""`LineTranslator`: lines of text around a search of token ids, whatever runs the search.

Plain Python and NumPy: imports neither Keras nor a backend.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from keras_transformer.data.placeholders import count_symbols, symbols
from keras_transformer.decoding.batches import BATCH_SENTENCES, LONGEST_ROW, map_rows
from keras_transformer.decoding.hypothesis import join_by_line
from keras_transformer.decoding.languages import tag_lines
from keras_transformer.decoding.lines import (
    NO_ROOM,
    encode_lines,
    learned_positions,
    longest_target,
    require_at_most,
    to_lines,
)
from keras_transformer.decoding.long_lines import LineCutter
from keras_transformer.decoding.protected_text import NAMES, find_unknown, mask
from keras_transformer.decoding.reports import warn_of
from keras_transformer.decoding.search_settings import SearchSettings
from keras_transformer.decoding.sentences import split_lines

_MAX_SOURCE_TOKENS = 256  # as the default `max_length` of `make_dataset`
_TRUNCATE = 'or truncate it: `on_too_long="truncate"` (`--on-too-long truncate`)'


class LineTranslator:
    """Base class of `Translator` and `CTranslate2Translator`. A subclass defines:

    - `_search(source, prefix, *, settings, n_best, return_attention)`: returns a list of hypotheses
      for each row of padded ids of sources, and of prefixes if there are some;
    - `_score(source, target)`: returns a `Hypothesis` for each row of padded ids.

    Args:
        tokenizers: those of source and target.
        config: special token ids, vocabulary sizes and positions, as in `TransformerConfig`.
        settings: `SearchSettings`.
    """

    _search: Any
    _score: Any
    _run_all: Any = map  # batches, one after the other

    def __init__(self, tokenizers: tuple[Any, Any], config: Any, settings: SearchSettings) -> None:
        self.source_tokenizer, self.target_tokenizer = self.tokenizers = tokenizers
        self._config = config
        self._vocabularies = [each.vocabulary for each in tokenizers]
        self._symbols = count_symbols(*self._vocabularies)
        self.settings = self._bounded(settings)
        self._languages = list(getattr(tokenizers[0], "languages", []))
        self._cutter = LineCutter(tokenizers[0])
        self._unknown = partial(find_unknown, tokenizers[0], config.unk_token_id)

    # Any: a union of the four result types would force every caller to narrow it.
    def __call__(
        self,
        lines: str | Iterable[str],
        *,
        n_best: int | None = None,
        return_attention: bool = False,
        target_prefix: str | Iterable[str] | None = None,
        target_language: str | None = None,
        batch_sentences: int = BATCH_SENTENCES,
        on_progress: Callable[[int], Any] | None = None,
        **settings: Any,
    ) -> Any:
        is_one = isinstance(lines, str)
        lines = to_lines(lines, "lines")
        return_hypotheses = n_best is not None or return_attention
        n_best = 1 if n_best is None else n_best
        search_settings = self._settings_of_call(settings, n_best)
        pieces = self._pieces(lines, target_language, search_settings, return_attention)
        columns: list[Any] = [self._with_end(pieces.token_ids)]
        if target_prefix is not None:
            is_for_all = isinstance(target_prefix, str)
            target_prefix = to_lines(target_prefix, "target_prefix")
            target_prefix = target_prefix * len(lines) if is_for_all else target_prefix
            columns.append(self._prefixes(target_prefix, len(lines), pieces, search_settings))
        if any(pieces.spans) and search_settings.protect_by == "force":
            search_settings = replace(search_settings, copied_tokens=self._copied_tokens())
        options = {"n_best": n_best, "return_attention": return_attention}
        search = partial(self._search, settings=search_settings, **options)
        found = self._map_rows(search, columns, batch_sentences, on_progress, pieces.lines)
        found = join_by_line(found, pieces, search_settings)
        wrong = {i: best.protected for i, (best, *_) in enumerate(found) if best.protected}
        if wrong:
            again = self(
                [lines[i] for i in wrong],
                n_best=n_best,
                target_prefix=target_prefix and [target_prefix[i] for i in wrong],
                target_language=target_language,
                batch_sentences=batch_sentences,
                **settings | {"protect_by": "cut"},
            )
            for (i, spans), ranks in zip(wrong.items(), again, strict=True):
                found[i] = [replace(one, protected=spans) for one in ranks]
        if not return_hypotheses:
            warn_of(found, search_settings)
            found = [best.text for best, *_ in found]
        return found[0] if is_one else found

    def score(
        self,
        sources: str | Iterable[str],
        targets: str | Iterable[str],
        batch_sentences: int = BATCH_SENTENCES,
        on_progress: Callable[[int], Any] | None = None,
    ) -> Any:
        """Returns the model's scores of given translations, as the translator's search scores.

        Args:
            sources: list of strings, or one string.
            targets: translations of `sources`: a list of the same length, or one string.
            batch_sentences, on_progress: as in a call.

        Returns:
            list of `Hypothesis`, one per pair; for single strings, a single one. The end token is
            always scored, also if the source is empty, although a translation has no tokens then.

        Raises:
            ValueError: if the numbers of sources and targets differ, or a line has more than 2,048
                tokens and more than `max_source_tokens`. Lines are not split, because the score of
                a part would be wrong.
        """
        if isinstance(sources, str) and isinstance(targets, str):
            return self.score([sources], [targets], batch_sentences, on_progress)[0]
        if isinstance(sources, str) or isinstance(targets, str):
            raise TypeError("`sources` and `targets` must be two lists, or two strings.")
        sources, targets = to_lines(sources, "sources"), to_lines(targets, "targets")
        if len(sources) != len(targets):
            raise ValueError(
                "`targets` must have a translation for each of `sources`. Received: "
                f"{len(sources)} sources, {len(targets)} targets"
            )
        sources = tag_lines(sources, None, self._languages)
        columns = [
            self._whole(sources, "sources", self.source_tokenizer),
            self._whole(targets, "targets", self.target_tokenizer),
        ]
        return self._map_rows(self._score, columns, batch_sentences, on_progress)

    def _map_rows(self, function, columns, *options):
        pad_token_id = self._config.pad_token_id
        return map_rows(function, columns, pad_token_id, *options, run_all=self._run_all)

    def _settings_of_call(self, changes, n_best):
        settings = self._bounded(replace(self.settings, **changes))
        settings.require_n_best(n_best)
        return settings

    def _bounded(self, settings):
        """Returns settings with `max_source_tokens` and `protect` set, checked for the model."""
        settings.require_ids_below(self._config.vocabulary_size)
        most = learned_positions(self._config)
        bound = settings.max_source_tokens or most or _MAX_SOURCE_TOKENS
        if most is not None and bound > most:
            raise ValueError(
                f"`max_source_tokens` must be at most the model's {most} positions. "
                f"Received: max_source_tokens={bound}"
            )
        known = NAMES if self._symbols else ()
        protect = known if settings.protect is None else settings.protect
        return replace(settings, max_source_tokens=bound, protect=protect)

    def _pieces(self, lines, target_language, settings, must_be_whole):
        """Returns the `Pieces` of lines, split or truncated by `on_too_long`."""
        most, on_too_long = settings.max_source_tokens, settings.on_too_long
        tagged = tag_lines(lines, target_language, self._languages)
        split = "lines" if must_be_whole else settings.split
        is_cut = settings.protect and not must_be_whole
        masked = partial(mask, settings.protect, self._unknown) if is_cut else None
        num_symbols = 0 if settings.protect_by == "cut" else self._symbols
        how = split, bool(self._languages), masked, num_symbols
        parts = split_lines(tagged, *how)
        token_ids = encode_lines(self.source_tokenizer, parts.texts)
        if on_too_long == "error" or (must_be_whole and on_too_long == "split"):
            where = ", because attention is returned" if must_be_whole else ""
            rule = most, f"`max_source_tokens`{where}", token_ids, "lines", _TRUNCATE
            require_at_most(*rule, parts.lines)
        pieces = parts.of_lines(self._cutter.cut(token_ids, most - 1, on_too_long))
        return pieces._replace(joiner=getattr(self.target_tokenizer, "joiner", " "))

    def _copied_tokens(self):
        """Returns the ids of symbols, if source and target have the same."""
        ids = [[*map(each.index, symbols(self._symbols))] for each in self._vocabularies]
        return ids[0] if ids[0] == ids[1] else ()

    def _with_end(self, rows):
        return [np.append(row, self._config.end_token_id).astype("int32") for row in rows]

    def _whole(self, lines, name, tokenizer):
        """Returns the lines with their end tokens; raises if one is too long to be decoded."""
        token_ids = encode_lines(tokenizer, lines)
        most = learned_positions(self._config)
        rule = most, "the model's positions", token_ids, name
        if most is None:
            advice = "or give a larger `max_source_tokens` (`--max-source-tokens`)"
            most = max(LONGEST_ROW, self.settings.max_source_tokens)
            rule = most, "to fit into memory", token_ids, name, advice
        require_at_most(*rule)
        return self._with_end(token_ids)

    def _prefixes(self, target_prefix, count, pieces, settings):
        """Returns the prefix ids of each piece: only the first with tokens of a line has some."""
        if len(target_prefix) != count:
            raise ValueError(
                "`target_prefix` must be one string, or one for each line. "
                f"Received: {len(target_prefix)} prefixes, {count} lines"
            )
        whole = self._whole(target_prefix, "target_prefix", self.target_tokenizer)
        lengths = [*map(len, pieces.token_ids)]
        filled = np.flatnonzero(lengths)
        firsts = set(filled[np.unique(pieces.lines[filled], return_index=True)[1]])
        rows = enumerate(pieces.lines)
        prefixes = [whole[line][: -1 if row in firsts else 0] for row, line in rows]
        config = self._config
        bound = learned_positions(config) or LONGEST_ROW
        most = [min(bound, longest_target(n + 1, settings, config)) if n else 0 for n in lengths]
        for line, prefix, room in zip(pieces.lines, prefixes, most, strict=True):
            if len(prefix) >= room > 0:  # an empty source gets no prefix
                raise ValueError(NO_ROOM.format(line + 1, len(prefix), room))
        return prefixes
