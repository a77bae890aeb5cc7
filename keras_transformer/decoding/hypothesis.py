"""Hypotheses and their attention scores, made from the result of a search."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from keras_transformer.decoding.scores import IMPOSSIBLE


@dataclass(frozen=True, kw_only=True, eq=False)  # comparing arrays gives an array, not a bool
class Attention:
    """The attention scores of every block and head, for one translation.

    Letters: L blocks, N heads, S source tokens, T target tokens. Row t of `decoder` and
    `encoder_decoder` holds the scores of the step that predicts target token t. T is 0 if there
    are no target tokens: for an empty line, or if no hypothesis was possible.

    Args:
        encoder: float32 array `(L, N, S, S)`, the self-attention of the encoder.
        decoder: float32 array `(L, N, T, T)`, the self-attention of the decoder. Column t is
            `decoder_tokens[t]`. A model with tokens of languages has T + 1 columns.
        encoder_decoder: float32 array `(L, N, T, S)`. The first source token of a model with tokens
            of languages is that of the source's language.
        decoder_tokens: list of strings, the decoder's inputs: the start token, the token of the
            translation's language if the model has such, then all target tokens but the last.
    """

    encoder: np.ndarray
    decoder: np.ndarray
    encoder_decoder: np.ndarray
    decoder_tokens: list[str]


@dataclass(frozen=True, kw_only=True, eq=False)
class Hypothesis:
    """A translation with its score, the log-probability of each token and the attention scores.

    Letters: S source tokens, T target tokens.

    Args:
        text: str.
        score: float, the sum of the log-probs divided by the length penalty. A search ranks by it.
            -inf, with an empty text, if no hypothesis was possible.
        source_tokens: list of S strings, the end token included.
        tokens: list of T strings, with the end token unless the maximum length was reached.
        log_probs: list of T floats, the natural logarithm of each token's probability, after the
            processors. A search of CTranslate2 gives their sum alone, as a list of one float.
        attention: `Attention`, or `None` if it was not requested.
        pieces: int. The number of pieces that the line was split into, because it was too long or
            has several sentences or protected text. `source_tokens`, `tokens` and `log_probs` join
            those of all pieces, and include every end token.
        too_long: bool. Whether the line, or a sentence of it, was too long, and split or shortened.
        dropped_tokens: int. The number of source tokens that were cut off because the line was too
            long.
        protected: list of strings: the protected text that the model lost or repeated. If there is
            any, the line was cut around all protected text and translated again, unless its target
            prefix leaves no room in the first part: then the translation lacks this text.
        unfinished: bool. Whether the translation, or a piece of it, reached its maximum length and
            has no end token.

    Example:

    >>> hypothesis = Hypothesis(
    ...     text="ein Haus",
    ...     score=-0.35,
    ...     source_tokens=["▁a", "▁house", "</s>"],
    ...     tokens=["▁ein", "▁Haus", "</s>"],
    ...     log_probs=[-0.1, -0.2, -0.1],
    ... )
    >>> round(hypothesis.log_prob, 3), round(hypothesis.perplexity, 3)
    (-0.4, 1.143)
    >>> hypothesis.to_dict()["tokens"]
    ['▁ein', '▁Haus', '</s>']
    """

    text: str
    score: float
    source_tokens: list[str]
    tokens: list[str]
    log_probs: list[float]
    attention: Attention | None = None
    pieces: int = 1
    too_long: bool = False
    dropped_tokens: int = 0
    protected: list[str] = field(default_factory=list)
    unfinished: bool = False

    @property
    def log_prob(self) -> float:
        """The logarithm of the translation's probability: the sum over its tokens."""
        return math.fsum(self.log_probs)

    @property
    def perplexity(self) -> float:
        """`exp(-log_prob / T)`: infinity beyond the largest float, or NaN without tokens."""
        return perplexity_of(self.log_prob, len(self.tokens))

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as plain Python values, a row for `pandas.DataFrame` or JSON.

        `attention` is left out; `log_prob` and `perplexity` are added. Numbers that JSON lacks
        become `None`: the score -inf of an impossible hypothesis, and a perplexity that is infinite
        or, without tokens, NaN.

        Returns:
            dict of str to str, int, float, list or `None`.
        """
        names = [field.name for field in fields(self) if field.name != "attention"]
        row = {name: getattr(self, name) for name in names}
        # Copies, so that a change of the dict does not change the hypothesis.
        row |= {name: list(value) for name, value in row.items() if isinstance(value, list)}
        numbers = {name: getattr(self, name) for name in ("score", "log_prob", "perplexity")}
        finite = {name: x if math.isfinite(x) else None for name, x in numbers.items()}
        return row | finite

    def alignment(self, layer: int | None = None, head: int | None = None) -> list[int]:
        """Returns the source token with the highest attention score, for each target token.

        Args:
            layer: int, index of the decoder's block; negative indices count from the last. Defaults
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
        scores = self.attention.encoder_decoder
        scores = scores if layer is None else scores[layer][None]
        scores = scores if head is None else scores[:, head][:, None]
        return scores.mean(axis=(0, 1)).argmax(axis=-1).tolist()


def perplexity_of(log_prob: float, count: int) -> float:
    """Returns the `perplexity` of `count` tokens; see `Hypothesis`.

    Args:
        log_prob: float, the sum over the tokens.
        count: int, the number of tokens.
    """
    with np.errstate(over="ignore"):
        return float(np.exp(-log_prob / count)) if count else math.nan


def ranks_of_whole(ranks_of_parts: list[list[Any]]) -> Iterator[list[Any]]:
    """Yields for each rank k the k-th of every part, or the best of a part that has fewer.

    Args:
        ranks_of_parts: what each part was translated to, best first.
    """
    for k in range(max(map(len, ranks_of_parts), default=1)):
        yield [ranks[k] if k < len(ranks) else ranks[0] for ranks in ranks_of_parts]


def hypotheses_of(source, result, texts, vocabularies, config):
    """Yields the hypotheses of each sentence; if none is possible, one with the score -inf.

    Args:
        source: int32 array `(B, S)`, with the end tokens, padded.
        result: `SearchResult` of arrays.
        texts: for each sentence, the strings of its hypotheses, best first.
        vocabularies: the tokens of source and target, in the order of their ids.
        config: has the ids of the padding and end tokens.
    """
    source_vocabulary, vocabulary = vocabularies
    token_ids, lengths, scores, log_probs = (array.tolist() for array in result)
    for row, source_ids in enumerate(source.tolist()):
        count = max(1, sum(score > IMPOSSIBLE for score in scores[row]))
        yield [
            Hypothesis(
                text=texts[row][rank] if length else "",
                score=scores[row][rank],
                source_tokens=[
                    source_vocabulary[i] for i in source_ids if i != config.pad_token_id
                ],
                tokens=[vocabulary[i] for i in token_ids[row][rank][:length]],
                log_probs=log_probs[row][rank][:length],
                unfinished=bool(length and token_ids[row][rank][length - 1] != config.end_token_id),
            )
            for rank, length in enumerate(lengths[row][:count])
        ]


def attention_of(hypothesis, scores, row, first_tokens):
    """Cuts the attention scores of a hypothesis out of those of its batch.

    Args:
        hypothesis: `Hypothesis`.
        scores: result of `Engine.attend`, with padding.
        row: int, where the hypothesis is in the batch.
        first_tokens: list of strings, what the decoder reads before the translation.
    """
    source_length, target_length = len(hypothesis.source_tokens), len(hypothesis.tokens)
    decoder_tokens = [*first_tokens, *hypothesis.tokens[:-1]] if target_length else []

    def cut(name, queries, keys):
        return np.stack([block[row, :, :queries, :keys] for block in scores[name]])

    return Attention(
        encoder=cut("encoder", source_length, source_length),
        decoder=cut("decoder", target_length, len(decoder_tokens)),
        encoder_decoder=cut("encoder_decoder", target_length, source_length),
        decoder_tokens=decoder_tokens,
    )
