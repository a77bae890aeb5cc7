"""Routes about the server itself: health, metrics, model card, description, page."""

import dataclasses
from pathlib import Path
from typing import Any

import yaml
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from keras_transformer.serving.signature import signatures_of

HERE = Path(__file__).parent
# The page is one file. It may call this server, and loads nothing from elsewhere.
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; connect-src 'self'; "
    "style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:",
    "X-Content-Type-Options": "nosniff",
}


async def page(request: Request) -> HTMLResponse:
    """The page for people."""
    return HTMLResponse((HERE / "page" / "index.html").read_bytes(), headers=PAGE_HEADERS)


async def health(request: Request) -> JSONResponse:
    """Whether the process runs."""
    return JSONResponse({"status": "ok"})


async def ready(request: Request) -> JSONResponse:
    """Whether the server takes requests: not while it loads the model or drains."""
    is_ready = request.app.state.service.is_ready
    return JSONResponse({"status": "ready" if is_ready else "not ready"}, 200 if is_ready else 503)


async def metrics(request: Request) -> Response:
    """Metrics in Prometheus's text format."""
    text = request.app.state.service.metrics.text()
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


async def model_card(request: Request) -> JSONResponse:
    """The model card, the name of the model and the limits of the server."""
    service = request.app.state.service
    signatures = signatures_of(service.translator)
    server_fields = {
        "model": service.name,
        "limits": dataclasses.asdict(service.limits),
        "signatures": {name: signature.described() for name, signature in signatures.items()},
    }
    return JSONResponse(service.card | server_fields)


async def openapi(request: Request) -> JSONResponse:
    """The description of all routes, as OpenAPI."""
    return JSONResponse(description())


def description() -> dict[str, Any]:
    """Returns the description of all routes, as OpenAPI."""
    return yaml.safe_load((HERE / "openapi.yaml").read_text("utf-8"))


routes = [
    Route("/", page),
    Route("/health", health),
    Route("/health/ready", ready),
    Route("/metrics", metrics),
    Route("/model_card", model_card),
    Route("/openapi.json", openapi),
]
