"""`Tokenizer`: text <-> token ids, by pieces of text and a vocabulary of them.

Second step of the data flow (strings -> token ids) and last step (token ids -> strings). Paper
section 5.1 (a shared subword vocabulary). `protobuf` is needed only to make a tokenizer from a
SentencePiece model: a file that `save` wrote is read without it.
"""

import functools
import hashlib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from keras_transformer.data.corpus import read_lines
from keras_transformer.data.pieces import NORMALIZATIONS, SUBWORDS, prepare
from keras_transformer.data.placeholders import symbols as placeholder_symbols
from keras_transformer.data.symbol_parts import learn_characters, learn_words
from keras_transformer.data.tokenizer_file import FUNCTIONS, read_tokenizer, write_tokenizer
from keras_transformer.data.tokenizer_like import TokenizerLike
from keras_transformer.data.training_lines import (
    LEAST_COVERAGE,
    check_choice,
    check_number,
    training_lines,
)
from keras_transformer.data.vocabulary import Vocabulary
from keras_transformer.texts import checked_lines
from keras_transformer.types import Path


class Tokenizer(TokenizerLike):
    """Text <-> token ids: `pieces` are text <-> pieces, `vocabulary` is pieces <-> ids.

    Choose the constructor by what the tokenizer is for:

    - `Tokenizer.train`, `Tokenizer.train_on_lines`: subwords learned from your text. Every text can
      be restored from them.
    - `Tokenizer.characters`, `Tokenizer.words`: symbols that must not be split or joined.
    - `Tokenizer.from_sentencepiece`: a SentencePiece model that someone else trained.
    - `Tokenizer.from_marian`: one side of a Marian model, such as OPUS-MT's.
    - `Tokenizer.from_keras_hub`: a tokenizer of KerasHub.
    - `Tokenizer.load`: a file that one of these wrote, or `save`.

    Args:
        pieces: text <-> pieces: `SentencePieces`, `SymbolPieces` or `FunctionPieces`.
        vocabulary: `Vocabulary` of the pieces.
        tag: a token of the vocabulary, the first of every text that is not empty. Optional.

    Attributes:
        kind: `"subwords"`, `"characters"`, `"words"`, `"sentencepiece"`, `"marian"`, or
            `"functions"` for KerasHub's WordPiece and byte-pair tokenizers.
        vocabulary_size: number of token ids.
        pad_token_id, start_token_id, end_token_id: ids of the special tokens.
        unk_token_id: id of the unknown token; `None` if `kind` is `"functions"`.
        vocabulary: list of the tokens in the order of their ids, such as `▁cat`, `s`, `<0xC3>` or
            `</s>`; an id without a token has `""`. A symbol that is spelled like a special token,
            such as `</s>`, has a space behind it.
        normalization: the rule by which texts are read, see the constructors; `None`: that of a
            foreign model.
        languages: list of the codes that have a tag in the vocabulary, for Marian's models.
        language_ids: dict from codes of languages to the ids of their tokens, for M2M-100 and NLLB.
        tag, tag_ids, joiner, learned_from, unknown, graph: see `TokenizerLike`.
        model_bytes: the SentencePiece model, as in its file; empty if there is none.

    Raises:
        TypeError: if `vocabulary` is no `Vocabulary`.
        ValueError: if `tag` is not in the vocabulary.

    Example:

    >>> tokenizer = Tokenizer.train_on_lines(["a cat", "a mat"], 265, "/tmp/cats.json")
    >>> [len(token_ids) for token_ids in tokenizer.encode(["a cat", ""])]
    [6, 0]
    >>> tokenizer.decode(tokenizer.encode("a  cat"))
    'a cat'
    >>> Tokenizer.load("/tmp/cats.json").encode("a cat") == tokenizer.encode("a cat")
    True
    """

    def __init__(
        self, pieces: Any, vocabulary: Vocabulary | None = None, tag: str | None = None
    ) -> None:
        if not isinstance(vocabulary, Vocabulary):
            raise TypeError(
                "`Tokenizer` is made of pieces and a `Vocabulary`. To read a file: "
                f"Tokenizer.load(path). Received: vocabulary={vocabulary!r}"
            )
        if tag is not None and tag not in vocabulary.ids:
            raise ValueError(f"`tag` must be a token of the vocabulary. Received: tag={tag!r}")
        self.pieces, self._table, self.tag = pieces, vocabulary, tag
        self.kind, self.normalization = pieces.kind, pieces.normalization
        self.vocabulary = vocabulary.tokens
        self.vocabulary_size = len(vocabulary.tokens)
        self.pad_token_id, self.start_token_id, self.end_token_id = vocabulary.special_ids
        self.unk_token_id = vocabulary.unk_token_id
        self.languages, self.learned_from = [*vocabulary.languages], vocabulary.learned_from
        self.language_ids = dict(vocabulary.language_ids)
        self.tag_ids = vocabulary.tag_ids(tag)
        self.joiner, self.unknown = pieces.joiner, pieces.unknown
        self.model_bytes: bytes = pieces.model_bytes
        self._ids = pieces.ids_by_number(vocabulary.text_ids, vocabulary.unk_token_id)

    @classmethod
    def train(
        cls, files: Path | Iterable[Path], vocabulary_size: int, path: Path, **options: Any
    ) -> Self:
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
            FileExistsError: as `save`.
            FileNotFoundError, CorpusError: as `read_lines`.
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
    ) -> Self:
        """Learns a vocabulary from lines of text, writes it to `path` and returns its tokenizer.

        The subwords have byte fallback: for every text, `decode(encode(text)) == normalize(text)`.
        The rule of `normalize` is chosen here and kept:

        - `"nfc"`: `" ".join(unicodedata.normalize("NFC", text).replace("\\u2581", " ").split())`:
          canonical composition, then each run of white space becomes one space and both ends are
          stripped. A reader sees no difference.
        - `"nfkc"`: the same with NFKC, which also replaces characters by similar ones: `½` by
          `1⁄2`, `，` by `,`, `…` by `...`, `ʲ` by `j`. Translations never hold a replaced one.
        - `"identity"`: `text.replace("\\u2581", " ")`: every space, tab and line break is kept.

        With all rules U+2581, SentencePiece's symbol for a space, becomes a space. The literal
        texts of special tokens (`<s>`, `<pad>`, `<0x41>`) are ordinary text. Unicode is version
        16.0 on every Python. The ids of padding, start, end and the unknown token are 0, 1, 2, 3.

        Args:
            lines: iterable of strings, such as a list, a generator or `read_lines(...)`.
            vocabulary_size: number of tokens: 4 special ones, 256 bytes, the characters of the
                text, and the learned subwords. If the text yields fewer, the vocabulary is smaller
                and a warning says so.
            path: path of the file to write, see `save`.
            model_type: `"bpe"`, as in the paper, or `"unigram"`.
            normalization: `"nfc"`, `"nfkc"` or `"identity"`: the rule of `normalize`.
            character_coverage: from 0.98 to 1. Fraction of the text's characters that get a token;
                the rarest characters are split into bytes. Lower it (0.9995) for Chinese or
                Japanese.
            max_lines: train on a uniform random sample of at most this many lines, more than 100,
                drawn in one pass and the same each time. If there are more lines, a warning says
                so.
            tags: further tokens, such as `<subtitles>`. No text is split into them.
            protected_symbols: number of symbols for protected text, 0 or at least 2, see
                `add_placeholders`; each is a token. Defaults to `0`.

        Raises:
            TypeError: if `lines` is not an iterable of strings.
            ValueError: if there is no text, `vocabulary_size` has no room for its characters, or an
                option is out of its range.
            FileExistsError: as `save`.

        Reference:
            [Kudo and Richardson, 2018](https://aclanthology.org/D18-2012), SentencePiece.
        """
        from keras_transformer.data.sentencepiece_parts import subword_parts
        from keras_transformer.data.sentencepiece_training import train_sentencepiece

        check_choice("model_type", model_type, ("unigram", "bpe"))
        check_choice("normalization", normalization, NORMALIZATIONS)
        is_valid = LEAST_COVERAGE <= character_coverage <= 1
        expected = f"from {LEAST_COVERAGE} to 1"
        check_number("character_coverage", character_coverage, is_valid, expected)
        check_number("max_lines", max_lines, max_lines > 100, "more than 100")
        is_valid = protected_symbols == 0 or protected_symbols >= 2
        check_number("protected_symbols", protected_symbols, is_valid, "0 or at least 2")
        model = train_sentencepiece(
            training_lines(lines, lambda line: prepare(line, normalization)),
            vocabulary_size,
            normalization,
            max_lines,
            model_type=model_type,
            character_coverage=character_coverage,
            control_symbols=[*dict.fromkeys(checked_lines(tags, "tags"))],
            user_defined_symbols=placeholder_symbols(protected_symbols),
        )
        tokenizer = cls(*subword_parts(model))
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

    @classmethod
    def characters(
        cls,
        lines: Iterable[str],
        path: Path | None = None,
        vocabulary_size: int | None = None,
        *,
        normalization: str = "identity",
        symbols: Iterable[str] = (),
        graphemes: bool = False,
    ) -> Self:
        """Returns a tokenizer with a token for each character of lines of text.

        White space counts as characters; `symbols` and `graphemes` give longer tokens. A text is
        read from the left: each token is the longest symbol of the vocabulary that the remaining
        text begins with. Each code point that the vocabulary lacks becomes one `<unk>`. If all
        symbols are known, `decode(encode(text)) == normalize(text)`:

        - `"identity"`: the text as it is;
        - `"nfc"`: `unicodedata.normalize("NFC", text)`;
        - `"nfd"`: the same text, but its tokens are those of NFD: a letter and its accents, or the
          parts of a Hangul syllable, are several.

        Args:
            lines, path, vocabulary_size, normalization: as in `words`.
            symbols: texts of several characters that are one symbol wherever they stand, such as
                `V;PST` or `<en>`. Defaults to none.
            graphemes: whether each grapheme cluster of the text is a symbol, such as a letter with
                its accents or a flag. Defaults to `False`: each code point.

        Raises:
            TypeError, ValueError: as in `words`.

        Example:

        >>> lines = ["walk V;PST", "talk V;PST"]
        >>> tokenizer = Tokenizer.characters(lines, symbols=["V;PST"])
        >>> [tokenizer.vocabulary[i] for i in tokenizer.encode("talk V;PST!")]
        ['t', 'a', 'l', 'k', ' ', 'V;PST', '<unk>']
        """
        parts = learn_characters(lines, vocabulary_size, normalization, symbols, graphemes)
        return cls(*parts)._saved(path)

    @classmethod
    def words(
        cls,
        lines: Iterable[str],
        path: Path | None = None,
        vocabulary_size: int | None = None,
        *,
        normalization: str = "identity",
    ) -> Self:
        """Returns a tokenizer with a token for each word of lines of text.

        A word is what stands between white space, such as a phone or an action. Words that the
        vocabulary lacks become `<unk>`. If all words are known, `decode(encode(text))` is
        `" ".join(text.split())`, in NFC unless `normalization` is `"identity"`. The ids of padding,
        start, end and the unknown token are 0, 1, 2, 3; the most frequent words follow.

        Args:
            lines: iterable of strings.
            path: path of the file to write, see `save`. Optional.
            vocabulary_size: maximum number of tokens, 4 special ones included. If there are more
                symbols, the most frequent ones are kept, and a warning says so. Optional.
            normalization: `"nfc"`, `"nfd"` or `"identity"`. Defaults to `"identity"`.

        Raises:
            TypeError: if `lines` is not an iterable of strings.
            ValueError: if there is no symbol, or `vocabulary_size` has no room for one.

        Example:

        >>> tokenizer = Tokenizer.words(["k æ t", "h æ t"])
        >>> tokenizer.vocabulary[4:], tokenizer.decode(tokenizer.encode(["t  æ k"]))
        (['t', 'æ', 'h', 'k'], ['t æ k'])
        """
        return cls(*learn_words(lines, vocabulary_size, normalization))._saved(path)

    @classmethod
    def from_sentencepiece(
        cls,
        model: Path | bytes,
        *,
        pad_token_id: int | None = None,
        start_token_id: int | None = None,
        end_token_id: int | None = None,
        unk_token_id: int | None = None,
        vocabulary: Sequence[str] | Mapping[str, int] | None = None,
        vocabulary_size: int | None = None,
    ) -> Self:
        """Returns the tokenizer of any SentencePiece model, such as that of T5, mBART or Marian.

        Texts become the pieces that SentencePiece itself gives, by the normalisation that the model
        holds. One exception: neighbours that repeat the same text, such as `..` `...`, are always
        in the order of their lengths, because in a unigram model both orders have the same score.
        Texts may have unknown tokens, and decoding may not restore them exactly.

        By default the ids are those of the model, as for T5. Where the pieces have other ids, give
        the `vocabulary`: for mBART `["<s>", "<pad>", "</s>", "<unk>", *pieces[3:], "<mask>"]`, for
        Marian the contents of `vocab.json`. Special tokens that are not in the vocabulary get ids
        after its last one: `start_token_id=32_100` gives T5 a start token.

        Args:
            model: path of a SentencePiece model, or its bytes.
            pad_token_id, start_token_id, end_token_id, unk_token_id: ids of the special tokens:
                control pieces, or ids without a piece. Default to the ids of the pieces that the
                model names for them: `<pad>`, `<s>`, `</s>`, `<unk>`.
            vocabulary: the pieces in the order of their ids, or `{piece: id}`. Pieces of the model
                that are not in it become unknown tokens. Defaults to the pieces of the model.
            vocabulary_size: number of ids, if there must be more ids than pieces. Optional.

        Raises:
            FileNotFoundError: if the file does not exist.
            ValueError: if `model` is not a SentencePiece model, two pieces have the same id, or a
                special token has no id, or the id of a piece of text.

        Example:

        >>> lines = ["a cat", "a mat"]
        >>> model = Tokenizer.train_on_lines(lines, 265, "cats.json").model_bytes
        >>> tokenizer = Tokenizer.from_sentencepiece(model, start_token_id=300)
        >>> tokenizer.pad_token_id, tokenizer.start_token_id, tokenizer.vocabulary_size
        (0, 300, 301)
        >>> tokenizer.decode(tokenizer.encode(["a  cat"]))
        ['a cat']

        Reference:
            [Kudo and Richardson, 2018](https://aclanthology.org/D18-2012), SentencePiece.
        """
        from keras_transformer.data.sentencepiece_parts import sentencepiece_parts

        special = pad_token_id, start_token_id, end_token_id, unk_token_id
        return cls(*sentencepiece_parts(model, special, vocabulary, vocabulary_size))

    @classmethod
    def from_marian(cls, model: Path | bytes, vocabulary: Mapping[str, int]) -> Self:
        """Returns the tokenizer of one side of a Marian model, such as OPUS-MT's.

        The pieces are those of a SentencePiece model; the ids are those of a vocabulary, which both
        sides may share. Pieces that are not in it become the unknown token. A text may begin with
        the tag of a language, `>>fra<<`, which becomes one token. Decoding leaves out unknown
        tokens, as `MarianTokenizer` of `transformers` does with `skip_special_tokens=True`.

        The decoder of these models starts with padding, so `start_token_id` is `pad_token_id`. The
        texts `</s>`, `<unk>` and `<pad>` are ordinary text; `transformers` makes special tokens of
        them.

        Args:
            model: path of the SentencePiece model of this side, or its bytes.
            vocabulary: `{piece: id}`, with `</s>`, `<unk>` and `<pad>`.

        Raises:
            FileNotFoundError, ValueError: as `from_sentencepiece`.

        Example:

        >>> lines = ["a cat", "a mat"]
        >>> model = Tokenizer.train_on_lines(lines, 265, "cats.json").model_bytes
        >>> pieces = ["</s>", "<unk>", "\u2581", "a", ">>fra<<", "<pad>"]
        >>> ids = {piece: i for i, piece in enumerate(pieces)}
        >>> tokenizer = Tokenizer.from_marian(model, ids)
        >>> tokenizer.languages, tokenizer.encode([">>fra<< a"])
        (['fra'], [[4, 2, 3]])

        Reference:
            [Tiedemann and Thottingal, 2020](https://aclanthology.org/2020.eamt-1.61), OPUS-MT.
        """
        from keras_transformer.data.sentencepiece_parts import marian_parts

        return cls(*marian_parts(model, vocabulary))

    @classmethod
    def from_keras_hub(
        cls, tokenizer: Any, *, pad_token: str, start_token: str, end_token: str
    ) -> Self:
        """Returns a tokenizer with the ids of a KerasHub tokenizer.

        It gives what that tokenizer gives in a `tf.data` pipeline. It needs TensorFlow, as
        KerasHub's tokenizers do. The special tokens of KerasHub's packers play no role: this
        package adds start and end tokens itself. The tokens are spelled as SentencePiece spells
        them: `▁cat` begins a word, `s` continues it. Only a SentencePiece tokenizer can be saved.

        Args:
            tokenizer: `keras_hub.tokenizers.WordPieceTokenizer`, `BytePairTokenizer`,
                `SentencePieceTokenizer` or a subclass, such as `keras_hub.models.BertTokenizer`,
                without `sequence_length`.
            pad_token, start_token, end_token: tokens of its vocabulary, such as `"[PAD]"`.

        Raises:
            TypeError: if `tokenizer` is none of the three.
            ValueError: if a special token is not in the vocabulary, or the tokenizer pads its
                output or returns strings.

        Example:

        >>> import keras_hub
        >>> vocabulary = ["[PAD]", "[START]", "[END]", "[UNK]", "a", "cat", "##s"]
        >>> tokenizer = Tokenizer.from_keras_hub(
        ...     keras_hub.tokenizers.WordPieceTokenizer(vocabulary),
        ...     pad_token="[PAD]",
        ...     start_token="[START]",
        ...     end_token="[END]",
        ... )
        >>> tokenizer.encode(["a cat", "cats"])
        [[4, 5], [5, 6]]
        >>> tokenizer.decode([[4, 5], [5, 6]])
        ['a cat', 'cats']
        """
        from keras_transformer.data.keras_hub_parts import keras_hub_parts

        return cls(*keras_hub_parts(tokenizer, pad_token, start_token, end_token))

    @classmethod
    def load(cls, path: Path, tag: str | None = None) -> Self:
        """Returns the tokenizer of a file that `save` wrote, also that of an earlier version.

        A file of symbols may be written by hand: JSON with `kind` (`"characters"` or `"words"`),
        `normalization` and `symbols`, a list of texts in the order of their ids, from 4 on.

        Args:
            path: path of the file; a SentencePiece model is beside it, as `*.spm`.
            tag: as in `Tokenizer`. Defaults to that of the file.

        Raises:
            FileNotFoundError: if a file does not exist.
            ValueError: if it is not the file of a tokenizer.
        """
        pieces, vocabulary, saved_tag = read_tokenizer(path)
        return cls(pieces, vocabulary, saved_tag if tag is None else tag)

    def save(self, path: Path) -> None:
        """Writes the tokenizer to a JSON file, and a SentencePiece model beside it as `*.spm`.

        Each file is written atomically. Missing folders are made.

        Raises:
            FileExistsError: if `path` is new, and the `*.spm` file beside it is another model.
            ValueError: if `kind` is `"functions"`, because KerasHub's layers have no file, or if
                `path` ends in `.spm`.
        """
        if self.kind == FUNCTIONS:
            raise ValueError("A tokenizer of KerasHub has no file: build it from its layer again.")
        write_tokenizer(path, self, self.pieces)

    def _saved(self, path):
        """Saves the tokenizer if there is a path, and returns it."""
        if path is not None:
            self.save(path)
        return self

    def with_tag(self, tag: str | None) -> Self:
        """Returns the same tokenizer with another tag."""
        return type(self)(self.pieces, self._table, tag)

    def with_language(self, code: str, token: str, pieces: Sequence[str] = ()) -> Self:
        """Returns the same tokenizer with a further language.

        Args:
            code: that of the language.
            token: the language's token, whose id follows the last one of the vocabulary.
            pieces: pieces to add to the SentencePiece model, whose ids follow. Only texts in the
                language are split into them, see `for_language`. Defaults to none.

        Raises:
            ValueError: if `pieces` are given, and pieces for another language were added before.
        """
        from keras_transformer.data.added_pieces import with_pieces

        extended = with_pieces(self.pieces, code, pieces) if pieces else self.pieces
        return type(self)(extended, self._table.with_language(code, token, pieces), self.tag)

    def for_language(self, language_id: int) -> Self:
        """Returns the tokenizer of texts in a language; see `TokenizerLike`."""
        code = self.pieces.added_language
        is_added = code is not None and language_id == self.language_ids[code]
        return self._of_added_language if is_added else self

    @functools.cached_property
    def _of_added_language(self):
        pieces = self.pieces.for_language(self.pieces.added_language)
        return type(self)(pieces, self._table, self.tag)

    def encode(self, texts: Any, add_start: bool = False, add_end: bool = False) -> Any:
        """Returns the token ids of texts.

        Args:
            texts: list of strings, or one string.
            add_start: prepend `start_token_id` to each row.
            add_end: append `end_token_id` to each row.

        Returns:
            list of lists of int; for one string, a list of int. An empty text has no tokens.

        Raises:
            TypeError: if a text is not a string.
            ValueError: if UTF-8 cannot encode a text.
        """
        if isinstance(texts, str):
            return self.encode([texts], add_start, add_end)[0]
        rows = self._encode(checked_lines(texts, "texts"))
        start, end = [self.start_token_id] * add_start, [self.end_token_id] * add_end
        return [[*start, *row, *end] for row in rows] if start or end else rows

    def decode(self, rows: Any) -> Any:
        """Returns the texts of token ids, without pad, start and end tokens.

        Args:
            rows: lists or arrays of ints, or a padded int array `(B, T)`; or the ids of one text.
                `[]` gives `[]`.

        Returns:
            list of strings; for one text, a string. Incomplete UTF-8 sequences (a translation can
            end inside a character) become U+FFFD.

        Raises:
            ValueError: if an id is not in the vocabulary.
        """
        rows = [np.asarray(row).tolist() for row in rows]
        if rows and not isinstance(rows[0], list):
            return self.decode([rows])[0]
        pieces = self._pieces_of_ids
        try:
            rows = [[piece for i in row for piece in pieces[i]] for row in rows]
        except KeyError as error:
            raise ValueError(
                f"`rows` must hold ids from 0 to {self.vocabulary_size - 1}, `vocabulary_size - 1`."
                f" Received: {error.args[0]}"
            ) from None
        return self.pieces.decode(rows) if rows else []

    def normalize(self, text: str) -> str:
        """Returns `decode(encode(text))` for a text without unknown tokens.

        The constructors describe the rule.

        Raises:
            ValueError: if `normalization` is `None` and the pieces are those of a SentencePiece
                model.
        """
        return self.pieces.normalize(text)

    @functools.cached_property
    def graph(self) -> Any:
        """The same tokenizer for TensorFlow graphs, a `tf.Module`; see `TokenizerLike`.

        Raises an `ImportError` if TensorFlow or tensorflow-text is missing.
        """
        from keras_transformer.data.graph_tokenizer import GraphTokenizer

        return GraphTokenizer(self.pieces, self._table, self.tag)

    def fingerprint(self) -> str | None:
        """Hash of all that decides the ids of a text; `None` if `kind` is `"functions"`.

        `None` for a subclass too, because it may encode differently. To get a hash, override the
        method: the hash must change whenever the ids may.
        """
        if type(self) is not Tokenizer or self.kind == FUNCTIONS:
            return None
        special = *self._table.special_ids, self.unk_token_id
        facts = repr((self.kind, self.pieces.rules, self.vocabulary, special, self.tag))
        if self.language_ids:  # else nothing is added, so existing token stores keep their keys
            facts += repr(self.language_ids)
        return hashlib.sha256(self.model_bytes + facts.encode()).hexdigest()

    def _encode(self, texts):
        if self.pieces.reads_tags:
            table, unknown = self._table.ids, self.unk_token_id
            pieces = self.pieces.encode(texts)
            rows = [[table.get(piece, unknown) for piece in row] for row in pieces]
        else:
            rows, ids = self.pieces.encode_numbers(texts), self._ids
            rows = rows if ids is None else [[ids[number] for number in row] for row in rows]
        if self.tag is None:
            return rows
        tag = self._table.ids[self.tag]
        return [[tag, *row] if row else row for row in rows]

    @functools.cached_property
    def _pieces_of_ids(self):
        """`{id: (piece,)}`, or `()` for an id without text. Pieces of `"functions"` are the ids."""
        names = range(self.vocabulary_size) if self.kind == FUNCTIONS else self.vocabulary
        pieces = {i: (piece,) for i, piece in enumerate(names)}
        return pieces | dict.fromkeys(self._table.ids_without_text, ())

    def __getstate__(self):
        """For `pickle` and `copy`: `graph` is left out, and made again when it is used."""
        return {name: value for name, value in vars(self).items() if name != "graph"}

    def __repr__(self):
        kind = "" if self.kind == SUBWORDS else f"kind={self.kind!r}, "
        size, rule = self.vocabulary_size, self.normalization
        return f"{type(self).__name__}({kind}vocabulary_size={size}, normalization={rule!r})"
