"""What the server calls: a model with signatures, whatever engine computes them."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer import types
from keras_transformer.serving.errors import RequestError
from keras_transformer.serving.signature import NUMPY_TYPES, Signature

WARM_UP_WORDS = (1, 8, 32)


class Model:
    """Base class of models.

    Attributes:
        name: str, that of the model card, or of the folder.
        card: dict, the model card, empty if the folder has none.
        signatures: dict from names to `Signature`.
    """

    name: str
    card: dict[str, Any]
    signatures: dict[str, Signature]

    def signature(self, name: object) -> Signature:
        """Returns a signature.

        Raises:
            RequestError: if there is none of this name.
        """
        if not isinstance(name, str) or name not in self.signatures:
            must = f"The model has the signatures {sorted(self.signatures)}."
            raise RequestError(400, must, name)
        return self.signatures[name]

    def call(self, name: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Calls a signature.

        Args:
            name: str, of a signature.
            inputs: dict from names to arrays; options have one row for all lines, or are left out.

        Returns:
            dict from names to arrays, the lines on the first axis.

        Raises:
            RequestError: 400 if the model refuses the inputs, 503 if it fails, as for lack of
                memory.
        """
        raise NotImplementedError

    def warm_up(self) -> None:
        """Calls each signature with inputs of a few lengths: first calls are slow."""
        for name, signature in self.signatures.items():
            for words in WARM_UP_WORDS:
                inputs = {
                    key: _example(spec, words)
                    for key, spec in signature.inputs.items()
                    if key not in signature.defaults
                }
                self.call(name, inputs)


def read_card(folder: types.Path) -> dict[str, Any]:
    """Returns the model card of an exported folder, empty if it has none."""
    path = Path(folder) / "model_card.json"
    if not path.is_file():
        return {}
    # The server answers JSON, which has no NaN.
    return json.loads(path.read_text("utf-8-sig"), parse_constant=lambda name: None)


def _example(spec, words):
    value = b"a " * words if spec.dtype == "string" else 1
    return np.full([1, *[words] * (len(spec.shape) - 1)], value, NUMPY_TYPES[spec.dtype])
