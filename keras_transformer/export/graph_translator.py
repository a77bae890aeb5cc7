"""The search and the translation of whole lines in a TensorFlow graph, for a SavedModel.

Letters: B lines, S source tokens, T target tokens, P tokens of a prefix, R translations of a line.
"""

from typing import Any

import tensorflow as tf

from keras_transformer.data.language_codes import LANGUAGES
from keras_transformer.decoding.batches import LONGEST_ROW
from keras_transformer.decoding.lines import NO_ROOM, learned_positions
from keras_transformer.decoding.loop import select
from keras_transformer.decoding.model_search import attend_model, make_model_search, score_model
from keras_transformer.decoding.scores import IMPOSSIBLE
from keras_transformer.decoding.search import trim
from keras_transformer.decoding.search_settings import SearchSettings
from keras_transformer.export.graph_batches import map_batches
from keras_transformer.export.graph_errors import require_rows
from keras_transformer.export.graph_lines import (
    GraphLineReader,
    allowed_targets,
    longest_targets,
    row_lengths,
)
from keras_transformer.export.graph_tags import language_tokens
from keras_transformer.export.search_tree import tree_of_model


class GraphTranslator:
    """A translator's functions for a TensorFlow graph.

    The functions of strings call those of token ids, so that the SavedModel has one search.

    Args:
        translator: `Translator`, whose tokenizers have a `graph`.

    Attributes:
        search, score_ids: `tf.function` of `search_rows` and `score_rows`.
        languages: list of the codes that the model has tags for.
        tokenizers: list of `tf.Module`, which hold the tables of the tokenizers.
        language_ids: dict from codes to the tokens of languages; empty if the model has none.
    """

    def __init__(self, translator: Any) -> None:
        self.settings, self._model = translator.settings, translator.model
        self._config = translator.model.config
        text_settings = translator.text_settings
        self._reader = GraphLineReader(translator.tokenizers, self._config, text_settings)
        self._is_distinct = text_settings.distinct_texts
        self._target_tokenizer = translator.target_tokenizer.graph
        self.languages, self.tokenizers = self._reader.languages, self._reader.sides
        self.language_ids = self._reader.language_ids
        self._num_languages = int(bool(self.language_ids))
        # Maximum tokens of a line that is scored, and of a prefix with its translation.
        self._longest = learned_positions(self._config, self._num_languages) or LONGEST_ROW
        ids = tf.TensorSpec([None, None], tf.int32)
        n_best = max_length = tf.TensorSpec([None], tf.int32)
        alpha = tf.TensorSpec([None], tf.float32)
        languages = [ids] if self.language_ids else []
        options = n_best, alpha, max_length, *languages
        self.search = tf.function(self.search_rows, [ids, ids, *options], autograph=False)
        self.score_ids = tf.function(self.score_rows, [ids, ids, *languages], autograph=False)

    # === Token ids ===

    def search_rows(self, token_ids, prefix_ids, n_best, alpha, max_length, language_ids=None):
        """Finds the best translations of rows of ids, see `export_saved_model`.

        Args:
            token_ids: int32 tensor `(B, S)`, with the end tokens, padded.
            prefix_ids: int32 tensor `(B, P)`, padded: the forced first tokens. P may be 0.
            n_best, alpha, max_length: int32, float32 and int32 tensors `(B,)` or `(1,)`.
            language_ids: int32 tensor `(B, 1)`, see `Engine.search`. Only if the model has them.

        Returns:
            dict of the fields of `SearchResult`. R is the beam: hypotheses beyond `n_best` of a
            row are missing.
        """
        max_hypotheses, rows = self.settings.max_hypotheses, tf.shape(token_ids)[:1]
        n_best = tf.clip_by_value(tf.broadcast_to(n_best, rows), 1, max_hypotheses)
        rule = SearchSettings.rule("alpha")
        alpha = tf.clip_by_value(tf.broadcast_to(alpha, rows), rule.at_least, rule.at_most)
        lengths = self._lengths(token_ids) - 1  # without the end tokens
        longest = tf.broadcast_to(max_length, rows)
        longest = allowed_targets(lengths, self._config, longest, self._num_languages)
        search, inputs = make_model_search(
            self._model,
            token_ids,
            longest,
            self.settings,
            max_hypotheses,
            language_ids=language_ids,
            alpha=alpha,
            wanted=n_best,
        )
        result = search.run(*inputs, prefix_ids)
        is_wanted = tf.range(max_hypotheses) < n_best[:, None]
        result = result._replace(
            lengths=tf.where(is_wanted, result.lengths, 0),
            scores=tf.where(is_wanted, result.scores, IMPOSSIBLE),
        )
        return trim(result, self._config.pad_token_id)._asdict()

    def score_rows(self, token_ids, target_ids, language_ids=None):
        """Returns the log-prob of each token of given translations, float32 `(B, T)`."""
        return {"log_probs": score_model(self._model, token_ids, target_ids, language_ids)}

    def attend(self, token_ids, target_ids):
        """Returns the attention scores of all blocks and heads, see `export_saved_model`."""
        scores = attend_model(self._model, token_ids, target_ids)
        return {name: tf.stack(blocks, axis=1) for name, blocks in scores.items()}

    def search_tree(self, token_ids):
        """Returns what the search does with rows of ids, see `export_saved_model`."""
        lengths = self._lengths(token_ids)
        longest = self._longest_targets(lengths, self.settings.most_tokens)
        tree = tree_of_model(self._model, token_ids, longest, self.settings)
        return dict(zip(("token_ids", "parents", "log_probs", "is_winner"), tree, strict=True))

    def detokenize(self, token_ids):
        """Returns the texts of the target's tokens, see `export_saved_model`."""
        return {"text": self._target_tokenizer.detokenize(token_ids)}

    # === Strings ===

    def translate(
        self, text, source_language, target_language, n_best, alpha, max_length, target_prefix
    ):
        """Translates lines, see `translate_n_best` in `export_saved_model`; R is the beam.

        Args:
            text: string tensor `(B,)`.
            source_language, target_language, n_best, alpha, max_length, target_prefix: tensors
                `(B,)` or `(1,)`.
        """
        sources, targets = self._tokens_of(source_language, target_language, tf.size(text))
        token_ids, is_truncated = self._reader.read(text, target_language, sources)
        longest = self._longest_targets(row_lengths(token_ids), max_length)
        token_ids, languages = self._with_languages(token_ids, sources, targets)
        prefix_ids = self._prefixes(target_prefix, longest, targets)
        n_best, alpha = (tf.broadcast_to(option, tf.shape(longest)) for option in (n_best, alpha))
        columns, options = [token_ids, prefix_ids, *languages], [n_best, alpha, longest]
        dtypes = {
            "translations": tf.string,
            "scores": tf.float32,
            "lengths": tf.int32,
            "unfinished": tf.bool,
        }
        shape, pad = [None, self.settings.max_hypotheses], self._config.pad_token_id
        specs = {name: tf.TensorSpec(shape, dtype) for name, dtype in dtypes.items()}
        results = map_batches(self._translate_batch, columns, options, pad, specs)
        return results | {"truncated": is_truncated}

    def _translate_batch(self, token_ids, prefix_ids, *others):
        """Returns the outputs of `translate` for a batch of rows, without `truncated`.

        `others` are the column of language tokens, if the model has them, `n_best`, `alpha` and the
        maximum lengths.
        """
        *languages, n_best, alpha, longest = others
        max_hypotheses, is_distinct = self.settings.max_hypotheses, self._is_distinct
        # Equal texts are dropped after the search: if several are wanted, keep all hypotheses.
        wanted = tf.where(n_best <= 1, 1, max_hypotheses) if is_distinct else n_best
        result = self.search(token_ids, prefix_ids, wanted, alpha, longest, *languages)
        texts = self._texts(result["token_ids"])
        if is_distinct and max_hypotheses > 1:
            result, texts = _distinct(result, texts)
        is_wanted = tf.range(max_hypotheses) < tf.maximum(n_best, 1)[:, None]
        lengths = tf.where(is_wanted, result["lengths"], 0)
        has_end = tf.reduce_any(result["token_ids"] == self._config.end_token_id, axis=2)
        return {
            "translations": tf.where(lengths > 0, texts, ""),
            "scores": tf.where(is_wanted, result["scores"], IMPOSSIBLE),
            "lengths": lengths,
            "unfinished": (lengths > 0) & ~has_end,
        }

    def score(self, source, target, source_language, target_language):
        """Scores given translations, see `export_saved_model`.

        Args:
            source, target: string tensors `(B,)`.
            source_language, target_language: as in `translate`.
        """
        source = self._reader.tagged(source, target_language)
        source_tokens, target_tokens = self._tokens_of(
            source_language, target_language, tf.size(source)
        )
        source_ids = self._reader.with_end(self._reader.source_ids(source, source_tokens))
        target_ids = self._reader.with_end(self._reader.target_ids(target, target_tokens))
        # Longer rows are cut, so that they fit into memory; their log-prob is NaN below.
        source_rows, target_rows = (ids[:, : self._longest] for ids in (source_ids, target_ids))
        source_rows, languages = self._with_languages(source_rows, source_tokens, target_tokens)
        columns, pad = [source_rows, target_rows, *languages], self._config.pad_token_id
        specs = {"log_prob": tf.TensorSpec([None], tf.float32)}
        results = map_batches(self._score_batch, columns, [], pad, specs)
        tokens = row_lengths(target_ids)
        longest = tf.maximum(row_lengths(source_ids), tokens)
        log_prob = tf.where(longest <= self._longest, results["log_prob"], float("nan"))
        perplexity = tf.exp(-log_prob / tf.cast(tokens, tf.float32))
        return {"log_prob": log_prob, "tokens": tokens, "perplexity": perplexity}

    def _score_batch(self, *columns):
        log_probs = self.score_ids(*columns)["log_probs"]
        return {"log_prob": tf.reduce_sum(log_probs, axis=1)}

    def tokenize(self, text):
        """Returns the ids of the source's tokens, see `export_saved_model`."""
        token_ids = self._reader.source_ids(text)
        rows = token_ids.to_tensor(self._config.pad_token_id)
        return {"token_ids": rows, "lengths": row_lengths(token_ids)}

    def _tokens_of(self, source_language, target_language, rows):
        """Returns the language tokens of sources and of targets; `None` if the model has none."""
        if not self.language_ids:
            return None, None
        codes = zip((source_language, target_language), LANGUAGES, strict=True)
        return [language_tokens(code, name, self.language_ids, rows) for code, name in codes]

    def _with_languages(self, token_ids, sources, targets):
        """Returns source rows with language tokens, and `[column of the target languages]`.

        If the model has no tokens of languages, it returns the rows unchanged, and `[]`.
        """
        if sources is None:
            return token_ids, []
        column = tf.RaggedTensor.from_tensor(targets[:, None])
        return self._reader.with_languages(token_ids, sources), [column]

    def _lengths(self, token_ids):
        return tf.math.count_nonzero(token_ids != self._config.pad_token_id, 1, dtype=tf.int32)

    def _longest_targets(self, lengths, max_length):
        """Returns the maximum lengths of translations of rows; see `longest_targets`."""
        return longest_targets(
            lengths - 1, self.settings, self._config, max_length, self._num_languages
        )

    def _prefixes(self, text, longest, language_ids):
        """Returns the ragged ids of prefixes; raises if one leaves no room for another token.

        Args:
            text: string tensor `(B,)` or `(1,)`.
            longest: int32 tensor `(B,)`, the maximum length of each translation.
            language_ids: int32 tensor `(B,)`, the tokens of their languages, or `None`.
        """
        text = tf.broadcast_to(text, tf.shape(longest))
        rows = self._reader.target_ids(text, language_ids)
        lengths, room = row_lengths(rows), tf.minimum(longest, self._longest)
        is_right = (lengths < room) | (longest == 0)  # an empty source gets no prefix
        lines = tf.range(tf.size(longest)) + 1
        with tf.control_dependencies([require_rows(is_right, NO_ROOM, lines, lengths, room)]):
            return tf.identity(rows)

    def _texts(self, token_ids):
        """Returns the texts `(B, R)` of token ids `(B, R, T)`."""
        shape = tf.shape(token_ids)
        texts = self._target_tokenizer.detokenize(tf.reshape(token_ids, [-1, shape[2]]))
        return tf.reshape(texts, shape[:2])


def _distinct(result, texts):
    """Marks hypotheses as missing, and moves them last, if a better one has the same text."""
    is_equal, ranks = texts[:, :, None] == texts[:, None, :], tf.range(tf.shape(texts)[1])
    is_repeated = tf.reduce_any(is_equal & (ranks[:, None] > ranks), axis=2)
    result["lengths"] = tf.where(is_repeated, 0, result["lengths"])
    result["scores"] = tf.where(is_repeated, IMPOSSIBLE, result["scores"])
    order = tf.argsort(tf.cast(is_repeated, tf.int32), axis=1, stable=True)
    return select((result, texts), order)
