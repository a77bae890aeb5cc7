"""Adds a language to a model that is imported: its tokens, and their embeddings."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np

from keras_transformer.data.added_pieces import learn_pieces, split_pieces
from keras_transformer.data.corpus import read_lines
from keras_transformer.data.language_codes import closest_language, find_language
from keras_transformer.importing.family import ForeignModel
from keras_transformer.importing.marian import OUTPUT_BIAS
from keras_transformer.training.losses import EXCLUDED_LOGIT

NUM_PIECES = 2000
# How families of models spell the codes of languages: {regular expression: in words}.
SPELLINGS = {
    r"[a-z]{3}_[A-Z][a-z]{3}": "three letters of ISO 639-3, `_`, and four letters of the script",
    r"[a-z]{2,3}": "two or three letters of ISO 639",
}


@dataclass(frozen=True)
class Addition:
    """A language that is added to a model.

    Args:
        language: its code, spelled as the model's codes.
        like: code of a language of the model, whose embedding is copied.
        text: path of a file in the new language, to learn pieces from; `None`: no new pieces.
        num_pieces: maximum number of new pieces.
    """

    language: str
    like: str
    text: Path | None
    num_pieces: int

    @classmethod
    def of_arguments(
        cls,
        add_language: str | None,
        like: str | None,
        add_pieces: Path | None,
        num_pieces: int | None,
    ) -> Self | None:
        """Returns what the arguments of `import_model` ask for; `None` if nothing.

        Raises a `ValueError` if an argument is given without the others that it needs.
        """
        if num_pieces is not None and (add_pieces is None or num_pieces < 1):
            raise ValueError(
                "`num_pieces` (`--num-pieces`) must be at least 1, and given with `add_pieces`. "
                f"Received: {num_pieces=}, {add_pieces=}"
            )
        if add_pieces is not None and add_language is None:
            raise ValueError(
                "`add_pieces` (`--add-pieces`) must be given with `add_language`, the language of "
                f"the text. Received: add_pieces={str(add_pieces)!r}"
            )
        if add_language is None and like is None:
            return None
        if add_language is None or like is None:
            raise ValueError(
                "`add_language` and `like` (`--add-language`, `--like`) must be given together: "
                "the new language starts as a copy of another one. Received: "
                f"{add_language=}, {like=}"
            )
        return cls(add_language, like, add_pieces, num_pieces or NUM_PIECES)


def add_to(model: ForeignModel, addition: Addition) -> ForeignModel:
    """Returns an imported model with one more language: its token, then new pieces, if any.

    The embedding of the token is a copy of that of the similar language. The embedding of a piece
    is the mean over the old pieces that its text was split into. The logits of both have a bias of
    -1e9, so that the probabilities of all other tokens stay as they were.

    Args:
        model: the imported model, see `read_model_folder`.
        addition: `Addition`.

    Raises:
        ValueError: if the model has no tokens of languages, already has this language, lacks the
            similar one, or spells codes differently; or if the text gives no new pieces.
        FileNotFoundError, CorpusError: if the text cannot be read.
    """
    tokenizer, *_ = model.tokenizers
    like = _checked(addition, tokenizer.language_ids)
    like_id = tokenizer.language_ids[like]
    # As the family spells its tokens: `__ky__` for `ky`.
    token = tokenizer.vocabulary[like_id].replace(like, addition.language)
    pieces = [] if addition.text is None else _learned(tokenizer, addition)
    new_tokenizer = tokenizer.with_language(addition.language, token, pieces)
    ids = [[like_id], *_ids_before(tokenizer, pieces)]
    config = replace(
        model.config,
        vocabulary_size=new_tokenizer.vocabulary_size,
        source_vocabulary_size=new_tokenizer.vocabulary_size,
        output_bias=True,
        added_tokens=len(ids),
    )
    arrays = _with_rows(model.arrays, ids)
    notes = [*model.notes]
    if pieces:
        notes.append(f"{len(pieces):,} pieces are added for {addition.language}")
    return model._replace(config=config, arrays=arrays, tokenizers=[new_tokenizer], notes=notes)


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
    if (known_code := closest_language(addition.language, language_ids, 0)) is not None:
        raise ValueError(
            f"{name} must be a language that the model lacks. Received: {received}, which it has "
            f"as {known_code!r}"
        )
    return like


def _learned(tokenizer, addition):
    """Returns the pieces that the text gives and the model lacks."""
    lines = read_lines(addition.text)
    pieces = learn_pieces(tokenizer.pieces, lines, addition.num_pieces, tokenizer.vocabulary)
    if not pieces:
        raise ValueError(
            "`add_pieces` (`--add-pieces`) must be text with pieces that the model lacks. "
            f"Received: add_pieces={str(addition.text)!r}. Give more text, or leave it out"
        )
    return pieces


def _ids_before(tokenizer, pieces):
    """Returns, for each new piece, the ids of the old pieces that its text is split into."""
    ids = {token: token_id for token_id, token in enumerate(tokenizer.vocabulary) if token}
    names, unknown = tokenizer.pieces.names(), tokenizer.unk_token_id
    rows = split_pieces(tokenizer.pieces, pieces) if pieces else []
    return [[ids.get(names[number], unknown) for number in row] for row in rows]


def _with_rows(arrays, ids_of_rows):
    """Returns the arrays of a model with more embeddings, and a bias of -1e9 for their logits.

    Args:
        arrays: those of `ForeignModel`.
        ids_of_rows: for each new embedding, the ids of the old ones whose mean it is.
    """
    table = arrays["Wemb"]
    rows = np.array([table[ids].mean(axis=0, dtype="float32") for ids in ids_of_rows])
    bias = np.zeros(len(table) + len(rows), "float32")
    bias[-len(rows) :] = EXCLUDED_LOGIT
    # A list of parts, so that the memory-mapped table is not copied.
    return arrays | {"Wemb": [table, rows], OUTPUT_BIAS: bias}
