"""`Translator`: tokenizer, model and search in one object, on any backend.

Plain Python and NumPy around the search; `export_saved_model` puts the same into one graph.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from keras_transformer.data.tokenizer_like import (
    TokenizerLike,
    check_tokenizers,
    require_matching_vocabularies,
)
from keras_transformer.decoding.batches import MOST_PAIRS, batch_rows
from keras_transformer.decoding.ensemble import Ensemble
from keras_transformer.decoding.forks import BACKEND, require_own_process
from keras_transformer.decoding.frozen import FrozenTransformer, freeze
from keras_transformer.decoding.hypothesis import attention_of, hypotheses_of
from keras_transformer.decoding.line_translator import LineTranslator
from keras_transformer.decoding.model_search import (
    SearchModel,
    attend_model,
    compiled_shape,
    kept_hypotheses,
    padded_shape,
    run_on_pairs,
    score_model,
    search_model,
    without_repeated,
)
from keras_transformer.decoding.scores import penalties_up_to
from keras_transformer.decoding.search import SearchResult
from keras_transformer.decoding.search_settings import SearchSettings


class Translator(LineTranslator):
    """Translates lists of strings, on any backend.

    Args:
        model: `Transformer`; or several in a list, which translate as one `Ensemble`.
        tokenizer: `Tokenizer` or other `TokenizerLike` of the source, and of the target unless
            `target_tokenizer` is given.
        target_tokenizer: that of the target, if the vocabularies are separate.
        frozen: bool. Translate with the weights that the model has now, also if it is trained
            later. On TensorFlow this is faster, by 2 to 20%, and takes no memory for the weights
            until the model is trained; elsewhere it is a copy. Defaults to `False`: each call uses
            the model's current weights.
        dtype: name of a dtype, such as `"bfloat16"`, that a frozen copy is cast to. Optional.
        **settings: those of `SearchSettings`, such as `beam_size=4` and `max_length=100`.

    Call arguments:
        lines: iterable of strings of Python or NumPy, or one string.
        n_best: int, at most `beam_size`. Number of translations of each line; fewer, if the search
            finds fewer of different text, see `distinct_texts`. Optional.
        return_attention: bool. Also return the attention scores. They need a second pass of the
            model over the translations. A line that would have to be split is then an error.
            Defaults to `False`.
        target_prefix: list of strings, one per line, or one string for all lines: the forced
            beginning of the translation. Its tokens count in the maximum length. Optional.
        target_language: code of the language to translate to, of a model that has several, such as
            `"fra"`: that of all lines. See `MarianTokenizer.languages`. A line may also begin with
            its tag, `>>fra<<`; without either, it is translated without one. Optional.
        batch_sentences: int. Maximum number of sentences that are decoded together. Batches of long
            sentences hold fewer. Defaults to `256`.
        on_progress: callable, called after each batch with the number of lines that it finished.
            Optional.
        **settings: settings of the search that differ in this call.

    Returns:
        list of strings, one per line in the same order; empty for a line without text. With
        `n_best` or `return_attention`, a list of at most `n_best` `Hypothesis` in place of each
        string, best first. For a single string, the single result.

        `on_too_long` decides how a line of more than `max_source_tokens` is translated. A split
        line has one `Hypothesis`, whose `pieces` is above 1. If strings are returned, a
        `UserWarning` names the lines.

    Raises:
        TypeError: if a line is not a string, `lines` is bytes or a mapping, a setting is unknown,
            or a tokenizer lacks a member of `TokenizerLike`.
        ValueError: if the vocabularies of model and tokenizer differ, a line is too long and
            `on_too_long="error"`, a setting is out of its range, a prefix leaves no room for
            another token, the model's numbers are not finite, or `target_language` or the tag of a
            line is not one of the model's, or they differ.
        RuntimeError: in a process that was forked from the one that made or used the translator.

    Example with an untrained model; `load_run` returns the translator of a trained run:

    >>> lines = ["a house", "ein Haus"]
    >>> tokenizer = keras_transformer.Tokenizer.train_on_lines(lines, 270, "vocabulary.model")
    >>> config = keras_transformer.TransformerConfig.tiny(tokenizer.vocabulary_size)
    >>> translator = keras_transformer.Translator(keras_transformer.Transformer(config), tokenizer)
    >>> len(translator(["a house", "", "a mouse"]))
    3
    >>> [hypothesis.score for hypothesis in translator("a house", n_best=1)] # doctest: +ELLIPSIS
    [-...]

    Reference:
        [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 6.1, for the search.
    """

    def __init__(
        self,
        model: SearchModel | Sequence[SearchModel],
        tokenizer: TokenizerLike,
        target_tokenizer: TokenizerLike | None = None,
        *,
        frozen: bool = False,
        dtype: str | None = None,
        **settings: Any,
    ) -> None:
        # A model of PyTorch that has not run has no threads.
        require_own_process(starts=BACKEND != "torch")
        decoder: Any = Ensemble(model) if isinstance(model, Sequence) else model
        tokenizers = check_tokenizers(tokenizer, target_tokenizer)
        require_matching_vocabularies(decoder.config, *tokenizers)
        if frozen or dtype is not None:
            decoder = freeze(decoder, dtype)
        self._decoder = decoder
        self.model: Any = decoder.model if isinstance(decoder, FrozenTransformer) else decoder
        super().__init__(tokenizers, decoder.config, SearchSettings(**settings))
        self._compiled: set[tuple] = set()  # (graph settings, hypotheses, shape) of searches

    def __reduce__(self):
        """For `pickle` and `copy`: compiled searches belong to a process."""
        return partial(type(self), **vars(self.settings)), (self._decoder, *self.tokenizers)

    def warm_up(
        self,
        source_lengths: Iterable[int] = (8, 16, 24, 32),
        batch_sizes: Iterable[int] = (1,),
        n_best: int = 1,
        **settings: Any,
    ) -> None:
        """Compiles searches by XLA: for one line on TensorFlow, they are about twice as fast.

        Compiling takes some 4 seconds and 40 to 70 MiB for each shape, and later calls of that
        shape, without a target prefix, use its program. JAX compiles every search without a
        sampler when it is first needed; here, ahead. PyTorch compiles none.

        Args:
            source_lengths: ints from 1 to 128, on JAX without a bound: tokens with the end token.
                Each is rounded up to 8, 16, 24, 32, 48, 64, 96, 128, ... Defaults to
                `(8, 16, 24, 32)`.
            batch_sizes: ints from 1 to 8, on JAX without a bound: the lines of a call. Each is
                rounded up to a power of 2. Defaults to `(1,)`.
            n_best: as in the calls. Defaults to `1`.
            **settings: settings of the search that differ in these calls.

        Raises:
            ValueError: if a search of these settings is not compiled.
        """
        search_settings = self._settings_of_call(settings, n_best)
        kept = kept_hypotheses(search_settings, n_best)
        given = itertools.product(batch_sizes, source_lengths)
        for shape in {compiled_shape(*each, search_settings, self._config) for each in given}:
            nothing = np.full(shape[:2], self._config.pad_token_id)
            search_model(self._decoder, nothing, search_settings, kept, shape=shape)
            self._compiled.add((search_settings.graph_settings, kept, shape))

    def _search(self, source, prefix=None, *, settings, n_best, return_attention):
        kept = kept_hypotheses(settings, n_best)
        padded = padded_shape(*source.shape, settings, self._config)
        is_compiled = prefix is None and (settings.graph_settings, kept, padded) in self._compiled
        shape = padded if is_compiled else None
        found = search_model(self._decoder, source, settings, kept, prefix, shape=shape)
        found, hypotheses = self._hypotheses(source, found, settings, n_best)
        if return_attention:
            self._add_attention(source, found, hypotheses)
        return hypotheses

    def _score(self, source, target):
        """Returns the hypotheses of given targets, which have an end token."""
        log_probs = run_on_pairs(score_model, self._decoder, source, target)
        log_probs = log_probs[: len(target), : target.shape[1]]
        lengths = np.count_nonzero(target != self._config.pad_token_id, axis=1)
        penalties = penalties_up_to(lengths.max(), self.settings)[lengths]
        scores = log_probs.sum(axis=1) / penalties
        one = [array[:, None] for array in (target, lengths, scores, log_probs)]
        _, found = self._hypotheses(source, SearchResult(*one), self.settings, 1)
        return [best for (best,) in found]

    def _hypotheses(self, source, found, settings, n_best):
        """Returns the `n_best` results, and lists of `Hypothesis`."""
        rows, ranks, length = found.token_ids.shape
        texts = self.target_tokenizer.decode(found.token_ids.reshape(rows * ranks, length))
        texts = [texts[row * ranks :][:ranks] for row in range(rows)]
        if settings.distinct_texts and ranks > 1:
            found, texts = without_repeated(found, texts)
        found = SearchResult(*(each[:, :n_best] for each in found))
        config = self._config
        return found, list(hypotheses_of(source, found, texts, self._vocabularies, config))

    def _add_attention(self, source, result, found):
        """Replaces hypotheses by those with their attention scores, by a teacher-forced pass.

        The decoder is causal, so these are the scores of the search's steps, up to rounding.
        """
        places = [(row, rank) for row, ranks in enumerate(found) for rank in range(len(ranks))]
        hypotheses = [found[row][rank] for row, rank in places]
        lengths = [max(len(one.source_tokens), len(one.tokens)) for one in hypotheses]
        config = self._config
        # Smaller batches: the scores of all blocks are in memory at the same time.
        most_pairs = MOST_PAIRS // (config.num_encoder_layers + 2 * config.num_decoder_layers)
        start_token = self._vocabularies[1][config.start_token_id]
        for batch in batch_rows(lengths, most_pairs=most_pairs):
            rows, ranks = np.transpose([places[index] for index in batch])
            longest = max(lengths[index] for index in batch)
            inputs = source[rows, :longest], result.token_ids[rows, ranks, :longest]
            scores = run_on_pairs(attend_model, self._decoder, *inputs)
            for index, (row, rank) in enumerate(zip(rows, ranks, strict=True)):
                attention = attention_of(found[row][rank], scores, index, start_token)
                found[row][rank] = replace(found[row][rank], attention=attention)
