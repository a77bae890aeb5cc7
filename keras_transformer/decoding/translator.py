"""Strings in, translations out: tokenizer, model and search as one object.

It runs as it is in Python, and is what `export_saved_model` writes.
"""

import threading
from dataclasses import replace
from functools import lru_cache, partial

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.decoding.batches import (
    LONGEST_ROW,
    MOST_PAIRS,
    map_batches,
    map_rows,
)
from keras_transformer.decoding.frozen import FrozenTransformer
from keras_transformer.decoding.hypothesis import Attention, hypotheses_of, join_by_line
from keras_transformer.decoding.lines import checked_lines, require_at_most, token_ids_of
from keras_transformer.decoding.long_lines import LineCutter, join_translations, warn_of_long_lines
from keras_transformer.decoding.model_search import (
    RUNTIME_SPECS,
    runtime_values,
    score_model,
    search_model,
)
from keras_transformer.decoding.search import SearchResult, penalty
from keras_transformer.decoding.search_settings import SearchSettings
from keras_transformer.layers.arguments import require_positive

_TEXT = tf.TensorSpec([None], tf.string, name="text")
_IDS = tf.TensorSpec([None, None], tf.int32)
_MAX_SOURCE_TOKENS = 256  # the `max_length` of `make_dataset`
_TRUNCATE = 'or truncate it: `on_too_long="truncate"` (`--on-too-long truncate`)'
# Graphs kept, each with its weights if it is frozen. The one not used for longest goes.
_KEPT_SEARCHES = 8


class Translator:
    """Translates lists of strings.

    Args:
        model: `Transformer`.
        tokenizer: `Tokenizer` of the source, and of the target unless `target_tokenizer` is given.
        target_tokenizer: `Tokenizer` of the target, if the vocabularies are separate.
        frozen: bool. Translate with a copy of the model as it is now, its weights constants of
            the graph: faster, for one sentence at a time by a third. Defaults to `False`:
            what the model learns meanwhile shows.
        dtype: name of a dtype, such as `"bfloat16"`, that a frozen copy is cast to. Optional.
        **settings: those of `SearchSettings`: `beam_size=4`, `length_penalty="gnmt"`, `alpha=0.6`,
            `length_ratio=1.0`, `extra_length=50`, `processors=()`, `sampler=None`,
            `max_source_tokens=None`, `on_too_long="split"`.

    Call arguments:
        lines: list of strings, or one string.
        n_best: int, at most `beam_size`. How many translations to return of each line. Optional.
        return_attention: bool. Return also where the model looked. Defaults to `False`. A line that
            would have to be split is then refused.
        target_prefix: list of strings, or one for all lines: what the translations must begin
            with. Optional.
        batch_sentences: int. How many sentences are decoded together at most; fewer where they are
            long. Defaults to `64`.
        on_progress: callable that is told after each batch how many lines are done with it.
            Optional.
        **settings: settings of the search that are other for this call.

    Returns:
        list of strings, one for each line and in the same order. An empty line, or one of white
        space, gives an empty line. With `n_best` or `return_attention`, instead of each string a
        list of `Hypothesis`, best first; fewer where there are no more. For one string in place of
        the list, what would stand in the list. A line of more than `max_source_tokens` is
        translated as `on_too_long` says. Each `Hypothesis` tells it, of a split line there is one;
        strings cannot, so that a `UserWarning` names the lines.

    Raises:
        TypeError: if a line is not a string, or there is no such setting.
        ValueError: if the backend is not TensorFlow, the vocabularies of model and tokenizer
            differ, a line is too long and `on_too_long="error"`, or a setting is out of its range.

    Example, untrained; `load_run` makes one from a trained run:

    >>> lines = ["a house", "ein Haus"]
    >>> tokenizer = keras_transformer.Tokenizer.train(iter(lines), 270, "vocabulary.model")
    >>> config = keras_transformer.TransformerConfig.tiny(tokenizer.vocabulary_size)
    >>> translator = keras_transformer.Translator(keras_transformer.Transformer(config), tokenizer)
    >>> len(translator(["a house", "", "a mouse"]))
    3
    >>> [hypothesis.score for hypothesis in translator("a house", n_best=2)] # doctest: +ELLIPSIS
    [-..., -...]

    Reference:
        [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 6.1, for the search.
    """

    def __init__(
        self, model, tokenizer, target_tokenizer=None, *, frozen=False, dtype=None, **settings
    ):
        if keras.backend.backend() != "tensorflow":
            raise ValueError(
                "Translating runs in the TensorFlow graph: set KERAS_BACKEND=tensorflow, and load "
                f"the model from its file. Received: the backend {keras.backend.backend()!r}"
            )
        self.source_tokenizer = tokenizer
        self.target_tokenizer = target_tokenizer or tokenizer
        config = model.config
        _require_fit("source", self.source_tokenizer, config, config.source_vocabulary_size)
        _require_fit("target", self.target_tokenizer, config, config.vocabulary_size)
        frozen = frozen or dtype is not None
        self._decoder = FrozenTransformer(model, dtype) if frozen else model
        self.model = self._decoder.model if frozen else model
        self.settings = self._bounded(SearchSettings(**settings))
        self._cutter = LineCutter(tokenizer)
        self._search_graph = lru_cache(_KEPT_SEARCHES)(self._trace)
        self._tracing = threading.Lock()

    def __call__(
        self,
        lines,
        *,
        n_best=None,
        return_attention=False,
        target_prefix=None,
        batch_sentences=64,
        on_progress=None,
        **settings,
    ):
        if isinstance(lines, str):
            lines, is_one = [lines], True
        else:
            lines, is_one = list(lines), False
        if n_best is not None:
            require_positive(n_best=n_best)
        settings = self._bounded(replace(self.settings, **settings))
        pieces = self._pieces(lines, "lines", settings, must_be_whole=return_attention)
        columns = [pieces.token_ids]
        if target_prefix is not None:
            columns += [self._prefixes(target_prefix, len(lines), pieces.lines)]
        search = self._search(settings, n_best or 1, return_attention, target_prefix is not None)
        return_hypotheses = n_best is not None or return_attention
        finish = self._hypotheses if return_hypotheses else self._translations
        lines_of = pieces.lines.numpy()
        found = map_rows(
            lambda *batch: finish(batch[0], search(*batch)),
            columns,
            self.model.config.pad_token_id,
            batch_sentences,
            on_progress,
            lines_of,
            self._most_pairs(settings, n_best or 1) if return_attention else MOST_PAIRS,
        )
        if return_hypotheses:
            kind, alpha = settings.length_penalty, settings.alpha
            of_length = partial(penalty, length_penalty=kind, alpha=alpha)
            translations = join_by_line(found, lines_of, pieces.dropped.numpy(), of_length)
        else:
            warn_of_long_lines(pieces, settings.max_source_tokens)
            texts = tf.constant(found, tf.string)
            translations = _strings(join_translations(texts, pieces.lines, len(lines)))
        return translations[0] if is_one else translations

    @tf.function(input_signature=[_TEXT], autograph=False)
    def translate(self, text):
        """Translates in the graph: string tensor `(B,)` in, string tensor `(B,)` out.

        Lines that are too long are treated as `on_too_long` says, without a word; `"error"` is an
        `InvalidArgumentError` then. 64 pieces are decoded together, fewer where they are long.
        """
        settings = self.settings
        pieces = self._cutter.cut(
            token_ids_of(self.source_tokenizer, text),
            settings.max_source_tokens - 1,
            settings.on_too_long,
        )

        def translate_batch(source):
            result = search_model(self._decoder, source, settings)
            return self.target_tokenizer.detokenize(result.token_ids[:, 0])

        rows = self._with_end(pieces.token_ids)
        texts = map_batches(translate_batch, rows, self.model.config.pad_token_id)
        return join_translations(texts, pieces.lines, tf.size(text))

    def score(self, sources, targets, batch_sentences=64, on_progress=None):
        """Scores translations that are given, by the model and the translator's length penalty.

        Args:
            sources: list of strings, or one string.
            targets: list of as many strings, their translations, or one string.
            batch_sentences, on_progress: as in a call.

        Returns:
            list of `Hypothesis`, one for each pair; for one string, one. Each has its end token,
            also where the source is empty: a search leaves those out.

        Raises:
            ValueError: if there are more of the one than of the other, or a line has more than
                2,048 tokens and more than `max_source_tokens`: the score of a part would be wrong.
        """
        if isinstance(sources, str) and isinstance(targets, str):
            return self.score([sources], [targets])[0]
        for name, lines in (("sources", sources), ("targets", targets)):
            if isinstance(lines, str):
                raise TypeError(f"`{name}` must be a list, as the other is. Received: {lines!r}")
        sources, targets = list(sources), list(targets)
        if len(sources) != len(targets):
            raise ValueError(
                "`targets` must have a translation for each of `sources`. Received: "
                f"{len(sources)} sources, {len(targets)} targets"
            )
        columns = [
            self._whole(sources, "sources", self.source_tokenizer),
            self._whole(targets, "targets", self.target_tokenizer),
        ]
        pad = self.model.config.pad_token_id
        return map_rows(self._score, columns, pad, batch_sentences, on_progress)

    def attention(self, line):
        """Translates one line and returns what every head of every block attended to meanwhile.

        Args:
            line: str, not empty. One of more than `max_source_tokens` is refused, or truncated if
                `on_too_long="truncate"`.

        Returns:
            `Attention`.
        """
        pieces = self._pieces([line], "line", self.settings, must_be_whole=True)
        warn_of_long_lines(pieces, self.settings.max_source_tokens)
        source = pieces.token_ids
        if int(source.row_lengths()[0]) == 1:
            raise ValueError(f"There is nothing to attend to in an empty line. Received: {line!r}")
        target = self._search(self.settings)(source.to_tensor()).token_ids[:, 0]
        start = [[self.model.config.start_token_id]]
        decoder_token_ids = tf.concat([start, target[:, :-1]], axis=1)
        scores = self.model.attention_scores(
            {"encoder_token_ids": source.to_tensor(), "decoder_token_ids": decoder_token_ids}
        )
        return Attention(
            source_tokens=_strings(self.source_tokenizer.tokens(source[0])),
            decoder_tokens=_strings(self.target_tokenizer.tokens(decoder_token_ids[0])),
            target_tokens=_strings(self.target_tokenizer.tokens(target[0])),
            scores={name: np.stack([s[0] for s in blocks]) for name, blocks in scores.items()},
        )

    def _bounded(self, settings):
        """The settings with a bound on source tokens, which the model's positions reach."""
        config = self.model.config
        most = config.max_sequence_length if config.positions == "learned" else None
        bound = settings.max_source_tokens or most or _MAX_SOURCE_TOKENS
        if most is not None and bound > most:
            raise ValueError(
                f"`max_source_tokens` must be at most the model's {most} learned positions. "
                f"Received: max_source_tokens={bound}"
            )
        return replace(settings, max_source_tokens=bound)

    def _pieces(self, lines, name, settings, must_be_whole):
        """The lines with their end tokens, each in as many pieces as the settings say."""
        token_ids = token_ids_of(self.source_tokenizer, checked_lines(lines, name))
        most, on_too_long = settings.max_source_tokens, settings.on_too_long
        if on_too_long == "error" or (must_be_whole and on_too_long == "split"):
            what = "`max_source_tokens`" + ", where attention is returned" * must_be_whole
            require_at_most(most, what, token_ids, name, _TRUNCATE)
        pieces = self._cutter.cut(token_ids, most - 1, on_too_long)
        return pieces._replace(token_ids=self._with_end(pieces.token_ids))

    def _whole(self, lines, name, tokenizer):
        """The lines with their end tokens, none of them longer than can be decoded."""
        token_ids = token_ids_of(tokenizer, checked_lines(lines, name))
        config = self.model.config
        if config.positions == "learned":
            bound = config.max_sequence_length, "the model's learned positions"
            require_at_most(*bound, token_ids, name)
        else:
            most = max(LONGEST_ROW, self.settings.max_source_tokens)
            advice = "or give a larger `max_source_tokens` (`--max-source-tokens`)"
            require_at_most(most, "to fit into memory", token_ids, name, advice)
        return self._with_end(token_ids)

    def _prefixes(self, target_prefix, count, lines):
        """Ragged ids of what each piece's translation must begin with: the first of each line."""
        is_for_all = isinstance(target_prefix, str)
        target_prefix = [target_prefix] * count if is_for_all else list(target_prefix)
        if len(target_prefix) != count:
            raise ValueError(
                "`target_prefix` must be one string, or one for each line. "
                f"Received: {len(target_prefix)} prefixes, {count} lines"
            )
        prefixes = self._whole(target_prefix, "target_prefix", self.target_tokenizer)
        is_first = np.diff(lines, prepend=-1) > 0
        empty = tf.ragged.constant([[]], tf.int32)
        return tf.gather(
            tf.concat([prefixes[:, :-1], empty], axis=0), np.where(is_first, lines, count)
        )

    def _with_end(self, token_ids):
        end = tf.fill([token_ids.nrows(tf.int32), 1], self.model.config.end_token_id)
        return tf.concat([token_ids, end], axis=1)

    def _most_pairs(self, settings, n_best):
        """Less for a search that keeps the attention of every head of every block."""
        kept = self.model.config.num_decoder_layers * (2 * settings.beam_size + n_best)
        return MOST_PAIRS // kept

    def _search(self, settings, n_best=1, return_attention=False, has_prefix=False):
        """The search as a graph, traced once for each way to search."""
        with self._tracing:  # or several threads would trace the same
            graph = self._search_graph(settings.of_graph, n_best, return_attention, has_prefix)
        return partial(graph, runtime_values(settings))

    def _trace(self, settings, n_best, return_attention, has_prefix):
        inputs = [RUNTIME_SPECS] + [_IDS] * (1 + has_prefix)

        @tf.function(input_signature=inputs, autograph=False)
        def search(numbers, source, *prefix):
            return search_model(
                self._decoder,
                source,
                settings,
                numbers,
                n_best,
                *prefix or [None],
                return_attention=return_attention,
            )

        return search.get_concrete_function()

    @tf.function(input_signature=[_IDS, _IDS], autograph=False)
    def _log_probs(self, source, target):
        return score_model(self.model, source, target)

    def _translations(self, source, result):
        return _strings(self.target_tokenizer.detokenize(result.token_ids[:, 0]))

    def _score(self, source, target):
        """The given targets, as if they had been searched for."""
        log_probs = self._log_probs(source, target)
        lengths = tf.reduce_sum(tf.cast(target != self.model.config.pad_token_id, tf.int32), axis=1)
        penalties = penalty(lengths, self.settings.length_penalty, self.settings.alpha)
        scores = tf.reduce_sum(log_probs, axis=1) / penalties
        one = [tensor[:, None] for tensor in (target, lengths, scores, log_probs)]
        return [best for (best,) in self._hypotheses(source, SearchResult(*one, attention=None))]

    def _hypotheses(self, source, result):
        tokenizers = self.source_tokenizer, self.target_tokenizer
        return hypotheses_of(source, result, *tokenizers, self.model.config.pad_token_id)


def _require_fit(side, tokenizer, config, vocabulary_size):
    if tokenizer.vocabulary_size != vocabulary_size:
        raise ValueError(
            f"The {side} tokenizer must have the model's vocabulary of {vocabulary_size} tokens. "
            f"Received: a tokenizer of {tokenizer.vocabulary_size} tokens"
        )
    for name in ("pad_token_id", "start_token_id", "end_token_id"):
        ours, theirs = getattr(config, name), getattr(tokenizer, name)
        if ours != theirs:
            raise ValueError(
                f"The {side} tokenizer must have the model's `{name}`, {ours}. Received: {theirs}"
            )


def _strings(tensor):
    return [element.decode() for element in tensor.numpy()]
