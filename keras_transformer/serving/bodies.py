"""What the protocols share: bodies of requests, the name of the model, answers with errors."""

import json
from typing import Any
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import JSONResponse

from keras_transformer.serving.errors import RETRY_SECONDS, RequestError, shown

# Of a body that is too large, so much is read and forgotten: a client that still sends when the
# connection is closed does not see the answer.
MAX_FORGOTTEN_BYTES = 64 * 2**20


async def json_object(request: Request) -> dict[str, Any]:
    """Returns the body, a JSON object.

    Raises:
        RequestError: if it is too large or something else.
    """
    body = await _body(request)
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
    """Returns the body, a JSON object or the fields of a form."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type == "application/x-www-form-urlencoded":
        body = await _body(request)
        fields = parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True)
        return dict(fields)
    if content_type == "multipart/form-data":
        raise RequestError(
            415, "Send JSON, or a form as `application/x-www-form-urlencoded`. Received: multipart."
        )
    return await json_object(request)


async def _body(request):
    limit = request.app.state.engine.limits.max_body_bytes
    kept, received = [], 0
    async for chunk in request.stream():
        received += len(chunk)
        if received <= limit:
            kept.append(chunk)
        elif received > limit + MAX_FORGOTTEN_BYTES:
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


def check_model_name(request: Request) -> str:
    """Returns the name of the model.

    Raises:
        RequestError: if the path has another.
    """
    name, received = request.app.state.engine.model.name, request.path_params["name"]
    if received != name:
        raise RequestError(404, f"The model is called {name!r}. Received: {shown(received)}")
    return name


def error_response(status: int, message: str) -> JSONResponse:
    """Returns an error in the form that all three protocols have."""
    headers = {"Retry-After": str(RETRY_SECONDS)} if status == 503 else None
    return JSONResponse({"error": message}, status, headers)
