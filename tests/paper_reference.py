"""The Transformer of "Attention Is All You Need", sections 3.1-3.5, in NumPy and float64.

Written from the paper's equations, to compare with. It computes one sentence at a time, so it needs
no padding and only the causal mask. It reads the weights of a `keras_transformer.Transformer` by
variable path.
"""

import math
from functools import partial

import numpy as np

from tests.builders import to_numpy


def softmax(x):
    exponentials = np.exp(x - x.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def attention(q, k, v, visible, relative=None):
    """3.2.1, equation (1): softmax(Q K^T / sqrt(d_k)) V, -infinity where masked.

    With `relative`, the vectors of the distances -M to M as columns, equation (4) of Shaw et al.,
    2018: Q K^T has q[t] . relative[s - t] added, for distances of at most M.
    """
    compatibility = q @ k.T / math.sqrt(k.shape[-1])
    if relative is not None:
        most = relative.shape[-1] // 2
        for t, s in np.ndindex(*compatibility.shape):
            vector = relative[:, most + min(max(s - t, -most), most)]
            compatibility[t, s] += q[t] @ vector / math.sqrt(k.shape[-1])
    scores = softmax(np.where(visible, compatibility, -np.inf))
    return scores @ v, scores


def multi_head(weights, num_heads, queries, values, visible=True):
    """3.2.2: Concat(head_1, ..., head_h) W^O, head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V)."""

    def project(x, name, head):
        kernel = weights[f"{name}/kernel"].reshape(x.shape[-1], num_heads, -1)
        bias = weights.get(f"{name}/bias", np.zeros(kernel[0].size)).reshape(num_heads, -1)
        return x @ kernel[:, head] + bias[head]

    heads, scores = [], []
    for i in range(num_heads):
        q, k = project(queries, "query", i), project(values, "key", i)
        relative = weights.get("relative/kernel")
        head, head_scores = attention(q, k, project(values, "value", i), visible, relative)
        heads.append(head)
        scores.append(head_scores)
    concatenated = np.concatenate(heads, axis=-1)
    w_o = weights["output/kernel"].reshape(concatenated.shape[-1], -1)
    return concatenated @ w_o + weights.get("output/bias", 0.0), np.stack(scores)


def feed_forward(weights, x):
    """3.3, equation (2): max(0, x W_1 + b_1) W_2 + b_2."""
    inner = x @ weights["intermediate/kernel"] + weights.get("intermediate/bias", 0.0)
    return np.maximum(0.0, inner) @ weights["output/kernel"] + weights.get("output/bias", 0.0)


def positional_encoding(length, hidden_dim):
    """3.5: PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), PE(pos, 2i + 1) = cos(the same)."""
    encoding = np.zeros((length, hidden_dim))
    for position in range(length):
        for i in range(0, hidden_dim, 2):
            angle = position / 10000 ** (i / hidden_dim)
            pair = math.sin(angle), math.cos(angle)
            encoding[position, i : i + 2] = pair[: hidden_dim - i]
    return encoding


def layer_norm(weights, x, epsilon):
    mean = x.mean(axis=-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon) * weights["gamma"] + weights["beta"]


def below(weights, path):
    """{rest of the path: weight} of the weights whose path starts with `path`."""
    return {k.removeprefix(f"{path}/"): w for k, w in weights.items() if k.startswith(f"{path}/")}


class PaperTransformer:
    """Maps the token ids of one pair to logits (T, V) and, by block, attention scores (N, T, S)."""

    def __init__(self, model):
        self.config = model.config
        self.weights = {v.path: np.float64(to_numpy(v)) for v in model.trainable_variables}

    def __call__(self, source_ids, target_ids):
        scores = {"encoder": [], "decoder": [], "encoder_decoder": []}
        memory = self.encode(source_ids, scores)
        return self.decode(target_ids, memory, scores) @ self.output_matrix(), scores

    def embedding(self, stack):
        """3.4: both embeddings and the pre-softmax transformation share one matrix, if tied."""
        name = {"encoder": "source_embedding", "decoder": "target_embedding"}[stack]
        shared = self.config.tie_embeddings == "all"
        return below(self.weights, "encoder/embedding" if shared else f"{stack}/{name}")

    def output_matrix(self):
        if self.config.tie_embeddings == "none":
            return self.weights["output_projection/kernel"]
        return self.embedding("decoder")["embeddings"].T

    def embed(self, stack, token_ids):
        """3.4: the embedding of each token times sqrt(d_model), plus its position."""
        weights = self.embedding(stack)
        embedded = weights["embeddings"][token_ids] * math.sqrt(self.config.hidden_dim)
        if self.config.positions == "learned":
            return embedded + weights["positions"][: len(token_ids)]
        if self.config.positions == "relative":
            return embedded
        return embedded + positional_encoding(*embedded.shape)

    def sublayer(self, block, name, x, function):
        """3.1: LayerNorm(x + Sublayer(x)); with `normalize_first` x + Sublayer(LayerNorm(x))."""
        weights = below(self.weights, f"{block}/{name}")
        norm = self.norm(f"{block}/{name}_residual/layer_norm")
        if self.config.normalize_first:
            return x + function(weights, norm(x))
        return norm(x + function(weights, x))

    def norm(self, path):
        weights = below(self.weights, path)
        return partial(layer_norm, weights, epsilon=self.config.layer_norm_epsilon)

    def attend(self, weights, x, values, scores, visible=True):
        outputs, block_scores = multi_head(weights, self.config.num_heads, x, values, visible)
        scores.append(block_scores)
        return outputs

    def encode(self, token_ids, scores):
        def self_attention(weights, x):
            return self.attend(weights, x, x, scores["encoder"])

        x = self.embed("encoder", token_ids)
        for n in range(self.config.num_encoder_layers):
            x = self.sublayer(f"encoder/block_{n}", "self_attention", x, self_attention)
            x = self.sublayer(f"encoder/block_{n}", "feed_forward", x, feed_forward)
        return self.norm("encoder/layer_norm")(x) if self.config.normalize_first else x

    def decode(self, token_ids, memory, scores):
        past = np.tri(len(token_ids), dtype=bool)  # 3.2.3: later positions are masked

        def self_attention(weights, x):
            return self.attend(weights, x, x, scores["decoder"], visible=past)

        def encoder_attention(weights, x):
            return self.attend(weights, x, memory, scores["encoder_decoder"])

        x = self.embed("decoder", token_ids)
        for n in range(self.config.num_decoder_layers):
            block = f"decoder/block_{n}"
            x = self.sublayer(block, "self_attention", x, self_attention)
            x = self.sublayer(block, "encoder_attention", x, encoder_attention)
            x = self.sublayer(block, "feed_forward", x, feed_forward)
        return self.norm("decoder/layer_norm")(x) if self.config.normalize_first else x
