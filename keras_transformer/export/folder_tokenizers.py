"""Writes the tokenizers of an exported folder, and plain Python that reads their pieces."""

import shutil
from pathlib import Path
from typing import TypeGuard

from keras_transformer.data import pieces
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.data.tokenizer_file import FUNCTIONS, JOINT, SIDES, write_tokenizer
from keras_transformer.data.tokenizer_like import TokenizerLike

CODE = "folder_tokenizer.py"  # for programs without this package


def has_file(tokenizer: TokenizerLike) -> TypeGuard[Tokenizer]:
    """Whether a file can hold a whole tokenizer; otherwise only a graph can."""
    return isinstance(tokenizer, Tokenizer) and tokenizer.kind != FUNCTIONS


def write_tokenizers(folder: Path, tokenizers: tuple[TokenizerLike, TokenizerLike]) -> None:
    """Writes the files of the tokenizers, and the code that reads pieces without this package.

    Args:
        folder: that of the model.
        tokenizers: `TokenizerLike` of source and target.
    """
    source, target = tokenizers
    sides = {JOINT: source} if source is target else dict(zip(SIDES, tokenizers, strict=True))
    for name, tokenizer in sides.items():
        if has_file(tokenizer):
            tokenizer.save(folder / name)
        else:
            write_tokenizer(folder / name, tokenizer)
    if any(map(has_file, tokenizers)):
        # Without its mode: the package may be installed read-only.
        shutil.copyfile(pieces.__file__, folder / CODE)
