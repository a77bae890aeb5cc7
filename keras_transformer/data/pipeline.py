"""Batches for `fit` from pairs of strings: tokenised once, bucketed by length, padded.

Third step of the data flow: token ids -> (inputs, labels, sample_weight). Paper, section 5.1.
"""

import collections
import functools
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np

from keras_transformer.data.batch_settings import BatchSettings
from keras_transformer.data.batching import Passes, plan_batches
from keras_transformer.data.corpora import as_pairs
from keras_transformer.data.feeder import BatchFeeder
from keras_transformer.data.language_codes import LANGUAGES, ids_of_parts
from keras_transformer.data.noise import Noise
from keras_transformer.data.report import (
    SAMPLE_SIZE,
    DatasetReport,
    described,
    dropped_warnings,
    sample_notes,
    text_changes,
)
from keras_transformer.data.shapes import Shapes
from keras_transformer.data.token_store import token_rows
from keras_transformer.data.tokenizer_like import (
    TokenizerLike,
    check_tokenizers,
    require_matching_vocabularies,
    splits_by_language,
)
from keras_transformer.texts import EXAMPLES
from keras_transformer.types import Path

if keras.config.backend() == "tensorflow":
    import tensorflow as tf

PREFETCHED = 2  # batches
SIZES = "batch_tokens", "batch_sentences", "shuffle", "seed"  # decide which pairs form a batch
NOISE = "subword_regularization", "word_dropout"
UNSTORED = (*NOISE, "shapes", *LANGUAGES)  # in `BatchStream.settings` only if they are set


def make_dataset(
    pairs: Iterable[tuple[str, str]],
    tokenizer: TokenizerLike,
    target_tokenizer: TokenizerLike | None = None,
    *,
    batch_tokens: int | None = None,
    batch_sentences: int | None = None,
    max_length: int | None = 256,
    max_length_ratio: float | None = 9.0,
    shuffle: bool = True,
    seed: int = 0,
    first_epoch: int = 0,
    subword_regularization: float | None = None,
    word_dropout: float = 0.0,
    shapes: int | str | None = "auto",
    source_language: str | None = None,
    target_language: str | None = None,
    config: Any = None,
    store: Path | None = None,
) -> tuple["tf.data.Dataset | BatchFeeder", DatasetReport]:
    """Makes a dataset for `fit` and `evaluate` from sentence pairs.

    The corpus is tokenised once and kept as integers, in memory or in a token store. On TensorFlow
    the dataset is a `tf.data.Dataset`. On JAX and PyTorch it yields arrays, without TensorFlow.
    `fit` keeps the order of the batches, even with `shuffle=True`. An element is a batch
    `(inputs, labels, sample_weight)` of sentences of similar length:

    - `inputs["encoder_token_ids"]`: int32 `(B, S)`, source and END;
    - `inputs["decoder_token_ids"]`: int32 `(B, T)`, START and target;
    - `labels`: int32 `(B, T)`, target and END;
    - `sample_weight`: float32 `(B, T)`, 1 at labels and 0 at padding and at tokens of languages.

    Each iteration is one epoch and holds every kept pair once, or as often as the `weight` of its
    corpus says. All epochs have the same number of batches, the cardinality of the dataset; the
    batches and their order differ. The epoch number increases when the last batch is consumed:
    after an incomplete iteration, the next one repeats the epoch. Batches that are prefetched to
    the devices count as consumed. `Transformer.fit` prefetches none, so this matters only if you
    distribute the dataset yourself.

    Args:
        pairs: iterable of `(source, target)` strings, such as `read_parallel(...)`. For a progress
            bar, wrap it: `rich.progress.track(pairs, total=...)`.
        tokenizer: `Tokenizer` or other `TokenizerLike` of the source, and of the target if
            `target_tokenizer` is not given.
        target_tokenizer: tokenizer of the target. Optional.
        batch_tokens: maximum token slots of a batch on each side: number of sentences times the
            longest of them, START or END included.
        batch_sentences: alternative to `batch_tokens`: sentences per batch.
        max_length: maximum tokens of each side of a pair, END included. Pairs longer than this
            or than `batch_tokens` are dropped. `None` (for evaluation): no maximum, except the
            learned positions of `config`; a pair longer than `batch_tokens` is a batch by itself.
        max_length_ratio: maximum ratio of the token counts of the two sides, END included; pairs
            above it are dropped. `None` keeps them.
        shuffle: `True`: a new order in each epoch. `False`, for evaluation: one fixed order.
        seed: the order of epoch n depends on the lengths, `seed` and n only.
        first_epoch: the epoch of the first iteration, to resume training.
        subword_regularization: the probability of leaving out a merge, in (0, 1]: BPE-dropout
            ([Provilkov et al., 2020](https://arxiv.org/abs/1910.13267), who use 0.1). In each epoch
            words are split anew, into more tokens. Batches are planned with the usual split, so
            they may exceed `batch_tokens`; a text that would exceed `max_length` keeps its
            usual split. Needs a `Tokenizer` with `model_type="bpe"`. Defaults to `None`.
        word_dropout: the probability, in [0, 1), that encoder and decoder read the unknown token in
            place of a token, other than START and END. The labels stay. The tokenizers must have an
            `unk_token_id`. Defaults to `0.0`.
        shapes: maximum number of shapes `(B, S, T)` of all batches, for backends that compile each
            shape. The shapes are chosen from the lengths of the corpus, so that there is little
            padding, and are the same in every epoch. A batch of fewer pairs is filled with rows of
            padding, whose weights are 0: `Transformer` ignores them. With `subword_regularization`,
            a text that would exceed its shape keeps its usual split. `None`: no maximum. Defaults
            to `"auto"`: 8 on JAX, else `None`.
        source_language, target_language: codes of the languages of the pairs, such as `"en"`, for
            a tokenizer with tokens of languages, such as NLLB's: each side begins with the token of
            its language. As a label, it has the weight 0. Default to `None`.
        config: `TransformerConfig` of the model that trains on the batches. If given, vocabulary
            sizes, special tokens and `max_length` are checked first. Optional.
        store: folder for a token store of a large corpus: the corpus is tokenised on all cores,
            once, and later calls map the files of the store. The batches are the same. `pairs`
            must be files, such as `read_parallel(...)`. Defaults to `None`: in memory.

    Returns:
        The dataset and its statistics.

    Raises:
        TypeError: if a tokenizer lacks a member of `TokenizerLike`.
        ValueError: if an item of `pairs` is no pair of strings; if both or neither of
            `batch_tokens` and `batch_sentences` are given; if all pairs are dropped (the message
            gives the reasons); if tokenizers or `max_length` do not fit `config`; if a tokenizer
            cannot do what `subword_regularization` or `word_dropout` needs; or if a language is
            missing, is unknown to the tokenizer, or is given without tokens of languages.
        OSError: if the store can neither be read nor written.
    """
    arguments = dict(locals())
    del arguments["first_epoch"]
    stream = BatchStream(**arguments)
    stream.seek(first_epoch)
    return stream.dataset(), stream.report


class BatchStream:
    """The batches of a corpus, with `seek` to any epoch and batch.

    Batches are planned in advance, so that training can resume at an exact batch, and errors can
    name the pairs of a batch.

    Args: those of `make_dataset` except `first_epoch`.

    Attributes:
        report: `DatasetReport`.
        epoch: the epoch of the next iteration, or of the one that is not complete.
        is_read: whether an iteration has begun. May be set to `False`.
        settings: {name: value} of the arguments that decide what the batches hold. Noise, shapes
            and languages are left out unless they are set.
        lengths: int32 array `(pairs, 2)`, tokens of both sides of all pairs, with tag, language
            and END.
        fingerprint: hash of the token ids in their order, the languages, and the weights and tags
            of corpora.
    """

    def __init__(
        self,
        pairs: Iterable[tuple[str, str]],
        tokenizer: TokenizerLike,
        target_tokenizer: TokenizerLike | None = None,
        *,
        config: Any = None,
        store: Path | None = None,
        **settings: Any,
    ) -> None:
        options = BatchSettings(**settings)
        # Only the options in use: checkpoints store them.
        self.settings = {n: v for n, v in vars(options).items() if v or n not in UNSTORED}
        self._tokenizers = check_tokenizers(tokenizer, target_tokenizer)
        if config is not None:
            require_matching_vocabularies(config, *self._tokenizers)
        self._longest = _longest_kept(options, config)
        self._noise = Noise(self._tokenizers, options.subword_regularization, options.word_dropout)
        corpora = as_pairs(pairs)
        codes = [getattr(options, name) for name in LANGUAGES]
        languages = ids_of_parts(self._tokenizers[0].language_ids, corpora.parts, codes)
        self._languages = np.array(languages)  # language tokens `(parts, 2)`; empty without them
        splits_differ = any(map(splits_by_language, self._tokenizers))
        self._rows = token_rows(
            corpora, self._tokenizers, store, languages=languages if splits_differ else []
        )
        self._passes = Passes(corpora, self._tokenizers[0])
        language_ids = self._languages.flatten().tolist()
        self._noise.protected_ids = [*self._passes.tag_ids, *language_ids]
        self.lengths = self._passes.lengths(self._rows.lengths)
        if language_ids:  # an empty side has no language token
            self.lengths = self.lengths + (self.lengths > 1).astype(self.lengths.dtype)
        kept, dropped = _select(self.lengths, self._longest, options.max_length_ratio)
        if not len(kept):
            numbers = described({reason: len(rows) for reason, rows in dropped.items()})
            warnings = "; ".join(self._dropped_warnings(dropped))
            raise ValueError(
                "`pairs` must hold a pair that is not dropped. Received: "
                f"{len(self.lengths)} pairs (dropped: {numbers}). {warnings}"
            )
        self._kept = self._passes.repeat(kept)
        sizes = {name: self.settings[name] for name in SIZES}
        self._shapes = self._choose_shapes(options)
        plan = functools.partial(
            plan_batches, self.lengths, self._kept, shapes=self._shapes, **sizes
        )
        self._plan = functools.lru_cache(maxsize=1)(plan)
        self.report = self._report(corpora, len(kept), dropped)
        self.is_read = False
        self.sums: dict[str, Any] = {}  # over the epoch so far, for means that callbacks log
        self.seek(0)

    @property
    def fingerprint(self) -> str:
        languages = str(self._languages.tolist()) if len(self._languages) else ""
        return self._rows.fingerprint + self._passes.key + languages

    def seek(self, epoch: int, batch: int = 0, repeat_skipped: bool = False) -> None:
        """Sets where the next iteration of the dataset starts.

        Args:
            epoch: from 0.
            batch: from 0. Earlier batches are skipped.
            repeat_skipped: whether each skipped batch is yielded too, as a copy of batch `batch`,
                for a training loop that reads and discards what it skips. Defaults to `False`.
        """
        self.epoch, self._batch, self._repeat_skipped = epoch, batch, repeat_skipped

    def batches(self, epoch: int) -> list[np.ndarray]:
        """Returns the pair indices of each batch, as int arrays."""
        return self._plan(epoch=epoch)

    def token_counts(self, epoch: int) -> np.ndarray:
        """Returns the token counts of an epoch's batches, without `subword_regularization`.

        Returns:
            int array `(batches, 3)`: target tokens, tokens of both sides, and token slots of both
            sides, padding included.
        """
        counts = []
        for rows in self.batches(epoch):
            target_tokens, tokens = self.lengths[rows, 1].sum(), self.lengths[rows].sum()
            num_rows, source, target = self.shape(rows)
            counts.append((target_tokens, tokens, num_rows * (source + target)))
        return np.array(counts)

    def shape(self, rows: np.ndarray) -> tuple[int, int, int]:
        """Returns the shape `(B, S, T)` of a batch, without `subword_regularization`.

        Args:
            rows: int array, the pair indices of the batch; see `batches`.
        """
        if self._shapes is not None:
            return self._shapes.find(self._planned[rows])
        source, target = self.lengths[rows].max(axis=0).tolist()
        return len(rows), source, target

    def dataset(
        self, counts_epochs: bool = True, own: Callable[[int], slice] | None = None
    ) -> "tf.data.Dataset | BatchFeeder":
        """Returns the dataset of the batches; see `make_dataset`.

        Args:
            counts_epochs: whether a complete iteration advances the epoch. `False`: only `seek`
                changes the epoch. Use it if a strategy prefetches batches, because prefetched
                batches would be counted.
            own: the rows of one of several workers on TensorFlow, see `arrays`. Defaults to all.
        """
        if keras.config.backend() != "tensorflow":
            return BatchFeeder(self, self._counted_arrays if counts_epochs else self._arrays)
        token_ids = tf.TensorSpec((None, None), tf.int32)
        inputs = {"encoder_token_ids": token_ids, "decoder_token_ids": token_ids}
        batch = inputs, token_ids, tf.TensorSpec((None, None), tf.float32)
        arrays = functools.partial(self._arrays, own)
        dataset = tf.data.Dataset.from_generator(arrays, output_signature=batch)
        dataset = dataset.prefetch(PREFETCHED)
        if counts_epochs:
            # Count after `prefetch`: Keras creates iterators that it never uses, and their
            # prefetched batches must not count.
            count = tf.TensorSpec((), tf.int64)
            counts = tf.data.Dataset.from_generator(self._counts, output_signature=count)
            dataset = tf.data.Dataset.zip(dataset, counts).map(lambda batch, count: batch)
        options = tf.data.Options()
        options.autotune.enabled = False
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        dataset = dataset.with_options(options)
        cardinality = tf.data.experimental.assert_cardinality(self.report.batches_per_epoch)
        dataset = dataset.apply(cardinality)
        dataset.stream = self  # read by `stream_of`
        dataset.of_worker = functools.partial(self.dataset, counts_epochs)  # by `split_rows`
        return dataset

    def arrays(
        self, rows: np.ndarray, epoch: int = 0, own: Callable[[int], slice] | None = None
    ) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
        """Returns inputs, labels and weights of a batch.

        Args:
            rows: int array, the pair indices of the batch; see `batches`.
            epoch: from 0. Each epoch has other random noise.
            own: function from the number of rows of the batch to the slice of them that is needed.
                Other rows are padding. With `subword_regularization` all rows are made, because one
                random generator splits all of them. Defaults to all rows.
        """
        rng = np.random.default_rng([self.settings["seed"], epoch, *rows])
        num_rows, *planned_sizes = self.shape(rows)
        is_split = "subword_regularization" in self.settings
        # `None`: the size of the longest row, which is known after the split.
        sizes = [None, None] if is_split and self._shapes is None else planned_sizes
        needed = slice(0, None) if own is None or is_split else own(num_rows)
        sources, targets = self._noisy_rows(rows[needed], sizes, rng)
        tokenizer, target_tokenizer = self._tokenizers
        encoder_ids, _ = _padded(
            sources, tokenizer.pad_token_id, sizes[0], num_rows=num_rows, first=needed.start
        )
        labels, is_label = _padded(
            targets, target_tokenizer.pad_token_id, sizes[1], num_rows=num_rows, first=needed.start
        )
        # a b END -> START a b: the labels shifted right by one.
        start = np.full((num_rows, 1), target_tokenizer.start_token_id, np.int32)
        decoder_ids = np.concatenate([start, labels[:, :-1]], axis=1)
        decoder_ids[~is_label] = target_tokenizer.pad_token_id
        for side, token_ids in enumerate((encoder_ids, decoder_ids)):
            self._noise.drop_words(side, token_ids, rng)
        inputs = {"encoder_token_ids": encoder_ids, "decoder_token_ids": decoder_ids}
        weights = is_label.astype(np.float32)
        if len(self._languages):  # the language is given, not predicted
            weights[:, 0] = 0.0
        return inputs, labels, weights

    def _noisy_rows(self, pairs, sizes, rng):
        """Returns the token ids of sources and targets: new splits, then tags and languages.

        Args:
            pairs: int array, the pair indices.
            sizes: maximum tokens of a row of each side; `None`: the maximum of the dataset.
            rng: draws the splits.
        """
        # A tag and a language need room in a row; no split changes them.
        has_languages = len(self._languages) > 0
        longest = [(size or self._longest) - has_languages for size in sizes]
        longest[0] -= bool(self._passes.tag_ids)
        sources, targets = (
            self._noise.split(side, self._rows.rows(side, pairs), rng, longest[side])
            for side in (0, 1)
        )
        sources = self._passes.with_tags(pairs, sources)
        if not has_languages:
            return sources, targets
        source_languages, target_languages = self._languages[self._passes.parts_of(pairs)].T
        return _with_first(source_languages, sources), _with_first(target_languages, targets)

    def _choose_shapes(self, options):
        """Returns the `Shapes` of the batches, or `None` if they are not limited.

        Sets `_planned`, int32 `(pairs, 2)`: the expected number of tokens of each side after a new
        split, by which `shape` finds the shape of a batch.
        """
        if options.shapes is None:
            return None
        rng = np.random.default_rng(options.seed)
        sample = self._kept[:: -(-len(self._kept) // SAMPLE_SIZE)]
        growth = [self._noise.growth(side, self._rows.rows(side, sample), rng) for side in (0, 1)]
        self._planned = np.empty_like(self.lengths)
        for side, factor in enumerate(growth):
            longer = np.ceil(self.lengths[:, side] * factor)
            self._planned[:, side] = np.minimum(longer, self._longest)
        return Shapes(
            self._planned[self._kept],
            options.shapes,
            options.batch_tokens,
            options.batch_sentences,
        )

    def _arrays(self, own=None):
        """Yields `arrays` of each batch, from the position that `seek` has set."""
        self.is_read = True
        epoch = self.epoch  # another iterator may advance `self.epoch`
        batches = self.batches(epoch)[self._batch :]
        skipped = [batches[0]] * self._batch if self._repeat_skipped else []
        yield from (self.arrays(rows, epoch, own) for rows in [*skipped, *batches])

    def _counted_arrays(self):
        return (batch for batch, _ in zip(self._arrays(), self._counts(), strict=True))

    def _counts(self):
        """Yields the index of each batch; with the last one, the next epoch begins."""
        last = self.report.batches_per_epoch - 1
        yield from range(0 if self._repeat_skipped else self._batch, last)
        self.seek(self.epoch + 1)
        yield last

    def _report(self, corpora, pairs_kept, dropped):
        source_tokens, target_tokens = self.lengths[self._kept].sum(axis=0, dtype=np.int64).tolist()
        shapes = collections.Counter(map(self.shape, self.batches(epoch=0)))
        sources, targets, *languages = zip(*self._rows.sample, strict=True)
        source_languages, target_languages = languages or (None, None)
        tokenizer, target_tokenizer = self._tokenizers
        changes = (
            text_changes("source", tokenizer, sources, source_languages),
            text_changes("target", target_tokenizer, targets, target_languages),
        )
        warnings = self._dropped_warnings(dropped)
        warnings += [warning for change in changes for warning in change.warnings]
        return DatasetReport(
            pairs_read=len(self.lengths),
            pairs_kept=pairs_kept,
            dropped={reason: len(rows) for reason, rows in dropped.items()},
            batches_per_epoch=shapes.total(),
            source_tokens=source_tokens,
            target_tokens=target_tokens,
            source_slots=sum(n * rows * length for (rows, length, _), n in shapes.items()),
            target_slots=sum(n * rows * length for (rows, _, length), n in shapes.items()),
            changes=changes,
            warnings=tuple(warnings),
            shapes=tuple(sorted(shapes)) if self._shapes is not None else (),
            notes=(*sample_notes(self._tokenizers), *corpora.notes()),
            overlaps=corpora.overlaps,
        )

    def _dropped_warnings(self, dropped):
        numbers = {reason: len(rows) for reason, rows in dropped.items()}
        examples = {reason: self._texts(rows[:EXAMPLES]) for reason, rows in dropped.items()}
        ratio = self.settings["max_length_ratio"]
        return dropped_warnings(numbers, examples, len(self.lengths), self._longest, ratio)

    def _texts(self, rows):
        """Returns the (source, target) texts of some pairs."""
        sides = enumerate(self._tokenizers)
        texts = [tokenizer.decode(self._rows.rows(side, rows)) for side, tokenizer in sides]
        return list(zip(*texts, strict=True))


def stream_of(dataset: "tf.data.Dataset | BatchFeeder | BatchStream") -> BatchStream:
    """Returns the `BatchStream` of a dataset of `make_dataset`.

    Raises:
        ValueError: if it is another dataset, such as a transformed one.
    """
    stream = getattr(dataset, "stream", dataset)
    if not isinstance(stream, BatchStream):
        raise ValueError(
            "`dataset` must be a dataset as `make_dataset` returns it, because only its batches "
            "can be repeated from any position. Transform or select the pairs before "
            f"`make_dataset`, not the dataset after it. Received: {type(dataset).__name__}"
        )
    return stream


def _with_first(token_ids, rows):
    """Returns rows of token ids with one more token in front of each."""
    return [np.append(token_id, row) for token_id, row in zip(token_ids, rows, strict=True)]


def _padded(rows, pad_token_id, length, num_rows, first):
    """Returns token ids, int32 `(num_rows, length)`, and the mask of those that are not padding.

    Args:
        rows: token ids of the rows from number `first` on. Rows before and behind them are padding.
        pad_token_id: fills the rows.
        length: tokens of a row. `None`: those of the longest.
        num_rows: number of rows.
        first: number of the first of `rows`, from 0.
    """
    lengths = np.zeros(num_rows, int)
    lengths[first : first + len(rows)] = [len(row) for row in rows]
    is_token = np.arange(length or lengths.max()) < lengths[:, None]
    token_ids = np.full(is_token.shape, pad_token_id, np.int32)
    token_ids[is_token] = np.concatenate(rows or [[]])
    return token_ids, is_token


def _longest_kept(settings, config):
    """Returns the maximum tokens of a side, perhaps infinite; raises if the model allows fewer."""
    if settings.max_length is None:
        is_learned = config is not None and config.positions == "learned"
        return config.max_sequence_length if is_learned else np.inf
    if config is not None:
        config.check_length(settings.max_length)
    return min(settings.max_length, settings.batch_tokens or np.inf)


def _select(lengths, max_length, max_length_ratio):
    """Returns the indices of the pairs to keep, and {reason: indices} of the dropped ones."""
    shorter, longer = lengths.min(axis=1), lengths.max(axis=1)
    reasons = {
        "empty": shorter <= 1,  # nothing but END
        "too long": longer > max_length,
        "length ratio": longer > (max_length_ratio or np.inf) * shorter,
    }
    is_kept = np.ones(len(lengths), bool)
    dropped = {}
    for reason, holds in reasons.items():
        dropped[reason] = np.flatnonzero(is_kept & holds)
        is_kept &= ~holds
    # int32, or int64 if the number of pairs needs it.
    index_type = np.promote_types(np.int32, np.min_scalar_type(-len(lengths)))
    return np.flatnonzero(is_kept).astype(index_type), dropped
