"""Layers in place of self-attention: Keras's LSTM and Conv1D, and attention with other scores.

Letters: B batch, T length, D width, W beam slots, N heads, K key width.
"""

import keras
from keras import ops

from keras_transformer import layers

register = keras.saving.register_keras_serializable(package="layer_types")


class Mixer(keras.layers.Layer):
    """A layer that a block can have in place of self-attention. It has no attention scores.

    Args:
        num_heads: not used, like the other arguments of `MultiHeadAttention`.
        **kwargs: the `name` and `dtype` of `keras.layers.Layer`.
    """

    def __init__(self, num_heads=None, name=None, dtype=None, **kwargs):
        super().__init__(name=name, dtype=dtype)

    def call(
        self,
        query,
        value=None,
        attention_mask=None,
        use_causal_mask=False,
        return_attention_scores=False,
        training=None,
    ):
        mask = None if attention_mask is None else attention_mask[:, 0]  # (B, 1, T) -> (B, T)
        outputs = self.mix(query, mask)
        return (outputs, None) if return_attention_scores else outputs


@register
class BidirectionalLSTM(Mixer):
    """For the encoder: half of the width reads from left to right, half from right to left."""

    def build(self, query_shape, value_shape=None):
        lstm = keras.layers.LSTM(
            query_shape[-1] // 2, return_sequences=True, dtype=self.dtype_policy, name="lstm"
        )
        self.both = keras.layers.Bidirectional(lstm, dtype=self.dtype_policy, name="both")
        self.both.build(query_shape)

    def mix(self, x, mask):
        return self.both(x, mask=mask)


@register
class Convolution(Mixer):
    """For the encoder: a convolution of three positions with a gate, as in Gehring et al., 2017."""

    kernel_size = 3

    def build(self, query_shape, value_shape=None):
        # Twice the width: `glu` multiplies one half by the sigmoid of the other.
        self.convolution = keras.layers.Conv1D(
            2 * query_shape[-1], self.kernel_size, dtype=self.dtype_policy, name="convolution"
        )
        self.convolution.build(query_shape)

    def mix(self, x, mask):
        if mask is not None:  # a kernel at the last token reads the padding behind it
            x = x * ops.cast(mask, x.dtype)[:, :, None]
        side = self.kernel_size // 2
        return self.gated(ops.pad(x, ((0, 0), (side, side), (0, 0))))

    def gated(self, x):
        return ops.glu(self.convolution(x))


class CausalMixer(Mixer):
    """For the decoder: reads from left to right; a vector per hypothesis holds all of its past.

    A subclass sets `state_dim` in `build`, and defines `advance`: from inputs `(B, T, D)` and a
    state `(B, state_dim)` to outputs and the next state. The first state is 0.
    """

    def mix(self, x, mask):
        state = ops.zeros((ops.shape(x)[0], self.state_dim), self.compute_dtype)
        return self.advance(x, state)[0]

    def init_cache(self, batch_size, length=None):
        """The states of the hypotheses, `(B, 0, state_dim)`; with `length`, of all positions."""
        shape = batch_size, length or 0, self.state_dim
        cache = {"states": ops.zeros(shape, self.compute_dtype)}
        return cache if length is None else {**cache, "index": ops.zeros((), "int32")}

    def call(self, query, value=None, attention_mask=None, cache=None, **kwargs):
        """In a beam search, the mask holds the ancestors of each hypothesis, `(B, W, length)`."""
        if cache is None:
            return super().call(query, value, None, **kwargs)
        width, slots = query.shape[-1], 1 if attention_mask is None else query.shape[1]
        state = self._parent_states(cache, attention_mask, slots)
        # Hypotheses are independent of each other: (B, W, D) -> (B * W, 1, D)
        x = query if attention_mask is None else ops.reshape(query, (-1, 1, width))
        outputs, state = self.advance(x, ops.reshape(state, (-1, self.state_dim)))
        outputs = ops.reshape(outputs, (*ops.shape(query)[:2], width))
        state = ops.reshape(state, (-1, slots, self.state_dim))
        return outputs, None, self._extended(cache, state, ops.shape(query)[1])

    def _parent_states(self, cache, ancestors, slots):
        """The state that each hypothesis goes on from: 0 at the start, where there are none."""
        states, index = cache["states"], cache.get("index")
        if index is not None:  # of all positions: those of the last step
            start = ops.maximum(index - slots, 0)
            shape = ops.shape(states)[0], slots, self.state_dim
            states = ops.slice(states, (0, start, 0), shape)
        if ancestors is None:
            return ops.sum(states, axis=1, keepdims=True)
        if index is None:
            start = ops.shape(ancestors)[2] - slots - ops.shape(states)[1]
        shape = ops.shape(ancestors)[0], slots, ops.shape(states)[1]
        is_parent = ops.slice(ancestors, (0, 0, start), shape)
        # (B, W, W) @ (B, W, state_dim)
        return ops.matmul(ops.cast(is_parent, states.dtype), states)

    def _extended(self, cache, state, length):
        index = cache.get("index")
        if index is None:
            return {"states": state}
        slots = state.shape[1]
        # The last of the new positions: those before it are not needed any more.
        states = ops.slice_update(cache["states"], (0, index + length - slots, 0), state)
        return {"states": states, "index": index + length}


@register
class CausalLSTM(CausalMixer):
    def build(self, query_shape, value_shape=None):
        self.lstm = keras.layers.LSTM(
            query_shape[-1],
            return_sequences=True,
            return_state=True,
            dtype=self.dtype_policy,
            name="lstm",
        )
        self.lstm.build(query_shape)
        self.state_dim = 2 * query_shape[-1]  # hidden and cell state

    def advance(self, x, state):
        state = ops.split(state, 2, axis=-1)
        if x.shape[1] == 1:  # without the loop of the layer
            outputs, state = self.lstm.cell(x[:, 0], state)
            return outputs[:, None], ops.concatenate(state, axis=-1)
        outputs, *state = self.lstm(x, initial_state=state)
        return outputs, ops.concatenate(state, axis=-1)


@register
class CausalConvolution(CausalMixer, Convolution):
    """The state is the window: the last `kernel_size - 1` inputs."""

    def build(self, query_shape, value_shape=None):
        Convolution.build(self, query_shape)
        self.state_dim = (self.kernel_size - 1) * query_shape[-1]

    def advance(self, x, state):
        window = ops.reshape(state, (-1, self.kernel_size - 1, x.shape[-1]))
        x = ops.concatenate([window, x], axis=1)
        state = ops.reshape(x[:, 1 - self.kernel_size :], (-1, self.state_dim))
        return self.gated(x), state


@register
class AdditiveAttention(layers.MultiHeadAttention):
    """Multi-head attention whose scores come from a small network, as in Bahdanau et al., 2015."""

    def build(self, *shapes):
        super().build(*shapes)
        self.score_vector = self.add_weight(
            shape=(self.num_heads, 1, 1, self.key_dim), name="score_vector"
        )

    def attend(self, query, key, value, attention_mask=None, dropout=None):
        vector = self.score_vector
        return layers.additive_attention(query, key, value, vector, attention_mask, dropout)


@register
class UnscaledAttention(layers.MultiHeadAttention):
    """Multi-head attention without the division by `sqrt(K)`."""

    def attend(self, query, key, value, attention_mask=None, dropout=None):
        return layers.scaled_dot_product_attention(
            query, key, value, attention_mask, scaled=False, dropout=dropout
        )
