"""Translates strings to strings inside one TensorFlow graph, for a SavedModel.

Letters: B lines, P pieces of lines, b rows of a batch.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from keras_transformer.data.graph_tokenizer import append_token
from keras_transformer.decoding.batches import LONGEST_ROW
from keras_transformer.decoding.lines import NO_ROOM, learned_positions
from keras_transformer.decoding.loop import select
from keras_transformer.decoding.model_search import attend_model, make_model_search, score_model
from keras_transformer.decoding.scores import IMPOSSIBLE
from keras_transformer.decoding.search import penalty
from keras_transformer.decoding.search_settings import MOST_ALPHA
from keras_transformer.export.graph_batches import map_batches
from keras_transformer.export.graph_languages import tag_lines
from keras_transformer.export.graph_lines import longest_targets, refuse_first, token_ids_of
from keras_transformer.export.graph_long_lines import GraphLineCutter, join_translations
from keras_transformer.export.graph_sentences import GraphSentences
from keras_transformer.export.search_tree import tree_of_model

# Tokens, some 20 pages: a longer line, or sentence, would hold up the others of its request for
# minutes. Further ones are dropped.
LONGEST_LINE = 2**14
LONGEST_ALIGNED = 256  # tokens: longer alignments are unreadable as a picture


class Options(NamedTuple):
    """Options of each line.

    Attributes:
        n_best: int32 tensor `(B,)`. Number of translations: from 1 to `max_hypotheses`.
        alpha: float32 tensor `(B,)`, as in `SearchSettings`.
        max_length: int32 tensor `(B,)`, as in `SearchSettings`.
        target_prefix: string tensor `(B,)`: the forced beginning of the translation.
    """

    n_best: tf.Tensor
    alpha: tf.Tensor
    max_length: tf.Tensor
    target_prefix: tf.Tensor

    @classmethod
    def default(cls, settings: Any, n_best: int = 1) -> "Options":
        """Returns the options of `SearchSettings` for all lines, as tensors `(1,)`."""
        alpha, max_length = float(settings.alpha), settings.most_tokens
        return cls(*map(tf.constant, ([n_best], [alpha], [max_length], [""])))

    def for_lines(self, count: tf.Tensor, most: int) -> "Options":
        """Broadcasts the options from `(1,)` to `(B,)`, and clips them to their ranges."""
        n_best, alpha, max_length, prefix = (tf.broadcast_to(each, [count]) for each in self)
        return Options(
            n_best=tf.clip_by_value(n_best, 1, most),
            alpha=tf.clip_by_value(alpha, -MOST_ALPHA, MOST_ALPHA),
            max_length=tf.maximum(max_length, 1),
            target_prefix=prefix,
        )


class Translations(NamedTuple):
    """The translations of each line, best first. R is the beam.

    Attributes:
        texts: string tensor `(B, R)`.
        scores: float32 tensor `(B, R)`, as `Hypothesis.score`: 0 for empty lines; -inf for
            translations that are missing; NaN if the model's numbers were not finite.
        lengths: int32 tensor `(B, R)`, the number of tokens.
        truncated: bool tensor `(B,)`, whether tokens were cut off the line.
        unfinished: bool tensor `(B, R)`, as `Hypothesis.unfinished`.
    """

    texts: tf.Tensor
    scores: tf.Tensor
    lengths: tf.Tensor
    truncated: tf.Tensor
    unfinished: tf.Tensor


class GraphTranslator:
    """Tokenizes, searches and scores in the graph.

    Args:
        translator: `Translator`, whose tokenizers have a `graph`. `on_too_long="error"` raises an
            `InvalidArgumentError`; there are no warnings.
    """

    def __init__(self, translator: Any) -> None:
        source_tokenizer, target_tokenizer = translator.tokenizers
        self.model, self.settings = translator.model, translator.settings
        self.text_settings = translator.text_settings
        self.source_tokenizer = source_tokenizer.graph
        self.target_tokenizer = target_tokenizer.graph
        self.languages: list[str] = list(getattr(source_tokenizer, "languages", []))
        self._cutter = GraphLineCutter(source_tokenizer)
        self._joiner = getattr(target_tokenizer, "joiner", " ")
        # Maximum tokens of a line that is scored, and of a prefix with its translation.
        self._longest = learned_positions(self.model.config) or LONGEST_ROW

    def _tagged(self, text, languages=("",)):
        """Returns lines with their tags, see `tag_lines`, if the model has tags."""
        languages = tf.convert_to_tensor(languages)
        return tag_lines(text, languages, self.languages) if self.languages else text

    def _pieces(self, text, on_too_long, split="lines"):
        """Tokenizes lines, or their sentences, and cuts those that are too long.

        Args:
            text: string tensor `(B,)`.
            on_too_long, split: as in `SearchSettings`.
        """
        sentences = GraphSentences.of(text, split, bool(self.languages))
        token_ids = token_ids_of(self.source_tokenizer, sentences.texts)
        kept = token_ids[:, :LONGEST_LINE]
        dropped = token_ids.row_lengths() - kept.row_lengths()
        pieces = self._cutter.cut(kept, self.text_settings.max_source_tokens - 1, on_too_long)
        pieces = sentences.of_lines(pieces._replace(dropped=dropped + pieces.dropped))
        return pieces._replace(token_ids=self._with_end(pieces.token_ids), joiner=self._joiner)

    def _with_end(self, token_ids):
        """Returns the rows with their end tokens."""
        return append_token(token_ids, self.model.config.end_token_id)

    def _longest_targets(self, pieces, max_length):
        """Returns the maximum lengths of the translations of pieces; see `longest_targets`."""
        lengths = pieces.token_ids.row_lengths() - 1
        return longest_targets(lengths, self.settings, self.model.config, max_length)

    def _prefixes(self, prefixes, pieces, longest):
        """Returns the prefix of each piece `(P, None)`: only the first piece of a line has one.

        Raises the error of `refuse_first` if a prefix leaves no room for another token.

        Args:
            prefixes: string tensor `(B,)`, the prefix of each line.
            pieces: `Pieces` of the lines.
            longest: int32 tensor `(P,)`, the maximum length of each translation.
        """
        token_ids = token_ids_of(self.target_tokenizer, prefixes)
        # The last row is empty, for the other pieces.
        rows = tf.concat([token_ids, tf.ragged.constant([[]], tf.int32)], axis=0)
        lines = pieces.lines
        is_first = tf.concat([lines[:1] >= 0, lines[1:] > lines[:-1]], axis=0)
        prefixes = tf.gather(rows, tf.where(is_first, lines, token_ids.nrows()))
        longest = tf.minimum(longest, self._longest)
        given = tf.cast(prefixes.row_lengths(), tf.int32)
        return refuse_first(
            (given >= longest) & (longest > 0),  # an empty source gets no prefix
            NO_ROOM,
            [tf.strings.as_string(each) for each in (lines + 1, given, longest)],
            prefixes,
        )

    def translate(self, text: tf.Tensor, options: Options, languages: Any = ("",)) -> Translations:
        """Translates lines. A line that was split has one translation.

        Args:
            text: string tensor `(B,)`.
            options: `Options` of the lines, `(B,)` or `(1,)`. Values are clipped to their ranges.
            languages: string tensor `(B,)` or `(1,)`: the target language of each line, `""` for
                none, as in `tag_lines`. Defaults to none.
        """
        text = self._tagged(text, languages)
        settings, most = self.settings, self.settings.max_hypotheses
        is_distinct = self.text_settings.distinct_texts
        options = options.for_lines(tf.size(text), most)
        pieces = self._pieces(text, self.text_settings.on_too_long, self.text_settings.split)
        n_best, alpha, max_length = (tf.gather(each, pieces.lines) for each in options[:3])
        longest = self._longest_targets(pieces, max_length)
        prefixes = self._prefixes(options.target_prefix, pieces, longest)

        def translate_batch(source, prefix, n_best, alpha, longest):
            # To pick several with distinct texts, a search must keep all; for 1, one is enough.
            wanted = tf.where(n_best == 1, 1, most) if is_distinct else n_best
            given = self.model, source, longest, settings, most
            search, inputs = make_model_search(*given, alpha=alpha, wanted=wanted)
            found = search.run(*inputs, prefix)
            found, texts = self._with_texts(found, is_distinct and most > 1)
            return self._parts_of_scores(found, texts, n_best)

        parts = map_batches(
            translate_batch,
            [pieces.token_ids, prefixes],
            [n_best, alpha, longest],
            self.model.config.pad_token_id,
            [
                tf.TensorSpec([None, most], dtype)
                for dtype in (tf.string, tf.float32, tf.int32, tf.int32)
            ],
        )
        return self._join_pieces(pieces, parts, options.alpha)

    def _with_texts(self, found, is_distinct):
        """Returns a `SearchResult` and its texts `(b, R)`; see `without_repeated`."""
        shape = tf.shape(found.token_ids)
        ids = tf.reshape(found.token_ids, [-1, shape[2]])
        texts = tf.reshape(self.target_tokenizer.detokenize(ids), shape[:2])
        if not is_distinct:
            return found, texts
        is_equal = texts[:, :, None] == texts[:, None, :]
        ranks = tf.range(shape[1])
        is_repeated = tf.reduce_any(is_equal & (ranks[:, None] > ranks), axis=2)
        kept = found._replace(
            lengths=tf.where(is_repeated, 0, found.lengths),
            scores=tf.where(is_repeated, IMPOSSIBLE, found.scores),
        )
        order = tf.argsort(tf.cast(is_repeated, tf.int32), axis=1, stable=True)
        return select((kept, tf.where(is_repeated, "", texts)), order)

    def _parts_of_scores(self, found, texts, n_best):
        """Returns texts, log-probs, lengths and numbers of missing end tokens: `(b, R)`."""
        is_wanted = tf.range(tf.shape(texts)[1]) < n_best[:, None]
        is_there = is_wanted & (found.scores != IMPOSSIBLE)
        totals = tf.where(is_there, tf.reduce_sum(found.log_probs, axis=2), IMPOSSIBLE)
        totals = tf.where(tf.math.is_nan(found.scores), found.scores, totals)
        lengths = tf.where(is_there, found.lengths, 0)
        is_token = tf.sequence_mask(lengths, tf.shape(found.token_ids)[2])
        is_end = is_token & (found.token_ids == self.model.config.end_token_id)
        is_unfinished = (lengths > 0) & ~tf.reduce_any(is_end, axis=2)
        texts = tf.where(lengths > 0, texts, "")
        return texts, totals, lengths, tf.cast(is_unfinished, tf.int32)

    def _join_pieces(self, pieces, parts, alpha):
        """Joins the parts of each line's pieces."""
        count = tf.size(pieces.dropped)
        texts, *numbers = parts
        texts = [join_translations(each, pieces) for each in tf.unstack(texts, axis=1)]
        totals, lengths, unfinished = (
            tf.math.unsorted_segment_sum(each, pieces.lines, count) for each in numbers
        )
        # A line of several pieces has one translation: it joins the best ones of its pieces.
        number = tf.math.unsorted_segment_sum(tf.ones_like(pieces.lines), pieces.lines, count)
        is_best = tf.range(len(texts)) == 0
        is_there = is_best | (number == 1)[:, None]
        # Several pieces are scored as one hypothesis with all their tokens.
        penalties = penalty(tf.maximum(lengths, 1), self.settings, alpha[:, None])
        return Translations(
            texts=tf.where(is_there, tf.stack(texts, axis=1), ""),
            scores=tf.where(is_there, totals / penalties, IMPOSSIBLE),
            lengths=tf.where(is_there, lengths, 0),
            truncated=pieces.dropped > 0,
            unfinished=is_there & (unfinished > 0),
        )

    def _sides(self, source, target, most=None):
        """Returns the first `most` ids of both sides' tokens, with end tokens."""
        sides = (self.source_tokenizer, self._tagged(source)), (self.target_tokenizer, target)
        return [self._with_end(token_ids_of(*side)[:, :most]) for side in sides]

    def score(self, source: tf.Tensor, target: tf.Tensor) -> dict[str, tf.Tensor]:
        """Scores given translations, see `export_saved_model`.

        Args:
            source, target: string tensors `(B,)`.
        """
        most, columns = self._longest, self._sides(source, target)
        longest = tf.maximum(*(column.row_lengths() for column in columns))

        def score_batch(source, target):
            return (tf.reduce_sum(score_model(self.model, source, target), axis=1),)

        kept = [column[:, :most] for column in columns]
        specs = [tf.TensorSpec([None], tf.float32)]
        (log_probs,) = map_batches(score_batch, kept, [], self.model.config.pad_token_id, specs)
        log_probs = tf.where(longest <= most, log_probs, float("nan"))
        tokens = tf.cast(columns[1].row_lengths(), tf.int32)
        perplexity = tf.exp(-log_probs / tf.cast(tokens, tf.float32))
        return {"log_prob": log_probs, "tokens": tokens, "perplexity": perplexity}

    def align(self, text: tf.Tensor, target: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns which source tokens a translation attends to, see `export_saved_model`.

        Args:
            text, target: string tensors `(B,)`.
        """
        sides = self._sides(text, target, min(self._longest, LONGEST_ALIGNED) - 1)
        columns = [side.to_tensor(self.model.config.pad_token_id) for side in sides]

        def align_line(row):
            scores = attend_model(self.model, *(ids[None] for ids in row))["encoder_decoder"]
            return tf.reduce_mean(tf.stack(scores), axis=(0, 2))[0]

        # One line at a time, because the scores of all blocks and heads are in memory together.
        spec = tf.TensorSpec([None, None], tf.float32)
        scores = tf.cond(
            tf.size(text) > 0,  # `map_fn` cannot infer a shape from an empty batch
            lambda: tf.map_fn(align_line, columns, fn_output_signature=spec, parallel_iterations=1),
            lambda: tf.zeros([0, 0, 0]),
        )
        source_mask, target_mask = (tf.sequence_mask(side.row_lengths()) for side in sides)
        is_pair = target_mask[:, :, None] & source_mask[:, None]
        answer = {"attention": tf.where(is_pair, scores, 0.0)}
        tokenizers = self.source_tokenizer, self.target_tokenizer
        for name, side, tokenizer in zip(("source", "target"), sides, tokenizers, strict=True):
            answer[f"{name}_tokens"] = tokenizer.tokens(side).to_tensor("")
            answer[f"{name}_lengths"] = tf.cast(side.row_lengths(), tf.int32)
        return answer

    def search_tree(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns what the search does with lines, see `export_saved_model`.

        Args:
            text: string tensor `(B,)`. Only the first piece of a line that is too long is used.
        """
        pieces = self._pieces(self._tagged(text), "truncate")
        source = pieces.token_ids.to_tensor(self.model.config.pad_token_id)
        longest = self._longest_targets(pieces, self.settings.most_tokens)
        token_ids, *tree = tree_of_model(self.model, source, longest, self.settings)
        parents, totals, is_winner = tree
        tokens = tf.where(totals > IMPOSSIBLE, self.target_tokenizer.tokens(token_ids), "")
        return {"tokens": tokens, "parents": parents, "log_probs": totals, "is_winner": is_winner}

    def tokenize(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the ids of the source's tokens, see `export_saved_model`."""
        token_ids = token_ids_of(self.source_tokenizer, text)
        rows = token_ids.to_tensor(self.model.config.pad_token_id)
        return {"token_ids": rows, "lengths": tf.cast(token_ids.row_lengths(), tf.int32)}

    def detokenize(self, token_ids: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the texts of the target's tokens, see `export_saved_model`."""
        return {"text": self.target_tokenizer.detokenize(token_ids)}
