"""What the protocols share: the body of a request, and its way to the engine."""

import asyncio
import json
from email.message import Message
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request

from keras_transformer.serving.connection import client_of
from keras_transformer.serving.errors import RequestError, shown

# At most this much of a body that is too large is read and discarded: a client that is still
# sending when the connection closes does not see the answer.
MAX_DISCARDED_BYTES = 64 * 2**20
MAX_FORM_FIELDS = 16  # besides the lines


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
    """Returns the body, a JSON object or the fields of a form; a repeated `q` is a list."""
    content = Message()
    content["content-type"] = request.headers.get("content-type") or "application/json"
    kind, charset = content.get_content_type(), content.get_content_charset("utf-8")
    if kind == "multipart/form-data":
        message = "Send JSON, or a form as `application/x-www-form-urlencoded`."
        raise RequestError(415, f"{message} Received: multipart.")
    if charset not in ("utf-8", "utf8", "us-ascii"):
        raise RequestError(415, "The body must be UTF-8.", charset)
    body = await _body(request)
    # `curl -d` says that JSON is a form.
    if kind != "application/x-www-form-urlencoded" or body.lstrip().startswith(b"{"):
        return _parsed(body)
    max_fields = request.app.state.engine.limits.max_lines + MAX_FORM_FIELDS
    return await run_in_threadpool(_form, body, max_fields)


def _form(body, max_fields):
    options = {"keep_blank_values": True, "errors": "strict", "max_num_fields": max_fields}
    try:
        pairs = parse_qsl(body.decode(), **options)
    except UnicodeDecodeError as error:
        wrong = error.object[error.start :][:9]
        raise RequestError(400, "The form must be UTF-8.", wrong) from error
    except ValueError as error:
        message = f"A form may have at most {max_fields} fields. Send several requests."
        raise RequestError(413, message) from error
    fields = {}
    for name, value in pairs:
        fields.setdefault(name, []).append(value)
    for name, values in fields.items():
        if len(values) > 1 and name != "q":
            message = f"{shown(name)} must be given once. Received: {len(values)} values"
            raise RequestError(400, message)
    return {name: values if len(values) > 1 else values[0] for name, values in fields.items()}


async def _body(request):
    limit = request.app.state.engine.limits.max_body_bytes
    kept, received = [], 0
    async for chunk in request.stream():
        received += len(chunk)
        if received <= limit:
            kept.append(chunk)
        elif received > limit + MAX_DISCARDED_BYTES:
            break
    if received > limit:
        raise RequestError(
            413,
            f"The body may have at most {limit} bytes. Received: {received} or more. "
            "Send the lines in several requests.",
        )
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
