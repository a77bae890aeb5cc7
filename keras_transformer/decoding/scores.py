"""Length penalties of hypotheses, and the score of a missing one. Plain NumPy."""

import numpy as np

from keras_transformer.decoding.search_settings import SearchSettings

# Log-probability of a forbidden token, and score of an empty beam slot.
IMPOSSIBLE = -float("inf")
NOT_FINITE = (
    "The model's logits must not be NaN, and at least one must be finite. A processor must return "
    "log-probs of at most 0, because the search relies on it to stop early"
)
# The penalty of n tokens is one of these, to the power of `alpha`.
PENALTY_BASES = {
    "gnmt": lambda n: (5.0 + n) / 6.0,
    "mean": lambda n: n,
    None: lambda n: 0.0 * n + 1.0,
}


def penalties_up_to(longest: int, settings: SearchSettings) -> np.ndarray:
    """Returns the penalties of 0 to `longest + 1` tokens, a float32 array.

    0 tokens have the penalty of 1 token. In NumPy, because JAX has no float64.
    """
    lengths = np.maximum(np.arange(longest + 2.0), 1.0)
    alpha = np.float64(np.float32(settings.alpha))  # rounded as the `alphas` of a search
    penalties = PENALTY_BASES[settings.length_penalty](lengths) ** alpha
    return np.minimum(penalties, np.finfo("float32").max).astype("float32")
