"""From pairs of strings to batches for `fit`: tokenised once, bucketed by length, padded.

Third station of the data flow: token ids -> (inputs, labels, sample_weight). Paper, section 5.1.
"""

import dataclasses
import functools
import hashlib
import itertools

import numpy as np
import tensorflow as tf

from keras_transformer.data.batching import check_batch_size, plan_batches

LINES_AT_ONCE = 8192
READ_AHEAD = 2  # batches made while the model trains


@dataclasses.dataclass(frozen=True)
class DatasetReport:
    """What became of a corpus on its way into batches; `print` it.

    Attributes:
        pairs_read: int. Sentence pairs seen.
        pairs_kept: int. Sentence pairs in the dataset, each once an epoch.
        dropped: dict of reason -> number of pairs, for `"empty"`, `"too long"`, `"length ratio"`.
        batches_per_epoch: int. The same in every epoch.
        source_tokens: int. Real tokens an epoch on the encoder's side, END included.
        target_tokens: int. Labels an epoch, END included: what a loss per token divides by.
        source_slots: int. The encoder's token slots, padding included, in the first epoch.
        target_slots: int. The decoder's.
    """

    pairs_read: int
    pairs_kept: int
    dropped: dict
    batches_per_epoch: int
    source_tokens: int
    target_tokens: int
    source_slots: int
    target_slots: int

    @property
    def source_efficiency(self):
        """Fraction of the encoder's token slots that hold real tokens."""
        return self.source_tokens / self.source_slots

    @property
    def target_efficiency(self):
        """Fraction of the decoder's token slots that hold real tokens."""
        return self.target_tokens / self.target_slots

    @property
    def efficiency(self):
        """Fraction of all token slots that hold real tokens; the rest is padding."""
        tokens = self.source_tokens + self.target_tokens
        return tokens / (self.source_slots + self.target_slots)

    def __str__(self):
        return (
            f"{self.pairs_kept:,} of {self.pairs_read:,} pairs kept "
            f"(dropped: {_describe(self.dropped)})\n"
            f"{self.batches_per_epoch:,} batches an epoch, {self.source_tokens:,} source and "
            f"{self.target_tokens:,} target tokens\n"
            f"{self.efficiency:.1%} of the token slots are real tokens "
            f"(source {self.source_efficiency:.1%}, target {self.target_efficiency:.1%})"
        )


def make_dataset(
    pairs,
    tokenizer,
    target_tokenizer=None,
    *,
    batch_tokens=None,
    batch_sentences=None,
    max_length=256,
    max_length_ratio=9.0,
    shuffle=True,
    seed=0,
    first_epoch=0,
    config=None,
):
    """Makes the dataset that `fit` and `evaluate` take from sentence pairs.

    The corpus is tokenised once and kept as integers. An element is a batch
    `(inputs, labels, sample_weight)` of sentences of similar length:

    - `inputs["encoder_token_ids"]`: int32 `(B, S)`, source and END;
    - `inputs["decoder_token_ids"]`: int32 `(B, T)`, START and target;
    - `labels`: int32 `(B, T)`, target and END;
    - `sample_weight`: float32 `(B, T)`, 1 at labels and 0 at padding.

    An iteration is an epoch and holds every kept pair once. Epochs differ in the members and the
    order of their batches, not in their number, which the dataset knows. The epoch counts up
    when the last batch is taken: an iteration that is broken off is begun again by the next.
    `Transformer.fit` takes no batch before its step, also under several replicas; what a strategy
    reads ahead by itself counts as taken.

    Args:
        pairs: iterable of `(source, target)` strings, such as `read_parallel(...)`. For a progress
            bar, wrap it: `rich.progress.track(pairs, total=...)`.
        tokenizer: `Tokenizer` of the source, and of the target if there is no other.
        target_tokenizer: `Tokenizer` of the target. Optional.
        batch_tokens: int. Most token slots of a batch on either side, START or END and
            padding included: sentences times longest sentence.
        batch_sentences: int. Instead: sentences of a batch.
        max_length: int. Pairs with more tokens than this on one side, END included, are dropped,
            and so are those that exceed `batch_tokens` alone. `None`, for evaluation: a pair that
            exceeds `batch_tokens` alone is a batch of its own, and only what is beyond the learned
            positions of `config` is dropped.
        max_length_ratio: float. Pairs are dropped if one side has more than so many times the
            tokens of the other, END included. `None` keeps them.
        shuffle: bool. `False`: one fixed order, for evaluation.
        seed: int. The order of epoch n depends on the lengths, `seed` and n, and nothing else.
        first_epoch: int. The epoch of the first iteration, to resume training.
        config: `TransformerConfig` of the model that the batches are for. With it, tokenizers of
            another vocabulary, and a `max_length` beyond the learned positions, are an error here
            and not in the middle of an epoch. Optional.

    Returns:
        `tf.data.Dataset` and `DatasetReport`.

    Raises:
        ValueError: if not exactly one of `batch_tokens` and `batch_sentences` is given, no pair is
            kept (the message says why), or tokenizers or `max_length` do not fit `config`.
    """
    stream = BatchStream(
        pairs,
        tokenizer,
        target_tokenizer,
        batch_tokens=batch_tokens,
        batch_sentences=batch_sentences,
        max_length=max_length,
        max_length_ratio=max_length_ratio,
        shuffle=shuffle,
        seed=seed,
        config=config,
    )
    stream.seek(first_epoch)
    return stream.dataset(), stream.report


class _TokenRows:
    """Rows of token ids of unequal length, end to end in one array: `values[offsets[n] :]`."""

    def __init__(self, values, lengths):
        self.values, self.lengths = values, lengths
        self.offsets = np.cumsum(lengths) - lengths

    def padded(self, rows, pad_token_id):
        """`(B, L)` token ids of some rows, and where they are real."""
        lengths = self.lengths[rows]
        columns = np.arange(lengths.max())
        is_token = columns < lengths[:, None]
        positions = self.offsets[rows][:, None] + columns
        return np.where(is_token, self.values.take(positions, mode="clip"), pad_token_id), is_token


class BatchStream:
    """The batches of a corpus, epoch after epoch, from any of them on.

    What is in a batch is known beforehand, so that training can go on at the very batch where it
    was interrupted, and say which lines a batch was made of.

    Args: those of `make_dataset`.

    Attributes:
        report: `DatasetReport`.
    """

    def __init__(
        self,
        pairs,
        tokenizer,
        target_tokenizer=None,
        *,
        batch_tokens=None,
        batch_sentences=None,
        max_length=256,
        max_length_ratio=9.0,
        shuffle=True,
        seed=0,
        config=None,
    ):
        check_batch_size(batch_tokens, batch_sentences)
        positions = None
        if config is not None:
            _check_fit(config, max_length, tokenizer, target_tokenizer or tokenizer)
            positions = config.max_sequence_length if config.positions == "learned" else None
        self._tokenizers = tokenizer, target_tokenizer or tokenizer
        self._sides = _tokenize(pairs, *self._tokenizers)
        self._lengths = np.stack([side.lengths for side in self._sides], axis=1)
        if max_length is None:
            most = positions or np.inf
        else:
            most = min(max_length, batch_tokens or np.inf)
        reasons = _reasons_to_drop(self._lengths, most, max_length_ratio)
        self._kept = np.flatnonzero(~np.any(list(reasons.values()), axis=0))
        self._dropped = {reason: int(np.sum(where)) for reason, where in reasons.items()}
        if not self._kept.size:
            raise ValueError(
                f"`pairs` must hold a pair to keep. Received: {len(self._lengths)} pairs "
                f"(dropped: {_describe(self._dropped)})"
            )
        self._plan = functools.partial(
            plan_batches,
            self._lengths[self._kept],
            batch_tokens=batch_tokens,
            batch_sentences=batch_sentences,
            shuffle=shuffle,
            seed=seed,
        )
        self.report = self._report()
        self.seek(0)

    @functools.cached_property
    def fingerprint(self):
        """str. Equal for equal token ids in the same order."""
        digest = hashlib.sha256()
        for side in self._sides:
            digest.update(side.lengths.tobytes() + side.values.tobytes())
        return digest.hexdigest()

    def seek(self, epoch, batch=0):
        """Lets the next iteration of the dataset begin at a batch of an epoch, both from 0."""
        self._epoch, self._batch = epoch, batch

    def batches(self, epoch):
        """Returns the numbers (from 0) of the pairs in each batch, as a list of int arrays."""
        return [self._kept[rows] for rows in self._plan(epoch=epoch)]

    def token_counts(self, epoch):
        """Returns what the batches of an epoch hold, one row for each.

        Args:
            epoch: int, from 0.

        Returns:
            int array `(batches, 3)`: target tokens, tokens of both sides, and token slots of both
            sides, padding included.
        """
        lengths = [self._lengths[rows] for rows in self.batches(epoch)]
        return np.array([(n[:, 1].sum(), n.sum(), len(n) * n.max(axis=0).sum()) for n in lengths])

    def dataset(self, counts_epochs=True):
        """Returns the `tf.data.Dataset` of the batches; see `make_dataset`.

        Args:
            counts_epochs: bool. Whether an iteration that takes its last batch lets the next one
                begin with the next epoch. `False`: only `seek` says where an iteration begins,
                also where others read ahead. Defaults to `True`.
        """
        token_ids = tf.TensorSpec((None, None), tf.int32)
        inputs = {"encoder_token_ids": token_ids, "decoder_token_ids": token_ids}
        batches = tf.data.Dataset.from_generator(
            self._arrays,
            output_signature=(inputs, token_ids, tf.TensorSpec((None, None), tf.float32)),
        )
        dataset = batches.prefetch(READ_AHEAD)
        if counts_epochs:
            # Counted behind `prefetch`, where what is counted has been asked for. Keras begins
            # iterations that it never asks for a batch.
            counts = tf.data.Dataset.from_generator(
                self._counts, output_signature=tf.TensorSpec((), tf.int64)
            )
            dataset = tf.data.Dataset.zip(dataset, counts).map(lambda batch, count: batch)
        options = tf.data.Options()
        options.autotune.enabled = False
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        dataset = dataset.with_options(options)
        cardinality = tf.data.experimental.assert_cardinality(self.report.batches_per_epoch)
        return dataset.apply(cardinality)

    def _arrays(self):
        (source, target), (tokenizer, target_tokenizer) = self._sides, self._tokenizers
        for rows in self.batches(self._epoch)[self._batch :]:
            encoder_token_ids, _ = source.padded(rows, tokenizer.pad_token_id)
            labels, is_label = target.padded(rows, target_tokenizer.pad_token_id)
            # a b END -> START a b: the labels moved by one, and as many.
            start = np.full((len(rows), 1), target_tokenizer.start_token_id, np.int32)
            decoder_token_ids = np.concatenate([start, labels[:, :-1]], axis=1)
            decoder_token_ids[~is_label] = target_tokenizer.pad_token_id
            inputs = {
                "encoder_token_ids": encoder_token_ids,
                "decoder_token_ids": decoder_token_ids,
            }
            yield inputs, labels, is_label.astype(np.float32)

    def _counts(self):
        last = self.report.batches_per_epoch - 1
        yield from range(self._batch, last)
        self.seek(self._epoch + 1)
        yield last

    def _report(self):
        tokens = self._lengths[self._kept].sum(axis=0).tolist()
        batches = self.batches(epoch=0)
        slots = sum(len(rows) * self._lengths[rows].max(axis=0) for rows in batches).tolist()
        return DatasetReport(
            pairs_read=len(self._lengths),
            pairs_kept=len(self._kept),
            dropped=self._dropped,
            batches_per_epoch=len(batches),
            source_tokens=tokens[0],
            target_tokens=tokens[1],
            source_slots=slots[0],
            target_slots=slots[1],
        )


def _tokenize(pairs, tokenizer, target_tokenizer):
    """Token ids of both sides with END, as `_TokenRows`."""
    sides = (tokenizer, []), (target_tokenizer, [])
    pairs = iter(pairs)
    while chunk := list(itertools.islice(pairs, LINES_AT_ONCE)):
        if any(len(pair) != 2 or isinstance(pair, str) for pair in chunk):
            raise ValueError(f"`pairs` must be (source, target) pairs. Received: {chunk[0]!r}")
        for (side_tokenizer, ragged), lines in zip(sides, zip(*chunk, strict=True), strict=True):
            ragged.append(side_tokenizer.tokenize(list(lines), add_end=True))
    return [
        _TokenRows(
            np.concatenate([np.zeros(0, np.int32), *(rows.flat_values for rows in ragged)]),
            np.concatenate([np.zeros(0, np.int64), *(rows.row_lengths() for rows in ragged)]),
        )
        for _, ragged in sides
    ]


def _check_fit(config, max_length, tokenizer, target_tokenizer):
    """Raises where batches would hold what a model of `config` has no row of a table for."""
    positions = config.max_sequence_length
    if config.positions == "learned" and max_length is not None and max_length > positions:
        raise ValueError(
            "`max_length` must be at most the `max_sequence_length` of a model with learned "
            f"positions. Received: max_length={max_length}, max_sequence_length={positions}"
        )
    sizes = {"source": config.source_vocabulary_size, "target": config.vocabulary_size}
    tokenizers = (tokenizer, target_tokenizer)
    for (side, size), each in zip(sizes.items(), tokenizers, strict=True):
        if each.vocabulary_size != size:
            raise ValueError(
                f"The {side} tokenizer must have the {size} tokens of the model's vocabulary. "
                f"Received: a tokenizer of {each.vocabulary_size} tokens"
            )


def _reasons_to_drop(lengths, max_length, max_length_ratio):
    """Where each reason holds; a pair counts under the first one."""
    shorter, longer = lengths.min(axis=1), lengths.max(axis=1)
    is_empty = shorter <= 1  # nothing but END
    is_too_long = ~is_empty & (longer > max_length)
    is_out_of_ratio = ~is_empty & ~is_too_long
    is_out_of_ratio &= longer > (max_length_ratio or np.inf) * shorter
    return {"empty": is_empty, "too long": is_too_long, "length ratio": is_out_of_ratio}


def _describe(dropped):
    return ", ".join(f"{reason} {number:,}" for reason, number in dropped.items())
