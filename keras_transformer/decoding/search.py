"""What all searches share: the contract with a model, scores, and the loop in which sentences end.

Knows no model, only a step function from the last tokens to the logits of the next ones. Letters:
B batch, W beam, R hypotheses returned (`n_best`), T target length, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow as tf

from keras_transformer.decoding.next_tokens import make_constraints

# To move the others together pays once this fraction of the sentences is done.
_DONE_FRACTION = 0.1


class StepOutput(NamedTuple):
    """What a step function returns, given `(token_ids (B, W), parents (B, W), cache, index)`.

    `token_ids` are the last tokens of W hypotheses per sentence, at first the start token;
    `parents[b, w]` is the beam slot of the step before that hypothesis w extends, at first 0: a
    model that keeps anything per hypothesis re-orders it by them. `index` is how many tokens were
    decoded before.

    Args:
        logits: float tensor `(B, W, V)` of the next token, V known when the graph is made.
        cache: nest of tensors, the cache grown by this step, of the same structure as before. Each
            has the sentences on its first axis; the other axes may change their length.
        attention: float32 tensor `(B, W, ...)` to keep with each token. Only if it was asked for.
    """

    logits: tf.Tensor
    cache: Any
    attention: tf.Tensor | None = None


class SearchResult(NamedTuple):
    """The hypotheses of each sentence, best first.

    Args:
        token_ids: int32 tensor `(B, R, T)`, without the start token, with the end token where the
            hypothesis ended by itself, then padding. `T` is the length of the longest.
        lengths: int32 tensor `(B, R)`, the end token included; 0 where there is no hypothesis.
        scores: float32 tensor `(B, R)`, the sum of the log-probs over the length penalty; -inf
            where there is no hypothesis.
        log_probs: float32 tensor `(B, R, T)`, those of the single tokens; 0 at padding.
        attention: float32 tensor `(B, R, T, ...)`, or `None` if it was not asked for.
    """

    token_ids: tf.Tensor
    lengths: tf.Tensor
    scores: tf.Tensor
    log_probs: tf.Tensor
    attention: tf.Tensor | None


def penalty(lengths, length_penalty, alpha):
    """What the sum of a hypothesis's log-probs is divided by to be its score.

    Args:
        lengths: int tensor of tokens, the end token included.
        length_penalty: `"gnmt"`, the paper's: `((5 + n) / 6)^alpha`; `"mean"`: `n^alpha`; or
            `None`: 1.
        alpha: float, or scalar float tensor.

    Returns:
        float32 tensor of the shape of `lengths`.

    Raises:
        ValueError: if there is no such penalty.

    Reference:
        [Wu et al., 2016](https://arxiv.org/abs/1609.08144), section 7.
    """
    lengths = tf.cast(lengths, tf.float32)
    if length_penalty is None:
        return tf.ones_like(lengths)
    if length_penalty == "gnmt":
        return ((5.0 + lengths) / 6.0) ** alpha
    if length_penalty == "mean":
        return lengths**alpha
    raise ValueError(
        f'`length_penalty` must be "gnmt", "mean" or None. Received: {length_penalty=}'
    )


def empty_history(batch_size, beam_size, attention_shape=None):
    """Returns what is kept of every token of every hypothesis, before the first token.

    Args:
        batch_size, beam_size: int or int tensor.
        attention_shape: int tensor, the axes of `StepOutput.attention` after `(B, W)`. Only if it
            is to be kept.
    """
    history = {
        "token_ids": tf.zeros([batch_size, beam_size, 0], tf.int32),
        "log_probs": tf.zeros([batch_size, beam_size, 0]),
    }
    if attention_shape is not None:
        shape = tf.concat([[batch_size, beam_size, 0], attention_shape], axis=0)
        history["attention"] = tf.zeros(shape)
    return history


def extend_history(history, **new):
    """Appends to every hypothesis: leaves `(B, W, T, ...)` grow by leaves `(B, W, ...)`."""
    return {name: tf.concat([history[name], new[name][:, :, None]], axis=2) for name in history}


def lengthen(leaf, length):
    """Pads `(B, W, T, ...)` with zeros to `T = length`; leaves `(B, W)` as it is."""
    if leaf.shape.rank < 3:
        return leaf
    after = length - tf.shape(leaf)[2]
    return tf.pad(leaf, [[0, 0], [0, 0], [0, after]] + [[0, 0]] * (leaf.shape.rank - 3))


def select(nest, indices):
    """Chooses among the hypotheses, axis 1 of every tensor, sentence by sentence."""
    return tf.nest.map_structure(lambda leaf: tf.gather(leaf, indices, batch_dims=1), nest)


@dataclass(frozen=True, kw_only=True)
class Search:
    """Base of the searches, which add `start`, `step` and `result`.

    Args:
        step_fn, end_token_id, pad_token_id, processors: as in `greedy_search`.
        penalty: callable from lengths to what the sum of the log-probs is divided by.
    """

    step_fn: Callable
    end_token_id: int
    pad_token_id: int
    penalty: Callable
    processors: tuple

    def run(self, cache, max_lengths, start_token_id, target_prefix, attention_shape, compaction):
        """Returns the `SearchResult`."""
        state = self.start(max_lengths, start_token_id, attention_shape)
        state |= {"cache": cache, "max_lengths": max_lengths}
        if target_prefix is not None:
            state["target_prefix"] = target_prefix
        return search_loop(
            self.step, state, self.result, max_lengths, self.pad_token_id, compaction
        )

    def constraints(self, state, history, index):
        """What processors and prefix say of the next token, as `best_next_tokens` takes it."""
        prefix = state.get("target_prefix")
        return make_constraints(
            self.processors, history["token_ids"], index, prefix, self.pad_token_id
        )


def search_loop(step, state, result, max_lengths, pad_token_id, compaction):
    """Steps until every sentence is done; on the way those that are done leave the batch.

    Args:
        step: callable `(index, state) -> state`.
        state: dict of nests of tensors, the sentences on the first axis of each. `"done"`, bool
            `(B,)`, says which sentences are; a step must not change the result of those.
        result: callable from a state to `(history, lengths, scores)` of the R best.
        max_lengths: int32 tensor `(B,)`.
        pad_token_id: int.
        compaction: bool. `False`: all stay until all are done. The results are the same.

    Returns:
        `SearchResult`.
    """
    state = {**state, "row": tf.range(tf.size(max_lengths))}
    results = tf.nest.map_structure(tf.zeros_like, result(state))

    def few_are_done(index, state):
        done = tf.math.count_nonzero(state["done"], dtype=tf.int32)
        size = tf.size(state["done"])
        return done < (_fraction(size) if compaction else size)

    def advance(index, state):
        return index + 1, step(index, state)

    def until_some_end(index, state, results):
        shapes = tf.nest.map_structure(_any_length, (index, state))
        index, state = tf.while_loop(few_are_done, advance, (index, state), shape_invariants=shapes)
        done, others = tf.where(state["done"])[:, 0], tf.where(~state["done"])[:, 0]
        rows = tf.gather(state["row"], done)[:, None]
        so_far = tf.maximum(index, 1)  # scatters refuse empty rows
        results = tf.nest.map_structure(
            lambda all_, leaf: tf.tensor_scatter_nd_update(
                lengthen(all_, so_far), rows, lengthen(tf.gather(leaf, done), so_far)
            ),
            results,
            result(state),
        )
        return index, tf.nest.map_structure(lambda leaf: tf.gather(leaf, others), state), results

    start = (tf.constant(0), state, results)
    _, _, (history, lengths, scores) = tf.while_loop(
        lambda index, state, results: tf.size(state["done"]) > 0,
        until_some_end,
        start,
        shape_invariants=tf.nest.map_structure(_any_length, start),
    )
    longest = tf.maximum(tf.reduce_max(lengths), 0)
    history = {name: leaf[:, :, :longest] for name, leaf in history.items()}
    real = tf.sequence_mask(lengths, longest)
    return SearchResult(
        token_ids=tf.where(real, history["token_ids"], pad_token_id),
        lengths=lengths,
        scores=scores,
        log_probs=tf.where(real, history["log_probs"], 0.0),
        attention=history.get("attention"),
    )


def _fraction(size):
    return tf.cast(tf.math.ceil(_DONE_FRACTION * tf.cast(size, tf.float32)), tf.int32)


def _any_length(tensor):
    return tf.TensorShape([None] * tensor.shape.rank)
