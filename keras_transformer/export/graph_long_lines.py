"""Splits lines that are too long in a graph, by the rules of `decoding/long_lines.py`.

Letters: B lines, P pieces.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from keras_transformer.decoding.long_lines import WITHOUT_SPACE, token_kinds


class Pieces(NamedTuple):
    """Lines of token ids, each in one or several pieces.

    Args:
        token_ids: int32 `RaggedTensor` `(P, None)`, the pieces in the order of the text.
        lines: int tensor `(P,)`, ascending: the line of each piece.
        dropped: int tensor `(B,)`, the number of tokens that were cut off each line.
        gaps: string tensor `(P,)`: what joins the translation of each piece to the next one.
        joiner: str, what joins translations where a gap is empty, see `join_translations`.
    """

    token_ids: tf.RaggedTensor
    lines: tf.Tensor
    dropped: tf.Tensor
    gaps: Any = None
    joiner: str = " "


class GraphLineCutter:
    """As `LineCutter`, in a graph.

    Args:
        tokenizer: `TokenizerLike`.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._graph = tokenizer.graph
        self._has_tags = any(getattr(tokenizer, name, None) for name in ("languages", "tag"))
        self._kinds = token_kinds(tokenizer.vocabulary)

    def cut(self, token_ids: tf.RaggedTensor, most: int, on_too_long: str) -> Pieces:
        """Cuts lines into pieces of at most `most` tokens.

        If a line begins with the tag of a language, each of its pieces does.

        Args:
            token_ids: int32 `RaggedTensor` `(B, None)`, without end tokens.
            most: int, at least 1.
            on_too_long: `"split"`: cuts a line into as many pieces as it needs; `"truncate"`: drops
                all but the first piece, which ends with a word; `"error"`: raises an
                `InvalidArgumentError`.
        """
        if not self._has_tags:
            return self._cut(token_ids, most, on_too_long, reserved=0)
        first = token_ids[:, :1]
        is_tag = first.with_flat_values(self._graph.is_tag(first.flat_values))
        tags = tf.ragged.boolean_mask(first, is_tag)
        starts = token_ids.row_starts() + tags.row_lengths()
        rest = tf.gather(token_ids.flat_values, tf.ragged.range(starts, token_ids.row_limits()))
        pieces = self._cut(rest, most, on_too_long, reserved=tags.row_lengths())
        tags = tf.gather(tags, pieces.lines)
        # A line of a tag alone has no text to translate.
        lengths = tf.where(pieces.token_ids.row_lengths() > 0, tags.row_lengths(), 0)
        kept = tf.ragged.range(tags.row_starts(), tags.row_starts() + lengths)
        tags = tf.gather(tags.flat_values, kept)
        return pieces._replace(token_ids=tf.concat([tags, pieces.token_ids], axis=1))

    def _cut(self, token_ids, most, on_too_long, reserved):
        """Cuts lines; keeps `reserved` tokens free in each piece."""
        lines, dropped = tf.range(token_ids.nrows()), tf.zeros_like(token_ids.row_lengths())
        room = tf.maximum(dropped + most - reserved, 1)
        if on_too_long == "split":
            return self._split(token_ids, room)
        if on_too_long == "truncate":
            starts, ends = token_ids.row_starts(), token_ids.row_limits()
            cuts = _cuts(starts, ends, room, self._places(token_ids.flat_values)[:2])
            kept = tf.gather(token_ids.flat_values, tf.ragged.range(starts, cuts))
            return Pieces(kept, lines, ends - cuts)
        fits = tf.reduce_all(token_ids.row_lengths() <= room)
        message = f"A line is longer than {most + 1} tokens, `max_source_tokens`"
        with tf.control_dependencies([tf.debugging.Assert(fits, [message])]):
            return Pieces(tf.identity(token_ids), lines, dropped)

    def _split(self, token_ids, room):
        """Cuts the next piece off all lines together, until no line has tokens left."""
        values, limits = token_ids.flat_values, token_ids.row_limits()
        places = self._places(values)

        def cut(starts, lines, all_starts, all_lines):
            ends = tf.gather(limits, lines)
            cuts = _cuts(starts, ends, tf.gather(room, lines), places)
            starts, lines = tf.boolean_mask(cuts, cuts < ends), tf.boolean_mask(lines, cuts < ends)
            all_starts = tf.concat([all_starts, starts], axis=0)
            return starts, lines, all_starts, tf.concat([all_lines, lines], axis=0)

        starts, lines = token_ids.row_starts(), tf.range(token_ids.nrows())
        *_, starts, lines = tf.while_loop(
            lambda starts, *_: tf.size(starts) > 0,
            cut,
            (starts, lines, starts, lines),
            shape_invariants=(tf.TensorShape([None]),) * 4,
        )
        order = tf.argsort(lines, stable=True)
        splits = tf.concat([tf.gather(starts, order), [tf.size(values, tf.int64)]], axis=0)
        pieces = tf.RaggedTensor.from_row_splits(values, splits, validate=False)
        return Pieces(pieces, tf.gather(lines, order), tf.zeros_like(limits))

    def _places(self, values):
        """Returns ascending int64 indices of tokens: a cut before them is good, better, best."""
        kinds = tf.unstack(tf.gather(self._kinds, values, axis=1))
        begins_word, ends_sentence, ends_anyway, is_inside = kinds
        begins_sentence = (ends_sentence[:-1] & begins_word[1:]) | ends_anyway[:-1]
        begins_sentence = tf.concat([tf.zeros_like(begins_word[:1]), begins_sentence], axis=0)
        # -1, so that `searchsorted` finds one before any token.
        return [
            tf.concat([[-1], tf.where(is_place)[:, 0]], axis=0)
            for is_place in (~is_inside, begins_word, begins_sentence)
        ]


def _cuts(starts, ends, most, places):
    """Returns the ends of the pieces that begin at `starts`, in lines that end at `ends`."""
    furthest = tf.minimum(starts + most, ends)
    cuts = furthest
    for tokens in places:
        last = tf.gather(tokens, tf.searchsorted(tokens, furthest, side="right") - 1)
        cuts = tf.where(last > starts, last, cuts)
    return tf.where(furthest == ends, ends, cuts)


def join_translations(texts: tf.Tensor, pieces: Pieces) -> tf.Tensor:
    """Joins the translations of each line's pieces, as the function for Python.

    Args:
        texts: string tensor `(P,)`.
        pieces: `Pieces`.

    Returns:
        string tensor `(B,)`.
    """
    columns = texts, pieces.gaps, pieces.lines
    texts, gaps, lines = (tf.boolean_mask(each, texts != "") for each in columns)
    has_space = ~tf.strings.regex_full_match(texts, WITHOUT_SPACE)
    gaps = tf.where((gaps == "") & has_space, pieces.joiner, gaps)
    gaps = tf.where(is_last_of_line(lines), "", gaps)
    return tf.strings.unsorted_segment_join(texts + gaps, lines, tf.size(pieces.dropped))


def is_last_of_line(lines: tf.Tensor) -> tf.Tensor:
    """Returns whether each of some pieces is the last of its line, bool `(P,)`.

    Args:
        lines: int tensor `(P,)`, ascending: the line of each piece.
    """
    return tf.concat([lines[1:] > lines[:-1], lines[:1] >= 0], axis=0)
