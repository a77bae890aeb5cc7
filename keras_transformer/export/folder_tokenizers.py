"""Writes the tokenizers of an exported folder, which are read without Keras and TensorFlow."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

from keras_transformer.data import piece_tokenizer
from keras_transformer.data.tokenizer_like import Traits


def write_tokenizers(folder: Path, tokenizers: tuple[Any, Any]) -> bool:
    """Writes what `FolderTokenizer` reads, and its code, if the tokenizers are plain Python.

    Args:
        folder: that of the model.
        tokenizers: `TokenizerLike` of source and target.

    Returns:
        whether they are: SentencePiece models or symbols. Others are not written.
    """
    if not all(Traits.of(each).rules for each in tokenizers):
        return False
    rules = {}
    for side, tokenizer in zip(("source", "target"), tokenizers, strict=True):
        rules[side] = tokenizer.rules
        if tokenizer.model_bytes:
            (folder / f"{side}.spm").write_bytes(tokenizer.model_bytes)
    (folder / piece_tokenizer.SETTINGS_FILE).write_text(json.dumps(rules, indent=2), "utf-8")
    shutil.copy(piece_tokenizer.__file__, folder / "folder_tokenizer.py")
    return True


def write_vocabularies(folder: Path, tokenizers: tuple[Any, Any]) -> None:
    """Writes the tokens of both sides in the order of their ids, as CTranslate2 does."""
    source, target = tokenizers
    is_shared = source is target
    sides = {"shared": source} if is_shared else {"source": source, "target": target}
    for side, tokenizer in sides.items():
        text = json.dumps(distinct_tokens(tokenizer), ensure_ascii=False, indent=2)
        (folder / f"{side}_vocabulary.json").write_text(text, "utf-8")


def distinct_tokens(tokenizer: Any) -> list[str]:
    """Returns a different string for each token id."""
    counts = Counter(tokenizer.vocabulary)
    tokens = enumerate(tokenizer.vocabulary)
    return [token if counts[token] == 1 else f"<id {index}>" for index, token in tokens]
