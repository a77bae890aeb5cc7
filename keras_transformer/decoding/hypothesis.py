"""One translation with what the model thought of it."""

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True, eq=False)  # arrays have no one truth
class Hypothesis:
    """A translation, its score, and where the model looked.

    Letters: L layers, N heads, S source tokens, T target tokens.

    Args:
        text: str.
        score: float, the sum of the log-probs over the length penalty: what a search ranks by.
            -inf, with an empty text, if no hypothesis was possible.
        source_tokens: list of S strings, the end token included.
        tokens: list of T strings, with the end token unless the greatest length cut it off.
        log_probs: list of T floats, the natural logarithm of each token's probability; where a
            processor lowered it, what it made of it.
        attention: float32 array `(L, N, T, S)`, the encoder-decoder attention when each token was
            chosen, or `None` if it was not asked for.

    Example:

    >>> hypothesis = Hypothesis(
    ...     text="ein Haus",
    ...     score=-0.35,
    ...     source_tokens=["▁a", "▁house", "</s>"],
    ...     tokens=["▁ein", "▁Haus", "</s>"],
    ...     log_probs=[-0.1, -0.2, -0.1],
    ...     attention=np.eye(3)[None, None],
    ... )
    >>> round(hypothesis.perplexity, 3), hypothesis.alignment()
    (1.143, [0, 1, 2])
    """

    text: str
    score: float
    source_tokens: list
    tokens: list
    log_probs: list
    attention: np.ndarray | None = None

    @property
    def log_prob(self):
        """float: the logarithm of the translation's probability, the sum over its tokens."""
        return math.fsum(self.log_probs)

    @property
    def perplexity(self):
        """float: `exp(-log_prob / T)`, or NaN without tokens."""
        return float(np.exp(-self.log_prob / len(self.tokens))) if self.tokens else math.nan

    def alignment(self, layer=None, head=None):
        """Returns the source token that each target token looked at most.

        Args:
            layer: int, the decoder's block, counted from 0; negative ones from the last. Defaults
                to the mean of all.
            head: int. Defaults to the mean of all.

        Returns:
            list of T ints: indices of `source_tokens`.

        Raises:
            ValueError: if there is no attention.
        """
        if self.attention is None:
            raise ValueError(
                "An alignment needs the attention: call the translator with return_attention=True."
            )
        attention = self.attention if layer is None else self.attention[layer][None]
        attention = attention if head is None else attention[:, head][:, None]
        return attention.mean(axis=(0, 1)).argmax(axis=-1).tolist()
