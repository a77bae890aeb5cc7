"""`Translator`: from strings to strings, above any engine of token ids.

Plain Python and NumPy: imports Keras only with a Keras model.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from keras_transformer.data.language_codes import LANGUAGES
from keras_transformer.decoding.batches import (
    BATCH_SENTENCES,
    MOST_PAIRS,
    batch_rows,
    map_rows,
)
from keras_transformer.decoding.engine import Engine, SearchResult, require_held
from keras_transformer.decoding.hypothesis import Hypothesis, attention_of, hypotheses_of
from keras_transformer.decoding.languages import tag_lines
from keras_transformer.decoding.lines import to_lines
from keras_transformer.decoding.protected_text import NAMES
from keras_transformer.decoding.reports import warn_of
from keras_transformer.decoding.request import LineReader, Request
from keras_transformer.decoding.scores import IMPOSSIBLE, penalties_up_to
from keras_transformer.decoding.search_settings import SearchSettings
from keras_transformer.decoding.text_settings import TextSettings, divided

_MAX_SOURCE_TOKENS = 256  # as the default `max_length` of `make_dataset`


class Translator:
    """Translates lists of strings, with any engine: Keras, CTranslate2 or a SavedModel.

    Args:
        model: `Transformer`; or several in a list, which translate as one `Ensemble`; or an
            `Engine`, which has its tokenizers.
        tokenizer: `Tokenizer` or other `TokenizerLike` of the source, and of the target unless
            `target_tokenizer` is given.
        target_tokenizer: tokenizer of the target, if the vocabularies are separate.
        frozen: bool. Translate with the weights that the model has now, also if it is trained
            later. On TensorFlow this is faster, by 2 to 20%, and takes no memory for the weights
            until the model is trained; elsewhere it is a copy. Defaults to `False`: each call uses
            the model's current weights.
        dtype: name of a dtype, such as `"bfloat16"`, that a frozen copy is cast to. Optional.
        **settings: those of `SearchSettings` and `TextSettings`, such as `beam_size=4` and
            `split="sentences"`.

    Call arguments:
        lines: iterable of strings of Python or NumPy, or one string.
        n_best: int, at most `beam_size`. Number of translations of each line; fewer if the search
            finds fewer distinct texts, see `distinct_texts`. Optional.
        return_attention: bool. Also return the attention scores. They need a second pass of the
            model over the translations. A line that would have to be split is then an error.
            Defaults to `False`.
        target_prefix: list of strings, one per line, or one string for all lines: the forced
            beginning of the translation. Its tokens count in the maximum length. Optional.
        batch_sentences: int. Maximum number of sentences that are decoded together. Batches of long
            sentences hold fewer. Defaults to `256`.
        on_progress: callable, called after each batch with the number of lines that it finished.
            Optional.
        **settings: settings that differ in this call.

    Returns:
        list of strings, one per line in the same order; empty for a line without text. With
        `n_best` or `return_attention`, a list of at most `n_best` `Hypothesis` in place of each
        string, best first. For a single string, the single result.

        `on_too_long` decides how a line of more than `max_source_tokens` is translated. If strings
        are returned, a `UserWarning` names such lines. If a line is split, each `Hypothesis` joins
        the k-th hypotheses of its pieces, or the best one of a piece that has fewer, and `pieces`
        is above 1. The best hypotheses, joined, come first; the others are ordered by their scores.

    Raises:
        TypeError: if a line is not a string, `lines` is bytes or a mapping, a setting is unknown,
            or a tokenizer lacks a member of `TokenizerLike`.
        ValueError: if the vocabularies of model and tokenizer differ, a line is too long and
            `on_too_long="error"`, a setting is out of its range, a prefix leaves no room for
            another token, the model computes NaN or infinity, or `target_language` or the tag of a
            line is not one of the model's, or they differ.
        RuntimeError: in a process that was forked from the one that made or used the translator.

    Example with an untrained model; `load_run` returns the translator of a trained run:

    >>> lines = ["a house", "ein Haus"]
    >>> tokenizer = keras_transformer.Tokenizer.train_on_lines(lines, 270, "vocabulary.json")
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
        model: Any,
        tokenizer: Any = None,
        target_tokenizer: Any = None,
        *,
        frozen: bool = False,
        dtype: str | None = None,
        **settings: Any,
    ) -> None:
        if not isinstance(model, Engine):
            from keras_transformer.decoding.keras_engine import KerasEngine

            model = KerasEngine(model, tokenizer, target_tokenizer, frozen=frozen, dtype=dtype)
        elif frozen or any(one is not None for one in (tokenizer, target_tokenizer, dtype)):
            must = "An engine has its tokenizers and weights: give it with settings alone."
            received = f"{tokenizer=}, {target_tokenizer=}, {frozen=}, {dtype=}"
            raise ValueError(f"{must} Received: {received}")
        self.engine: Any = model
        self.source_tokenizer, self.target_tokenizer = self.tokenizers = model.tokenizers
        self._config = model.config
        self._vocabularies = [tokenizer.vocabulary for tokenizer in self.tokenizers]
        self._reader = LineReader(self.tokenizers, self._config)
        search, text = divided(model.defaults | settings)
        self.settings = self._checked(SearchSettings(**search))
        self.text_settings = self._bounded(TextSettings(**text))

    @property
    def model(self) -> Any:
        """The Keras model of the engine.

        Raises:
            ValueError: if the engine has none.
        """
        if self.engine.model is None:
            must = "Only a translator of a Keras model, as `load_run` returns it, has a `model`."
            raise ValueError(f"{must} Received: {self.engine.name}")
        return self.engine.model

    @property
    def languages(self) -> list[str]:
        """The codes of the target languages that the model has tags or tokens for."""
        return self._reader.languages or [*self._reader.language_ids]

    @property
    def all_settings(self) -> dict[str, Any]:
        """The settings of the search and of text by their names, as a constructor takes them."""
        return vars(self.settings) | vars(self.text_settings)

    def __reduce__(self):
        return partial(type(self), **self.all_settings), (self.engine,)

    # Any: a union of the four result types would force every caller to narrow it.
    def __call__(
        self,
        lines: str | Iterable[str],
        *,
        n_best: int | None = None,
        return_attention: bool = False,
        target_prefix: str | Iterable[str] | None = None,
        batch_sentences: int = BATCH_SENTENCES,
        on_progress: Callable[[int], Any] | None = None,
        **settings: Any,
    ) -> Any:
        is_one = isinstance(lines, str)
        lines = to_lines(lines, "lines")
        request = self.request(
            lines,
            n_best=1 if n_best is None else n_best,
            target_prefix=target_prefix,
            return_attention=return_attention,
            **settings,
        )
        answers: Any = [[]] * len(lines)
        remaining: Request | None = request
        while remaining is not None:
            search = partial(
                self.search_rows,
                settings=remaining.settings,
                n_best=remaining.n_best,
                distinct_texts=remaining.text_settings.distinct_texts,
                return_attention=return_attention,
            )
            rows = self._map_rows(
                search, remaining.columns, batch_sentences, on_progress, remaining.line_of_row
            )
            remaining.fill(answers, rows)
            remaining = remaining.again(answers)
            on_progress = None  # lines that are translated again were counted
        if n_best is None and not return_attention:
            warn_of(answers, request.text_settings)
            answers = [best.text for best, *_ in answers]
        return answers[0] if is_one else answers

    def request(
        self,
        lines: list[str],
        *,
        n_best: int = 1,
        target_prefix: str | Iterable[str] | None = None,
        return_attention: bool = False,
        **settings: Any,
    ) -> Request:
        """Returns lines as rows of token ids. The arguments are those of a call."""
        search_settings, text_settings = self._settings_of_call(settings, n_best, return_attention)
        if isinstance(target_prefix, str):
            target_prefix = [target_prefix] * len(lines)
        elif target_prefix is not None:
            target_prefix = to_lines(target_prefix, "target_prefix")
        lines, languages = self._with_languages(lines, text_settings)
        return Request(
            reader=self._reader,
            texts=lines,
            languages=languages,
            prefixes=target_prefix,
            settings=search_settings,
            text_settings=text_settings,
            n_best=n_best,
            returns_attention=return_attention,
        )

    def score(
        self,
        sources: str | Iterable[str],
        targets: str | Iterable[str],
        batch_sentences: int = BATCH_SENTENCES,
        on_progress: Callable[[int], Any] | None = None,
        **settings: Any,
    ) -> Any:
        """Returns the model's scores of given translations, by the length penalty of the search.

        Args:
            sources: list of strings, or one string.
            targets: translations of `sources`: a list of the same length, or one string.
            batch_sentences, on_progress: as in a call.
            **settings: `source_language`, `target_language` and `max_source_tokens`, if they differ
                in this call.

        Returns:
            list of `Hypothesis`, one per pair; for single strings, a single one. The end token is
            always scored, also if the source is empty, although a translation has no tokens then.

        Raises:
            TypeError: if one argument is a string and the other is a list.
            ValueError: if the numbers of sources and targets differ, or a line has more tokens than
                the model's learned positions or, without these, than both 2,048 and
                `max_source_tokens`. Lines are not split, because the score of a part would be
                wrong.
        """
        if isinstance(sources, str) and isinstance(targets, str):
            return self.score([sources], [targets], batch_sentences, on_progress, **settings)[0]
        if isinstance(sources, str) or isinstance(targets, str):
            raise TypeError("`sources` and `targets` must be two lists, or two strings.")
        columns = self.pairs(
            to_lines(sources, "sources"),
            to_lines(targets, "targets"),
            **settings,
        )
        return self._map_rows(self.score_rows, columns, batch_sentences, on_progress)

    def pairs(
        self,
        sources: list[str],
        targets: list[str],
        **settings: Any,
    ) -> list[list[Any]]:
        """Returns the ids of sources and of their translations, as `score` reads them.

        Args:
            sources, targets, **settings: as in `score`.

        Returns:
            two lists of int32 arrays, with the end tokens; if the model has tokens of languages, a
            third list: the target language's token of each pair.
        """
        if len(sources) != len(targets):
            raise ValueError(
                "`targets` must have a translation for each of `sources`. Received: "
                f"{len(sources)} sources, {len(targets)} targets"
            )
        text_settings = replace(self.text_settings, **_without_unset_languages(settings))
        sources, tokens = self._with_languages(sources, text_settings)
        source_languages = None if tokens is None else tokens.source
        target_languages = None if tokens is None else tokens.target
        longest, reader = text_settings.max_source_tokens or 0, self._reader
        source_ids = reader.whole_lines(sources, "sources", 0, longest, source_languages)
        target_ids = reader.whole_lines(targets, "targets", 1, longest, target_languages)
        if tokens is None:
            return [source_ids, target_ids]
        source_ids = reader.with_languages(source_ids, tokens.source)
        return [source_ids, target_ids, [[token_id] for token_id in tokens.target]]

    def _with_languages(self, lines, settings):
        """Returns lines with their tags, and `Languages`: `None` without tokens of languages."""
        source, target = settings.source_language, settings.target_language
        languages = self._reader.languages_of(source, target, len(lines))
        if languages is None:
            lines = tag_lines(lines, target, self._reader.languages)
        return lines, languages

    def warm_up(
        self,
        source_lengths: Iterable[int] = (8, 16, 24, 32),
        batch_sizes: Iterable[int] = (1,),
        n_best: int = 1,
        **settings: Any,
    ) -> None:
        """Compiles searches by XLA: for one line on TensorFlow, they are about twice as fast.

        Compiling takes some 4 seconds and 40 to 90 MiB for each shape, and later calls of that
        shape, without a target prefix, use its program. JAX compiles every search without a
        sampler at its first call; this method compiles it ahead. PyTorch compiles none.

        Args:
            source_lengths: ints from 1 to 128, on JAX without a bound: tokens with the end token.
                Each is rounded up to 8, 16, 24, 32, 48, 64, 96, 128, ... Defaults to
                `(8, 16, 24, 32)`.
            batch_sizes: ints from 1 to 8, on JAX without a bound: the lines of a call. Each is
                rounded up to a power of 2. Defaults to `(1,)`.
            n_best: as in the calls. Defaults to `1`.
            **settings: settings of the search that differ in these calls.

        Raises:
            ValueError: if a search of these settings is not compiled, or on TensorFlow one of a
                model with tokens of languages.
        """
        search_settings, text_settings = self._settings_of_call(settings, n_best)
        num_kept = _num_kept(search_settings, n_best, text_settings.distinct_texts)
        self.engine.compile(source_lengths, batch_sizes, search_settings, num_kept)

    def _map_rows(self, function, columns, *options):
        pad_token_id = self._config.pad_token_id
        return map_rows(function, columns, pad_token_id, *options, run_all=self.engine.run_all)

    def _settings_of_call(self, changes, n_best, return_attention=False):
        """Returns the settings of the search and of text, with the changes of a call."""
        search_changes, text_changes = divided(_without_unset_languages(changes))
        search_settings, text_settings = self.settings, self.text_settings
        if search_changes:
            search_settings = self._checked(replace(search_settings, **search_changes))
        search_settings.require_n_best(n_best)
        require_held(self.engine, {"return_attention": return_attention})
        if text_changes:
            text_settings = self._bounded(replace(text_settings, **text_changes))
        return search_settings, text_settings

    def _checked(self, settings):
        """Returns `SearchSettings`; raises if the engine does not support them."""
        settings.require_ids_below(self._config.vocabulary_size)
        require_held(self.engine, vars(settings))
        return settings

    def _bounded(self, settings):
        """Returns `TextSettings` with `max_source_tokens` and `protect` set, for the model."""
        positions = self._reader.positions
        bound = settings.max_source_tokens or positions or _MAX_SOURCE_TOKENS
        if positions is not None and bound > positions:
            raise ValueError(
                f"`max_source_tokens` must be at most the model's {positions} positions. "
                f"Received: max_source_tokens={bound}"
            )
        default = NAMES if self._reader.symbols else ()
        protect = default if settings.protect is None else settings.protect
        return replace(settings, max_source_tokens=bound, protect=protect)

    def search_rows(
        self,
        source_ids: np.ndarray,
        prefix_ids: np.ndarray | None = None,
        language_ids: np.ndarray | None = None,
        *,
        settings: SearchSettings,
        n_best: int,
        distinct_texts: bool = True,
        return_attention: bool = False,
    ) -> list[list[Hypothesis]]:
        """Returns the hypotheses of each row of a batch.

        Args:
            source_ids, prefix_ids, language_ids, settings: as in `Engine.search`.
            n_best: int. Hypotheses of each row, if there are so many of distinct texts.
            distinct_texts: as in `TextSettings`. Defaults to `True`.
            return_attention: whether the hypotheses have attention. Defaults to `False`.
        """
        num_kept = _num_kept(settings, n_best, distinct_texts)
        languages = () if language_ids is None else (language_ids,)
        result = self.engine.search(source_ids, prefix_ids, settings, num_kept, *languages)
        result, hypotheses = self._hypotheses(source_ids, result, n_best, distinct_texts)
        if return_attention:
            self._add_attention(source_ids, result, hypotheses, language_ids)
        return hypotheses

    def score_rows(
        self,
        source_ids: np.ndarray,
        target_ids: np.ndarray,
        language_ids: np.ndarray | None = None,
    ) -> list[Hypothesis]:
        """Returns the hypotheses of given translations; the arrays are as in `Engine.score`."""
        languages = () if language_ids is None else (language_ids,)
        log_probs = self.engine.score(source_ids, target_ids, *languages)
        lengths = np.count_nonzero(target_ids != self._config.pad_token_id, axis=1)
        penalties = penalties_up_to(lengths.max(), self.settings)[lengths]
        scores = log_probs.sum(axis=1) / penalties
        columns = [array[:, None] for array in (target_ids, lengths, scores, log_probs)]
        _, hypotheses = self._hypotheses(source_ids, SearchResult(*columns), n_best=1)
        return [best for (best,) in hypotheses]

    def _hypotheses(self, source, result, n_best, distinct_texts=False):
        """Returns the `SearchResult` of the `n_best` best, and lists of `Hypothesis`."""
        rows, ranks, length = result.token_ids.shape
        texts = self.target_tokenizer.decode(result.token_ids.reshape(rows * ranks, length))
        texts = [texts[row * ranks : (row + 1) * ranks] for row in range(rows)]
        if distinct_texts and n_best > 1:
            result, texts = _without_repeated(result, texts)
        result = SearchResult(*(array[:, :n_best] for array in result))
        config = self._config
        return result, list(hypotheses_of(source, result, texts, self._vocabularies, config))

    def _add_attention(self, source, result, ranked, language_ids):
        """Adds attention scores to the hypotheses in `ranked`, by a teacher-forced pass.

        The decoder is causal, so these are the scores of the search's steps, up to rounding.
        """
        places = [(row, rank) for row, ranks in enumerate(ranked) for rank in range(len(ranks))]
        hypotheses = [ranked[row][rank] for row, rank in places]
        lengths = [
            max(len(hypothesis.source_tokens), len(hypothesis.tokens)) for hypothesis in hypotheses
        ]
        config = self._config
        # Smaller batches: the scores of all blocks are in memory at the same time.
        most_pairs = MOST_PAIRS // (config.num_encoder_layers + 2 * config.num_decoder_layers)
        if language_ids is None:
            language_ids = np.zeros((len(source), 0), "int32")
        first_ids = np.insert(language_ids, 0, config.start_token_id, axis=1)
        first_tokens = [[self._vocabularies[1][i] for i in row] for row in first_ids]
        for batch in batch_rows(lengths, most_pairs=most_pairs):
            rows, ranks = np.transpose([places[index] for index in batch])
            longest = max(lengths[index] for index in batch)
            columns = [source[rows, :longest], result.token_ids[rows, ranks, :longest]]
            if language_ids.size:
                columns.append(language_ids[rows])
            scores = self.engine.attend(*columns)
            for index, (row, rank) in enumerate(zip(rows, ranks, strict=True)):
                attention = attention_of(ranked[row][rank], scores, index, first_tokens[row])
                ranked[row][rank] = replace(ranked[row][rank], attention=attention)


def _without_unset_languages(settings):
    """Returns settings without languages that are `None`: those of the translator stay."""
    return {n: v for n, v in settings.items() if n not in LANGUAGES or v is not None}


def _num_kept(settings, n_best, distinct_texts):
    """Returns how many hypotheses a search must keep, so that `n_best` can be picked from them.

    To pick several with distinct texts, it must keep all; to pick the best, one is enough.
    """
    return settings.max_hypotheses if distinct_texts and n_best > 1 else n_best


def _without_repeated(result, texts):
    """Marks hypotheses as missing, and moves them last, if a better one has the same text.

    Args:
        result: `SearchResult` of arrays.
        texts: B lists of R strings.

    Returns:
        both in the new order.
    """
    is_repeated = np.array([[t in row[:rank] for rank, t in enumerate(row)] for row in texts])
    order = np.argsort(is_repeated, axis=1, kind="stable")
    result = result._replace(
        lengths=np.where(is_repeated, 0, result.lengths),
        scores=np.where(is_repeated, IMPOSSIBLE, result.scores),
    )
    result = SearchResult(*(array[np.arange(len(order))[:, None], order] for array in result))
    return result, [[row[rank] for rank in ranks] for row, ranks in zip(texts, order, strict=True)]
