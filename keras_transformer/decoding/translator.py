"""`Translator`: tokenizer, model and search in one object.

It runs eagerly in Python; `export_saved_model` exports its graph.
"""

import itertools
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import tensorflow as tf

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
from keras_transformer.decoding.compiled import IDS, RUNTIME_SPECS, CompiledSearches
from keras_transformer.decoding.frozen import FrozenTransformer, copy_model, require_tensorflow
from keras_transformer.decoding.graph_translator import GraphTranslator
from keras_transformer.decoding.hypothesis import attention_of, hypotheses_of, join_by_line
from keras_transformer.decoding.lines import require_at_most, token_ids_of
from keras_transformer.decoding.long_lines import join_translations, warn_of_long_lines
from keras_transformer.decoding.model_search import (
    SearchModel,
    kept_hypotheses,
    learned_positions,
    runtime_inputs,
    score_model,
    search_model,
    teacher_forcing,
)
from keras_transformer.decoding.search import SearchResult, penalty
from keras_transformer.decoding.search_settings import ON_TOO_LONG, SearchSettings
from keras_transformer.texts import checked_lines

_TEXT = tf.TensorSpec([None], tf.string, name="text")
_CUT_INPUTS = _TEXT, tf.TensorSpec([], tf.int64)
# Whether texts are distinct, and a `SearchResult`.
_RESULT = [(0, tf.bool), (3, tf.int32), (2, tf.int32), (2, tf.float32), (3, tf.float32)]
_RESULT_SPECS = [tf.TensorSpec([None] * rank, dtype) for rank, dtype in _RESULT]
_MAX_SOURCE_TOKENS = 256  # as the default `max_length` of `make_dataset`
_TRUNCATE = 'or truncate it: `on_too_long="truncate"` (`--on-too-long truncate`)'
# Size of the LRU cache of traced searches.
_KEPT_SEARCHES = 8


class Translator:
    """Translates lists of strings.

    Args:
        model: `Transformer`.
        tokenizer: `Tokenizer` or other `TokenizerLike` of the source, and of the target unless
            `target_tokenizer` is given.
        target_tokenizer: that of the target, if the vocabularies are separate.
        frozen: bool. Translate with the weights that the model has now, also if it is trained
            later: faster, by 2 to 20%, and without memory for the weights until it is trained.
            Defaults to `False`: each call uses the model's current weights.
        dtype: name of a dtype, such as `"bfloat16"`, that a frozen copy is cast to. Optional.
        compiled: `"auto"`, `True` or `False`. Whether XLA compiles the search for batches of few
            lines, which is about twice as fast for one line. Compiling takes some 4 seconds for
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
        ValueError: if the backend is not TensorFlow, the vocabularies of model and tokenizer
            differ, a line is too long and `on_too_long="error"`, a setting is out of its range, a
            prefix leaves no room for another token, or `target_language` or the tag of a line is
            not one of the model's, or they differ.

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
        require_tensorflow()
        tokenizers = check_tokenizers(tokenizer, target_tokenizer)
        self.source_tokenizer, self.target_tokenizer = self.tokenizers = tokenizers
        require_matching_vocabularies(model.config, *tokenizers)
        if frozen or dtype is not None:
            model = FrozenTransformer(copy_model(model, dtype))
        self._decoder = model
        self.model: Any = model.model if isinstance(model, FrozenTransformer) else model
        self.settings = self._bounded(SearchSettings(**settings))
        graph = self._graph = GraphTranslator(model, model, *tokenizers)
        self._cut_text = {
            rule: _as_graph(
                partial(graph.pieces, on_too_long=rule), graph.source_tokenizer, *_CUT_INPUTS
            )
            for rule in ON_TOO_LONG
        }
        self._with_texts = _as_graph(graph.with_texts, graph.target_tokenizer, *_RESULT_SPECS)
        self._search_graph = lru_cache(_KEPT_SEARCHES)(self._trace)
        self._tracing = threading.Lock()
        self._compiled = CompiledSearches(model, compiled)
        self._mode = compiled

    def __reduce__(self):
        """For `pickle` and `copy`: graphs belong to a process, so they are traced anew."""
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
        text = self._sources(lines, "lines", target_language)
        pieces = self._pieces(text, search_settings, must_be_whole=return_attention)
        columns = [pieces.token_ids]
        if target_prefix is not None:
            prefixes = self._prefixes(target_prefix, len(lines))
            columns += [self._graph.prefixes(prefixes, pieces, runtime_inputs(search_settings)[1:])]
        search = self._search(search_settings, n_best, target_prefix is not None)

        def translate_batch(source, *prefix):
            result, texts = search(source, *prefix)
            if not return_hypotheses:
                return _strings(texts[:, 0])
            found = self._hypotheses(source, result, texts)
            return self._with_attention(source, result, found) if return_attention else found

        lines_of = pieces.lines.numpy()
        pad = self.model.config.pad_token_id
        found = map_rows(translate_batch, columns, pad, batch_sentences, on_progress, lines_of)
        if return_hypotheses:
            found = join_by_line(found, lines_of, pieces.dropped.numpy(), search_settings)
        else:
            warn_of_long_lines(pieces, search_settings.max_source_tokens)
            if len(found) > len(lines):
                texts = tf.constant(found, tf.string)
                found = _strings(join_translations(texts, pieces.lines, len(lines)))
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
            source_lengths: ints from 1 to 128, in tokens with the end token. Each is rounded up to
                8, 16, 24, 32, 48, 64, 96 or 128. Defaults to `(8, 16, 24, 32)`.
            batch_sizes: ints from 1 to 4, or to 8 with `compiled=True`: the lines of a call. Each
                is rounded up to a power of 2. Defaults to `(1,)`.
            n_best: as in the calls. Defaults to `1`.
            on_progress: callable, called after each shape with 1. Optional.
            **settings: settings of the search that differ in these calls.

        Raises:
            ValueError: if a search of these settings is not compiled.
        """
        search_settings = self._settings_of_call(settings, n_best)
        kept = kept_hypotheses(search_settings, n_best)
        self._pieces(tf.constant(["."]), search_settings, must_be_whole=False)  # traces
        nothing = [tf.zeros([1] * rank, dtype) for rank, dtype in _RESULT]
        self._with_texts(nothing[0], *nothing[1:])
        for shape in itertools.product(batch_sizes, source_lengths):
            self._compiled.warm_up(search_settings, kept, shape)
            if on_progress is not None:
                on_progress(1)

    @tf.function(input_signature=[_TEXT], autograph=False)
    def translate(self, text: tf.Tensor) -> tf.Tensor:
        """Translates in the graph: string tensor `(B,)` in, string tensor `(B,)` out.

        Lines that are too long are treated as `on_too_long` says, without a warning; `"error"`
        raises an `InvalidArgumentError`.
        """
        return self._graph.translate(text, self.settings).texts[:, 0]

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
        source_text = self._sources(sources, "sources")
        columns = [
            self._whole(source_text, "sources", self._graph.source_tokenizer),
            self._whole(checked_lines(targets, "targets"), "targets", self._graph.target_tokenizer),
        ]
        pad = self.model.config.pad_token_id
        return map_rows(self._score, columns, pad, batch_sentences, on_progress)

    def _sources(self, lines, name, target_language=None):
        """Returns the lines, checked and with the tags of their target language, as a tensor."""
        text = tf.constant(checked_lines(lines, name), tf.string)
        languages = None if target_language is None else tf.constant([f"{target_language}"])
        return self._graph.tagged(text, languages, tf.constant([True]))

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

    def _pieces(self, text, settings, must_be_whole):
        """Returns the lines with their end tokens, split or truncated by `on_too_long`."""
        most, on_too_long = settings.max_source_tokens, settings.on_too_long
        if on_too_long == "error" or (must_be_whole and on_too_long == "split"):
            where = ", because attention is returned" if must_be_whole else ""
            token_ids = token_ids_of(self._graph.source_tokenizer, text)
            require_at_most(most, f"`max_source_tokens`{where}", token_ids, "lines", _TRUNCATE)
        return self._cut_text[on_too_long](text, tf.constant(most - 1, tf.int64))

    def _whole(self, lines, name, tokenizer):
        """Returns the lines with their end tokens; raises if one is too long to be decoded."""
        token_ids = token_ids_of(tokenizer, lines)
        most = learned_positions(self.model.config)
        rule = most, "the model's learned positions", token_ids, name
        if most is None:
            advice = "or give a larger `max_source_tokens` (`--max-source-tokens`)"
            most = max(LONGEST_ROW, self.settings.max_source_tokens)
            rule = most, "to fit into memory", token_ids, name, advice
        require_at_most(*rule)
        return self._graph.with_end(token_ids)

    def _prefixes(self, target_prefix, count):
        """Returns the ragged prefix ids of each line."""
        is_for_all = isinstance(target_prefix, str)
        target_prefix = [target_prefix] * count if is_for_all else list(target_prefix)
        if len(target_prefix) != count:
            raise ValueError(
                "`target_prefix` must be one string, or one for each line. "
                f"Received: {len(target_prefix)} prefixes, {count} lines"
            )
        target_prefix = checked_lines(target_prefix, "target_prefix")
        return self._whole(target_prefix, "target_prefix", self._graph.target_tokenizer)[:, :-1]

    def _search(self, settings, n_best, has_prefix):
        """Returns a search `(source, *prefix) -> (SearchResult, texts)`."""
        values, is_distinct = runtime_inputs(settings), tf.constant(settings.distinct_texts)
        kept = kept_hypotheses(settings, n_best)
        find_compiled = self._compiled.for_call(settings, kept, has_prefix)

        def search(source, *prefix):
            found = find_compiled(source.shape)
            if found is None:
                with self._tracing:  # otherwise several threads would trace the same graph
                    found = self._search_graph(settings.graph_settings, kept, has_prefix)
            result, texts = self._with_texts(is_distinct, *found(values, source, *prefix))
            if kept > n_best:
                result = SearchResult(*(each[:, :n_best] for each in result))
            return result, texts[:, :n_best]

        return search

    def _trace(self, settings, n_best, has_prefix):
        inputs = [RUNTIME_SPECS, IDS, IDS] if has_prefix else [RUNTIME_SPECS, IDS]

        @tf.function(input_signature=inputs, autograph=False)
        def search(runtime_values, source, *prefix):
            prefix = prefix[0] if has_prefix else None
            return search_model(self._decoder, source, settings, runtime_values, n_best, prefix)

        return search.get_concrete_function()

    @tf.function(input_signature=[IDS, IDS], autograph=False)
    def _log_probs(self, source, target):
        return score_model(self._decoder, source, target)

    @tf.function(input_signature=[IDS, IDS], autograph=False)
    def _attention_scores(self, source, target):
        return self._decoder.attention_scores(teacher_forcing(self.model.config, source, target))

    def _score(self, source, target):
        """Returns the hypotheses of given targets, which have an end token."""
        log_probs = self._log_probs(source, target)
        lengths = tf.reduce_sum(tf.cast(target != self.model.config.pad_token_id, tf.int32), axis=1)
        scores = tf.reduce_sum(log_probs, axis=1) / penalty(lengths, 1, self.settings)
        one = [tensor[:, None] for tensor in (tf.constant(target), lengths, scores, log_probs)]
        found = self._hypotheses(source, *self._with_texts(tf.constant(False), *one))
        return [best for (best,) in found]

    def _hypotheses(self, source, result, texts):
        return list(hypotheses_of(source, result, texts, *self.tokenizers, self.model.config))

    def _with_attention(self, source, result, found):
        """Returns hypotheses with their attention scores, by a teacher-forced pass.

        The decoder is causal, so these are the scores of the search's steps, up to rounding.
        """
        token_ids = result.token_ids.numpy()
        places = [(row, rank) for row, ranks in enumerate(found) for rank in range(len(ranks))]
        hypotheses = [found[row][rank] for row, rank in places]
        lengths = [max(len(one.source_tokens), len(one.tokens)) for one in hypotheses]
        config = self.model.config
        # Smaller batches: the scores of all blocks are in memory at the same time.
        most_pairs = MOST_PAIRS // (config.num_encoder_layers + 2 * config.num_decoder_layers)
        start_token = self.target_tokenizer.vocabulary[config.start_token_id]
        for batch in batch_rows(lengths, BATCH_SENTENCES, most_pairs).to_list():
            rows, ranks = np.transpose([places[index] for index in batch])
            longest = max(lengths[index] for index in batch)
            inputs = source[rows, :longest], token_ids[rows, ranks, :longest]
            scores = tf.nest.map_structure(np.asarray, self._attention_scores(*inputs))
            for index, (row, rank) in enumerate(zip(rows, ranks, strict=True)):
                attention = attention_of(found[row][rank], scores, index, start_token)
                found[row][rank] = replace(found[row][rank], attention=attention)
        return found


def _as_graph(function, tokenizer, *specs):
    """Returns the function as a graph; eagerly it takes longer than the search for one sentence.

    The methods of a tokenizer that is no `tf.Module` need not be TensorFlow operations.
    """
    if not isinstance(tokenizer, tf.Module):
        return function
    # Traced in the first call: most translators need one of the graphs that they may need.
    graph = lru_cache(1)(tf.function(function, specs, autograph=False).get_concrete_function)
    return lambda *tensors: graph()(*tensors)


def _strings(tensor):
    return [element.decode() for element in tensor.numpy()]
