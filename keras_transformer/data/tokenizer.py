"""Subword tokenizer: strings -> token ids -> strings, in the graph, and the training of its model.

Second station of the data flow: pairs of strings -> token ids; used again on the way out, and
inside the exported SavedModel. Paper section 5.1 (a shared subword vocabulary).
"""

import hashlib
import io
import itertools
import os
import re
import tempfile
import warnings
from collections.abc import Iterator

import tensorflow as tf

from keras_transformer.data.corpus import read_lines

PAD_TOKEN_ID, START_TOKEN_ID, END_TOKEN_ID, UNK_TOKEN_ID = range(4)
# SentencePiece writes a space as this character, so text cannot keep one of its own.
SPACE_SYMBOL = "\u2581"
# What Python's `str.split()` splits at, and the space symbol.
WHITE_SPACE = r"[\s\v\x1c-\x1f\x{85}\p{Z}\x{2581}]+"
LONGEST_LINE = 1 << 20  # bytes; SentencePiece trains on no longer lines


class Tokenizer(tf.Module):
    """SentencePiece subwords with byte fallback: every text has tokens, and they give it back.

    For every text, `detokenize(tokenize(text)) == normalize(text)`. `normalize` is the model's
    rule, fixed when it is trained and stored in its file:

    - `"nfkc"`: `" ".join(unicodedata.normalize("NFKC", text).replace("\\u2581", " ").split())`,
      in words: compatibility composition, then every run of white space is one space and there is
      none at either end.
    - `"identity"`: `text.replace("\\u2581", " ")`: every space, tab and line break is kept.

    Under both, U+2581 reads as a space, because SentencePiece writes spaces with it, and bytes
    that are not UTF-8 read as U+FFFD. The literal texts of special tokens (`<s>`, `<pad>`,
    `<0x41>`) are text like any other.

    All methods give the same values and types eagerly and inside a `tf.function`. As a `tf.Module`
    the tokenizer is saved with the SavedModel that owns it.

    Args:
        model: path of a file written by `Tokenizer.train` or `save`, or the bytes of one.

    Attributes:
        vocabulary_size: int. Number of tokens, the special ones included.
        pad_token_id, start_token_id, end_token_id, unk_token_id: int. Special tokens.
        normalization: `"nfkc"` or `"identity"`.
        model_bytes: bytes. The SentencePiece model, as in its file.

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

    def __init__(self, model):
        super().__init__(name="tokenizer")
        tensorflow_text = _import_tensorflow_text()
        if not isinstance(model, bytes):
            if not os.path.isfile(model):
                raise FileNotFoundError(f"`model` must be an existing file. Received: {model=!s}")
            with open(model, "rb") as file:
                model_bytes = file.read()
            source = f"model={os.fspath(model)!r}"
        else:
            model_bytes, source = model, f"{len(model)} bytes"
        proto = _parse(model_bytes, source)
        self.model_bytes = model_bytes
        self.normalization = proto.normalizer_spec.name
        self.vocabulary_size = len(proto.pieces)
        self.pad_token_id = proto.trainer_spec.pad_id
        self.start_token_id = proto.trainer_spec.bos_id
        self.end_token_id = proto.trainer_spec.eos_id
        self.unk_token_id = proto.trainer_spec.unk_id
        self._sentencepiece = tensorflow_text.SentencepieceTokenizer(model=model_bytes)
        self._sentencepiece._model_resource = _LastingModel(model_bytes)

    @classmethod
    def train(
        cls,
        files,
        vocabulary_size,
        path,
        *,
        model_type="bpe",
        normalization="nfkc",
        character_coverage=1.0,
        max_lines=2_000_000,
    ):
        """Learns a vocabulary from text, writes it to `path` and returns its tokenizer.

        For a joint vocabulary pass the files of both sides; for separate ones train two
        tokenizers. The same text gives the same model.

        Args:
            files: a path, a glob, or a list or tuple of these, plain or gzip, as for `read_lines`.
                Anything else that iterates is taken for the lines themselves: a generator,
                `iter(list_of_lines)`.
            vocabulary_size: int. Number of tokens: 4 special ones, 256 bytes, the characters of
                the text, and the subwords that are learned. Lowered, with a warning, if the text
                does not have that many.
            path: where the model file goes; it appears whole or not at all.
            model_type: `"bpe"`, as in the paper, or `"unigram"`.
            normalization: `"nfkc"` or `"identity"`: the rule of `normalize`.
            character_coverage: float in (0, 1]. Fraction of the text's characters that get a token;
                the rarest others are spelt in bytes. Lower it (0.9995) for Chinese or Japanese.
            max_lines: int. Of a longer text, a fixed random sample of so many lines is used.

        Returns:
            `Tokenizer`.

        Raises:
            ValueError: if there is no text, or `vocabulary_size` has no room for its characters.
            FileNotFoundError, CorpusError: as `read_lines`.
        """
        _check_choice("model_type", model_type, ("unigram", "bpe"))
        _check_choice("normalization", normalization, ("nfkc", "identity"))
        lines = _prepare_lines(_lines_of(files), normalization)
        first = next(lines, None)
        if first is None:
            received = "an iterator without one" if isinstance(files, Iterator) else repr(files)
            raise ValueError(f"`files` must hold a line of text. Received: files={received}")
        model = _train_sentencepiece(
            itertools.chain([first], lines),
            vocabulary_size,
            normalization,
            model_type=model_type,
            character_coverage=character_coverage,
            input_sentence_size=max_lines,
        )
        tokenizer = cls(model)
        if tokenizer.vocabulary_size < vocabulary_size:
            warnings.warn(
                f"The text gives no more than {tokenizer.vocabulary_size} tokens; "
                f"`vocabulary_size` is lowered. Received: vocabulary_size={vocabulary_size}",
                stacklevel=2,
            )
        tokenizer.save(path)
        return tokenizer

    def tokenize(self, text, add_start=False, add_end=False):
        """Token ids of text.

        Args:
            text: string tensor `(B,)`, list of strings, or one string.
            add_start: bool. Put `start_token_id` in front of each row.
            add_end: bool. Put `end_token_id` behind each row.

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

    def detokenize(self, token_ids):
        """Text of token ids; pad, start and end tokens are left out.

        Args:
            token_ids: int `RaggedTensor` or padded tensor `(B, T)`, or `(T,)` for one text;
                nested lists will do.

        Returns:
            string tensor `(B,)`; for one text, a string scalar. Bytes that do not make up a
            character (a translation can end in the middle of one) read as U+FFFD.
        """
        token_ids = _to_ids(token_ids)
        is_text = (
            (token_ids != self.pad_token_id)
            & (token_ids != self.start_token_id)
            & (token_ids != self.end_token_id)
        )
        text = self._sentencepiece.detokenize(tf.ragged.boolean_mask(token_ids, is_text))
        if self.normalization == "identity":
            # The space that `_prepare` put there.
            text = tf.strings.regex_replace(text, "^ ", "", replace_global=False)
        return text

    def normalize(self, text):
        """The text as the model reads it, by the rule in the class description.

        Args:
            text: string tensor `(B,)`, list of strings, or one string.

        Returns:
            string tensor of the same shape.
        """
        return self.detokenize(self.tokenize(text))

    def tokens(self, token_ids):
        """The tokens themselves, as strings, such as `▁cat`, `s`, `<0xC3>` or `</s>`.

        Args:
            token_ids: int tensor or `RaggedTensor` of any shape; nested lists will do.

        Returns:
            string tensor or `RaggedTensor` of the same shape.
        """
        return self._sentencepiece.id_to_string(_to_ids(token_ids))

    def save(self, path):
        """Writes the model to a file that `Tokenizer(path)` reads.

        The file appears whole or not at all; missing folders are made.
        """
        path = os.path.abspath(path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        partial = f"{path}.{os.getpid()}.partial"
        with open(partial, "wb") as file:
            file.write(self.model_bytes)
        os.replace(partial, path)

    def __repr__(self):
        return (
            f"Tokenizer(vocabulary_size={self.vocabulary_size}, "
            f"normalization={self.normalization!r})"
        )


class _LastingModel(tf.saved_model.experimental.TrackableResource):
    """The SentencePiece model as a resource that lives as long as the process.

    tensorflow-text's own belongs to a cached kernel, and `keras.utils.set_random_seed` empties
    that cache: every tokenizer made before would be gone. A resource with a name is not owned by
    a kernel; named by its content, it is held once however often it is loaded.
    """

    def __init__(self, model_bytes):
        super().__init__()
        self._model_bytes = model_bytes
        _ = self.resource_handle  # made now, not when it is first needed

    def _create_resource(self):
        from tensorflow_text.python.ops import sentencepiece_tokenizer

        digest = hashlib.sha256(self._model_bytes).hexdigest()
        return sentencepiece_tokenizer.gen_sentencepiece_tokenizer.sentencepiece_op(
            model=self._model_bytes, shared_name=f"sentencepiece_{digest}"
        )


def _prepare(text, normalization):
    """Text as it is handed to SentencePiece, which then loses nothing of it."""
    text = tf.strings.unicode_transcode(text, "UTF-8", "UTF-8", errors="replace")
    if normalization == "nfkc":
        text = _import_tensorflow_text().normalize_utf8(text, "NFKC")
        return tf.strings.strip(tf.strings.regex_replace(text, WHITE_SPACE, " "))
    # SentencePiece puts a space in front, so that a word is the same token at the start of a line
    # and within; but in taking it away it takes all the spaces there. So we do both.
    return tf.where(text == "", "", tf.strings.join([" ", text]))


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
    """Yields the lines that have text, prepared, as bytes."""
    lines = iter(lines)
    while chunk := list(itertools.islice(lines, 10_000)):
        for line in chunk:
            if not isinstance(line, str):
                raise ValueError(f"`files` must give lines of text. Received: {line!r}")
        yield from filter(None, _prepare(tf.constant(chunk), normalization).numpy())


def _train_sentencepiece(lines, vocabulary_size, normalization, **options):
    """Trains a SentencePiece model on prepared lines and returns its bytes."""
    import sentencepiece

    # SentencePiece turns an exception of the iterator into a RuntimeError with a traceback in it.
    failures = []

    def guarded_lines():
        try:
            yield from lines
        except BaseException as error:
            failures.append(error)
            raise

    sentencepiece.set_random_generator_seed(0)  # of the sample of lines
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
    proto = _model_proto(model.getvalue())
    proto.normalizer_spec.name = normalization
    return proto.SerializeToString()


def _normalizer_options(normalization, folder):
    """How SentencePiece itself normalises. `_prepare` has been there before it.

    The "nfkc" options repeat the rule, so that the file means the same to other SentencePiece
    software. The "identity" rule is stated as a table (code point, tab, code point), because for
    an empty one SentencePiece writes a line to stderr each time the model is loaded.
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
    """The model's description, once it is known to be one of ours."""
    from google.protobuf.message import DecodeError

    try:
        proto = _model_proto(model_bytes)
    except DecodeError:
        proto = _model_proto(b"")
    normalizer, trainer = proto.normalizer_spec, proto.trainer_spec
    is_ours = (normalizer.name, normalizer.remove_extra_whitespaces, normalizer.add_dummy_prefix)
    has_ids = min(trainer.pad_id, trainer.bos_id, trainer.eos_id) >= 0 and trainer.byte_fallback
    if not has_ids or is_ours not in [("nfkc", True, True), ("identity", False, False)]:
        raise ValueError(
            "`model` must be a SentencePiece model that `Tokenizer.train` wrote. "
            f"Received: {source}"
        )
    return proto


def _model_proto(model_bytes):
    from sentencepiece.sentencepiece_model_pb2 import ModelProto

    return ModelProto.FromString(model_bytes)


def _to_ids(token_ids):
    if isinstance(token_ids, list | tuple):
        token_ids = tf.ragged.constant(token_ids, tf.int32)
    elif not isinstance(token_ids, tf.RaggedTensor):
        token_ids = tf.convert_to_tensor(token_ids)
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
