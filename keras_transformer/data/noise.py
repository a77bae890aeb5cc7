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
        tokenizers: those of source and target, which the methods call side 0 and 1.
        subword_regularization, word_dropout: as for `make_dataset`.

    Attributes:
        protected_ids: ids that `drop_words` never drops, such as tags of corpora. May be set.

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
        self.protected_ids: list[int] = []
        self._bpe_dropouts: list[BpeDropout] | None = None
        if subword_regularization is not None:
            self._bpe_dropouts = [BpeDropout(t, subword_regularization) for t in tokenizers]
        if word_dropout and any(tokenizer.unk_token_id is None for tokenizer in tokenizers):
            raise ValueError(
                "`word_dropout` needs tokenizers with an `unk_token_id`. "
                f"Received: {', '.join(map(repr, tokenizers))}"
            )
        self._special = [_special_ids(t) for t in tokenizers] if word_dropout else []

    def split(
        self, side: int, rows: list[np.ndarray], rng: np.random.Generator, longest: float
    ) -> list[np.ndarray]:
        """Splits the texts of rows of token ids anew, if there is `subword_regularization`.

        Args:
            side: 0 for sources, 1 for targets.
            rows: token ids, each row with END; the returned ones have it too.
            rng: draws the splits.
            longest: a row that would have more tokens than this, with END, keeps its split.
        """
        if self._bpe_dropouts is None:
            return rows
        texts = self._tokenizers[side].decode(rows)
        new_rows = self._bpe_dropouts[side].split(texts, rng)
        return [
            np.append(new, old[-1]) if len(new) < longest else old
            for new, old in zip(new_rows, rows, strict=True)
        ]

    def growth(self, side: int, rows: list[np.ndarray], rng: np.random.Generator) -> float:
        """Returns the upper quartile of the factors by which new splits lengthen rows, or 1."""
        new_rows = self.split(side, rows, rng, np.inf)
        ratios = [len(new) / len(old) for new, old in zip(new_rows, rows, strict=True)]
        return max(1.0, float(np.quantile(ratios, 0.75)))

    def drop_words(self, side: int, token_ids: np.ndarray, rng: np.random.Generator) -> None:
        """Writes the unknown token over random tokens of `token_ids`, int32 `(B, L)`, in place.

        Special tokens, tags, symbols and `protected_ids` stay.
        """
        if not self._word_dropout:
            return
        tokenizer: Any = self._tokenizers[side]
        is_protected = np.isin(token_ids, [*self._special[side], *self.protected_ids])
        is_dropped = rng.random(token_ids.shape) < self._word_dropout
        token_ids[is_dropped & ~is_protected] = tokenizer.unk_token_id


def _special_ids(tokenizer):
    """Returns the ids of special tokens, tags and symbols; reads the whole vocabulary."""
    ids = [tokenizer.pad_token_id, tokenizer.start_token_id, tokenizer.end_token_id]
    ids += tokenizer.tag_ids
    return ids + [i for i, token in enumerate(tokenizer.vocabulary) if SYMBOL.fullmatch(token)]
