"""Lines that are too long for the model: cut into pieces, and joined again as translations.

TensorFlow operations on ragged token ids, so that a translator and its SavedModel do the same.
Letters: B lines, P pieces.
"""

import re
import warnings
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.data.tokenizer import SPACE_SYMBOL

# Tokens that end a sentence if a word begins after them, and if anything comes after them.
_SENTENCE_END = re.compile(r"[.!?…][\"'”’»)\]]*$")
_IDEOGRAPHIC_SENTENCE_END = re.compile(r"[。！？][」』”’）]*$")
_ASCII_BYTE = re.compile(r"<0x([0-7][0-9A-F])>")  # a character that is not in the vocabulary
_INSIDE_CHARACTER = re.compile(r"<0x[89AB][0-9A-F]>")  # the second byte of a character, or a later


class Pieces(NamedTuple):
    """Lines of token ids, each in one piece or several.

    Args:
        token_ids: int32 `RaggedTensor` `(P, None)`, the pieces of each line one after the other.
        lines: int64 tensor `(P,)`, the line that each piece is of.
        dropped: int64 tensor `(B,)`, how many tokens each line has lost.
    """

    token_ids: tf.RaggedTensor
    lines: tf.Tensor
    dropped: tf.Tensor


class LineCutter:
    """Cuts lines that are too long, at the best place that a piece can reach.

    That is the last end of a sentence; or else of a word; or else of a character. Where a piece
    has no room for a whole character, which may be up to four tokens, it is anywhere.

    Args:
        tokenizer: `Tokenizer` of the lines.
    """

    def __init__(self, tokenizer):
        ids = np.arange(tokenizer.vocabulary_size)
        tokens = [token.decode() for token in tokenizer.tokens(ids).numpy()]
        tokens = [_ASCII_BYTE.sub(lambda byte: chr(int(byte[1], 16)), token) for token in tokens]

        def table(is_so):
            return np.array([bool(is_so(token)) for token in tokens])

        self._begins_word = table(lambda token: token.startswith(SPACE_SYMBOL))
        self._ends_sentence = table(_SENTENCE_END.search)
        self._ends_ideographic_sentence = table(_IDEOGRAPHIC_SENTENCE_END.search)
        self._is_inside_character = table(_INSIDE_CHARACTER.fullmatch)

    def cut(self, token_ids, most, on_too_long):
        """Lets no line have more than so many tokens.

        Args:
            token_ids: int32 `RaggedTensor` `(B, None)`, without end tokens.
            most: int, at least 1.
            on_too_long: `"split"`: into as many pieces as it takes; `"truncate"`: what comes after
                the first piece, which ends with a word, is lost; `"error"`: refused, by an
                `InvalidArgumentError`.

        Returns:
            `Pieces`.
        """
        lines, dropped = tf.range(token_ids.nrows()), tf.zeros_like(token_ids.row_lengths())
        fits = tf.reduce_all(token_ids.row_lengths() <= most)
        if tf.executing_eagerly() and fits:
            return Pieces(token_ids, lines, dropped)
        if on_too_long == "split":
            return self._split(token_ids, most)
        if on_too_long == "truncate":
            starts, ends = token_ids.row_starts(), token_ids.row_limits()
            cuts = _cuts(starts, ends, most, self._places(token_ids.flat_values)[:2])
            kept = tf.gather(token_ids.flat_values, tf.ragged.range(starts, cuts))
            return Pieces(kept, lines, ends - cuts)
        message = f"A line is longer than {most + 1} tokens, `max_source_tokens`"
        with tf.control_dependencies([tf.debugging.Assert(fits, [message])]):
            return Pieces(tf.identity(token_ids), lines, dropped)

    def _split(self, token_ids, most):
        """The next piece of all lines at a time, until none has anything left."""
        values, limits = token_ids.flat_values, token_ids.row_limits()
        places = self._places(values)

        def is_left(starts, *_):
            return tf.size(starts) > 0

        def cut(starts, lines, all_starts, all_lines):
            ends = tf.gather(limits, lines)
            cuts = _cuts(starts, ends, most, places)
            starts, lines = tf.boolean_mask(cuts, cuts < ends), tf.boolean_mask(lines, cuts < ends)
            all_starts = tf.concat([all_starts, starts], axis=0)
            return starts, lines, all_starts, tf.concat([all_lines, lines], axis=0)

        starts, lines = token_ids.row_starts(), tf.range(token_ids.nrows())
        *_, starts, lines = tf.while_loop(
            is_left,
            cut,
            (starts, lines, starts, lines),
            shape_invariants=(tf.TensorShape([None]),) * 4,
        )
        order = tf.argsort(lines, stable=True)
        splits = tf.concat([tf.gather(starts, order), [tf.size(values, tf.int64)]], axis=0)
        pieces = tf.RaggedTensor.from_row_splits(values, splits, validate=False)
        return Pieces(pieces, tf.gather(lines, order), tf.zeros_like(limits))

    def _places(self, values):
        """The tokens before which a cut is good, better and best: int64 tensors, rising."""
        begins_word = tf.gather(self._begins_word, values)
        ends_sentence = tf.gather(self._ends_sentence, values)
        ends_anyway = tf.gather(self._ends_ideographic_sentence, values)
        is_inside = tf.gather(self._is_inside_character, values)
        begins_sentence = (ends_sentence[:-1] & begins_word[1:]) | ends_anyway[:-1]
        begins_sentence = tf.concat([tf.zeros_like(begins_word[:1]), begins_sentence], axis=0)
        # -1: there is always one before.
        return [
            tf.concat([[-1], tf.where(is_place)[:, 0]], axis=0)
            for is_place in (~is_inside, begins_word, begins_sentence)
        ]


def _cuts(starts, ends, most, places):
    """Where the pieces that begin at `starts`, in lines that end at `ends`, must end."""
    furthest = tf.minimum(starts + most, ends)
    cuts = furthest
    for tokens in places:
        last = tf.gather(tokens, tf.searchsorted(tokens, furthest, side="right") - 1)
        cuts = tf.where(last > starts, last, cuts)
    return tf.where(furthest == ends, ends, cuts)


def join_translations(texts, lines, count):
    """Joins the translations of pieces that have text by a space.

    Args:
        texts: string tensor `(P,)`.
        lines: int64 tensor `(P,)`, rising: the line that each piece is of.
        count: int tensor, B.

    Returns:
        string tensor `(B,)`.
    """
    has_text = texts != ""
    return tf.strings.unsorted_segment_join(
        tf.boolean_mask(texts, has_text), tf.boolean_mask(lines, has_text), count, separator=" "
    )


def warn_of_long_lines(pieces, max_source_tokens):
    """Names the lines that are not translated as a whole."""
    counts, dropped = np.bincount(pieces.lines), pieces.dropped.numpy()
    of_lines = [f"line {i + 1} in {counts[i]} pieces" for i in np.flatnonzero(counts > 1)]
    of_lines += [
        f"line {i + 1} without its last {dropped[i]} tokens" for i in np.flatnonzero(dropped)
    ]
    if of_lines:
        more = f" and {len(of_lines) - 5} more" if len(of_lines) > 5 else ""
        warnings.warn(
            f"Longer than `max_source_tokens`, {max_source_tokens}, and translated "
            f"otherwise than as a whole: {', '.join(of_lines[:5])}{more}",
            stacklevel=3,
        )
