"""The file of a tokenizer: JSON, and a SentencePiece model beside it, as `*.spm`.

Reads the files of earlier versions too.
"""

import codecs
import hashlib
import json
import operator
import pathlib
from typing import Any

from keras_transformer.atomic_file import atomic_path, write_text
from keras_transformer.data.pieces import SYMBOL_KINDS, model_file, pieces_of
from keras_transformer.data.symbol_parts import symbol_parts
from keras_transformer.data.tokenizer_like import TokenizerLike
from keras_transformer.data.vocabulary import SPECIAL, Vocabulary
from keras_transformer.types import Path

FORMAT = 1
FUNCTIONS = "functions"  # kind of a tokenizer whose pieces are `FunctionPieces`: it has no file
IN_GRAPH = "graph"  # kind of a tokenizer that exists only in the graph of a SavedModel
# The names of the files in a folder: one for both sides, or one for each.
JOINT, SIDES = "tokenizer.json", ("source.json", "target.json")


def write_tokenizer(path: Path, tokenizer: TokenizerLike, pieces: Any = None) -> None:
    """Writes the file of a tokenizer atomically, after its model. Creates missing folders.

    Args:
        path: path of the JSON file.
        tokenizer: `TokenizerLike`.
        pieces: the pieces of a `Tokenizer`. `None`: the file describes the vocabulary alone, and
            cannot encode text.

    Raises:
        FileExistsError: if the model would replace that of another tokenizer.
        ValueError: if `path` is that of a SentencePiece model, `*.spm`.
    """
    path = pathlib.Path(path)
    if path.suffix == model_file(path).suffix:
        raise ValueError(f"`path` must be the path of a JSON file. Received: path={str(path)!r}")
    path.parent.mkdir(parents=True, exist_ok=True)
    model = None if pieces is None else pieces.model_bytes or None
    if model is not None:
        _require_no_other_model(path, model)
        with atomic_path(model_file(path), unique=True) as partial:
            partial.write_bytes(model)
    entries: dict[str, Any] = {
        "format": FORMAT,
        "kind": IN_GRAPH if pieces is None else pieces.kind,
        "model": None if model is None else hashlib.sha256(model).hexdigest(),
        "rules": {} if pieces is None else pieces.rules,
        **{name: _plain(getattr(tokenizer, name)) for name in SPECIAL},
        "languages": [*tokenizer.languages],
        "language_ids": {code: _plain(i) for code, i in tokenizer.language_ids.items()},
        "tag": tokenizer.tag,
        "learned_from": tokenizer.learned_from,
        "vocabulary": [*tokenizer.vocabulary],
    }
    if pieces is None:  # pieces have these by themselves
        entries |= {"joiner": tokenizer.joiner, "tag_ids": [*map(_plain, tokenizer.tag_ids)]}
    write_text(path, json.dumps(entries, ensure_ascii=False, indent=0) + "\n", unique=True)


def _plain(token_id):
    """Returns an id, which may be a number of NumPy, as one of Python; `None` stays `None`."""
    return None if token_id is None else operator.index(token_id)


def _require_no_other_model(path, model):
    """Raises an error if `path` is a new file, and another model has the name of its model."""
    file = model_file(path)
    if file.is_file() and not path.exists() and file.read_bytes() != model:
        raise FileExistsError(
            "`path` must have a name of its own in front of its ending: the model beside it would "
            f"replace that of another tokenizer. Received: path={str(path)!r}, and {str(file)!r} "
            f"exists. Choose another name, or move {file.name}"
        )


def read_tokenizer(path: Path) -> tuple[Any, Vocabulary, str | None]:
    """Returns the pieces, the vocabulary and the tag of a tokenizer's file.

    Raises:
        FileNotFoundError: if the file, or the `*.spm` file beside it that it needs, does not exist.
        ValueError: if it is not the file of a tokenizer.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"`path` must be an existing file. Received: path={str(path)!r}")
    if path.read_bytes().removeprefix(codecs.BOM_UTF8).lstrip()[:1] != b"{":
        return *_read_old_model(path), None
    entries = read_entries(path)
    try:
        if "format" not in entries:  # written by hand, or by an earlier version
            kind, symbols = _symbol_kind(entries), entries["symbols"]
            return *symbol_parts(kind, symbols, entries["normalization"]), None
        pieces = pieces_of(entries, path)
        return pieces, vocabulary_of(entries), entries["tag"]
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"{path} must be the file of a tokenizer that `save` wrote, or JSON with `kind` "
            f"(characters or words), `normalization` and `symbols`, a list of texts. {error}"
        ) from None


def read_entries(path: Path) -> dict[str, Any]:
    """Returns what the JSON file of a tokenizer holds; raises a `ValueError` if it is damaged."""
    try:
        entries = json.loads(pathlib.Path(path).read_text("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} must be the file of a tokenizer. {error}") from None
    if not isinstance(entries, dict):
        raise ValueError(f"{path} must be the file of a tokenizer: a JSON object.")
    if entries.get("format", FORMAT) != FORMAT:
        must = f"{path} must be the file of a tokenizer of format {FORMAT}"
        raise ValueError(f"{must}. Received: format {entries['format']}, of a later version")
    return entries


def vocabulary_of(entries: dict[str, Any]) -> Vocabulary:
    """Returns the vocabulary that the entries of a tokenizer's file describe."""
    names = (*SPECIAL, "languages", "learned_from")
    return Vocabulary(
        entries["vocabulary"],
        **{name: entries[name] for name in names},
        language_ids=entries.get("language_ids", {}),  # files of earlier versions have none
    )


def exported_paths(folder: Path) -> list[pathlib.Path]:
    """Returns the paths of the tokenizers in an exported folder: a joint one, or two.

    Raises a `FileNotFoundError` if they are missing.
    """
    joint, *sides = (pathlib.Path(folder, name) for name in (JOINT, *SIDES))
    if joint.is_file():
        return [joint]
    if missing := [path.name for path in sides if not path.is_file()]:
        raise FileNotFoundError(
            f"`folder` must hold {JOINT}, or {' and '.join(SIDES)}. Only tokenizers of "
            "SentencePiece models and of symbols are exported as files. Received: "
            f"{str(folder)!r} without {missing[0]}"
        )
    return sides


def file_names(path: Path) -> list[str]:
    """Returns the names of all files that a tokenizer may have, whether they exist or not."""
    path = pathlib.Path(path)
    return [path.name, model_file(path).name, _old_vocabulary(path).name]


def _symbol_kind(entries):
    """Returns the kind of a file of symbols.

    The error for another kind has only what was received: `read_tokenizer` adds what must hold.
    """
    kind = entries["kind"]
    if kind not in SYMBOL_KINDS:
        raise ValueError(f"Received: kind={kind!r}")
    return kind


def _read_old_model(path):
    """Reads a tokenizer of an earlier version: a SentencePiece model, or two files of Marian."""
    from keras_transformer.data.sentencepiece_parts import (
        marian_parts,
        read_vocabulary,
        subword_parts,
    )

    vocabulary = _old_vocabulary(path)
    if vocabulary.is_file():
        return marian_parts(path, read_vocabulary(vocabulary))
    return subword_parts(path)


def _old_vocabulary(path):
    return path.with_suffix(".vocabulary.json")
