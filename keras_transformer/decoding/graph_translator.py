"""From strings to strings inside one TensorFlow graph: what a SavedModel holds.

Letters: B lines, P pieces of lines, b rows of a batch.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from keras_transformer.data.tokenizer_like import TokenizerLike, append_token
from keras_transformer.decoding.batches import LONGEST_ROW, map_batches
from keras_transformer.decoding.lines import token_ids_of
from keras_transformer.decoding.long_lines import LineCutter, Pieces, join_translations
from keras_transformer.decoding.model_search import score_model, search_model
from keras_transformer.decoding.next_tokens import IMPOSSIBLE
from keras_transformer.decoding.search import penalty


class Translations(NamedTuple):
    """The translation of each line.

    Attributes:
        texts: string tensor `(B,)`.
        scores: float32 tensor `(B,)`, as `Hypothesis.score`: 0 for empty lines.
        truncated: bool tensor `(B,)`, whether tokens were cut off the line.
    """

    texts: tf.Tensor
    scores: tf.Tensor
    truncated: tf.Tensor


class GraphTranslator:
    """Tokenizes, searches and scores in the graph.

    Args:
        model: `Transformer`, for scores.
        decoder: `Transformer` or `FrozenTransformer`, for the search.
        source_tokenizer, target_tokenizer: `TokenizerLike`.
    """

    def __init__(
        self,
        model: Any,
        decoder: Any,
        source_tokenizer: TokenizerLike,
        target_tokenizer: TokenizerLike,
    ) -> None:
        self.model, self.decoder = model, decoder
        self.source_tokenizer, self.target_tokenizer = source_tokenizer, target_tokenizer
        self._cutter = LineCutter(source_tokenizer)

    def pieces(self, text: tf.Tensor, most: int | tf.Tensor, on_too_long: str) -> Pieces:
        """Tokenizes lines and cuts those that are too long; also eagerly.

        Args:
            text: string tensor `(B,)`.
            most: int, or int64 tensor: maximum tokens of a piece, without its end token.
            on_too_long: as in `LineCutter.cut`.
        """
        pieces = self._cutter.cut(token_ids_of(self.source_tokenizer, text), most, on_too_long)
        return pieces._replace(token_ids=self.with_end(pieces.token_ids))

    def with_end(self, token_ids: tf.RaggedTensor) -> tf.RaggedTensor:
        """Returns the rows with their end tokens."""
        return append_token(token_ids, self.model.config.end_token_id)

    def best_texts(self, token_ids: tf.Tensor) -> tf.Tensor:
        """Returns the texts `(b,)` of the best of the hypotheses `(b, R, T)`."""
        return self.target_tokenizer.detokenize(token_ids[:, 0])

    def translate(self, text: tf.Tensor, settings: Any) -> Translations:
        """Translates lines.

        Args:
            text: string tensor `(B,)`.
            settings: `SearchSettings` with `max_source_tokens`. `on_too_long="error"` raises an
                `InvalidArgumentError`; there are no warnings.
        """
        pieces = self.pieces(text, settings.max_source_tokens - 1, settings.on_too_long)
        end_token_id = self.model.config.end_token_id

        def translate_batch(source):
            found = search_model(self.decoder, source, settings)
            is_end = found.token_ids[:, 0] == end_token_id
            is_token = tf.sequence_mask(found.lengths[:, 0], tf.shape(is_end)[1])
            ends = tf.math.count_nonzero(is_end & is_token, axis=1, dtype=tf.int32)
            totals = tf.reduce_sum(found.log_probs[:, 0], axis=1)
            totals = tf.where(found.scores[:, 0] == IMPOSSIBLE, IMPOSSIBLE, totals)
            return self.best_texts(found.token_ids), totals, found.lengths[:, 0], ends

        dtypes = tf.string, tf.float32, tf.int32, tf.int32
        pad = self.model.config.pad_token_id
        texts, *numbers = map_batches(translate_batch, [pieces.token_ids], pad, dtypes)
        count = tf.size(text)
        # A line's score is that of the hypotheses of its pieces, joined.
        totals, lengths, ends = (
            tf.math.unsorted_segment_sum(each, pieces.lines, count) for each in numbers
        )
        scores = totals / penalty(tf.maximum(lengths, 1), ends, settings)
        texts = join_translations(texts, pieces.lines, count)
        return Translations(texts, scores, pieces.dropped > 0)

    def score(self, source: tf.Tensor, target: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Scores given translations.

        Args:
            source: string tensor `(B,)`.
            target: string tensor `(B,)`.

        Returns:
            float32 tensor `(B,)`, the log-probability of each target with its end token, NaN if a
            line of either side has more tokens than the model's learned positions, or than 2,048;
            and int32 tensor `(B,)`, the number of the target's tokens with its end token.
        """
        config = self.model.config
        most = config.max_sequence_length if config.positions == "learned" else LONGEST_ROW
        tokenizers = self.source_tokenizer, self.target_tokenizer
        columns = [
            self.with_end(token_ids_of(tokenizer, text))
            for tokenizer, text in zip(tokenizers, (source, target), strict=True)
        ]
        longest = tf.maximum(*(column.row_lengths() for column in columns))

        def score_batch(source, target):
            return (tf.reduce_sum(score_model(self.model, source, target), axis=1),)

        # Those that are too long are not computed.
        kept = [column[:, :most] for column in columns]
        (log_probs,) = map_batches(score_batch, kept, config.pad_token_id, (tf.float32,))
        log_probs = tf.where(longest <= most, log_probs, float("nan"))
        return log_probs, tf.cast(columns[1].row_lengths(), tf.int32)
