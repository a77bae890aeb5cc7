"""What the protocols share: bodies of requests, answers with errors."""

import asyncio
import json
from email.message import Message
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse

from keras_transformer.serving.errors import RETRY_SECONDS, RequestError, shown

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
        raise RequestError(
            400, f"The body must be JSON: {error}. Received: {len(body)} bytes."
        ) from error
    if not isinstance(value, dict):
        raise RequestError(400, f"The body must be a JSON object. Received: {shown(value)}")
    return value


async def json_or_form(request: Request) -> dict[str, Any]:
    """Returns the body, a JSON object or the fields of a form; a repeated `q` is a list."""
    content = Message()
    content["content-type"] = request.headers.get("content-type") or "application/json"
    kind, charset = content.get_content_type(), content.get_content_charset("utf-8")
    if kind == "multipart/form-data":
        raise RequestError(
            415, "Send JSON, or a form as `application/x-www-form-urlencoded`. Received: multipart."
        )
    if charset not in ("utf-8", "utf8", "us-ascii"):
        raise RequestError(415, f"The body must be UTF-8. Received: {shown(charset)}")
    if kind != "application/x-www-form-urlencoded":
        return await json_object(request)
    body = await _body(request)
    if body.lstrip().startswith(b"{"):  # `curl -d` says that JSON is a form
        return _parsed(body)
    most_fields = request.app.state.engine.limits.max_lines + MAX_FORM_FIELDS
    return await run_in_threadpool(_form, body, most_fields)


def _form(body, most_fields):
    try:
        pairs = parse_qsl(
            body.decode(), keep_blank_values=True, errors="strict", max_num_fields=most_fields
        )
    except UnicodeDecodeError as error:
        raise RequestError(
            400, f"The form must be UTF-8. Received: {shown(error.object[error.start :][:9])}"
        ) from error
    except ValueError as error:
        raise RequestError(
            413, f"A form may have at most {most_fields} fields. Send several requests."
        ) from error
    fields = {}
    for name, value in pairs:
        fields.setdefault(name, []).append(value)
    for name, values in fields.items():
        if len(values) == 1:
            fields[name] = values[0]
        elif name != "q":
            raise RequestError(
                400, f"{shown(name)} must be given once. Received: {len(values)} values"
            )
    return fields


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


def _refuse(constant):
    raise ValueError(f"JSON has no {constant}")


async def run(request: Request, name: str, values: dict[str, Any]) -> dict[str, np.ndarray]:
    """Returns what `Engine.run` does, unless the client closes the connection before.

    Raises:
        RequestError: as `Engine.run`.
        ClientDisconnect: if nobody waits for the answer; the model does not run the lines.
    """
    work = asyncio.create_task(request.app.state.engine.run(name, values))
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


def error_response(status: int, message: str) -> JSONResponse:
    """Returns an error in the form that both protocols have."""
    headers = {"Retry-After": str(RETRY_SECONDS)} if status == 503 else None
    return JSONResponse({"error": message}, status, headers)
