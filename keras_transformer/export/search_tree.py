"""The tree of a beam search: which hypotheses were extended at every step, for a picture.

Letters: B batch, T steps, W beam slots.
"""

from typing import NamedTuple

import tensorflow as tf

from keras_transformer.decoding.loop import loop_shapes
from keras_transformer.decoding.model_search import SearchModel
from keras_transformer.decoding.scores import IMPOSSIBLE
from keras_transformer.decoding.search import SearchResult
from keras_transformer.decoding.search_settings import SearchSettings
from keras_transformer.export.graph_search import make_graph_search


class SearchTree(NamedTuple):
    """The active hypotheses after each step. Those that ended are in the `SearchResult`.

    Attributes:
        token_ids: int32 tensor `(B, T, W)`, the last token of each hypothesis.
        parents: int32 tensor `(B, T, W)`: hypothesis w of step t extends hypothesis
            `parents[b, t, w]` of step t - 1.
        totals: float32 tensor `(B, T, W)`, the log-probs of the hypotheses; -inf in empty slots.
    """

    token_ids: tf.Tensor
    parents: tf.Tensor
    totals: tf.Tensor

    def is_on_path(self, token_ids: tf.Tensor) -> tf.Tensor:
        """Returns which hypotheses are a beginning of the given tokens.

        Args:
            token_ids: int32 tensor `(B, T')`, T' at least T.

        Returns:
            bool tensor `(B, T, W)`.
        """
        active, slots = self.totals > IMPOSSIBLE, tf.shape(self.totals)[2]
        is_next = active & (self.token_ids == token_ids[:, : tf.shape(active)[1], None])
        start = tf.broadcast_to(tf.range(slots) == 0, [tf.shape(active)[0], slots])

        def extend(is_before, step):
            parents, is_next = step
            return tf.gather(is_before, parents, batch_dims=1) & is_next

        # (B, T, W) -> (T + 1, B, W): `scan` needs at least one step.
        steps = [
            tf.pad(tf.transpose(each, [1, 0, 2]), [[0, 1], [0, 0], [0, 0]])
            for each in (self.parents, is_next)
        ]
        return tf.transpose(tf.scan(extend, steps, start)[:-1], [1, 0, 2])


def tree_of_model(
    model: SearchModel, encoder_token_ids: tf.Tensor, settings: SearchSettings
) -> tuple[SearchResult, SearchTree]:
    """As `search_model`, with the tree of the search; the score of a sentence that fails is NaN."""
    search, (cache, max_lengths, start_token_id) = make_graph_search(
        model, encoder_token_ids, settings, settings.most_tokens
    )
    state = search.first_state(cache, max_lengths, start_token_id)
    shape = [tf.size(max_lengths), 0, state.totals.shape[1]]
    tree = SearchTree(tf.zeros(shape, tf.int32), tf.zeros(shape, tf.int32), tf.zeros(shape))

    def advance(index, state, tree):
        was_done = state.sentences.done[:, None]
        state = search.step(index, state)
        parents = getattr(state, "parents", tf.zeros_like(state.last_token_ids))  # none if greedy
        totals = tf.where(was_done, IMPOSSIBLE, state.totals)
        step = SearchTree(state.last_token_ids, parents, totals)
        tree = tf.nest.map_structure(
            lambda steps, step: tf.concat([steps, step[:, None]], axis=1), tree, step
        )
        return index + 1, state, tree

    _, state, tree = tf.while_loop(
        lambda index, state, tree: ~tf.reduce_all(state.sentences.done),
        advance,
        (tf.constant(0), state, tree),
        shape_invariants=(
            tf.TensorShape([]),
            loop_shapes(state),
            SearchTree(*[tf.TensorShape([None, None, shape[2]])] * 3),
        ),
    )
    return search.final(state).trim(search.pad_token_id), tree
