"""Random changes of training batches: BPE-dropout and word dropout."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_transformer.data.bpe_dropout import BpeDropout
from keras_transformer.data.placeholders import SYMBOL
from keras_transformer.data.tokenizer_like import TokenizerLike


class Noise:
    """Random changes of training batches.

    Args:
        tokenizers: those of source and target, "side" 0 and 1.
        subword_regularization, word_dropout: as for `make_dataset`.

    Attributes:
        kept: ids of tokens that stay, such as tags. May be set.

    Raises:
        ValueError: if a tokenizer lacks what a change needs.
    """

    def __init__(
        self,
        tokenizers: Sequence[TokenizerLike],
        subword_regularization: float | None,
        word_dropout: float,
    ) -> None:
        self._tokenizers, self._word_dropout = tokenizers, word_dropout
        self.kept: list[int] = []
        rate = subword_regularization
        self._splits = None if rate is None else [BpeDropout(each, rate) for each in tokenizers]
        if word_dropout and any(tokenizer.unk_token_id is None for tokenizer in tokenizers):
            raise ValueError(
                "`word_dropout` needs tokenizers with an `unk_token_id`. "
                f"Received: {', '.join(map(repr, tokenizers))}"
            )
        self._special = [_special_ids(each) for each in tokenizers] if word_dropout else []

    def split(
        self, side: int, rows: list[np.ndarray], rng: np.random.Generator, longest: float
    ) -> list[np.ndarray]:
        """Splits the texts of rows of token ids anew; each row ends with END, as before.

        A row that would have more than `longest` tokens keeps its split.
        """
        if self._splits is None:
            return rows
        found = self._splits[side].split(self._tokenizers[side].decode(rows), rng)
        return [
            np.append(new, old[-1]) if len(new) < longest else old
            for new, old in zip(found, rows, strict=True)
        ]

    def growth(self, side: int, rows: list[np.ndarray], rng: np.random.Generator) -> float:
        """Returns the upper quartile of how many times longer rows are after a new split."""
        split = self.split(side, rows, rng, np.inf)
        ratios = [len(new) / len(old) for new, old in zip(split, rows, strict=True)]
        return max(1.0, float(np.quantile(ratios, 0.75)))

    def drop_words(self, side: int, token_ids: np.ndarray, rng: np.random.Generator) -> None:
        """Writes the unknown token over tokens `(B, L)`, but not over special ones and symbols."""
        if not self._word_dropout:
            return
        tokenizer: Any = self._tokenizers[side]
        stays = np.isin(token_ids, [*self._special[side], *self.kept])
        is_dropped = rng.random(token_ids.shape) < self._word_dropout
        token_ids[is_dropped & ~stays] = tokenizer.unk_token_id


def _special_ids(tokenizer):
    """Returns the ids of special tokens, tags and symbols; reads the whole vocabulary."""
    ids = [tokenizer.pad_token_id, tokenizer.start_token_id, tokenizer.end_token_id]
    ids += tokenizer.tag_ids
    return ids + [i for i, token in enumerate(tokenizer.vocabulary) if SYMBOL.fullmatch(token)]
