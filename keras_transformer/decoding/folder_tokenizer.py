"""The tokenizers of an exported folder, with the ids of its vocabularies; in plain Python."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.data.piece_tokenizer import FolderTokenizer
from keras_transformer.data.tokenizer_like import Traits


class IdTokenizer(FolderTokenizer):
    """`TokenizerLike` of one side of an exported folder.

    Args:
        folder: `pathlib.Path`, with `tokenizers.json` and the vocabularies.
        side: `"source"` or `"target"`.
        config: special token ids, as in `TransformerConfig`, and `languages`, the codes that the
            model has tags for.

    Raises:
        ImportError: if `sentencepiece` is not installed, and needed.
        OSError: if the folder does not have the tokenizer.
    """

    def __init__(self, folder: Path, side: str, config: Any) -> None:
        super().__init__(folder, side)
        self.vocabulary = read_vocabulary(folder, side)
        self.vocabulary_size = len(self.vocabulary)
        self.languages = config.languages
        self._ids = {token: token_id for token_id, token in enumerate(self.vocabulary)}
        self._unk_token_id = config.unk_token_id
        special = config.pad_token_id, config.start_token_id, config.end_token_id
        self.pieces.dropped |= {self.vocabulary[token_id] for token_id in special}
        traits = Traits.of(self.pieces)
        self.tag, self.unknown, self.joiner = traits.tag, traits.unknown, traits.joiner
        tags = [f">>{code}<<" for code in self.languages]
        if traits.tag is not None:
            tags.append(traits.tag)
        self.is_tag = {self._ids[tag] for tag in tags}.__contains__

    def ids_of(self, tokens: list[str]) -> list[int]:
        """Returns the ids of tokens."""
        get, unk = self._ids.get, self._unk_token_id
        return [get(token, unk) for token in tokens]

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Returns the token ids of texts, without end tokens."""
        return [self.ids_of(row) for row in super().encode(texts)]

    def decode(self, rows: Any) -> list[str]:
        """Returns the texts of token ids `(B, T)`, a padded array or a list of lists."""
        rows = rows.tolist() if isinstance(rows, np.ndarray) else rows
        return self.pieces.decode([[self.vocabulary[i] for i in row] for row in rows])


def read_vocabulary(folder: Path, side: str) -> list[str]:
    """Returns the tokens of one side of a folder, in the order of their ids."""
    paths = (folder / f"{name}_vocabulary.json" for name in (side, "shared"))
    return json.loads(next(filter(Path.is_file, paths)).read_text("utf-8"))
