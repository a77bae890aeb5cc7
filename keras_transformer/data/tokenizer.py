"""Subword tokenizer that runs in the TensorFlow graph, and its training.

Second step of the data flow (strings -> token ids) and last step (token ids -> strings). The
tokenizer is part of the exported SavedModel. Paper section 5.1 (a shared subword vocabulary).
"""

import hashlib
import io
import itertools
import os
import pathlib
import re
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from keras_transformer.atomic_file import atomic_path
from keras_transformer.data.corpus import read_lines
from keras_transformer.types import Path

PAD_TOKEN_ID, START_TOKEN_ID, END_TOKEN_ID, UNK_TOKEN_ID = range(4)
# SentencePiece's symbol for a space. Detokenizing turns it into a space, so `normalize` does too.
SPACE_SYMBOL = "\u2581"
# The white space of Python's `str.split()`, and the space symbol.
WHITE_SPACE = r"[\s\v\x1c-\x1f\x{85}\p{Z}\x{2581}]+"
LONGEST_LINE = 1 << 20  # bytes; SentencePiece skips longer lines in training


class Tokenizer(tf.Module):
    """SentencePiece subwords with byte fallback: any text can be tokenised and restored.

    For every text, `detokenize(tokenize(text)) == normalize(text)`. The rule of `normalize` is
    chosen in training and stored in the model file:

    - `"nfkc"`: `" ".join(unicodedata.normalize("NFKC", text).replace("\\u2581", " ").split())`:
      NFKC, then each run of white space becomes one space and both ends are stripped.
    - `"identity"`: `text.replace("\\u2581", " ")`: every space, tab and line break is kept.

    With both rules U+2581, SentencePiece's symbol for a space, becomes a space, and bytes that are
    not UTF-8 become U+FFFD. The literal texts of special tokens (`<s>`, `<pad>`, `<0x41>`) are
    ordinary text.

    All methods give the same values and types eagerly and inside a `tf.function`. The
    tokenizer is a `tf.Module`, so a SavedModel that uses it contains it.

    Args:
        model: path of a file written by `Tokenizer.train` or `save`, or the bytes of one.

    Attributes:
        vocabulary_size: number of tokens, special tokens included.
        pad_token_id, start_token_id, end_token_id, unk_token_id: ids of the special tokens.
        normalization: `"nfkc"` or `"identity"`.
        model_bytes: the SentencePiece model, as in its file.

    Raises:
        ImportError: if tensorflow-text is missing (it has no build for Windows).
        FileNotFoundError: if the file does not exist.
        ValueError: if `model` is not a model that `Tokenizer.train` writes.

    Example:

    >>> tokenizer = Tokenizer.train(iter(["a cat", "a mat"]), 265, "/tmp/cats.model")
    >>> tokenizer.tokenize(["a cat", ""]).shape.as_list()
    [2, None]
    >>> tokenizer.detokenize(tokenizer.tokenize("a  cat")).numpy().decode()
    'a cat'

    Reference:
        [Kudo and Richardson, 2018](https://aclanthology.org/D18-2012), SentencePiece.
    """

    def __init__(self, model: Path | bytes) -> None:
        super().__init__(name="tokenizer")
        tensorflow_text = _import_tensorflow_text()
        if isinstance(model, bytes):
            self.model_bytes, source = model, f"{len(model)} bytes"
        elif os.path.isfile(model):
            self.model_bytes, source = pathlib.Path(model).read_bytes(), f"model={str(model)!r}"
        else:
            raise FileNotFoundError(f"`model` must be an existing file. Received: {model=!s}")
        proto = _parse(self.model_bytes, source)
        self.normalization = proto.normalizer_spec.name
        self.vocabulary_size = len(proto.pieces)
        self.pad_token_id = proto.trainer_spec.pad_id
        self.start_token_id = proto.trainer_spec.bos_id
        self.end_token_id = proto.trainer_spec.eos_id
        self.unk_token_id = proto.trainer_spec.unk_id
        self._sentencepiece = tensorflow_text.SentencepieceTokenizer(model=self.model_bytes)
        self._sentencepiece._model_resource = _NamedModelResource(self.model_bytes)

    @classmethod
    def train(
        cls,
        files: Path | Iterable[Path] | Iterable[str],
        vocabulary_size: int,
        path: Path,
        *,
        model_type: str = "bpe",
        normalization: str = "nfkc",
        character_coverage: float = 1.0,
        max_lines: int = 2_000_000,
    ) -> "Tokenizer":
        """Learns a vocabulary from text, writes it to `path` and returns its tokenizer.

        For a joint vocabulary pass the files of both sides; for separate ones train two
        tokenizers. The same text gives the same model.

        Args:
            files: a path, a glob, or a list or tuple of these, plain or gzip, as for `read_lines`.
                Any other iterable is read as lines of text: a generator, `iter(list_of_lines)`.
            vocabulary_size: number of tokens: 4 special ones, 256 bytes, the characters of the
                text, and the learned subwords. If the text yields fewer, the vocabulary is smaller
                and a warning says so.
            path: path of the model file, which is written atomically.
            model_type: `"bpe"`, as in the paper, or `"unigram"`.
            normalization: `"nfkc"` or `"identity"`: the rule of `normalize`.
            character_coverage: in (0, 1]. Fraction of the text's characters that get a token; the
                rarest characters are split into bytes. Lower it (0.9995) for Chinese or Japanese.
            max_lines: train on a fixed random sample of at most this many lines.

        Raises:
            ValueError: if there is no text, or `vocabulary_size` has no room for its characters.
            FileNotFoundError, CorpusError: the errors of `read_lines`.
        """
        _check_choice("model_type", model_type, ("unigram", "bpe"))
        _check_choice("normalization", normalization, ("nfkc", "identity"))
        model = _train_sentencepiece(
            _training_lines(files, normalization),
            vocabulary_size,
            normalization,
            model_type=model_type,
            character_coverage=character_coverage,
            input_sentence_size=max_lines,
        )
        tokenizer = cls(model)
        if tokenizer.vocabulary_size < vocabulary_size:
            warnings.warn(
                f"The text yields only {tokenizer.vocabulary_size} tokens. "
                f"Received: vocabulary_size={vocabulary_size}",
                stacklevel=2,
            )
        tokenizer.save(path)
        return tokenizer

    def tokenize(
        self, text: tf.Tensor | Sequence[str] | str, add_start: bool = False, add_end: bool = False
    ) -> tf.RaggedTensor | tf.Tensor:
        """Returns the token ids of text.

        Args:
            text: string tensor `(B,)`, list of strings, or one string.
            add_start: prepend `start_token_id` to each row.
            add_end: append `end_token_id` to each row.

        Returns:
            int32 `RaggedTensor` `(B, None)`; for one string, int32 tensor `(T,)`. An empty text
            has no tokens.
        """
        text = tf.convert_to_tensor(text, tf.string)
        if text.shape.rank not in (0, 1):
            raise ValueError(
                f"`text` must be a string or a list of strings. Received: shape {text.shape}"
            )
        token_ids = self._sentencepiece.tokenize(_prepare(text, self.normalization))
        column = tf.concat([tf.shape(text), [1]], axis=0)  # (B, 1), or (1,) for one string
        parts = [tf.fill(column, self.start_token_id)] if add_start else []
        parts += [token_ids]
        parts += [tf.fill(column, self.end_token_id)] if add_end else []
        return tf.concat(parts, axis=-1) if len(parts) > 1 else token_ids

    def detokenize(self, token_ids: tf.RaggedTensor | tf.Tensor | Sequence[Any]) -> tf.Tensor:
        """Returns the text of token ids, without pad, start and end tokens.

        Args:
            token_ids: int `RaggedTensor`, padded tensor or nested list `(B, T)`; `(T,)` for one
                text.

        Returns:
            string tensor `(B,)`; for one text, a string scalar. Incomplete UTF-8 sequences (a
            translation can end inside a character) become U+FFFD.
        """
        token_ids = _to_ids(token_ids)
        pad, start, end = self.pad_token_id, self.start_token_id, self.end_token_id
        is_text = (token_ids != pad) & (token_ids != start) & (token_ids != end)
        text = self._sentencepiece.detokenize(tf.ragged.boolean_mask(token_ids, is_text))
        if self.normalization == "identity":
            # Remove the space that `_prepare` added.
            text = tf.strings.regex_replace(text, "^ ", "", replace_global=False)
        return text

    def normalize(self, text: tf.Tensor | Sequence[str] | str) -> tf.Tensor:
        """Returns the normalised text that the model reads; the rules are in the class docstring.

        Args:
            text: string tensor `(B,)`, list of strings, or one string.

        Returns:
            string tensor of the same shape.
        """
        return self.detokenize(self.tokenize(text))

    def tokens(
        self, token_ids: tf.RaggedTensor | tf.Tensor | Sequence[Any]
    ) -> tf.RaggedTensor | tf.Tensor:
        """Returns tokens as strings, such as `▁cat`, `s`, `<0xC3>` or `</s>`.

        Args:
            token_ids: int tensor, `RaggedTensor` or nested list of any shape.

        Returns:
            string tensor or `RaggedTensor` of the same shape.
        """
        return self._sentencepiece.id_to_string(_to_ids(token_ids))

    def save(self, path: Path) -> None:
        """Writes the model atomically to a file that `Tokenizer(path)` reads.

        Creates missing folders.
        """
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        with atomic_path(path, unique=True) as partial:
            partial.write_bytes(self.model_bytes)

    def __repr__(self):
        size, rule = self.vocabulary_size, self.normalization
        return f"Tokenizer(vocabulary_size={size}, normalization={rule!r})"


def require_matching_vocabularies(
    config: Any, tokenizer: Tokenizer, target_tokenizer: Tokenizer
) -> None:
    """Raises a `ValueError` if a tokenizer's vocabulary size or special tokens are not the model's.

    Args:
        config: `TransformerConfig` of the model.
        tokenizer, target_tokenizer: `Tokenizer` of the source and of the target.
    """
    for side, each, size in (
        ("source", tokenizer, config.source_vocabulary_size),
        ("target", target_tokenizer, config.vocabulary_size),
    ):
        if each.vocabulary_size != size:
            raise ValueError(
                f"The {side} tokenizer must have the {size} tokens of the model's vocabulary. "
                f"Received: a tokenizer of {each.vocabulary_size} tokens"
            )
        for name in ("pad_token_id", "start_token_id", "end_token_id"):
            expected, received = getattr(config, name), getattr(each, name)
            if expected != received:
                raise ValueError(
                    f"The {side} tokenizer must have the model's `{name}`, {expected}. "
                    f"Received: {received}"
                )


class _NamedModelResource(tf.saved_model.experimental.TrackableResource):
    """The SentencePiece model as a resource that lives as long as the process.

    The resource of tensorflow-text belongs to a cached kernel, and `keras.utils.set_random_seed`
    clears that cache, which would break existing tokenizers. A named resource belongs to no
    kernel. The name is a hash of the model, so that equal models share one resource.
    """

    def __init__(self, model_bytes):
        super().__init__()
        self._model_bytes = model_bytes
        _ = self.resource_handle  # creates the resource now

    def _create_resource(self):
        from tensorflow_text.python.ops import sentencepiece_tokenizer

        digest = hashlib.sha256(self._model_bytes).hexdigest()
        return sentencepiece_tokenizer.gen_sentencepiece_tokenizer.sentencepiece_op(
            model=self._model_bytes, shared_name=f"sentencepiece_{digest}"
        )


def _prepare(text, normalization):
    """Normalises text such that SentencePiece can restore it exactly."""
    text = tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="replace")
    if normalization == "nfkc":
        text = _import_tensorflow_text().normalize_utf8(text, "NFKC")
        return tf.strings.strip(tf.strings.regex_replace(text, WHITE_SPACE, " "))
    # A leading space makes a word the same token at the start of a line and inside it. When
    # detokenizing, SentencePiece strips all leading spaces, so we add and remove exactly one
    # ourselves.
    return tf.where(text == "", "", tf.strings.join([" ", text]))


def _training_lines(files, normalization):
    """Returns an iterator of the non-empty lines, prepared, as bytes; raises if there is none."""
    lines = _prepare_lines(iter(_lines_of(files)), normalization)
    first = next(lines, None)
    if first is None:
        received = "an iterator without text" if isinstance(files, Iterator) else repr(files)
        raise ValueError(f"`files` must hold a line of text. Received: files={received}")
    return itertools.chain([first], lines)


def _lines_of(files):
    if isinstance(files, str | os.PathLike):
        return read_lines(files)
    if not isinstance(files, list | tuple):
        return files
    try:
        return read_lines(files)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error}. To pass lines of text: iter(lines)") from None


def _prepare_lines(lines, normalization):
    while chunk := list(itertools.islice(lines, 10_000)):
        for line in chunk:
            if not isinstance(line, str):
                raise ValueError(f"`files` must give lines of text. Received: {line!r}")
        yield from filter(None, _prepare(tf.constant(chunk), normalization).numpy())


def _train_sentencepiece(lines, vocabulary_size, normalization, **options):
    """Trains a SentencePiece model on prepared lines and returns its bytes."""
    import sentencepiece
    from sentencepiece.sentencepiece_model_pb2 import ModelProto

    # If the iterator raises an exception, SentencePiece raises a RuntimeError instead: keep the
    # original exception, to raise it below.
    failures = []

    def guarded_lines():
        try:
            yield from lines
        except BaseException as error:
            failures.append(error)
            raise

    sentencepiece.set_random_generator_seed(0)  # for the sample of lines
    model = io.BytesIO()
    try:
        with tempfile.TemporaryDirectory() as folder:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=guarded_lines(),
                model_writer=model,
                vocab_size=vocabulary_size,
                hard_vocab_limit=False,
                byte_fallback=True,
                pad_id=PAD_TOKEN_ID,
                bos_id=START_TOKEN_ID,
                eos_id=END_TOKEN_ID,
                unk_id=UNK_TOKEN_ID,
                max_sentence_length=LONGEST_LINE,
                minloglevel=2,
                **_normalizer_options(normalization, folder),
                **options,
            )
    except RuntimeError as error:
        if failures:
            raise failures[0] from None
        sizes = re.search(r"required_chars\. (\d+) vs (\d+)", str(error))
        if sizes is None:
            raise
        raise ValueError(
            f"`vocabulary_size` must be at least {sizes[2]} for this text: 4 special tokens, "
            "256 bytes and the characters that `character_coverage` asks for. "
            f"Received: vocabulary_size={vocabulary_size}"
        ) from None
    proto = ModelProto.FromString(model.getvalue())
    proto.normalizer_spec.name = normalization
    return proto.SerializeToString()


def _normalizer_options(normalization, folder):
    """Returns SentencePiece's own normalisation options. `_prepare` already normalises the text.

    The "nfkc" options name the same rule, so that other SentencePiece tools normalise the same way.
    The "identity" rule is a table (code point, tab, code point). It has one row, because with an
    empty table SentencePiece prints to stderr each time the model is loaded.
    """
    if normalization == "nfkc":
        return {"normalization_rule_name": "nfkc", "remove_extra_whitespaces": True}
    table = os.path.join(folder, "identity.tsv")
    with open(table, "w", encoding="ascii") as file:
        file.write(f"{ord(SPACE_SYMBOL):X}\t{ord(' '):X}\n")
    return {
        "normalization_rule_tsv": table,
        "remove_extra_whitespaces": False,
        "add_dummy_prefix": False,
    }


def _parse(model_bytes, source):
    """Returns the parsed model; raises unless `Tokenizer.train` wrote it."""
    from google.protobuf.message import DecodeError
    from sentencepiece.sentencepiece_model_pb2 import ModelProto

    proto = ModelProto()
    try:
        proto.ParseFromString(model_bytes)
    except DecodeError:
        proto.Clear()
    normalizer, trainer = proto.normalizer_spec, proto.trainer_spec
    settings = normalizer.name, normalizer.remove_extra_whitespaces, normalizer.add_dummy_prefix
    is_complete = min(trainer.pad_id, trainer.bos_id, trainer.eos_id) >= 0 and trainer.byte_fallback
    if not is_complete or settings not in [("nfkc", True, True), ("identity", False, False)]:
        raise ValueError(
            "`model` must be a SentencePiece model that `Tokenizer.train` wrote. "
            f"Received: {source}"
        )
    return proto


def _to_ids(token_ids):
    if isinstance(token_ids, list | tuple):
        return tf.ragged.constant(token_ids, tf.int32)
    return tf.cast(token_ids, tf.int32)


def _check_choice(argument, value, choices):
    if value not in choices:
        raise ValueError(f"`{argument}` must be one of {choices}. Received: {argument}={value!r}")


def _import_tensorflow_text():
    try:
        import tensorflow_text
    except ImportError as error:
        raise ImportError(
            "`Tokenizer` needs tensorflow-text. Install `tensorflow-text>=2.21.1,<2.22` "
            "(Linux and macOS; on Windows use WSL2)."
        ) from error
    return tensorflow_text
