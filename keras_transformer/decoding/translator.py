"""Strings in, translations out: tokenizer, model and search as one object.

It runs as it is in Python, and is what `export_saved_model` writes.
"""

from dataclasses import dataclass

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.decoding.greedy_search import StepOutput, greedy_search
from keras_transformer.models.transformer import load_model
from keras_transformer.run_folder import RunFolder


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
        extra_length: int, in tokens. A translation ends at the latest when it is this much longer
            than its source. Defaults to `50`, the paper's.

    Call arguments:
        lines: list of strings, or one string.
        batch_sentences: int. How many sentences are decoded together. Defaults to `64`.
        on_progress: callable that is told after each batch how many sentences it had. Optional.

    Returns:
        list of strings, one for each line and in the same order; for one string, one string. An
        empty line, or one of white space, gives an empty line.

    Raises:
        TypeError: if a line is not a string.
        ValueError: if the backend is not TensorFlow, the vocabularies of model and tokenizer
            differ, or a line is longer than the model's table of learned positions.

    Example, untrained; `load_run` makes one from a trained run:

    >>> lines = ["a house", "ein Haus"]
    >>> tokenizer = keras_transformer.Tokenizer.train(iter(lines), 270, "vocabulary.model")
    >>> config = keras_transformer.TransformerConfig.tiny(tokenizer.vocabulary_size)
    >>> translator = keras_transformer.Translator(keras_transformer.Transformer(config), tokenizer)
    >>> len(translator(["a house", "", "a mouse"]))
    3

    Reference:
        [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 6.1, for the length.
    """

    def __init__(self, model, tokenizer, target_tokenizer=None, extra_length=50):
        if keras.backend.backend() != "tensorflow":
            raise ValueError(
                "Translating runs in the TensorFlow graph: set KERAS_BACKEND=tensorflow, and load "
                f"the model from its file. Received: the backend {keras.backend.backend()!r}"
            )
        self.model = model
        self.source_tokenizer = tokenizer
        self.target_tokenizer = target_tokenizer or tokenizer
        self.extra_length = extra_length
        config = model.config
        for side, tokenizer, expected in (
            ("source", self.source_tokenizer, config.source_vocabulary_size),
            ("target", self.target_tokenizer, config.vocabulary_size),
        ):
            if tokenizer.vocabulary_size != expected:
                raise ValueError(
                    f"The {side} tokenizer must have the model's vocabulary of {expected} tokens. "
                    f"Received: a tokenizer of {tokenizer.vocabulary_size} tokens"
                )

    def __call__(self, lines, batch_sentences=64, on_progress=None):
        if isinstance(lines, str):
            return self([lines], batch_sentences, on_progress)[0]
        lines = list(lines)
        for number, line in enumerate(lines, start=1):
            if not isinstance(line, str):
                raise TypeError(f"Lines must be strings. Received: line {number} is {line!r}")
        self._check_lengths(lines)
        translations = [""] * len(lines)
        for chosen, batch in self._batches(lines, batch_sentences):
            for index, translation in zip(chosen, batch, strict=True):
                translations[index] = translation
            if on_progress is not None:
                on_progress(len(chosen))
        return translations

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def translate(self, text):
        """Translates in the graph: string tensor `(B,)` in, string tensor `(B,)` out."""
        # A line of spaces is an empty line, also to a tokenizer that keeps spaces.
        text = tf.where(tf.strings.strip(text) == "", "", text)
        return self.target_tokenizer.detokenize(self._search(self.source_tokenizer.tokenize(text)))

    def attention(self, line):
        """Translates one line and returns where the model looked meanwhile.

        Args:
            line: str, not empty.

        Returns:
            `Attention`.
        """
        source = self.source_tokenizer.tokenize([line])
        if not int(source.row_lengths()[0]):
            raise ValueError(f"There is nothing to attend to in an empty line. Received: {line!r}")
        config = self.model.config
        target = self._search(source)
        encoder_token_ids = self._with_end(source)
        decoder_token_ids = tf.concat([[[config.start_token_id]], target[:, :-1]], axis=1)
        scores = self.model.attention_scores(
            {"encoder_token_ids": encoder_token_ids, "decoder_token_ids": decoder_token_ids}
        )
        return Attention(
            source_tokens=_strings(self.source_tokenizer.tokens(encoder_token_ids[0])),
            decoder_tokens=_strings(self.target_tokenizer.tokens(decoder_token_ids[0])),
            target_tokens=_strings(self.target_tokenizer.tokens(target[0])),
            scores={name: np.stack([s[0] for s in blocks]) for name, blocks in scores.items()},
        )

    def _check_lengths(self, lines):
        """Names the line that is too long for learned positions."""
        longest = self.model.config.max_sequence_length
        if self.model.config.positions == "learned" and lines:
            lengths = self.source_tokenizer.tokenize(lines).row_lengths().numpy() + 1
            if lengths.max() > longest:
                raise ValueError(
                    f"A line must have at most {longest} tokens, the model's learned positions, "
                    f"with the end token. Received: line {lengths.argmax() + 1} of "
                    f"{lengths.max()} tokens"
                )

    def _batches(self, lines, batch_sentences):
        """Yields the indices and the translations of lines of similar length."""
        order = sorted(range(len(lines)), key=lambda index: len(lines[index]))
        for start in range(0, len(order), batch_sentences):
            chosen = order[start : start + batch_sentences]
            yield chosen, _strings(self.translate(tf.constant([lines[i] for i in chosen])))

    def _search(self, source):
        """Ragged source ids `(B, S)` in, padded target ids `(B, T)` out."""
        config = self.model.config
        lengths = tf.cast(source.row_lengths(), tf.int32)
        # Empty lines stay empty.
        max_lengths = tf.where(lengths > 0, lengths + self.extra_length, 0)
        encoder_token_ids = self._with_end(source)
        if config.positions == "learned":
            fits = tf.debugging.assert_less_equal(
                tf.shape(encoder_token_ids)[1],
                config.max_sequence_length,
                f"A line is longer than the model's {config.max_sequence_length} positions.",
            )
            with tf.control_dependencies([fits]):
                encoder_token_ids = tf.identity(encoder_token_ids)
            max_lengths = tf.minimum(max_lengths, config.max_sequence_length)
        return greedy_search(
            self._step,
            self.model.init_cache(encoder_token_ids),
            max_lengths,
            start_token_id=config.start_token_id,
            end_token_id=config.end_token_id,
            pad_token_id=config.pad_token_id,
        )

    def _step(self, token_ids, parents, cache, index):
        return StepOutput(*self.model.decode_step(token_ids, cache, index))

    def _with_end(self, source):
        """Appends the end token to every row and pads: ragged `(B, S)` to dense `(B, S + 1)`."""
        config = self.model.config
        end = tf.fill([source.nrows(), 1], config.end_token_id)
        return tf.concat([source, end], axis=1).to_tensor(config.pad_token_id)


def load_tokenizers(files):
    """Returns the tokenizers of source and target, the same one twice if there is one file."""
    tokenizers = [Tokenizer(file) for file in files]
    return tokenizers[0], tokenizers[-1]


def load_run(path, model=None):
    """Returns the `Translator` of a trained run.

    Args:
        path: path of the run's folder, as `keras-transformer train` made it.
        model: path of another model file, such as an average of the run's checkpoints. Defaults to
            the run's own, `model.keras`.

    Returns:
        `Translator`.

    Raises:
        FileNotFoundError: if there is no trained model.

    Example: `load_run("runs/number_names")(["twenty-one"])`.
    """
    run = RunFolder.existing(path)
    tokenizers = load_tokenizers(run.tokenizer_files(run.recipe().vocabulary.joint))
    return Translator(load_model(model or run.model_file), *tokenizers)


def _strings(tensor):
    return [element.decode() for element in tensor.numpy()]
