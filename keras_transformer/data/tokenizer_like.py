"""`TokenizerLike`: the interface of every tokenizer, and the checks of what a user passes.

The package uses tokenizers only through this interface, so any object that has it can take the
place of `Tokenizer`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np

SPECIAL_TOKENS = ("pad_token_id", "start_token_id", "end_token_id")


class TokenizerLike(Protocol):
    """What `make_dataset` and `Translator` need of a tokenizer.

    `Tokenizer`, `SentencePieceTokenizer` and `KerasHubTokenizer` have it. A class of your own needs
    these members and no base class.

    For `export_saved_model` it also needs a member `graph`, the same tokenizer for TensorFlow
    graphs: a `tf.Module`, so that the SavedModel contains its tables, with the methods
    `tokenize(text)`, string tensor `(B,)` to int32 `RaggedTensor` `(B, None)`;
    `detokenize(token_ids)`, padded int32 tensor `(B, T)` to string tensor `(B,)`; and
    `tokens(token_ids)`, int32 tensor of any shape to the entries of `vocabulary`.

    Attributes:
        vocabulary_size: int, number of token ids. The ids are 0 to `vocabulary_size - 1`.
        pad_token_id: int, fills the rows of a batch.
        start_token_id: int, the first token that the decoder reads.
        end_token_id: int, the last token of every sentence.
        vocabulary: the tokens as strings, in the order of their ids, for reports and for the places
            where long lines are split. A token that begins a word begins with U+2581, as in `▁cat`;
            otherwise long lines are split inside words.

    For a token store it also needs a method `fingerprint() -> str`: the hash of all that decides
    the ids of a text.

    `encode` must return none of the three special ids.
    """

    vocabulary_size: int
    pad_token_id: int
    start_token_id: int
    end_token_id: int

    @property
    def vocabulary(self) -> Sequence[str]: ...

    def encode(self, texts: list[str], /) -> Sequence[Sequence[int]]:
        """Returns the token ids of each text, without start and end tokens.

        An empty text has none.
        """

    def decode(self, rows: Any, /) -> Sequence[str]:
        """Returns the text of each row of token ids, without pad, start and end tokens.

        Args:
            rows: lists or arrays of ints, or a padded int array `(B, T)`.
        """


@dataclass(frozen=True)
class Traits:
    """What a tokenizer may have beside the members of `TokenizerLike`, or what holds without it.

    Args:
        languages: codes of the target languages that it has tags for, as `>>fra<<`.
        tag: the first token of every text.
        tag_ids: ids of tokens that word dropout leaves as they are.
        joiner: what stands between its symbols.
        unk_token_id: id of what it does not know.
        unknown: counts the symbols of texts that it does not know.
        learned_from: the sample of lines that the vocabulary was learned from.
        rules: what `FolderTokenizer` needs to know, of a plain tokenizer.
    """

    languages: Sequence[str] = ()
    tag: str | None = None
    tag_ids: Sequence[int] = ()
    joiner: str = " "
    unk_token_id: int | None = None
    unknown: Callable[[Iterable[str]], Counter[str]] | None = None
    learned_from: str = ""
    rules: dict[str, Any] | None = None

    @classmethod
    def of(cls, tokenizer: Any) -> "Traits":
        """Returns those of a tokenizer."""
        found: dict[str, Any] = {
            each.name: getattr(tokenizer, each.name, each.default) for each in fields(cls)
        }
        return cls(**found)

    @property
    def has_tags(self) -> bool:
        """Whether a text may begin with a tag, which `is_tag` of the tokenizer knows."""
        return bool(self.languages) or self.tag is not None


def check_tokenizers(
    tokenizer: Any, target_tokenizer: Any | None
) -> tuple[TokenizerLike, TokenizerLike]:
    """Returns the tokenizers of source and target, or raises a `TypeError` if one is none.

    Args:
        tokenizer: `TokenizerLike` of the source.
        target_tokenizer: `TokenizerLike` of the target. Defaults to `tokenizer`.
    """
    tokenizers = tokenizer, tokenizer if target_tokenizer is None else target_tokenizer
    for argument, each in zip(("tokenizer", "target_tokenizer"), tokenizers, strict=True):
        missing = [
            f"the integer `{name}`"
            for name in ("vocabulary_size", *SPECIAL_TOKENS)
            if not hasattr(getattr(each, name, None), "__index__")
        ]
        missing += [] if hasattr(each, "vocabulary") else ["`vocabulary`"]
        methods = ("encode", "decode")
        missing += [f"`{name}()`" for name in methods if not callable(getattr(each, name, None))]
        if missing:
            raise TypeError(
                f"`{argument}` must be a `Tokenizer` or have the members of `TokenizerLike`. "
                f"Received: {type(each).__name__} without {', '.join(missing)}. Wrap KerasHub's "
                "tokenizers in `KerasHubTokenizer`; load a SentencePiece model as "
                "`SentencePieceTokenizer`."
            )
    return tokenizers


def require_matching_vocabularies(
    config: Any, tokenizer: TokenizerLike, target_tokenizer: TokenizerLike
) -> None:
    """Raises a `ValueError` if a tokenizer's vocabulary size or special tokens are not the model's.

    Args:
        config: `TransformerConfig` of the model.
        tokenizer, target_tokenizer: `TokenizerLike` of the source and of the target.
    """
    special = {name: getattr(config, name) for name in SPECIAL_TOKENS}
    for side, each, size in (
        ("source", tokenizer, config.source_vocabulary_size),
        ("target", target_tokenizer, config.vocabulary_size),
    ):
        for name, expected in {"vocabulary_size": size, **special}.items():
            if (received := getattr(each, name)) != expected:
                raise ValueError(
                    f"The {side} tokenizer must have the model's `{name}`, {expected}. "
                    f"Received: {received}"
                )


def encode(tokenizer: TokenizerLike, texts: list[str]) -> list[np.ndarray]:
    """Returns the token ids of each text, int32 `(T,)`, as `tokenizer.encode` gives them.

    Raises:
        TypeError: if the ids are not ints.
        ValueError: if there is not one row a text, or an id is not in the vocabulary.
    """
    given = tokenizer.encode(texts)
    rows = [np.asarray(row) if len(row) else np.zeros(0, np.int32) for row in given]
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
    ids = np.concatenate([*rows, np.zeros(0, np.int32)])
    size = tokenizer.vocabulary_size
    if ids.size and not (0 <= ids.min() and ids.max() < size):
        raise ValueError(
            f"{method} must return ids from 0 to {size - 1}, `vocabulary_size - 1`. Received: "
            f"{ids[(ids < 0) | (ids >= size)][0]}"
        )
    return [row.astype(np.int32) for row in rows]
