"""The tokenizers of an exported model, in plain Python: no TensorFlow, no Keras.

`export_ctranslate2` copies this file into its folder, so it imports nothing of this package. It
needs `sentencepiece`.
"""

import json
import pathlib
import re
import unicodedata

SETTINGS_FILE = "tokenizers.json"
SPACE_SYMBOL = "\u2581"
# The tag of a language at the beginning of a text, such as `>>fra<<`.
_TAG = re.compile(r">>.*?<<", re.DOTALL)


class FolderTokenizer:
    """The tokenizer of one side of an exported model: the pieces that its model was trained with.

    Args:
        folder: path of the folder.
        side: `"source"` or `"target"`.

    Raises:
        ImportError: if `sentencepiece` is not installed.
        OSError: if the folder does not have the tokenizer.
    """

    def __init__(self, folder: "str | pathlib.Path", side: str) -> None:
        import sentencepiece

        folder = pathlib.Path(folder)
        settings = json.loads((folder / SETTINGS_FILE).read_text("utf-8"))[side]
        self._normalization = settings["normalization"]
        self._has_tags = settings["has_tags"]
        self._has_other_pieces = settings["has_other_pieces"]
        self._dropped = set(settings["dropped_pieces"])
        model = str(folder / f"{side}.spm")
        self._processor = sentencepiece.SentencePieceProcessor(model_file=model)

    def encode(self, text: str) -> list[str]:
        """Returns the pieces of a text, without an end token; none for a text without words."""
        tag = _TAG.match(text) if self._has_tags else None
        if tag is not None:
            return [tag[0], *self._processor.encode(text[tag.end() :], out_type=str)]
        return self._processor.encode(self._normalized(text), out_type=str)

    def decode(self, pieces: list[str]) -> str:
        """Returns the text of pieces, such as those of a translation."""
        text = self._processor.decode([piece for piece in pieces if piece not in self._dropped])
        if self._normalization == "identity":
            return text.removeprefix(" ")
        if self._has_other_pieces:  # SentencePiece leaves their symbols of spaces
            return text.replace(SPACE_SYMBOL, " ").strip()
        return text

    def _normalized(self, text):
        if self._normalization is None:  # the SentencePiece model does it
            return text
        if self._normalization == "identity":
            return text and f" {text}"
        text = unicodedata.normalize(self._normalization.upper(), text)
        return " ".join(text.replace(SPACE_SYMBOL, " ").split())
