"""Splits lines into sentences in a graph, by the rules of `decoding/sentences.py`.

Letters: B lines, N sentences, P pieces.
"""

from typing import NamedTuple

import tensorflow as tf

from keras_transformer.decoding.sentences import BORDER, RULES
from keras_transformer.export.graph_languages import split_tags
from keras_transformer.export.graph_long_lines import Pieces, is_last_of_line


class GraphSentences(NamedTuple):
    """As `Sentences`, in a graph: `texts`, `lines` and `gaps` are tensors `(N,)`."""

    texts: tf.Tensor
    lines: tf.Tensor
    gaps: tf.Tensor

    @classmethod
    def of(cls, text: tf.Tensor, split: str, has_tags: bool) -> "GraphSentences":
        """As `split_lines`, for the string tensor `(B,)`."""
        if split == "lines":
            return cls(text, tf.range(tf.size(text, tf.int64)), tf.fill(tf.shape(text), " "))
        tags, text = split_tags(text) if has_tags else (tf.fill(tf.shape(text), ""), text)
        for rule in RULES:
            text = tf.strings.regex_replace(text, *rule)
        parts = tf.strings.split(text, BORDER)
        texts = parts[:, ::2]
        gaps = tf.concat([parts[:, 1::2], tf.fill([tf.size(tags), 1], "")], axis=1)
        lines = texts.value_rowids()
        return cls(tf.gather(tags, lines) + texts.flat_values, lines, gaps.flat_values)

    def of_lines(self, pieces: Pieces) -> Pieces:
        """Returns the pieces of sentences as pieces of the lines."""
        sentences = pieces.lines
        gaps = tf.where(is_last_of_line(sentences), tf.gather(self.gaps, sentences), "")
        dropped = tf.math.segment_sum(pieces.dropped, self.lines)
        return Pieces(pieces.token_ids, tf.gather(self.lines, sentences), dropped, gaps)
