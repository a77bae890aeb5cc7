"""`TokenizerLike`: the interface of every tokenizer, and the checks of what a user passes.

The package uses tokenizers only through this interface, so a class of your own can take the place
of `Tokenizer`.
"""

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

SPECIAL_TOKENS = ("pad_token_id", "start_token_id", "end_token_id")


class TokenizerLike(Protocol):
    """What the package needs of a tokenizer. A tokenizer of your own inherits from this class.

    It must have the first five attributes, and the methods `encode` and `decode`. The others have
    defaults.

    Attributes:
        vocabulary_size: int, number of token ids. The ids are 0 to `vocabulary_size - 1`.
        pad_token_id: int, fills the rows of a batch.
        start_token_id: int, the first token that the decoder reads.
        end_token_id: int, the last token of every sentence.
        vocabulary: the tokens as strings, in the order of their ids, for reports and for the places
            where long lines are split. A token that begins a word begins with U+2581, as in `▁cat`;
            otherwise long lines are split inside words.
        unk_token_id: int, the id of unknown text, for word dropout. `None`: there is none.
        languages: codes of the target languages that it has tags for: a text may begin with
            `>>fra<<`, which is one token.
        language_ids: the id of each language's token, by its code, such as `eng_Latn`. If there are
            any, a source begins with the token of its language, and the decoder reads the token of
            the translation's language behind the start token: `Translator` adds them.
        tag: the first token of every text that is not empty. Optional.
        tag_ids: ids of all tags, which stay in front of each part of a long line, and which word
            dropout leaves as they are.
        joiner: what stands between the translations of the parts of a long line.
        learned_from: describes the sample of lines that the vocabulary was learned from; empty if
            it was learned from all lines.
        unknown: function that counts the symbols of texts that the vocabulary lacks. `None`: it
            lacks none, or they are not counted.
        graph: a `tf.Module` that does the same in a TensorFlow graph, for `export_saved_model`. It
            holds the tables that a SavedModel needs, and has three methods. `tokenize(text)`:
            string tensor `(B,)` to int32 `RaggedTensor` `(B, None)`. `detokenize(token_ids)`:
            padded int32 tensor `(B, T)` to string tensor `(B,)`. `tokens(token_ids)`: int32 tensor
            of any shape to the entries of `vocabulary`. `None`: there is none.

    `encode` must return none of the three special ids.
    """

    vocabulary_size: int
    pad_token_id: int
    start_token_id: int
    end_token_id: int
    vocabulary: Sequence[str]
    unk_token_id: int | None = None
    languages: Sequence[str] = ()
    language_ids: Mapping[str, int] = {}
    tag: str | None = None
    tag_ids: Sequence[int] = ()
    joiner: str = " "
    learned_from: str = ""
    unknown: Callable[[Iterable[str]], Counter[str]] | None = None
    graph: Any = None

    def encode(self, texts: list[str], /) -> Sequence[Sequence[int]]:
        """Returns the token ids of each text, without start and end tokens.

        An empty text has none.
        """
        ...

    def decode(self, rows: Any, /) -> Sequence[str]:
        """Returns the text of each row of token ids, without pad, start and end tokens.

        Args:
            rows: lists or arrays of ints, or a padded int array `(B, T)`.
        """
        ...

    def for_language(self, language_id: int) -> "TokenizerLike":
        """Returns the tokenizer of texts in a language: by default this one.

        It has the same vocabulary, but may split text into other tokens. Either of them decodes
        the ids of the other.

        Args:
            language_id: one of `language_ids`.
        """
        return self

    def fingerprint(self) -> str | None:
        """Returns a hash of everything that determines the ids of a text, the key of a token store.

        `None`: there is no hash, so the token ids stay in memory.
        """
        return None


INTEGERS = ("vocabulary_size", *SPECIAL_TOKENS)
# Members with defaults. A class has them if it inherits from `TokenizerLike`.
INHERITED = (
    *{*TokenizerLike.__annotations__} - {*INTEGERS, "vocabulary"},
    "fingerprint",
    "for_language",
)


def check_tokenizers(
    tokenizer: Any, target_tokenizer: Any | None
) -> tuple[TokenizerLike, TokenizerLike]:
    """Returns the tokenizers of source and target; raises a `TypeError` if one is no tokenizer.

    Args:
        tokenizer: `TokenizerLike` of the source.
        target_tokenizer: `TokenizerLike` of the target. Defaults to `tokenizer`.
    """
    tokenizers = tokenizer, tokenizer if target_tokenizer is None else target_tokenizer
    for argument, candidate in zip(("tokenizer", "target_tokenizer"), tokenizers, strict=True):
        if missing := _missing_members(candidate):
            raise TypeError(
                f"`{argument}` must be a `Tokenizer`, or of a class of your own that inherits from "
                "`keras_transformer.data.TokenizerLike`. Received: "
                f"{type(candidate).__name__} without {', '.join(missing)}. For KerasHub's "
                "tokenizers there is `Tokenizer.from_keras_hub`, for SentencePiece models "
                "`Tokenizer.from_sentencepiece`."
            )
    return tokenizers


def _missing_members(tokenizer):
    """Returns the members of `TokenizerLike` that an object lacks, as texts for an error."""
    missing = [
        f"the integer `{name}`"
        for name in INTEGERS
        if not hasattr(getattr(tokenizer, name, None), "__index__")
    ]
    missing += [] if hasattr(tokenizer, "vocabulary") else ["`vocabulary`"]
    for name in ("encode", "decode"):
        is_own = getattr(type(tokenizer), name, None) is not getattr(TokenizerLike, name)
        if not (is_own and callable(getattr(tokenizer, name, None))):
            missing.append(f"`{name}()`")
    # `hasattr` would evaluate the property `graph`, which imports TensorFlow.
    absent = object()
    is_complete = all(inspect.getattr_static(tokenizer, n, absent) is not absent for n in INHERITED)
    return missing + ([] if is_complete else ["the base class `TokenizerLike`"])


def require_matching_vocabularies(
    config: Any, tokenizer: TokenizerLike, target_tokenizer: TokenizerLike
) -> None:
    """Raises a `ValueError` if a tokenizer's vocabulary size or special tokens are not the model's.

    Args:
        config: `TransformerConfig` of the model.
        tokenizer, target_tokenizer: `TokenizerLike` of the source and of the target.
    """
    special = {name: getattr(config, name) for name in SPECIAL_TOKENS}
    for side, side_tokenizer, size in (
        ("source", tokenizer, config.source_vocabulary_size),
        ("target", target_tokenizer, config.vocabulary_size),
    ):
        for name, expected in {"vocabulary_size": size, **special}.items():
            if (received := getattr(side_tokenizer, name)) != expected:
                raise ValueError(
                    f"The {side} tokenizer must have the model's `{name}`, {expected}. "
                    f"Received: {received}"
                )


def splits_by_language(tokenizer: TokenizerLike) -> bool:
    """Whether the tokens of a text depend on its language."""
    language_ids = tokenizer.language_ids.values()
    return any(tokenizer.for_language(i) is not tokenizer for i in language_ids)


def encode_in_languages(
    tokenizer: TokenizerLike, texts: list[str], language_ids: Sequence[int] | None
) -> list[np.ndarray]:
    """Returns the token ids of each text by the tokenizer of its language, see `encode`.

    Args:
        tokenizer, texts: as in `encode`.
        language_ids: the language token of each text. `None`: `tokenizer` itself splits all texts.
    """
    if language_ids is None:
        return encode(tokenizer, texts)
    tokenizers = {i: tokenizer.for_language(i) for i in {*language_ids}}
    if all(language_tokenizer is tokenizer for language_tokenizer in tokenizers.values()):
        return encode(tokenizer, texts)
    rows: list[Any] = [None] * len(texts)
    for language_id, language_tokenizer in tokenizers.items():
        places = [place for place, i in enumerate(language_ids) if i == language_id]
        encoded = encode(language_tokenizer, [texts[place] for place in places])
        for place, row in zip(places, encoded, strict=True):
            rows[place] = row
    return rows


def encode(tokenizer: TokenizerLike, texts: list[str]) -> list[np.ndarray]:
    """Returns the token ids of each text, int32 `(T,)`, as `tokenizer.encode` gives them.

    Raises:
        TypeError: if the ids are not ints.
        ValueError: if there is not one row for each text, or an id is not in the vocabulary.
    """
    no_ids = np.zeros(0, np.int32)  # NumPy makes an empty list an array of floats
    rows = [np.asarray(row) if len(row) else no_ids for row in tokenizer.encode(texts)]
    method = f"`{type(tokenizer).__name__}.encode`"
    for text, row in zip(texts, rows, strict=False):
        if row.ndim != 1 or row.dtype.kind not in "iu":
            raise TypeError(
                f"{method} must return a list of ints for each text. Received: {row!r} for {text!r}"
            )
    if len(rows) != len(texts):
        raise ValueError(
            f"{method} must return a row for each text. Received: {len(rows)} rows for "
            f"{len(texts)} texts"
        )
    ids = np.concatenate([*rows, no_ids])
    size = tokenizer.vocabulary_size
    if ids.size and not (0 <= ids.min() and ids.max() < size):
        raise ValueError(
            f"{method} must return ids from 0 to {size - 1}, `vocabulary_size - 1`. Received: "
            f"{ids[(ids < 0) | (ids >= size)][0]}"
        )
    return [row.astype(np.int32) for row in rows]
