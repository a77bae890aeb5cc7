"""Lines of text as rows of token ids, and how many tokens they may have; errors name the line."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_transformer.data.tokenizer_like import TokenizerLike, encode_in_languages
from keras_transformer.decoding.search_settings import SearchSettings
from keras_transformer.decoding.text_settings import divided
from keras_transformer.texts import checked_lines

NO_ROOM = (
    "`target_prefix` must leave room for one more token. Received: in line {}, a prefix of "
    "{} tokens for a translation of at most {}. Shorten it, or raise the limits: "
    "`max_length`, `extra_length`, `length_ratio`"
)
COVERED = 0.999  # fraction of the training pairs that must be within a learned limit
# The white space that `tf.strings.strip` removes in the graph of a SavedModel.
ASCII_SPACE = " \t\n\v\f\r"


def to_lines(lines: Any, name: str) -> list[str]:
    """Returns a line, or an iterable of lines, as a list; raises as `checked_lines`."""
    return checked_lines([lines] if isinstance(lines, str) else lines, name)


def encode_lines(
    tokenizer: TokenizerLike, lines: list[str], language_ids: Sequence[int] | None = None
) -> list[np.ndarray]:
    """Returns the token ids of lines, without end tokens.

    A line of spaces has none, even if the tokenizer keeps spaces.

    Args:
        tokenizer: `TokenizerLike`.
        lines: list of strings.
        language_ids: the token of the language of each line, if the model has such.
    """
    lines = [line if line.strip(ASCII_SPACE) else "" for line in lines]
    return encode_in_languages(tokenizer, lines, language_ids)


def require_at_most(most, reason, token_ids, name, advice="", lines=None):
    """Raises if a row is too long: more than `most` tokens, with the end token that will follow.

    Args:
        most: int, the maximum.
        reason: str, where the maximum comes from, for the error.
        token_ids: list of rows, without end tokens.
        name: that of the argument, for the error.
        advice: str, what the error advises besides shortening the line. Optional.
        lines: list of ints, for the error: the line of each row, counted from 0. Defaults to one
            row per line.
    """
    lengths = [len(row) + 1 for row in token_ids]
    longest = max(lengths, default=0)
    if longest > most:
        row = lengths.index(longest)
        line = row if lines is None else lines[row]
        raise ValueError(
            f"A line must have at most {most:,} tokens with the end token, {reason}. Received: "
            f"line {line + 1} of `{name}` has {longest:,} tokens. " + f"Shorten it {advice}".strip()
        )


def longest_target(
    source_length: int, settings: SearchSettings, config: Any, num_languages: int = 0
) -> int:
    """Returns the maximum length of the translation of a source; both lengths count end tokens.

    `config` and `num_languages` are those of `learned_positions`.
    """
    longest = math.floor(settings.length_ratio * (source_length - 1)) + settings.extra_length
    longest = min(longest, settings.most_tokens)
    return max(1, min(longest, learned_positions(config, num_languages) or longest))


def learned_limits(lengths: np.ndarray, search: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a limit of length that suffices for 99.9% of some pairs, if the default does not.

    For example, pairs of a word and its characters need a higher limit: a target has many times
    the tokens of its source.

    Args:
        lengths: int array `(N, 2)`, tokens of the sources and the targets, end tokens counted.
        search: settings that the user has set. They do not change.

    Returns:
        `{"length_ratio": ratio}`; `{"extra_length": number}` if only `length_ratio` is in `search`;
        and `{}` if the settings suffice, or both are in `search`.
    """
    settings = SearchSettings(**divided(search)[0])
    source, target = lengths[:, 0] - 1, lengths[:, 1]
    if "length_ratio" not in search:
        name, step = "length_ratio", 0.5  # its products with whole numbers are exact
        limits = (target - settings.extra_length) / np.maximum(source, 1)
    elif "extra_length" not in search:
        name, step = "extra_length", 1
        limits = target - np.floor(settings.length_ratio * source)
    else:
        return {}
    limit = step * math.ceil(np.quantile(limits, COVERED, method="inverted_cdf") / step)
    limit = min(limit, SearchSettings.rule(name).at_most)
    return {name: limit} if limit > getattr(settings, name) else {}


def learned_positions(config: Any, num_languages: int = 0) -> int | None:
    """Returns how many tokens of a line a model has learned positions for; `None`: any number.

    Args:
        config: special token ids and positions, as in `TransformerConfig`.
        num_languages: number of tokens of languages in front of a line: they have positions too,
            but are no tokens of the line. Defaults to `0`.
    """
    return config.max_sequence_length - num_languages if config.positions == "learned" else None
