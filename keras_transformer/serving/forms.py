"""Forms in UTF-8, URL-encoded or multipart."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header

from keras_transformer.serving.errors import RequestError, shown

MAX_HEADER_BYTES = 1_024  # of a header of a field
UTF_8 = ("utf-8", "utf8", "us-ascii")


def charset_of(options: Mapping[bytes, bytes]) -> str:
    """Returns the charset among the options of a content type; UTF-8 if there is none."""
    return options.get(b"charset", b"utf-8").decode("latin-1").lower()


def read_form(body: bytes, max_fields: int, boundary: bytes | None = None) -> dict[str, Any]:
    """Returns the fields of a form: texts, and a list of texts if there are several `q`.

    Args:
        body: bytes of the form, or of a query.
        max_fields: int, the maximum number of fields.
        boundary: bytes between the fields of a multipart form, as its content type names them.
            `None` reads the body as URL-encoded.

    Raises:
        RequestError: if it has too many fields, repeats one other than `q`, is not UTF-8 or not a
            form.
    """
    fields: dict[str, list[str]] = {}
    try:
        if boundary is None:
            pairs = _url_encoded(body, max_fields)
        else:
            pairs = _multipart(body, max_fields, boundary)
        for name, text in pairs:
            fields.setdefault(name, []).append(text)
    except UnicodeDecodeError as error:
        invalid = error.object[error.start :][:9]
        raise RequestError(400, "The form must be UTF-8.", invalid) from error
    for name, texts in fields.items():
        if len(texts) > 1 and name != "q":
            message = f"{shown(name)} must be given once. Received: {len(texts)} values"
            raise RequestError(400, message)
    return {name: texts if len(texts) > 1 else texts[0] for name, texts in fields.items()}


def _url_encoded(body, max_fields):
    if body.count(b"&") >= max_fields:
        raise _too_many(max_fields)
    return parse_qsl(body.decode(), keep_blank_values=True, errors="strict")


def _multipart(body, max_fields, boundary):
    """Yields the name and the text of each field; the name is empty if the field has none."""
    if not boundary:
        raise RequestError(400, "The content type of a multipart form must name its boundary.")
    form = _MultipartForm(max_fields)
    try:
        parser = MultipartParser(boundary, form.callbacks(), max_header_size=MAX_HEADER_BYTES)
        parser.write(body)
    except FormParserError as error:
        raise RequestError(400, f"The body must be a multipart form: {error}.") from error
    if not form.is_complete:
        message = f"A multipart form must end with its boundary. Received: {len(body)} bytes."
        raise RequestError(400, message)
    for headers, content in form.parts:
        _, options = parse_options_header(headers.get("content-type"))
        charset = charset_of(options)
        encoding = headers.get("content-transfer-encoding", "8bit").lower()
        if charset not in UTF_8 or encoding not in ("7bit", "8bit", "binary"):
            received = f"{charset}, {encoding}"
            raise RequestError(415, "The fields of a form must be UTF-8.", received)
        _, options = parse_options_header(headers.get("content-disposition"))
        yield options.get(b"name", b"").decode(), bytes(content).decode()


class _MultipartForm:
    """Collects the parts of a multipart form: the headers and the content of each.

    Starlette's `request.form()` would read what is not UTF-8 as Latin-1.
    """

    def __init__(self, max_parts):
        self.parts = []
        self.is_complete = False  # whether the last boundary was read
        self._max_parts = max_parts
        self._name, self._value = bytearray(), bytearray()  # of the header that is being read

    def callbacks(self):
        return {
            "on_part_begin": self._begin,
            "on_header_field": lambda data, start, end: self._name.extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._value.extend(data[start:end]),
            "on_header_end": self._end_header,
            "on_part_data": lambda data, start, end: self.parts[-1][1].extend(data[start:end]),
            "on_end": self._end,
        }

    def _begin(self):
        if len(self.parts) == self._max_parts:
            raise _too_many(self._max_parts)
        self.parts.append(({}, bytearray()))

    def _end_header(self):
        headers, _ = self.parts[-1]
        headers[self._name.decode("latin-1").lower()] = self._value.decode("latin-1").strip()
        self._name.clear()
        self._value.clear()

    def _end(self):
        self.is_complete = True


def _too_many(max_fields):
    message = f"A form may have at most {max_fields} fields. Send several requests."
    return RequestError(413, message)
