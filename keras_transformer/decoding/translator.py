"""`Translator`: tokenizer, model and search in one object, on any backend.

Plain Python and NumPy around the search; `export_saved_model` puts the same into one graph.
"""

import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from keras_transformer.data.tokenizer_like import (
    TokenizerLike,
    check_tokenizers,
    require_matching_vocabularies,
)
from keras_transformer.decoding.batches import (
    BATCH_SENTENCES,
    LONGEST_ROW,
    MOST_PAIRS,
    batch_rows,
    map_rows,
)
from keras_transformer.decoding.compiled import CompiledSearches
from keras_transformer.decoding.frozen import FrozenTransformer, freeze
from keras_transformer.decoding.hypothesis import attention_of, hypotheses_of, join_by_line
from keras_transformer.decoding.languages import tag_lines
from keras_transformer.decoding.lines import encode_lines, require_at_most, require_room
from keras_transformer.decoding.long_lines import LineCutter, join_translations, warn_of_long_lines
from keras_transformer.decoding.model_search import (
    SearchModel,
    attend_model,
    kept_hypotheses,
    learned_positions,
    longest_target,
    run_on_pairs,
    score_model,
    search_model,
    without_repeated,
)
from keras_transformer.decoding.search import SearchResult, penalties_of
from keras_transformer.decoding.search_settings import SearchSettings
from keras_transformer.decoding.sentences import split_lines
from keras_transformer.texts import checked_lines

_MAX_SOURCE_TOKENS = 256  # as the default `max_length` of `make_dataset`
_TRUNCATE = 'or truncate it: `on_too_long="truncate"` (`--on-too-long truncate`)'


class Translator:
    """Translates lists of strings, on any backend.

    Args:
        model: `Transformer`.
        tokenizer: `Tokenizer` or other `TokenizerLike` of the source, and of the target unless
            `target_tokenizer` is given.
        target_tokenizer: that of the target, if the vocabularies are separate.
        frozen: bool. Translate with the weights that the model has now, also if it is trained
            later. On TensorFlow this is faster, by 2 to 20%, and takes no memory for the weights
            until the model is trained; elsewhere it is a copy. Defaults to `False`: each call uses
            the model's current weights.
        dtype: name of a dtype, such as `"bfloat16"`, that a frozen copy is cast to. Optional.
        compiled: `"auto"`, `True` or `False`. Whether XLA compiles the search for batches of few
            lines on TensorFlow, which is about twice as fast for one line. JAX compiles every
            search without a sampler, PyTorch none. Compiling takes some 4 seconds for
            each padded shape and beam: `"auto"` does it in the second call that needs it, for at
            most 4 lines of at most 128 tokens in float32; `True` in the first, for at most 8
            lines; `False` never; `warm_up` does it ahead. Searches with processors, a sampler or a
            prefix are not compiled. Defaults to `"auto"`.
        **settings: those of `SearchSettings`, such as `beam_size=4` and `max_length=100`.

    Call arguments:
        lines: list of strings, or one string.
        n_best: int, at most `beam_size`. Number of translations of each line; fewer, if the search
            finds fewer of different text, see `distinct_texts`. Optional.
        return_attention: bool. Also return the attention scores. They need a second pass of the
            model over the translations. A line that would have to be split is then an error.
            Defaults to `False`.
        target_prefix: list of strings, one per line, or one string for all lines: the forced
            beginning of the translation. Its tokens count in the maximum length. Optional.
        target_language: code of the language to translate to, of a model that has several, such as
            `"fra"`: that of all lines. See `MarianTokenizer.languages`. A line may also begin with
            its tag, `>>fra<<`; without either, it is translated without one. Optional.
        batch_sentences: int. Maximum number of sentences that are decoded together. Batches of long
            sentences hold fewer. Defaults to `256`.
        on_progress: callable, called after each batch with the number of lines that it finished.
            Optional.
        **settings: settings of the search that differ in this call.

    Returns:
        list of strings, one per line in the same order; empty for a line without text. With
        `n_best` or `return_attention`, a list of at most `n_best` `Hypothesis` in place of each
        string, best first. For a single string, the single result.

        `on_too_long` decides how a line of more than `max_source_tokens` is translated. A split
        line has one `Hypothesis`, whose `pieces` is above 1. If strings are returned, a
        `UserWarning` names the lines.

    Raises:
        TypeError: if a line is not a string, a setting is unknown, or a tokenizer lacks a member
            of `TokenizerLike`.
        ValueError: if the vocabularies of model and tokenizer differ, a line is too long and
            `on_too_long="error"`, a setting is out of its range, a prefix leaves no room for
            another token, the model's numbers are not finite, or `target_language` or the tag of a
            line is not one of the model's, or they differ.

    Example with an untrained model; `load_run` returns the translator of a trained run:

    >>> lines = ["a house", "ein Haus"]
    >>> tokenizer = keras_transformer.Tokenizer.train_on_lines(lines, 270, "vocabulary.model")
    >>> config = keras_transformer.TransformerConfig.tiny(tokenizer.vocabulary_size)
    >>> translator = keras_transformer.Translator(keras_transformer.Transformer(config), tokenizer)
    >>> len(translator(["a house", "", "a mouse"]))
    3
    >>> [hypothesis.score for hypothesis in translator("a house", n_best=1)] # doctest: +ELLIPSIS
    [-...]

    Reference:
        [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 6.1, for the search.
    """

    def __init__(
        self,
        model: SearchModel,
        tokenizer: TokenizerLike,
        target_tokenizer: TokenizerLike | None = None,
        *,
        frozen: bool = False,
        dtype: str | None = None,
        compiled: str | bool = "auto",
        **settings: Any,
    ) -> None:
        tokenizers = check_tokenizers(tokenizer, target_tokenizer)
        self.source_tokenizer, self.target_tokenizer = self.tokenizers = tokenizers
        require_matching_vocabularies(model.config, *tokenizers)
        if frozen or dtype is not None:
            model = freeze(model, dtype)
        self._decoder = model
        self.model: Any = model.model if isinstance(model, FrozenTransformer) else model
        self.settings = self._bounded(SearchSettings(**settings))
        self._languages = list(getattr(tokenizer, "languages", []))
        self._vocabularies = [each.vocabulary for each in tokenizers]
        self._cutter = LineCutter(tokenizer)
        self._compiled = CompiledSearches(model, compiled)
        self._mode = compiled

    def __reduce__(self):
        """For `pickle` and `copy`: compiled searches belong to a process."""
        arguments = {"compiled": self._mode, **vars(self.settings)}
        return partial(type(self), **arguments), (self._decoder, *self.tokenizers)

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
        lines = [lines] if isinstance(lines, str) else list(lines)
        return_hypotheses = n_best is not None or return_attention
        n_best = 1 if n_best is None else n_best
        search_settings = self._settings_of_call(settings, n_best)
        pieces = self._pieces(lines, target_language, search_settings, return_attention)
        columns = [self._with_end(pieces.token_ids)]
        if target_prefix is not None:
            columns.append(self._prefixes(target_prefix, len(lines), pieces, search_settings))
        kept = kept_hypotheses(search_settings, n_best)
        find_shape = self._compiled.for_call(search_settings, kept, target_prefix is not None)

        def translate_batch(source, prefix=None):
            shape = find_shape(source.shape)
            found = search_model(self._decoder, source, search_settings, kept, prefix, shape=shape)
            if not return_hypotheses:
                return self.target_tokenizer.decode(found.token_ids[:, 0])
            found, hypotheses = self._hypotheses(source, found, search_settings, n_best)
            if return_attention:
                self._add_attention(source, found, hypotheses)
            return hypotheses

        pad = self.model.config.pad_token_id
        found = map_rows(translate_batch, columns, pad, batch_sentences, on_progress, pieces.lines)
        if return_hypotheses:
            found = join_by_line(found, pieces, search_settings)
        else:
            warn_of_long_lines(pieces, search_settings)
            if len(found) > len(lines):
                places = pieces.by_line()
                found = [join_translations(found[each], pieces.gaps[each]) for each in places]
        return found[0] if is_one else found

    def warm_up(
        self,
        source_lengths: Iterable[int] = (8, 16, 24, 32),
        batch_sizes: Iterable[int] = (1,),
        n_best: int = 1,
        on_progress: Callable[[int], Any] | None = None,
        **settings: Any,
    ) -> None:
        """Compiles searches now rather than in the calls that need them, see `compiled`.

        Args:
            source_lengths: ints from 1 to 128, on JAX without a bound: tokens with the end token.
                Each is rounded up to 8, 16, 24, 32, 48, 64, 96, 128, ... Defaults to
                `(8, 16, 24, 32)`.
            batch_sizes: ints from 1 to 4, to 8 with `compiled=True`, on JAX without a bound: the
                lines of a call. Each is rounded up to a power of 2. Defaults to `(1,)`.
            n_best: as in the calls. Defaults to `1`.
            on_progress: callable, called after each shape with 1. Optional.
            **settings: settings of the search that differ in these calls.

        Raises:
            ValueError: if a search of these settings is not compiled.
        """
        search_settings = self._settings_of_call(settings, n_best)
        kept = kept_hypotheses(search_settings, n_best)
        for shape in itertools.product(batch_sizes, source_lengths):
            self._compiled.warm_up(search_settings, kept, shape)
            if on_progress is not None:
                on_progress(1)

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
        sources, targets = list(sources), list(targets)
        if len(sources) != len(targets):
            raise ValueError(
                "`targets` must have a translation for each of `sources`. Received: "
                f"{len(sources)} sources, {len(targets)} targets"
            )
        sources = tag_lines(list(checked_lines(sources, "sources")), None, self._languages)
        columns = [
            self._whole(sources, "sources", self.source_tokenizer),
            self._whole(checked_lines(targets, "targets"), "targets", self.target_tokenizer),
        ]
        pad = self.model.config.pad_token_id
        return map_rows(self._score, columns, pad, batch_sentences, on_progress)

    def _settings_of_call(self, changes, n_best):
        settings = self._bounded(replace(self.settings, **changes))
        settings.require_n_best(n_best)
        return settings

    def _bounded(self, settings):
        """Returns settings with `max_source_tokens` set, and checked against the model."""
        settings.require_ids_below(self.model.config.vocabulary_size)
        most = learned_positions(self.model.config)
        bound = settings.max_source_tokens or most or _MAX_SOURCE_TOKENS
        if most is not None and bound > most:
            raise ValueError(
                f"`max_source_tokens` must be at most the model's {most} learned positions. "
                f"Received: max_source_tokens={bound}"
            )
        return replace(settings, max_source_tokens=bound)

    def _pieces(self, lines, target_language, settings, must_be_whole):
        """Returns the `Pieces` of lines, split or truncated by `on_too_long`."""
        most, on_too_long = settings.max_source_tokens, settings.on_too_long
        tagged = tag_lines(checked_lines(lines, "lines"), target_language, self._languages)
        split = "lines" if must_be_whole else settings.split
        parts = split_lines(tagged, split, settings.source_language, bool(self._languages))
        token_ids = encode_lines(self.source_tokenizer, parts.texts)
        if on_too_long == "error" or (must_be_whole and on_too_long == "split"):
            where = ", because attention is returned" if must_be_whole else ""
            require_at_most(most, f"`max_source_tokens`{where}", token_ids, split, _TRUNCATE)
        return parts.of_lines(self._cutter.cut(token_ids, most - 1, on_too_long))

    def _with_end(self, rows):
        return [np.append(row, self.model.config.end_token_id).astype("int32") for row in rows]

    def _whole(self, lines, name, tokenizer):
        """Returns the lines with their end tokens; raises if one is too long to be decoded."""
        token_ids = encode_lines(tokenizer, lines)
        most = learned_positions(self.model.config)
        rule = most, "the model's learned positions", token_ids, name
        if most is None:
            advice = "or give a larger `max_source_tokens` (`--max-source-tokens`)"
            most = max(LONGEST_ROW, self.settings.max_source_tokens)
            rule = most, "to fit into memory", token_ids, name, advice
        require_at_most(*rule)
        return self._with_end(token_ids)

    def _prefixes(self, target_prefix, count, pieces, settings):
        """Returns the prefix ids of each piece: only the first piece of a line has some."""
        is_for_all = isinstance(target_prefix, str)
        target_prefix = [target_prefix] * count if is_for_all else list(target_prefix)
        if len(target_prefix) != count:
            raise ValueError(
                "`target_prefix` must be one string, or one for each line. "
                f"Received: {len(target_prefix)} prefixes, {count} lines"
            )
        target_prefix = checked_lines(target_prefix, "target_prefix")
        whole = self._whole(target_prefix, "target_prefix", self.target_tokenizer)
        is_first = np.diff(pieces.lines, prepend=-1) > 0
        rows = zip(pieces.lines, is_first, strict=True)
        prefixes = [whole[line][:-1] if first else whole[line][:0] for line, first in rows]
        config = self.model.config
        bound = learned_positions(config) or LONGEST_ROW
        lengths = map(len, pieces.token_ids)
        most = [min(bound, longest_target(n + 1, settings, config)) if n else 0 for n in lengths]
        require_room(prefixes, most, pieces.lines)
        return prefixes

    def _score(self, source, target):
        """Returns the hypotheses of given targets, which have an end token."""
        log_probs = run_on_pairs(score_model, self._decoder, source, target)
        log_probs = log_probs[: len(target), : target.shape[1]]
        lengths = np.count_nonzero(target != self.model.config.pad_token_id, axis=1)
        scores = log_probs.sum(axis=1) / penalties_of(lengths, 1, self.settings)
        one = [array[:, None] for array in (target, lengths, scores, log_probs)]
        _, found = self._hypotheses(source, SearchResult(*one), self.settings, 1)
        return [best for (best,) in found]

    def _hypotheses(self, source, found, settings, n_best):
        """Returns the `n_best` results, and lists of `Hypothesis`."""
        rows, ranks, length = found.token_ids.shape
        texts = self.target_tokenizer.decode(found.token_ids.reshape(rows * ranks, length))
        texts = [texts[row * ranks :][:ranks] for row in range(rows)]
        if settings.distinct_texts and ranks > 1:
            found, texts = without_repeated(found, texts)
        found = SearchResult(*(each[:, :n_best] for each in found))
        config = self.model.config
        return found, list(hypotheses_of(source, found, texts, self._vocabularies, config))

    def _add_attention(self, source, result, found):
        """Replaces hypotheses by those with their attention scores, by a teacher-forced pass.

        The decoder is causal, so these are the scores of the search's steps, up to rounding.
        """
        places = [(row, rank) for row, ranks in enumerate(found) for rank in range(len(ranks))]
        hypotheses = [found[row][rank] for row, rank in places]
        lengths = [max(len(one.source_tokens), len(one.tokens)) for one in hypotheses]
        config = self.model.config
        # Smaller batches: the scores of all blocks are in memory at the same time.
        most_pairs = MOST_PAIRS // (config.num_encoder_layers + 2 * config.num_decoder_layers)
        start_token = self._vocabularies[1][config.start_token_id]
        for batch in batch_rows(lengths, most_pairs=most_pairs):
            rows, ranks = np.transpose([places[index] for index in batch])
            longest = max(lengths[index] for index in batch)
            inputs = source[rows, :longest], result.token_ids[rows, ranks, :longest]
            scores = run_on_pairs(attend_model, self._decoder, *inputs)
            for index, (row, rank) in enumerate(zip(rows, ranks, strict=True)):
                attention = attention_of(found[row][rank], scores, index, start_token)
                found[row][rank] = replace(found[row][rank], attention=attention)
