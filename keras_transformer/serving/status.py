"""Routes about the server itself: health, metrics, model card, description, page.

The description of all routes is made of the docstrings of their functions and of `openapi.yaml`.
"""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.schemas import SchemaGenerator

HERE = Path(__file__).parent
# The page is one file: nothing is loaded from elsewhere, and nothing else on the server is run.
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; connect-src 'self'; "
    "style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:",
    "X-Content-Type-Options": "nosniff",
}
# How every request with a body may end.
OF_POSTS = {400: "BadRequest", 408: "TooSlow", 413: "TooLarge", 503: "Unavailable"}


async def page(request: Request) -> HTMLResponse:
    """The page for people.

    ---
    responses: {200: Page}
    """
    return HTMLResponse((HERE / "page" / "index.html").read_bytes(), headers=PAGE_HEADERS)


async def health(request: Request) -> JSONResponse:
    """Whether the process runs.

    ---
    responses: {200: Status}
    """
    return JSONResponse({"status": "ok"})


async def ready(request: Request) -> JSONResponse:
    """Whether the server takes requests: not while it loads the model or drains.

    ---
    responses: {200: Status, 503: Status}
    """
    is_ready = request.app.state.engine.is_ready
    return JSONResponse({"status": "ready" if is_ready else "not ready"}, 200 if is_ready else 503)


async def metrics(request: Request) -> Response:
    """Metrics in Prometheus's text format.

    ---
    responses: {200: Metrics}
    """
    text = request.app.state.engine.metrics.text()
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


async def model_card(request: Request) -> JSONResponse:
    """The model card, the name of the model and the limits of the server.

    ---
    responses: {200: ModelCard, 503: Unavailable}
    """
    engine = request.app.state.engine
    limits = dataclasses.asdict(engine.limits)
    return JSONResponse(engine.model.card | {"model": engine.model.name, "limits": limits})


async def openapi(request: Request) -> JSONResponse:
    """This description.

    ---
    responses: {200: Description}
    """
    return JSONResponse(description(request.app.routes))


def description(routes: Sequence[BaseRoute]) -> dict[str, Any]:
    """Returns the description of routes, as OpenAPI."""
    described = _Described(yaml.safe_load((HERE / "openapi.yaml").read_text("utf-8")))
    schema = described.get_schema(list(routes))
    for path, item in schema["paths"].items():
        if names := re.findall(r"{(\w+)}", path):
            item["parameters"] = [{"$ref": f"#/components/parameters/{name}"} for name in names]
    return schema


class _Described(SchemaGenerator):
    """Also takes the first line of a docstring; answers are names of `openapi.yaml`."""

    def parse_docstring(self, func_or_method: Any) -> dict[str, Any]:
        first = func_or_method.__doc__.partition("\n")[0]
        described = super().parse_docstring(func_or_method)
        given = described["responses"] | (OF_POSTS if "requestBody" in described else {})
        place = "#/components/responses/"
        answers = {str(status): {"$ref": place + given[status]} for status in sorted(given)}
        return {"summary": first.removesuffix("."), **described, "responses": answers}


routes = [
    Route("/", page),
    Route("/health", health),
    Route("/health/ready", ready),
    Route("/metrics", metrics),
    Route("/model_card", model_card),
    Route("/openapi.json", openapi),
]
