"""What the protocols share: the body of a request, its client, and its way to the engine."""

import asyncio
import ipaddress
import json
from collections.abc import Hashable
from email import message_from_string
from email.message import Message
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request

from keras_transformer.serving.errors import RequestError, shown

MAX_FORM_FIELDS = 16  # besides the lines
MAX_HEAD_BYTES = 1_024  # of the headers of a field, because `email` reads them in quadratic time
UTF_8 = ("utf-8", "utf8", "us-ascii")


async def json_object(request: Request) -> dict[str, Any]:
    """Returns the body, a JSON object.

    Raises:
        RequestError: if it is too large or something else.
    """
    return _parsed(await _body(request))


def _parsed(body):
    try:
        value = json.loads(body, parse_constant=_refuse)
    except RecursionError as error:
        raise RequestError(400, "The body is JSON that is nested too deeply.") from error
    except ValueError as error:
        message = f"The body must be JSON: {error}. Received: {len(body)} bytes."
        raise RequestError(400, message) from error
    if not isinstance(value, dict):
        raise RequestError(400, "The body must be a JSON object.", value)
    return value


def _refuse(constant):
    raise ValueError(f"JSON has no {constant}")


async def json_or_form(request: Request) -> dict[str, Any]:
    """Returns the fields of the query and of the body, a JSON object or a form.

    A repeated `q` is a list. A field of the body replaces one of the query.

    Raises:
        RequestError: if it is too large, not UTF-8 or something else.
    """
    content = Message()
    content["content-type"] = request.headers.get("content-type") or "application/json"
    kind, charset = content.get_content_type(), content.get_content_charset("utf-8")
    if charset not in UTF_8:
        raise RequestError(415, "The body must be UTF-8.", charset)
    body, query = await _body(request), request.scope["query_string"]
    max_fields = request.app.state.engine.limits.max_lines + MAX_FORM_FIELDS
    fields = _form(query, max_fields)
    if kind == "multipart/form-data":
        boundary = content.get_boundary("").encode(errors="replace")
        return fields | await run_in_threadpool(_form, body, max_fields, boundary)
    # `curl -d` says that JSON is a form.
    if kind == "application/x-www-form-urlencoded" and not body.lstrip().startswith(b"{"):
        return fields | await run_in_threadpool(_form, body, max_fields)
    return fields if query and not body else fields | _parsed(body)


def _form(body, max_fields, boundary=None):
    """Reads a form with a boundary as multipart, else as URL-encoded."""
    parts = body.split(b"&") if boundary is None else _parts(body, boundary)
    if len(parts) > max_fields:
        message = f"A form may have at most {max_fields} fields. Send several requests."
        raise RequestError(413, message)
    fields = {}
    try:
        if boundary is None:
            pairs = parse_qsl(body.decode(), keep_blank_values=True, errors="strict")
        else:
            pairs = map(_field, parts)
        for name, value in pairs:
            fields.setdefault(name, []).append(value)
    except UnicodeDecodeError as error:
        wrong = error.object[error.start :][:9]
        raise RequestError(400, "The form must be UTF-8.", wrong) from error
    for name, values in fields.items():
        if len(values) > 1 and name != "q":
            message = f"{shown(name)} must be given once. Received: {len(values)} values"
            raise RequestError(400, message)
    return {name: values if len(values) > 1 else values[0] for name, values in fields.items()}


def _parts(body, boundary):
    """Splits a multipart form. Starlette's parser would read what is not UTF-8 as Latin-1."""
    _, *parts = (b"\r\n" + body).split(b"\r\n--" + boundary)
    if not boundary or not parts or not parts.pop().startswith(b"--"):
        message = "A multipart form must name its boundary and end with it."
        raise RequestError(400, f"{message} Received: {len(body)} bytes.")
    return parts


def _field(part):
    """Returns the name of a field, "None" if it has none, and its text."""
    head, _, text = part.partition(b"\r\n\r\n")
    headers = message_from_string(head[:MAX_HEAD_BYTES].decode("latin-1").lstrip())
    charset = headers.get_content_charset("utf-8")
    encoding = headers.get("content-transfer-encoding", "8bit").lower()
    if charset not in UTF_8 or encoding not in ("7bit", "8bit", "binary"):
        raise RequestError(415, "The fields of a form must be UTF-8.", f"{charset}, {encoding}")
    return str(headers.get_param("name", header="content-disposition")), text.decode()


async def _body(request):
    limits = request.app.state.engine.limits
    try:
        async with asyncio.timeout(limits.max_receive_seconds):
            return await _received(request, limits.max_body_bytes)
    except TimeoutError as error:
        message = f"The body must arrive within {limits.max_receive_seconds} s. Try again."
        raise RequestError(408, message) from error


async def _received(request, limit):
    kept, received = [], 0
    async for chunk in request.stream():
        received += len(chunk)
        # The rest is read too: a client that is still sending when the connection closes does not
        # see the answer.
        if received <= limit:
            kept.append(chunk)
    if received > limit:
        must = f"The body may have at most {limit} bytes. Received: {received}."
        raise RequestError(413, f"{must} Send the lines in several requests.")
    return b"".join(kept)


async def run(request: Request, name: str, values: dict[str, Any]) -> dict[str, np.ndarray]:
    """Returns what `Engine.run` does, unless the client closes the connection before.

    Raises:
        RequestError: as `Engine.run`.
        ClientDisconnect: if nobody waits for the answer; the model does not run the lines.
    """
    client = client_of(request.client.host) if request.client else None
    work = asyncio.create_task(request.app.state.engine.run(name, values, client))
    gone = asyncio.create_task(_client_is_gone(request))
    try:
        await asyncio.wait([work, gone], return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientDisconnect
        return await work
    finally:
        work.cancel()
        gone.cancel()


async def _client_is_gone(request):
    while (await request.receive())["type"] != "http.disconnect":
        pass


def client_of(host: str) -> Hashable:
    """Returns what counts as a client: an address of IPv4, or 2^64 addresses of IPv6.

    A user of IPv6 has so many, and could use another one for each request.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:  # a socket of Unix has none, and a proxy may send a name
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return address
    return address.ipv4_mapped or address.packed[:8]
