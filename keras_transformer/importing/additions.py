"""Adds a language to a model that was read: its token, and a row of the embeddings for it."""

import re
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from keras_transformer.data.language_codes import closest_language, find_language
from keras_transformer.importing.marian import OUTPUT_BIAS
from keras_transformer.training.losses import EXCLUDED_LOGIT

# How the families spell codes: {expression: in words}.
SPELLINGS = {
    r"[a-z]{3}_[A-Z][a-z]{3}": "three letters of ISO 639-3, `_`, and four letters of the script",
    r"[a-z]{2,3}": "two or three letters of ISO 639",
}


@dataclass(frozen=True)
class Addition:
    """A language that is added to a model.

    Args:
        language: its code, spelled as the model's codes.
        like: code of a language of the model, whose row of the embeddings is copied.
    """

    language: str
    like: str

    @classmethod
    def of_arguments(cls, add_language: str | None, like: str | None) -> Self | None:
        """Returns what the arguments of `import_model` ask for; `None` if nothing.

        Raises a `ValueError` if one of both is missing.
        """
        if add_language is None and like is None:
            return None
        if add_language is None or like is None:
            raise ValueError(
                "`add_language` and `like` (`--add-language`, `--like`) must be given together: "
                "the new language starts as a copy of another one. Received: "
                f"{add_language=}, {like=}"
            )
        return cls(add_language, like)


def add_to(read: Any, addition: Addition) -> Any:
    """Returns a model that was read with a further language, as the last token.

    Its row of the embeddings is that of the similar language. Its logit has a bias of -1e9, so that
    the probabilities of all other tokens stay as they were.

    Args:
        read: a model that was read, see `read_model_folder`.
        addition: `Addition`.

    Raises:
        ValueError: if the model has no tokens of languages or has this language, the code is
            spelled otherwise than the model's, or the model lacks the similar language.
    """
    tokenizer, *_ = read.tokenizers
    like = _checked(addition, tokenizer.language_ids)
    like_id = tokenizer.language_ids[like]
    # As the family spells its tokens: `__ky__` for `ky`.
    token = tokenizer.vocabulary[like_id].replace(like, addition.language)
    new = tokenizer.with_language(addition.language, token)
    rows = read.arrays["Wemb"][[like_id]]
    config = replace(
        read.config,
        vocabulary_size=new.vocabulary_size,
        source_vocabulary_size=new.vocabulary_size,
        output_bias=True,
        added_tokens=len(rows),
    )
    return read._replace(config=config, arrays=_with_rows(read.arrays, rows), tokenizers=[new])


def _checked(addition, language_ids):
    """Returns the model's code of the similar language; raises if the addition cannot be made."""
    name, received = "`add_language` (`--add-language`)", f"add_language={addition.language!r}"
    if not language_ids:
        raise ValueError(
            f"{name} needs a model with tokens of languages, such as NLLB-200. Received: {received}"
        )
    like = find_language(addition.like, "like", language_ids)
    pattern = next(spelling for spelling in SPELLINGS if re.fullmatch(spelling, like))
    if not re.fullmatch(pattern, addition.language):
        raise ValueError(
            f"{name} must be spelled as the model's codes, {SPELLINGS[pattern]}, such as {like}. "
            f"Received: {received}"
        )
    if (same := closest_language(addition.language, language_ids, 0)) is not None:
        raise ValueError(
            f"{name} must be a language that the model lacks. Received: {received}, which it has "
            f"as {same!r}"
        )
    return like


def _with_rows(arrays, rows):
    """Returns the arrays of a model with further rows of the embeddings, whose logits are -1e9."""
    table = np.concatenate([arrays["Wemb"], rows])
    bias = np.zeros(len(table), "float32")
    bias[-len(rows) :] = EXCLUDED_LOGIT
    return arrays | {"Wemb": table, OUTPUT_BIAS: bias}
