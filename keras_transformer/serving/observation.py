"""Records each request: a line on standard output and metrics, never the text."""

import contextlib
import json
import time

from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from keras_transformer.serving.metrics import Metrics


def observed(app: ASGIApp, metrics: Metrics) -> ASGIApp:
    """Middleware: returns the application that also records each request when it is answered.

    An exception counts as status 500.

    Args:
        app: the application.
        metrics: `Metrics`.
    """

    async def observe(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        status = 500

        async def observed_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        scope.setdefault("state", {})["rows"] = 0
        start = time.perf_counter()
        try:
            await app(scope, receive, observed_send)
        finally:
            _record(metrics, scope, status, time.perf_counter() - start)

    return observe


def _record(metrics, scope, status, seconds):
    # The label is the path of the route: clients can ask for any number of other paths.
    route = scope.get("route")
    label = route.path if isinstance(route, Route) else "none"
    metrics.requests.labels(label, status).inc()
    metrics.seconds.labels(label).observe(seconds)
    line = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "method": scope["method"],
        "path": scope["path"],
        "status": status,
        "rows": scope["state"]["rows"],
        "ms": round(seconds * 1000, 1),
    }
    with contextlib.suppress(OSError):  # nobody reads the log
        print(json.dumps(line), flush=True)
