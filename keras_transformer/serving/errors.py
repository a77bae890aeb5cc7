"""The error that a request ends with when the server cannot answer it."""

import reprlib


class RequestError(ValueError):
    """Raised to answer a request with an error.

    Args:
        status: int, the HTTP status: 4xx, or 503 with `Retry-After`.
        message: str for the client: what must hold, what to do.
        *received: a value of the client, which is added to the message. Optional.
    """

    def __init__(self, status: int, message: str, *received: object) -> None:
        super().__init__(" ".join([message, *(f"Received: {shown(value)}" for value in received)]))
        self.status = status


def shown(value: object) -> str:
    """Returns a value of the client for a message: short, and always valid UTF-8.

    Only the beginning of the value is read, because the value may be large or deeply nested.
    """
    text = _REPR.repr(value).encode("ascii", "backslashreplace").decode()
    return text if len(text) <= 80 else f"{text[:80]}..."


_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxlong = 80
_REPR.maxlist = _REPR.maxdict = 20
