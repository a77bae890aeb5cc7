"""The tree of a beam search: which hypotheses were extended at every step, for a picture.

Letters: B batch, T steps, W beam slots.
"""

import tensorflow as tf

from keras_transformer.decoding.loop_tensorflow import loop_shapes
from keras_transformer.decoding.model_search import SearchModel, make_model_search
from keras_transformer.decoding.scores import IMPOSSIBLE
from keras_transformer.decoding.search import trim
from keras_transformer.decoding.search_settings import SearchSettings


def tree_of_model(
    model: SearchModel,
    encoder_token_ids: tf.Tensor,
    max_lengths: tf.Tensor,
    settings: SearchSettings,
) -> tuple[tf.Tensor, ...]:
    """Searches, and returns the active hypotheses after each step, without those that ended.

    Args:
        model, encoder_token_ids, max_lengths, settings: as in `make_model_search`.

    Returns:
        four tensors `(B, T, W)`: int32, the last token of each hypothesis; int32 `parents`, where
        hypothesis w of step t extends hypothesis `parents[b, t, w]` of step t - 1; float32, the sum
        of the log-probs of its tokens, -inf in empty slots; and bool, whether the best hypothesis
        of the sentence begins with it.
    """
    search, inputs = make_model_search(model, encoder_token_ids, max_lengths, settings)
    state = search.first_state(*inputs)
    shape = [tf.size(max_lengths), 0, settings.max_hypotheses]
    tree = tf.zeros(shape, tf.int32), tf.zeros(shape, tf.int32), tf.zeros(shape)

    def advance(index, state, tree):
        was_done = state.sentences.done[:, None]
        state = search.step(index, state)
        totals = tf.where(was_done, IMPOSSIBLE, state.totals)
        level = state.last_token_ids, state.parents, totals
        tree = tuple(
            tf.concat([steps, step[:, None]], axis=1)
            for steps, step in zip(tree, level, strict=True)
        )
        return index + 1, state, tree

    _, state, tree = tf.while_loop(
        lambda index, state, tree: ~tf.reduce_all(state.sentences.done),
        advance,
        (tf.constant(0), state, tree),
        shape_invariants=(
            tf.TensorShape([]),
            loop_shapes(state),
            (tf.TensorShape([None, None, shape[2]]),) * 3,
        ),
    )
    result = trim(search.final(state), search.pad_token_id)
    best = tf.pad(result.token_ids[:, 0], [[0, 0], [0, tf.shape(tree[0])[1]]])
    return *tree, _is_on_path(best, *tree)


def _is_on_path(best, token_ids, parents, totals):
    """Returns which hypotheses are a beginning of the best tokens `(B, T')`, T' at least T."""
    active, slots = totals > IMPOSSIBLE, tf.shape(totals)[2]
    is_next = active & (token_ids == best[:, : tf.shape(active)[1], None])
    # All hypotheses of step 0 extend slot 0.
    start = tf.broadcast_to(tf.range(slots) == 0, [tf.shape(active)[0], slots])

    def extend(is_on_path, step):
        parents, is_next = step
        return tf.gather(is_on_path, parents, batch_dims=1) & is_next

    # (B, T, W) -> (T + 1, B, W): `scan` needs at least one step.
    steps = [
        tf.pad(tf.transpose(tensor, [1, 0, 2]), [[0, 1], [0, 0], [0, 0]])
        for tensor in (parents, is_next)
    ]
    return tf.transpose(tf.scan(extend, steps, start)[:-1], [1, 0, 2])
