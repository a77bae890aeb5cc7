"""What is recorded of each request: a line on standard output and metrics, never the text."""

import contextlib
import json
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from keras_transformer.serving.metrics import Metrics


class Observation:
    """Middleware that records each request when its answer is sent.

    Args:
        app: the application.
        metrics: `Metrics`.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs the application; an exception counts as status 500."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500

        async def observed_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        scope.setdefault("state", {})["rows"] = 0
        began = time.perf_counter()
        try:
            await self._app(scope, receive, observed_send)
        finally:
            self._record(scope, status, time.perf_counter() - began)

    def _record(self, scope, status, seconds):
        # The path of the route, because there are endless paths that clients could ask for.
        route = getattr(scope.get("route"), "path", "none")
        self._metrics.requests.labels(route, status).inc()
        self._metrics.seconds.labels(route).observe(seconds)
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
