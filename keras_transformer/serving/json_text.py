"""Text in JSON: a string, or bytes as `{"b64": ...}`, in base64."""

import base64
from typing import Any

from keras_transformer.serving.errors import RequestError


def is_base64(value: object) -> bool:
    """Whether a JSON value is text in base64."""
    return isinstance(value, dict) and value.keys() == {"b64"}


def decoded(value: Any) -> Any:
    """Returns the bytes of text in base64, and any other value as it is.

    Raises:
        RequestError: if it is not base64.
    """
    if not is_base64(value):
        return value
    try:
        return base64.b64decode(value["b64"], validate=True)
    except (TypeError, ValueError) as error:
        raise RequestError(400, "`b64` must be base64.", value["b64"]) from error
