"""`Tokenizer`: subwords learned from the user's text, by which every text can be restored.

Second step of the data flow (strings -> token ids) and last step (token ids -> strings). Paper
section 5.1 (a shared subword vocabulary).
"""

import warnings
from collections.abc import Iterable
from typing import Any

from keras_transformer.data.base_tokenizer import check_choice, training_lines
from keras_transformer.data.corpus import read_lines
from keras_transformer.data.piece_tokenizer import NORMALIZATIONS, normalize, prepare
from keras_transformer.data.placeholders import symbols
from keras_transformer.data.sentencepiece_tokenizer import SentencePieceTokenizer, read_model
from keras_transformer.data.sentencepiece_training import train_sentencepiece
from keras_transformer.texts import checked_lines
from keras_transformer.types import Path


class Tokenizer(SentencePieceTokenizer):
    """SentencePiece subwords with byte fallback: any text can be encoded and restored.

    For every text, `decode(encode(text)) == normalize(text)`. The rule of `normalize` is
    chosen in training and stored in the model file:

    - `"nfc"`: `" ".join(unicodedata.normalize("NFC", text).replace("\\u2581", " ").split())`:
      canonical composition, then each run of white space becomes one space and both ends are
      stripped. A reader sees no difference.
    - `"nfkc"`: the same with NFKC, which also replaces characters by similar ones: `½` by `1⁄2`,
      `，` by `,`, `…` by `...`, `ʲ` by `j`. A translation then never holds the former.
    - `"identity"`: `text.replace("\\u2581", " ")`: every space, tab and line break is kept.

    With all rules U+2581, SentencePiece's symbol for a space, becomes a space. The literal texts of
    special tokens (`<s>`, `<pad>`, `<0x41>`) are ordinary text. Unicode is version 16.0 on every
    Python.

    For a model of another origin use `SentencePieceTokenizer`.

    Args:
        model: path of a file written by `train`, `train_on_lines` or `save`, or the bytes of one.
        tag: one of the `tags` of its training: the first token of every text that is not empty.
            Optional.

    Attributes:
        vocabulary_size: number of tokens, special tokens included.
        pad_token_id, start_token_id, end_token_id, unk_token_id: ids of the special tokens.
        vocabulary: list of the tokens in the order of their ids, such as `▁cat`, `s` or `<0xC3>`.
        normalization: `"nfc"`, `"nfkc"` or `"identity"`.
        model_bytes: the SentencePiece model, as in its file.
        learned_from: how many lines the vocabulary was learned from, of how many, as text; empty if
            from all.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if `model` is not a model that `Tokenizer` trained.

    Example:

    >>> tokenizer = Tokenizer.train_on_lines(["a cat", "a mat"], 265, "/tmp/cats.model")
    >>> [len(token_ids) for token_ids in tokenizer.encode(["a cat", ""])]
    [6, 0]
    >>> tokenizer.decode(tokenizer.encode("a  cat"))
    'a cat'

    Reference:
        [Kudo and Richardson, 2018](https://aclanthology.org/D18-2012), SentencePiece.
    """

    def __init__(self, model: Path | bytes, tag: str | None = None) -> None:
        source = f"{len(model)} bytes" if isinstance(model, bytes) else f"model={str(model)!r}"
        model, proto = read_model(model)
        _require_own_model(proto, source)
        self.normalization: str = proto.normalizer_spec.name
        self.learned_from = ", ".join(proto.trainer_spec.input)
        self.tag = tag
        super().__init__(model)
        if tag is not None and tag not in self.vocabulary:
            raise ValueError(f"`tag` must be a token of the vocabulary. Received: tag={tag!r}")

    @classmethod
    def train(
        cls, files: Path | Iterable[Path], vocabulary_size: int, path: Path, **options: Any
    ) -> "Tokenizer":
        """Learns a vocabulary from files, writes it to `path` and returns its tokenizer.

        For a joint vocabulary pass the files of both sides; for separate ones train two
        tokenizers. The same text gives the same model.

        Args:
            files: a path, a glob, or a list of these, as for `read_lines`. For lines of text see
                `train_on_lines`.
            vocabulary_size, path: as for `train_on_lines`.
            **options: `model_type`, `normalization`, `character_coverage`, `max_lines`, `tags` and
                `protected_symbols`, as for `train_on_lines`.

        Raises:
            ValueError: if there is no text, or `vocabulary_size` has no room for its characters.
            FileNotFoundError, CorpusError: the errors of `read_lines`.
        """
        return cls.train_on_lines(read_lines(files), vocabulary_size, path, **options)

    @classmethod
    def train_on_lines(
        cls,
        lines: Iterable[str],
        vocabulary_size: int,
        path: Path,
        *,
        model_type: str = "bpe",
        normalization: str = "nfc",
        character_coverage: float = 1.0,
        max_lines: int = 2_000_000,
        tags: Iterable[str] = (),
        protected_symbols: int = 0,
    ) -> "Tokenizer":
        """Learns a vocabulary from lines of text, writes it to `path` and returns its tokenizer.

        Args:
            lines: iterable of strings, such as a list, a generator or `read_lines(...)`.
            vocabulary_size: number of tokens: 4 special ones, 256 bytes, the characters of the
                text, and the learned subwords. If the text yields fewer, the vocabulary is smaller
                and a warning says so.
            path: path of the model file, which is written atomically.
            model_type: `"bpe"`, as in the paper, or `"unigram"`.
            normalization: `"nfc"`, `"nfkc"` or `"identity"`: the rule of `normalize`.
            character_coverage: in (0, 1]. Fraction of the text's characters that get a token; the
                rarest characters are split into bytes. Lower it (0.9995) for Chinese or Japanese.
            max_lines: train on a uniform random sample of at most this many lines, drawn in one
                pass and the same each time. If there are more lines, a warning says so.
            tags: further tokens, such as `<subtitles>`, which no text gives.
            protected_symbols: number of symbols for protected text, see `add_placeholders`; each is
                a token. Defaults to `0`.

        Raises:
            TypeError: if `lines` is not an iterable of strings.
            ValueError: if there is no text, or `vocabulary_size` has no room for its characters.
        """
        check_choice("model_type", model_type, ("unigram", "bpe"))
        check_choice("normalization", normalization, NORMALIZATIONS)
        model = train_sentencepiece(
            training_lines(lines, lambda line: prepare(line, normalization)),
            vocabulary_size,
            normalization,
            max_lines,
            model_type=model_type,
            character_coverage=character_coverage,
            control_symbols=checked_lines(tags, "tags"),
            user_defined_symbols=symbols(protected_symbols),
        )
        tokenizer = cls(model)
        if sample := tokenizer.learned_from:
            warnings.warn(f"The vocabulary is learned from {sample}, by `max_lines`.", stacklevel=2)
        if tokenizer.vocabulary_size < vocabulary_size:
            warnings.warn(
                f"The text yields only {tokenizer.vocabulary_size} tokens. "
                f"Received: vocabulary_size={vocabulary_size}",
                stacklevel=2,
            )
        tokenizer.save(path)
        return tokenizer

    def normalize(self, text: str) -> str:
        """Returns the text that the model reads, by the rules in the class docstring."""
        return normalize(text, self.normalization)


def _require_own_model(proto, source):
    """Raises unless `Tokenizer` trained a model."""
    normalizer, trainer = proto.normalizer_spec, proto.trainer_spec
    settings = normalizer.name, normalizer.remove_extra_whitespaces, normalizer.add_dummy_prefix
    ids = [trainer.pad_id, trainer.bos_id, trainer.eos_id, trainer.unk_id]
    is_complete = ids == [0, 1, 2, 3] and trainer.byte_fallback
    known = [(name, *[name != "identity"] * 2) for name in NORMALIZATIONS]
    if not is_complete or settings not in known:
        raise ValueError(
            "`model` must be a file that `Tokenizer.train` wrote; recipes and run folders take no "
            "other. In Python, load another SentencePiece model with `SentencePieceTokenizer`. "
            f"Received: {source}"
        )
