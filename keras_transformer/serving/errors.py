"""The error that a request ends with when the server cannot answer it."""

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
    """Returns a value of the client for a message: short, and always valid UTF-8."""
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
