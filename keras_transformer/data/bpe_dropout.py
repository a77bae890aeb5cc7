"""BPE-dropout: random splits of words into subwords, which differ in each epoch.

SentencePiece samples splits too, but version 0.2.3 ignores the seed: each process draws other
splits, so a resumed training would see other data.
"""

import functools
import itertools
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from keras_transformer.data.pieces import SPACE_SYMBOL, SUBWORDS
from keras_transformer.data.placeholders import SYMBOL
from keras_transformer.data.sentencepiece_parts import read_model
from keras_transformer.data.sentencepiece_proto import BPE, NORMAL
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.data.tokenizer_like import TokenizerLike

CACHED_WORDS = 1 << 17
# A word with the space symbols before it. SentencePiece merges nothing across these borders.
_WORDS = re.compile(f"{SPACE_SYMBOL}*[^{SPACE_SYMBOL}]+|{SPACE_SYMBOL}+")
NO_MERGE = np.iinfo(np.int64).max


class BpeDropout:
    """Splits texts like the BPE model of a `Tokenizer`, but leaves merges out at random.

    A word begins as characters. Each step merges the pair of neighbours that the model learned
    first, until no pair is left; but in each step, each pair is left out with the probability
    `rate`. The rate 0 gives the tokens of the tokenizer, the rate 1 characters.

    Args:
        tokenizer: `Tokenizer` with a BPE model.
        rate: float from 0 to 1. The paper's is 0.1.

    Raises:
        ValueError: if the tokenizer has no BPE model.

    Reference:
        [Provilkov et al., 2020](https://arxiv.org/abs/1910.13267), algorithm 1.
    """

    def __init__(self, tokenizer: TokenizerLike, rate: float) -> None:
        proto: Any = None
        if isinstance(tokenizer, Tokenizer) and tokenizer.kind == SUBWORDS:
            _, proto = read_model(tokenizer.model_bytes)
        if proto is None or proto.trainer_spec.model_type != BPE:
            raise ValueError(
                'BPE-dropout needs a `Tokenizer` that was trained with `model_type="bpe"`. '
                f"Received: {tokenizer!r}"
            )
        self._rate = rate
        self._symbols_of = functools.lru_cache(CACHED_WORDS)(self._find_symbols)
        self._ids = {p.piece: token_id for token_id, p in enumerate(proto.pieces)}
        self._tag = [*tokenizer.tag_ids]
        symbols = filter(SYMBOL.fullmatch, self._ids)
        self._characters = re.compile("|".join([*symbols, "."]), re.DOTALL)
        self._keys, self._orders, self._merged = _merges(proto, self._ids)

    def split(self, texts: Iterable[str], rng: np.random.Generator) -> list[list[int]]:
        """Returns the token ids of each text, without start and end tokens; the tag is in front.

        Args:
            texts: normalised texts, see `Tokenizer.normalize`.
            rng: draws the merges that are left out.
        """
        lines = [SPACE_SYMBOL + text.replace(" ", SPACE_SYMBOL) if text else "" for text in texts]
        words = [_WORDS.findall(line) for line in lines]
        symbols = [self._symbols_of(word) for word in itertools.chain.from_iterable(words)]
        lengths = np.array([len(word_symbols) for word_symbols in symbols])
        merged_ids: list[Any] = [None] * len(symbols)  # the token ids of each word
        for length in np.unique(lengths):
            (indices,) = np.nonzero(lengths == length)
            matrix = self._merge(np.array([symbols[index] for index in indices]), rng)
            for index, row in zip(indices, matrix, strict=True):
                merged_ids[index] = row[row >= 0].tolist()
        rows, start = [], 0
        for words_of_text in words:
            stop = start + len(words_of_text)
            row = [*itertools.chain.from_iterable(merged_ids[start:stop])]
            rows.append(self._tag + row if row else row)
            start = stop
        return rows

    def _find_symbols(self, word):
        """Returns the ids of a word's characters and symbols; of their bytes if they lack an id."""
        ids = []
        for character in self._characters.findall(word):
            if character in self._ids:
                ids.append(self._ids[character])
            else:
                ids += [self._ids[f"<0x{byte:02X}>"] for byte in character.encode()]
        return ids

    def _merge(self, symbols, rng):
        """Merges the symbols of words of one length, int64 `(words, length)`, in place.

        Each step merges one pair of each active word. -1 fills the ends of shorter rows.
        """
        active = np.arange(len(symbols))  # the words that still change
        column = np.arange(symbols.shape[1])
        while active.size and len(column) > 1:
            words = symbols[active]
            orders = self._orders_of(words[:, :-1], words[:, 1:])
            orders[rng.random(orders.shape) < self._rate] = NO_MERGE
            place, order = orders.argmin(axis=1), orders.min(axis=1)
            is_merged = order != NO_MERGE
            active, words = active[is_merged], words[is_merged]
            place, order = place[is_merged], order[is_merged]
            # The merged symbol replaces the left one; all symbols behind it move left by one.
            following = np.concatenate([words[:, 1:], np.full((len(words), 1), -1)], axis=1)
            words = np.where(column > place[:, None], following, words)
            words[np.arange(len(words)), place] = self._merged[order]
            symbols[active] = words
        return symbols

    def _orders_of(self, left, right):
        """Returns the order in which the model learned each merge; `NO_MERGE` for other pairs."""
        keys = _key(left, right)
        places = np.searchsorted(self._keys, keys)
        return np.where(self._keys[places] == keys, self._orders[places], NO_MERGE)


def _merges(proto, ids):
    """Returns the sorted keys of all pairs, the order of each, and the merged ids by order."""
    pieces = [p for p in proto.pieces if p.type == NORMAL and len(p.piece) > 1]
    pieces.sort(key=lambda piece: -piece.score)
    orders = {NO_MERGE: NO_MERGE}  # a last key, so that `searchsorted` stays in range
    for order, piece in enumerate(p.piece for p in pieces):
        for middle in range(1, len(piece)):
            left, right = ids.get(piece[:middle]), ids.get(piece[middle:])
            if left is not None and right is not None:
                orders[_key(left, right)] = order
    keys, orders_of_keys = zip(*sorted(orders.items()), strict=True)
    return np.array(keys), np.array(orders_of_keys), np.array([ids[p.piece] for p in pieces])


def _key(left, right):
    """Returns one number for the ids of a pair."""
    return left * 2**32 + right
