"""Reads lines of text, each as a whole, into rows of token ids in a graph.

Python code above the graph splits lines, protects text, and raises errors that name the line.
"""

from typing import Any

import tensorflow as tf

from keras_transformer.data.graph_tokenizer import append_token
from keras_transformer.decoding.lines import learned_positions
from keras_transformer.decoding.long_lines import token_kinds
from keras_transformer.decoding.search_settings import SearchSettings
from keras_transformer.decoding.text_settings import TextSettings
from keras_transformer.export.graph_tags import tag_lines


class GraphLineReader:
    """Reads lines into rows of token ids, in a graph.

    Args:
        tokenizers: those of source and target, which have a `graph`.
        config: special token ids and positions, as in `TransformerConfig`.
        settings: `TextSettings`.

    Attributes:
        sides: list of `GraphSide`, those of source and target.
    """

    def __init__(self, tokenizers: tuple[Any, Any], config: Any, settings: TextSettings) -> None:
        source, target = tokenizers
        self.languages, self.language_ids = [*source.languages], dict(source.language_ids)
        self.sides = [*map(GraphSide, tokenizers)]
        self._source, self._target = self.sides
        self._tag_ids = tf.constant([*source.tag_ids], tf.int32)
        begins_word, _, _, is_inside = token_kinds(source.vocabulary)
        self._begins_word, self._is_inside = tf.constant(begins_word), tf.constant(is_inside)
        self._most: Any = settings.max_source_tokens
        self._config = config

    def read(
        self, text: tf.Tensor, languages: tf.Tensor, language_ids: tf.Tensor | None = None
    ) -> tuple[tf.RaggedTensor, tf.Tensor]:
        """Returns the rows of source lines, and whether each was cut.

        A line of more than `max_source_tokens` tokens is cut at a word, as `LineCutter` does with
        "truncate".

        Args:
            text: string tensor `(B,)`.
            languages: string tensor `(B,)` or `(1,)`, see `tag_lines`.
            language_ids: int32 tensor `(B,)`, the language token of each line, if the model has
                language tokens.

        Returns:
            int32 `RaggedTensor` `(B, None)`, with the end tokens; and bool tensor `(B,)`.
        """
        token_ids = self.source_ids(self.tagged(text, languages), language_ids)
        lengths = row_lengths(token_ids)
        rows = token_ids[:, : self._most + 1].to_tensor(self._config.pad_token_id)
        kept, is_cut = self._kept_lengths(rows, lengths)
        return self.with_end(tf.RaggedTensor.from_tensor(rows, kept)), is_cut

    def _kept_lengths(self, rows, lengths):
        """Returns how many tokens of each line are kept, and whether the line is cut.

        `rows` have the beginnings of the lines, padded; `lengths` are those of whole lines.
        """
        # 1 if the first token is a tag, which is no text.
        is_tag = tf.equal(rows[:, :1, None], self._tag_ids)  # (B, 0 or 1, tags)
        tags = tf.cast(tf.reduce_any(is_tag, axis=[1, 2]), tf.int32)
        # The end token needs a place, and at least one token of text is kept.
        furthest = tf.maximum(self._most - 1, tags + 1)
        position = tf.range(tf.shape(rows)[1])
        may_end = (position > tags[:, None]) & (position <= furthest[:, None])

        def last_place(is_good):
            """Returns the last place to cut before a token of this kind; 0 if there is none."""
            places = tf.where(may_end & tf.gather(is_good, rows), position, 0)
            return tf.reduce_max(places, axis=1)

        word, character = last_place(self._begins_word), last_place(~self._is_inside)
        cut = tf.where(word > 0, word, tf.where(character > 0, character, furthest))
        is_cut = lengths > furthest
        kept = tf.where(is_cut, cut, lengths)
        return tf.where(lengths > tags, kept, 0), is_cut

    def with_languages(self, rows: tf.RaggedTensor, language_ids: tf.Tensor) -> tf.RaggedTensor:
        """Returns rows with the tokens of their languages, int32 `(B,)`, in front.

        Rows with no token but the end token get none.
        """
        first = tf.RaggedTensor.from_tensor(
            language_ids[:, None], tf.cast(row_lengths(rows) > 1, tf.int64)
        )
        return tf.concat([first, rows], axis=1)

    def tagged(self, text: tf.Tensor, languages: tf.Tensor) -> tf.Tensor:
        """Returns lines with their tags, see `tag_lines`, if the model has tags."""
        return tag_lines(text, languages, self.languages) if self.languages else text

    def source_ids(self, text: tf.Tensor, language_ids: tf.Tensor | None = None) -> tf.RaggedTensor:
        """Returns the ids of whole source lines, in their languages, without end tokens."""
        return self._source.token_ids(text, language_ids)

    def target_ids(self, text: tf.Tensor, language_ids: tf.Tensor | None = None) -> tf.RaggedTensor:
        """Returns the ids of whole target lines, in their languages, without end tokens."""
        return self._target.token_ids(text, language_ids)

    def with_end(self, rows: tf.RaggedTensor) -> tf.RaggedTensor:
        """Returns rows of ids with their end tokens."""
        return append_token(rows, self._config.end_token_id)


class GraphSide(tf.Module):
    """The tokenizer of one side in a graph; a language that is split otherwise has its own graph.

    Args:
        tokenizer: `TokenizerLike` that has a `graph`.
    """

    def __init__(self, tokenizer: Any) -> None:
        super().__init__()
        self._graph = tokenizer.graph
        others = {}  # graphs of languages that are split in another way
        for language_id in tokenizer.language_ids.values():
            other = tokenizer.for_language(language_id)
            if other is not tokenizer:
                others[language_id] = other.graph
        self._languages, self._others = [*others], [*others.values()]

    def token_ids(self, text: tf.Tensor, language_ids: tf.Tensor | None) -> tf.RaggedTensor:
        """Returns the ids of lines, as `encode_lines`: a line of spaces has no tokens."""
        text = tf.where(tf.strings.strip(text) == "", "", text)
        if language_ids is None or not self._languages:
            return self._graph.tokenize(text)
        # Each graph reads the lines of its languages, and "" in place of the others.
        is_other = [language_ids == language_id for language_id in self._languages]
        parts = [self._graph.tokenize(tf.where(tf.reduce_any(is_other, axis=0), "", text))]
        for is_of_language, graph in zip(is_other, self._others, strict=True):
            parts.append(graph.tokenize(tf.where(is_of_language, text, "")))
        return tf.concat(parts, axis=1)


def row_lengths(rows: tf.RaggedTensor) -> tf.Tensor:
    """Returns the lengths of ragged rows, int32 `(B,)`."""
    return tf.cast(rows.row_lengths(), tf.int32)


def longest_targets(
    lengths: tf.Tensor,
    settings: SearchSettings,
    config: Any,
    max_length: int | tf.Tensor,
    num_languages: int = 0,
) -> tf.Tensor:
    """As `longest_target`, in a graph: maximum tokens, end token and prefix included.

    Args:
        lengths: int tensor `(B,)`: tokens of each source, without the end token.
        settings: `SearchSettings`, for `length_ratio` and `extra_length`.
        config: as in `SearchModel`.
        max_length: int, or int32 tensor `(B,)`: that of each line, in place of the settings'.
        num_languages: as in `learned_positions`.

    Returns:
        int32 tensor `(B,)`, 0 for empty sources.
    """
    # float64 rounds as Python does. The cast is safe, because `max_length` fits into int32.
    longest = tf.floor(settings.length_ratio * tf.cast(lengths, tf.float64)) + settings.extra_length
    longest = tf.minimum(longest, tf.cast(max_length, tf.float64))
    return allowed_targets(lengths, config, tf.cast(longest, tf.int32), num_languages)


def allowed_targets(
    lengths: tf.Tensor, config: Any, longest: tf.Tensor, num_languages: int = 0
) -> tf.Tensor:
    """Returns maximum lengths within the model's positions, int32 `(B,)`; 0 for empty sources.

    Args:
        lengths, config, num_languages: as in `longest_targets`.
        longest: int32 tensor `(B,)`, the requested lengths.
    """
    longest = tf.maximum(longest, 1)
    longest = tf.minimum(longest, learned_positions(config, num_languages) or longest)
    return tf.where(lengths > 0, longest, 0)
