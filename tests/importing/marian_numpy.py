"""Marian's Transformer in NumPy, float64, from the arrays of its `*.npz`: a second statement.

The formulas are those of `src/models/transformer.h` of Marian 1.12. It knows no padding.
"""

import math

import numpy as np

ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0.0),
    "swish": lambda x: x / (1.0 + np.exp(-x)),
    "gelu": lambda x: x * (1.0 + np.vectorize(math.erf)(x / 2**0.5)) / 2.0,
    "gelu of 1.12.0": lambda x: x / (1.0 + np.exp(-1.702 * x)),
}


class MarianNumpy:
    """A model of `{name: array}` and Marian's options; `log_probs` is its softmax."""

    def __init__(self, arrays, options, epsilon=1e-6):
        self.arrays = {name: np.asarray(array, "float64") for name, array in arrays.items()}
        self.options, self.epsilon = options, epsilon
        self.is_pre_norm = "n" in options["transformer-preprocess"]

    def log_probs(self, source, target):
        """Log-probs `(T, V)` of each next token; both sequences end with the end token."""
        arrays, options = self.arrays, self.options
        memory = self.stack("encoder", self.embed("encoder", source))
        embedded = self.embed("decoder", target)
        shifted = np.vstack([np.zeros_like(embedded[:1]), embedded[:-1]])
        states = self.stack("decoder", shifted, memory)
        tied = options["tied-embeddings"] or options["tied-embeddings-all"]
        if tied:
            kernel = self.matrix("decoder").T
        elif "decoder_ff_logit_out_Wt" in arrays:
            kernel = arrays["decoder_ff_logit_out_Wt"].T
        else:
            kernel = arrays["decoder_ff_logit_out_W"]
        logits = states @ kernel + arrays.get("decoder_ff_logit_out_b", 0.0)
        logits -= logits.max(-1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True))

    def matrix(self, side):
        is_one = self.options["tied-embeddings-all"] or self.options["tied-embeddings-src"]
        return self.arrays["Wemb" if is_one else f"{side}_Wemb"]

    def embed(self, side, ids):
        return self.matrix(side)[list(ids)] * self.options["dim-emb"] ** 0.5

    def stack(self, side, states, memory=None):
        width = states.shape[1]
        half = width // 2
        angles = np.arange(len(states))[:, None] * 10000.0 ** (-np.arange(half) / (half - 1))
        states = states + np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
        causal = np.tril(np.ones((len(states), len(states)), bool))
        for number in range(1, self.options[f"{side[:3]}-depth"] + 1):
            name = f"{side}_l{number}"
            mask = True if memory is None else causal
            states = self.layer(
                f"{name}_self_Wo",
                states,
                lambda x, n=name, m=mask: self.attend(f"{n}_self", x, x, m),
            )
            if memory is not None:
                states = self.layer(
                    f"{name}_context_Wo",
                    states,
                    lambda x, n=name: self.attend(f"{n}_context", x, memory, True),
                )
            states = self.layer(
                f"{name}_ffn_ffn", states, lambda x, n=name: self.feed_forward(f"{n}_ffn", x)
            )
        return self.norm(f"{side}_top", states) if self.is_pre_norm else states

    def layer(self, name, states, function):
        if self.is_pre_norm:
            return states + function(self.norm(name, states, "_pre"))
        return self.norm(name, states + function(states))

    def norm(self, name, x, suffix=""):
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + self.epsilon)
        scale, bias = (self.arrays[f"{name}_ln_{part}{suffix}"] for part in ("scale", "bias"))
        return x * scale + bias

    def affine(self, name, part, x):
        return x @ self.arrays[f"{name}_W{part}"] + self.arrays[f"{name}_b{part}"]

    def attend(self, name, queries, values, mask):
        heads = self.options["transformer-heads"]
        q, k, v = (
            self.affine(name, part, x).reshape(len(x), heads, -1).swapaxes(0, 1)
            for part, x in (("q", queries), ("k", values), ("v", values))
        )
        scores = q @ k.swapaxes(1, 2) / q.shape[-1] ** 0.5
        scores = np.where(mask, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return self.affine(name, "o", (weights @ v).swapaxes(0, 1).reshape(len(queries), -1))

    def feed_forward(self, name, x):
        activation = ACTIVATIONS[self.options["transformer-ffn-activation"]]
        return self.affine(name, "2", activation(self.affine(name, "1", x)))
