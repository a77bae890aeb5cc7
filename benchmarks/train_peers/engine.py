"""`Engine`: what all engines have in common, and the batches that they train on."""

import time

import numpy as np

from train_peers import PAD_TOKEN_ID


class Engine:
    """A model, an optimizer and batches.

    Args:
        request: dict; see `serve.py`.

    Attributes:
        tokens: int. Real target tokens of a pass.
    """

    def __init__(self, request):
        self.batches = load_batches(request["batches"])
        self.tokens = count_tokens(self.batches)

    def first_update(self):
        """Makes one update with the first batch."""
        raise NotImplementedError

    def train_pass(self):
        """Makes one update with each batch; returns the mean loss per token."""
        raise NotImplementedError

    def measure(self):
        """Returns the answer to the parent: `seconds` and `loss` of a pass."""
        began = time.perf_counter()
        loss = self.train_pass()
        return {"seconds": time.perf_counter() - began, "loss": float(loss)}


def count_tokens(batches):
    """Returns the number of real target tokens."""
    return sum(int((labels != PAD_TOKEN_ID).sum()) for _, _, labels in batches)


def save_batches(path, batches):
    """Writes `(source, target, labels)` arrays, int32 `(B, S)`, `(B, T)` and `(B, T)`."""
    names = ("source", "target", "labels")
    arrays = {
        f"{name}{number}": array
        for number, batch in enumerate(batches)
        for name, array in zip(names, batch, strict=True)
    }
    np.savez(path, **arrays)


def load_batches(path):
    """Returns the list that `save_batches` wrote."""
    with np.load(path) as file:
        return [
            tuple(file[f"{name}{number}"] for name in ("source", "target", "labels"))
            for number in range(len(file.files) // 3)
        ]


def fixed_batches(batches, length, slots):
    """Deals the same rows into batches of one shape: `slots // length` rows of `length` tokens.

    Longer rows are cut, and the last rows that fill no batch are left out.
    """
    rows = slots // length
    columns = [
        np.concatenate([_of_length(batch[side], length) for batch in batches]) for side in range(3)
    ]
    order = np.random.default_rng(0).permutation(len(columns[0]))
    starts = range(0, len(order) - rows + 1, rows)
    return [tuple(side[order[start : start + rows]] for side in columns) for start in starts]


def _of_length(ids, length):
    missing = max(0, length - ids.shape[1])
    return np.pad(ids[:, :length], ((0, 0), (0, missing)), constant_values=PAD_TOKEN_ID)
