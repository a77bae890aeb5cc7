"""Strings in, translations out: tokenizer, model and search as one object.

It runs as it is in Python, and is what `export_saved_model` writes.
"""

import re
from dataclasses import dataclass, replace
from functools import partial

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.decoding.frozen import FrozenTransformer
from keras_transformer.decoding.hypothesis import Hypothesis
from keras_transformer.decoding.model_search import (
    NUMBER_SPECS,
    number_tensors,
    score_model,
    search_model,
)
from keras_transformer.decoding.next_tokens import IMPOSSIBLE
from keras_transformer.decoding.search import SearchResult, penalty
from keras_transformer.decoding.search_settings import SearchSettings
from keras_transformer.layers.arguments import require_positive
from keras_transformer.models.transformer import load_model
from keras_transformer.run_folder import RunFolder

_TEXT = tf.TensorSpec([None], tf.string, name="text")
_IDS = tf.TensorSpec([None, None], tf.int32)
_SURROGATE = re.compile("[\ud800-\udfff]")
# Sentences times the square of the longest: what attention makes of a batch has to find room.
_MOST_PAIRS = 64 * 256**2
# Graphs kept, each with its weights if it is frozen. The oldest goes.
_KEPT_SEARCHES = 8


@dataclass(frozen=True)
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


class Translator:
    """Translates lists of strings.

    Args:
        model: `Transformer`.
        tokenizer: `Tokenizer` of the source, and of the target unless `target_tokenizer` is given.
        target_tokenizer: `Tokenizer` of the target, if the vocabularies are separate.
        frozen: bool. Translate with a copy of the model as it is now, its weights constants of
            the graph: faster, for one sentence at a time by a third. Defaults to `False`:
            what the model learns meanwhile shows.
        dtype: name of a dtype, such as `"bfloat16"`, that a frozen copy is cast to. Optional.
        **settings: those of `SearchSettings`: `beam_size=4`, `length_penalty="gnmt"`, `alpha=0.6`,
            `length_ratio=1.0`, `extra_length=50`, `processors=()`, `sampler=None`.

    Call arguments:
        lines: list of strings, or one string.
        n_best: int, at most `beam_size`. How many translations to return of each line. Optional.
        return_attention: bool. Return also where the model looked. Defaults to `False`.
        target_prefix: list of strings, or one for all lines: what the translations must begin
            with. Optional.
        batch_sentences: int. How many sentences are decoded together. Defaults to `64`.
        on_progress: callable that is told after each batch how many sentences it had. Optional.
        **settings: settings of the search that are other for this call.

    Returns:
        list of strings, one for each line and in the same order. An empty line, or one of white
        space, gives an empty line. With `n_best` or `return_attention`, instead of each string a
        list of `Hypothesis`, best first; fewer where there are no more. For one string in place of
        the list, what would stand in the list.

    Raises:
        TypeError: if a line is not a string, or there is no such setting.
        ValueError: if the backend is not TensorFlow, the vocabularies of model and tokenizer
            differ, a line is longer than the model's table of learned positions, or a setting is
            out of its range.

    Example, untrained; `load_run` makes one from a trained run:

    >>> lines = ["a house", "ein Haus"]
    >>> tokenizer = keras_transformer.Tokenizer.train(iter(lines), 270, "vocabulary.model")
    >>> config = keras_transformer.TransformerConfig.tiny(tokenizer.vocabulary_size)
    >>> translator = keras_transformer.Translator(keras_transformer.Transformer(config), tokenizer)
    >>> len(translator(["a house", "", "a mouse"]))
    3
    >>> [hypothesis.score for hypothesis in translator("a house", n_best=2)] # doctest: +ELLIPSIS
    [-..., -...]

    Reference:
        [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 6.1, for the search.
    """

    def __init__(
        self, model, tokenizer, target_tokenizer=None, *, frozen=False, dtype=None, **settings
    ):
        if keras.backend.backend() != "tensorflow":
            raise ValueError(
                "Translating runs in the TensorFlow graph: set KERAS_BACKEND=tensorflow, and load "
                f"the model from its file. Received: the backend {keras.backend.backend()!r}"
            )
        self.settings = SearchSettings(**settings)
        self.source_tokenizer = tokenizer
        self.target_tokenizer = target_tokenizer or tokenizer
        config = model.config
        _require_fit("source", self.source_tokenizer, config, config.source_vocabulary_size)
        _require_fit("target", self.target_tokenizer, config, config.vocabulary_size)
        frozen = frozen or dtype is not None
        self._decoder = FrozenTransformer(model, dtype) if frozen else model
        self.model = self._decoder.model if frozen else model
        self._searches = {}

    def __call__(
        self,
        lines,
        *,
        n_best=None,
        return_attention=False,
        target_prefix=None,
        batch_sentences=64,
        on_progress=None,
        **settings,
    ):
        if isinstance(lines, str):
            lines, is_one = [lines], True
        else:
            lines, is_one = list(lines), False
        columns = [self._tokenize(lines, "lines", self.source_tokenizer)]
        if target_prefix is not None:
            is_for_all = isinstance(target_prefix, str)
            target_prefix = [target_prefix] * len(lines) if is_for_all else list(target_prefix)
            if len(target_prefix) != len(lines):
                raise ValueError(
                    "`target_prefix` must be one string, or one for each line. "
                    f"Received: {len(target_prefix)} prefixes, {len(lines)} lines"
                )
            prefix = self._tokenize(target_prefix, "target_prefix", self.target_tokenizer)
            columns += [prefix[:, :-1]]  # without the end
        if n_best is not None:
            require_positive(n_best=n_best)
        search = self._search(
            settings=replace(self.settings, **settings),
            n_best=n_best or 1,
            return_attention=return_attention,
            has_prefix=target_prefix is not None,
        )
        return_hypotheses = n_best is not None or return_attention
        finish = self._hypotheses if return_hypotheses else self._translations

        translations = self._in_batches(
            lambda *batch: finish(batch[0], search(*batch)), columns, batch_sentences, on_progress
        )
        return translations[0] if is_one else translations

    @tf.function(input_signature=[_TEXT], autograph=False)
    def translate(self, text):
        """Translates in the graph: string tensor `(B,)` in, string tensor `(B,)` out."""
        source = _with_end(self.source_tokenizer, text).to_tensor(self.model.config.pad_token_id)
        result = search_model(self._decoder, source, self.settings)
        return self.target_tokenizer.detokenize(result.token_ids[:, 0])

    def score(self, sources, targets, batch_sentences=64, on_progress=None):
        """Scores translations that are given, by the model and the translator's length penalty.

        Args:
            sources: list of strings, or one string.
            targets: list of as many strings, their translations, or one string.
            batch_sentences, on_progress: as in a call.

        Returns:
            list of `Hypothesis`, one for each pair; for one string, one. Each has its end token,
            also where the source is empty: a search leaves those out.

        Raises:
            ValueError: if there are more of the one than of the other.
        """
        if isinstance(sources, str) and isinstance(targets, str):
            return self.score([sources], [targets])[0]
        for name, lines in (("sources", sources), ("targets", targets)):
            if isinstance(lines, str):
                raise TypeError(f"`{name}` must be a list, as the other is. Received: {lines!r}")
        sources, targets = list(sources), list(targets)
        if len(sources) != len(targets):
            raise ValueError(
                "`targets` must have a translation for each of `sources`. Received: "
                f"{len(sources)} sources, {len(targets)} targets"
            )
        columns = [
            self._tokenize(sources, "sources", self.source_tokenizer),
            self._tokenize(targets, "targets", self.target_tokenizer),
        ]
        return self._in_batches(self._score, columns, batch_sentences, on_progress)

    def attention(self, line):
        """Translates one line and returns what every head of every block attended to meanwhile.

        Args:
            line: str, not empty.

        Returns:
            `Attention`.
        """
        source = self._tokenize([line], "line", self.source_tokenizer)
        if int(source.row_lengths()[0]) == 1:
            raise ValueError(f"There is nothing to attend to in an empty line. Received: {line!r}")
        target = self._search(self.settings)(source.to_tensor()).token_ids[:, 0]
        start = [[self.model.config.start_token_id]]
        decoder_token_ids = tf.concat([start, target[:, :-1]], axis=1)
        scores = self.model.attention_scores(
            {"encoder_token_ids": source.to_tensor(), "decoder_token_ids": decoder_token_ids}
        )
        return Attention(
            source_tokens=_strings(self.source_tokenizer.tokens(source[0])),
            decoder_tokens=_strings(self.target_tokenizer.tokens(decoder_token_ids[0])),
            target_tokens=_strings(self.target_tokenizer.tokens(target[0])),
            scores={name: np.stack([s[0] for s in blocks]) for name, blocks in scores.items()},
        )

    def _tokenize(self, lines, name, tokenizer):
        """Ragged ids with the end tokens; what no tokenizer or model could take is refused."""
        for number, line in enumerate(lines, start=1):
            if not isinstance(line, str):
                raise TypeError(f"`{name}` must be strings. Received: line {number} is {line!r}")
            if not line.isascii() and _SURROGATE.search(line):
                raise ValueError(
                    f"`{name}` must be text that UTF-8 can write. Received: half of a surrogate "
                    f"pair in line {number}, {line!r}"
                )
        token_ids = _with_end(tokenizer, lines)
        config = self.model.config
        if config.positions == "learned" and lines:
            lengths = token_ids.row_lengths().numpy()
            if lengths.max() > config.max_sequence_length:
                raise ValueError(
                    f"A line must have at most {config.max_sequence_length} tokens, the model's "
                    f"learned positions, with the end token. Received: line {lengths.argmax() + 1} "
                    f"of `{name}` has {lengths.max()} tokens"
                )
        return token_ids

    def _in_batches(self, function, columns, batch_sentences, on_progress):
        """The results of a function of padded batches, in the order of the rows of the columns."""
        require_positive(batch_sentences=batch_sentences)
        lengths = np.max([column.row_lengths() for column in columns], axis=0)
        order = np.argsort(lengths, kind="stable")
        results = [None] * len(order)
        pad = self.model.config.pad_token_id
        for chosen in _cut(order, lengths, batch_sentences):
            batch = [tf.gather(column, chosen).to_tensor(pad) for column in columns]
            for index, result in zip(chosen, function(*batch), strict=True):
                results[index] = result
            if on_progress is not None:
                on_progress(len(chosen))
        return results

    def _search(self, settings, n_best=1, return_attention=False, has_prefix=False):
        """The search as a graph, traced once for each way to search."""
        numbers = number_tensors(settings)
        settings = settings.without_numbers()
        key = (settings, n_best, return_attention, has_prefix)
        if key not in self._searches:
            inputs = [NUMBER_SPECS] + [_IDS] * (1 + has_prefix)

            @tf.function(input_signature=inputs, autograph=False)
            def search(numbers, source, *prefix):
                return search_model(
                    self._decoder,
                    source,
                    settings,
                    numbers,
                    n_best,
                    *prefix or [None],
                    return_attention=return_attention,
                )

            if len(self._searches) == _KEPT_SEARCHES:
                del self._searches[next(iter(self._searches))]
            self._searches[key] = search.get_concrete_function()
        return partial(self._searches[key], numbers)

    @tf.function(input_signature=[_IDS, _IDS], autograph=False)
    def _log_probs(self, source, target):
        return score_model(self.model, source, target)

    def _translations(self, source, result):
        return _strings(self.target_tokenizer.detokenize(result.token_ids[:, 0]))

    def _score(self, source, target):
        """The given targets, as if they had been searched for."""
        log_probs = self._log_probs(source, target)
        lengths = tf.reduce_sum(tf.cast(target != self.model.config.pad_token_id, tf.int32), axis=1)
        penalties = penalty(lengths, self.settings.length_penalty, self.settings.alpha)
        scores = tf.reduce_sum(log_probs, axis=1) / penalties
        one = [tensor[:, None] for tensor in (target, lengths, scores, log_probs)]
        return [best for (best,) in self._hypotheses(source, SearchResult(*one, attention=None))]

    def _hypotheses(self, source, result):
        """Yields the hypotheses of each sentence; at least one, which may be impossible."""
        pad = self.model.config.pad_token_id
        shape = tf.shape(result.token_ids)
        texts = self.target_tokenizer.detokenize(tf.reshape(result.token_ids, [-1, shape[2]]))
        texts = tf.reshape(texts, shape[:2]).numpy()
        tokens = self.target_tokenizer.tokens(result.token_ids).numpy()
        source_tokens = self.source_tokenizer.tokens(source).numpy()
        source_lengths = np.count_nonzero(source != pad, axis=1)
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


def load_tokenizers(files):
    """Returns the tokenizers of source and target, the same one twice if there is one file."""
    tokenizers = [Tokenizer(file) for file in files]
    return tokenizers[0], tokenizers[-1]


def load_run(path, model=None, *, frozen=True, dtype=None, **settings):
    """Returns the `Translator` of a trained run.

    Args:
        path: path of the run's folder, as `keras-transformer train` made it.
        model: path of another model file, such as an average of the run's checkpoints. Defaults to
            the run's own, `model.keras`.
        frozen: bool. Defaults to `True`, since a run that is loaded learns no more.
        dtype, **settings: as in `Translator`.

    Returns:
        `Translator`.

    Raises:
        FileNotFoundError: if there is no trained model.

    Example: `load_run("runs/number_names", beam_size=1)(["twenty-one"])`.
    """
    run = RunFolder.existing(path)
    tokenizers = load_tokenizers(run.tokenizer_files(run.recipe().vocabulary.joint))
    model = load_model(model or run.model_file)
    return Translator(model, *tokenizers, frozen=frozen, dtype=dtype, **settings)


def _require_fit(side, tokenizer, config, vocabulary_size):
    if tokenizer.vocabulary_size != vocabulary_size:
        raise ValueError(
            f"The {side} tokenizer must have the model's vocabulary of {vocabulary_size} tokens. "
            f"Received: a tokenizer of {tokenizer.vocabulary_size} tokens"
        )
    for name in ("pad_token_id", "start_token_id", "end_token_id"):
        ours, theirs = getattr(config, name), getattr(tokenizer, name)
        if ours != theirs:
            raise ValueError(
                f"The {side} tokenizer must have the model's `{name}`, {ours}. Received: {theirs}"
            )


def _cut(order, lengths, batch_sentences):
    """Yields the rows of each batch, shorter ones first; fewer where they are very long."""
    start = 0
    while start < len(order):
        chosen = order[start : start + batch_sentences]
        pairs = np.arange(1, len(chosen) + 1) * lengths[chosen].astype("int64") ** 2
        chosen = chosen[: max(1, np.searchsorted(pairs, _MOST_PAIRS, side="right"))]
        yield chosen
        start += len(chosen)


def _with_end(tokenizer, text):
    """Ragged ids with the end tokens. A line of spaces is empty, also to one that keeps spaces."""
    text = tf.convert_to_tensor(text, tf.string)
    return tokenizer.tokenize(tf.where(tf.strings.strip(text) == "", "", text), add_end=True)


def _strings(tensor):
    return [element.decode() for element in tensor.numpy()]
