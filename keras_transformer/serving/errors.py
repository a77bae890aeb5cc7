"""The error that a request ends with when the server cannot answer it."""

import reprlib

RETRY_SECONDS = 1


class RequestError(Exception):
    """An answer other than 200.

    Args:
        status: int, the HTTP status: 4xx, or 503 with `Retry-After`.
        message: str for the client: what must hold, what was received, what to do.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def shown(value: object) -> str:
    """Returns a value of the client for a message: short, and always valid UTF-8.

    It looks at the beginning of a value only, which may be large or nested deeply.
    """
    text = _REPR.repr(value).encode("ascii", "backslashreplace").decode()
    return text if len(text) <= 80 else f"{text[:80]}..."


_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxlong = 80
_REPR.maxlist = _REPR.maxdict = 20
