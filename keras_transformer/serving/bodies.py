"""Functions of both protocols: read a body, name the client, notice that the client has left."""

import asyncio
import contextlib
import ipaddress
import json
from collections.abc import AsyncIterator, Coroutine, Hashable
from typing import Any

from python_multipart.multipart import parse_options_header
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request

from keras_transformer.serving.errors import RequestError
from keras_transformer.serving.forms import UTF_8, charset_of, read_form

MAX_FORM_FIELDS = 16  # besides the lines
LARGE_BODY = 2**16  # bytes; parsing so much JSON can hold the event loop for half a millisecond


class LargeBodies:
    """Lets large bodies be read one by one, in at most half of the event loop's time."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._next_at = 0.0  # time of the event loop

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Waits until a body may be read; the next one waits as long as this one takes."""
        loop = asyncio.get_running_loop()
        async with self._lock:
            await asyncio.sleep(max(0, self._next_at - loop.time()))
            start = loop.time()
            try:
                yield
            finally:
                self._next_at = loop.time() + (loop.time() - start)


async def json_object(request: Request) -> dict[str, Any]:
    """Returns the body, a JSON object.

    Raises:
        RequestError: if the body is too large, arrives too slowly, or is not a JSON object.
    """
    return await _parsed(request, await _body(request))


async def _parsed(request, body):
    if len(body) <= LARGE_BODY:
        return _object(body)
    async with request.app.state.large_bodies.turn():
        return _object(body)


def _object(body):
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
        RequestError: if the body is too large, arrives too slowly, is not UTF-8, or is neither a
            JSON object nor a form; or if a form or query has too many fields.
    """
    content_type = request.headers.get("content-type") or "application/json"
    kind, options = parse_options_header(content_type)
    charset = charset_of(options)
    if charset not in UTF_8:
        raise RequestError(415, "The body must be UTF-8.", charset)
    body, query = await _body(request), request.scope["query_string"]
    max_fields = request.app.state.service.limits.max_lines + MAX_FORM_FIELDS
    fields = read_form(query, max_fields)
    if kind == b"multipart/form-data":
        boundary = options.get(b"boundary", b"")
        return fields | await run_in_threadpool(read_form, body, max_fields, boundary)
    # `curl -d` says that JSON is a form.
    if kind == b"application/x-www-form-urlencoded" and not body.lstrip().startswith(b"{"):
        return fields | await run_in_threadpool(read_form, body, max_fields)
    if query and not body:
        return fields
    return fields | await _parsed(request, body)


async def _body(request):
    limits = request.app.state.service.limits
    try:
        async with asyncio.timeout(limits.max_receive_seconds):
            return await _received(request, limits.max_body_bytes)
    except TimeoutError as error:
        message = f"The body must arrive within {limits.max_receive_seconds} s. Try again."
        raise RequestError(408, message) from error


async def _received(request, limit):
    chunks, num_bytes = [], 0
    async for chunk in request.stream():
        num_bytes += len(chunk)
        # A body that is too large is read to its end: a client that is still sending when the
        # connection closes does not see the answer.
        if num_bytes <= limit:
            chunks.append(chunk)
    if num_bytes > limit:
        must = f"The body may have at most {limit} bytes. Received: {num_bytes}."
        raise RequestError(413, f"{must} Send the lines in several requests.")
    return b"".join(chunks)


async def unless_gone(request: Request, work: Coroutine[Any, Any, Any]) -> Any:
    """Returns what a coroutine returns, unless the client closes the connection before.

    Raises:
        Exception: what the coroutine raised.
        ClientDisconnect: if the client has left. The coroutine is cancelled.
    """
    task = asyncio.create_task(work)
    departure = asyncio.create_task(_client_is_gone(request))
    try:
        await asyncio.wait([task, departure], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return await task
    finally:
        task.cancel()
        departure.cancel()


async def _client_is_gone(request):
    while (await request.receive())["type"] != "http.disconnect":
        pass


def client_of(request: Request) -> Hashable:
    """Returns what counts as a client: an address of IPv4, or a network of 2^64 addresses of IPv6.

    One user of IPv6 has a whole network, and could use another address for each request.
    """
    host = request.client.host if request.client else ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:  # a Unix socket has no address, and a proxy may send a name
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return address
    return address.ipv4_mapped or address.packed[:8]
