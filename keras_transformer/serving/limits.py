"""Limits of one request, and of all waiting requests together.

Does not import NumPy, so that `--help` is fast.
"""

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING

from keras_transformer.serving.errors import RequestError
from keras_transformer.settings import Settings, setting

if TYPE_CHECKING:
    from keras_transformer.decoding.request import Request

# A line may have this many times `max_line_chars` characters before it is split into sentences.
LONGEST_PARAGRAPH = 8


@dataclasses.dataclass(frozen=True)
class Limits(Settings):
    """Limits of a server."""

    max_queue: int = setting(
        1_024, "Maximum lines that wait, of all requests; more get status 503.", at_least=1
    )
    max_lines: int = setting(128, "Maximum lines in a request.", at_least=1)
    max_line_chars: int = setting(2_000, "Maximum characters in a line.", at_least=1)
    max_body_bytes: int = setting(2**20, "Maximum bytes in the body of a request.", at_least=1)
    max_receive_seconds: int = setting(
        10, "Seconds in which the body of a request must arrive.", at_least=1
    )
    timeout: int = setting(
        50,  # less than the 60 s of most proxies
        "Seconds in which the model must answer a request, or it gets status 503.",
        at_least=1,
    )
    keep_alive: int = setting(
        75, "Seconds for which a connection stays open without a request.", at_least=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_queue < 2 * self.max_lines:
            raise ValueError(
                "`max_queue` must be at least twice `max_lines`: a client may have half of the "
                f"queue. Received: max_queue={self.max_queue}, max_lines={self.max_lines}"
            )

    def check_lines(self, lines: int) -> None:
        """Raises `RequestError` if a request has too many lines."""
        if lines > self.max_lines:
            must = f"A request may have at most {self.max_lines} lines. Received: {lines}."
            counted = "In /translate, sentences and the texts around protected text count as lines."
            raise RequestError(413, f"{must} {counted} Send several requests.")

    def check_texts(self, lines: list[str]) -> None:
        """Raises `RequestError` if lines are too large to be read: tokenized, split, protected.

        Reading takes time in proportion to the characters, and other requests wait meanwhile.
        """
        self.check_lines(len(lines))
        longest, total = max(map(len, lines), default=0), sum(map(len, lines))
        max_longest = LONGEST_PARAGRAPH * self.max_line_chars
        max_total = self.max_lines * self.max_line_chars
        if longest > max_longest or total > max_total:
            must = f"A line may have at most {max_longest} characters before it is split into "
            must += f"sentences, all lines together {max_total}."
            received = f"Received: a line of {longest}, together {total}."
            raise RequestError(413, f"{must} {received} Send several requests.")

    def check_longest(self, lengths: Iterable[int]) -> None:
        """Raises `RequestError` if a line that is translated as a whole is too long.

        Args:
            lengths: the characters of each line and of its prefix together.
        """
        longest = max(lengths, default=0)
        if longest > self.max_line_chars:
            must = f"A line with its prefix may have at most {self.max_line_chars} characters."
            cure = "Send its sentences as lines."
            raise RequestError(413, f"{must} Received: a line of {longest}. {cure}")

    def check_request(self, request: "Request") -> None:
        """Raises `RequestError` if the parts of the lines are too many, or one is too long.

        The tag of a language, which the server puts in front of a line, does not count.
        """
        from keras_transformer.decoding.languages import split_tag  # imports NumPy

        has_tags = bool(request.reader.languages)
        prefixes = request.prefixes or [""] * len(request.lines)
        lengths = []
        for line, prefix in zip(request.lines, prefixes, strict=True):
            for part in line.parts:
                text = split_tag(part.text)[1].removeprefix(" ") if has_tags else part.text
                lengths.append(len(text) + len(prefix))
        self.check_lines(len(lengths))
        self.check_longest(lengths)

    def check_square(self, lines: int, longest: int) -> None:
        """Raises `RequestError` if an answer that is padded on two axes would be too large."""
        if lines * longest > self.max_line_chars:
            must = f"The number of lines times the longest may be at most {self.max_line_chars}."
            received = f"Received: {lines} * {longest}. Send fewer lines in a request."
            raise RequestError(413, f"{must} {received}")
