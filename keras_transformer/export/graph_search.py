"""The search with a model in a graph of TensorFlow, whose settings of each sentence are inputs."""

from typing import Any

import tensorflow as tf

from keras_transformer.decoding.lines import learned_positions
from keras_transformer.decoding.model_search import SearchModel, make_model_search
from keras_transformer.decoding.search import Search
from keras_transformer.decoding.search_settings import SearchSettings


def make_graph_search(
    model: SearchModel,
    encoder_token_ids: tf.Tensor,
    settings: SearchSettings,
    max_length: int | tf.Tensor,
    n_best: int = 1,
    **options: Any,
) -> tuple[Search, tuple[Any, tf.Tensor, int]]:
    """Returns a search in a graph and its inputs, see `make_model_search`.

    Args:
        model, encoder_token_ids, settings, n_best: as in `search_model`; tensors.
        max_length: as in `max_lengths`.
        **options: `alpha` and `wanted` of `Search`.
    """
    is_token = encoder_token_ids != model.config.pad_token_id
    lengths = tf.math.count_nonzero(is_token, axis=1, dtype=tf.int32)
    longest = max_lengths(model.config, lengths - 1, settings, max_length)
    given = model, encoder_token_ids, longest, settings, n_best
    return make_model_search(*given, **options)


def max_lengths(
    config: Any, lengths: tf.Tensor, settings: SearchSettings, max_length: int | tf.Tensor
) -> tf.Tensor:
    """As `longest_target`, in a graph: maximum tokens, end token and prefix included.

    Args:
        config: as in `SearchModel`.
        lengths: int32 tensor `(B,)`: tokens of each source, without the end token.
        settings: `SearchSettings`, for `length_ratio` and `extra_length`.
        max_length: int, or int32 tensor `(B,)`.

    Returns:
        int32 tensor `(B,)`, 0 for empty sources.
    """
    # float64 rounds as Python does. The cast is safe, because `max_length` fits into int32.
    longest = tf.floor(settings.length_ratio * tf.cast(lengths, tf.float64)) + settings.extra_length
    longest = tf.minimum(longest, tf.cast(max_length, tf.float64))
    longest = tf.maximum(tf.cast(longest, tf.int32), 1)
    longest = tf.minimum(longest, learned_positions(config) or longest)
    return tf.where(lengths > 0, longest, 0)
