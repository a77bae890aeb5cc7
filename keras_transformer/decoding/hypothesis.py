"""One translation with what the model thought of it: made of a search's result, and joined."""

import math
from dataclasses import dataclass, replace

import numpy as np

from keras_transformer.decoding.next_tokens import IMPOSSIBLE


@dataclass(frozen=True, kw_only=True, eq=False)  # comparing arrays gives an array, not a bool
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
        pieces: int. In how many pieces the line was translated because it was too long for one;
            source tokens, tokens and log-probs are then those of all, end tokens included.
        dropped_tokens: int. How many tokens of the line were not translated, because it was too
            long.

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
    pieces: int = 1
    dropped_tokens: int = 0

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


@dataclass(frozen=True, kw_only=True, eq=False)
class Attention:
    """One translation and what every head of every block attended to.

    Args:
        source_tokens: list of S strings, the end token included.
        decoder_tokens: list of T strings, those the decoder was given: the start token first.
        target_tokens: list of T strings, those it predicted.
        scores: dict of float32 arrays, layers first: `"encoder"` `(L, N, S, S)`, `"decoder"`
            `(L, N, T, T)` and `"encoder_decoder"` `(L, N, T, S)`; row t is where the model looked
            when it predicted target token t.
    """

    source_tokens: list
    decoder_tokens: list
    target_tokens: list
    scores: dict


def hypotheses_of(source, result, source_tokenizer, target_tokenizer, pad_token_id):
    """Yields the hypotheses of each sentence; at least one, which may be impossible.

    Args:
        source: int32 tensor `(B, S)`, with the end tokens, padded.
        result: `SearchResult`.
        source_tokenizer, target_tokenizer: `Tokenizer`.
        pad_token_id: int.
    """
    token_ids = result.token_ids.numpy()
    sentences, ranks, longest = token_ids.shape
    texts = target_tokenizer.detokenize(token_ids.reshape([sentences * ranks, longest]))
    texts = texts.numpy().reshape([sentences, ranks])
    tokens = target_tokenizer.tokens(token_ids).numpy()
    source_tokens = source_tokenizer.tokens(source).numpy()
    source_lengths = np.count_nonzero(source != pad_token_id, axis=1)
    lengths, scores, log_probs = (
        tensor.numpy() for tensor in (result.lengths, result.scores, result.log_probs)
    )
    attention = None if result.attention is None else result.attention.numpy()
    for row, source_length in enumerate(source_lengths):
        count = max(1, np.count_nonzero(scores[row] > IMPOSSIBLE))
        yield [
            Hypothesis(
                text=texts[row, rank].decode(),
                score=float(scores[row, rank]),
                source_tokens=[t.decode() for t in source_tokens[row, :source_length]],
                tokens=[t.decode() for t in tokens[row, rank, :length]],
                log_probs=log_probs[row, rank, :length].tolist(),
                # (T, L, N, S) -> (L, N, T, S)
                attention=None
                if attention is None
                else np.moveaxis(attention[row, rank, :length, ..., :source_length], 0, 2),
            )
            for rank, length in enumerate(lengths[row, :count])
        ]


def join_by_line(found, lines, dropped, penalty):
    """Returns the hypotheses of each line: those of its piece, or one of the best of its pieces.

    Args:
        found: list of P lists of `Hypothesis`.
        lines: int array `(P,)`, rising: the line that each piece is of.
        dropped: int array `(B,)`, how many tokens each line has lost.
        penalty: callable from a length to what the sum of the log-probs is divided by.
    """
    starts = np.searchsorted(lines, np.arange(len(dropped) + 1)).tolist()
    joined = []
    for start, end, dropped_tokens in zip(starts, starts[1:], dropped.tolist(), strict=False):
        of_line = found[start]
        if end - start > 1:
            of_line = [_join([best for best, *_ in found[start:end]], penalty)]
        joined.append([replace(one, dropped_tokens=dropped_tokens) for one in of_line])
    return joined


def _join(pieces, penalty):
    def all_of(name):
        return [value for piece in pieces for value in getattr(piece, name)]

    log_probs = all_of("log_probs")
    is_possible = all(piece.score > IMPOSSIBLE for piece in pieces)
    return Hypothesis(
        text=" ".join(piece.text for piece in pieces if piece.text),
        score=math.fsum(log_probs) / float(penalty(len(log_probs))) if is_possible else IMPOSSIBLE,
        source_tokens=all_of("source_tokens"),
        tokens=all_of("tokens"),
        log_probs=log_probs,
        pieces=len(pieces),
    )
