"""The application: routes, errors and middleware around an engine."""

import contextlib
from collections.abc import AsyncIterator, Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from keras_transformer.serving import libretranslate, status, tf_serving
from keras_transformer.serving.bodies import error_response
from keras_transformer.serving.engine import Engine
from keras_transformer.serving.errors import RequestError, shown
from keras_transformer.serving.observation import Observation

ROUTES = [*status.routes, *libretranslate.routes, *tf_serving.routes]


def build_app(engine: Engine, cors_origins: Sequence[str] = ()) -> Starlette:
    """Returns the ASGI application.

    Args:
        engine: `Engine`. It runs as long as the application does.
        cors_origins: list of strings: pages of these origins may call the server.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with engine.running():
            yield

    middleware = [Middleware(Observation, metrics=engine.metrics)]
    if cors_origins:
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=cors_origins,
                allow_methods=["GET", "POST"],
                allow_headers=["Content-Type"],
            )
        )
    app = Starlette(
        routes=ROUTES,
        middleware=middleware,
        lifespan=lifespan,
        exception_handlers={
            RequestError: _request_error,
            HTTPException: _http_error,
            ClientDisconnect: _client_disconnect,
            Exception: _bug,
        },
    )
    app.router.redirect_slashes = False  # a client of POST would not follow
    app.state.engine = engine
    return app


async def _request_error(request: Request, error: Exception) -> Response:
    status_code = error.status if isinstance(error, RequestError) else 500
    return error_response(status_code, str(error))


async def _http_error(request: Request, error: Exception) -> Response:
    status_code = error.status_code if isinstance(error, HTTPException) else 500
    received = f"{request.method} {shown(request.url.path)}"
    response = error_response(
        status_code, f"The routes are described in /openapi.json. Received: {received}"
    )
    response.headers.update(getattr(error, "headers", None) or {})
    return response


async def _client_disconnect(request: Request, error: Exception) -> Response:
    # Nobody reads the answer; the log has the status.
    return error_response(499, "The client closed the connection before it was answered.")


async def _bug(request: Request, error: Exception) -> Response:
    return error_response(500, "Error in the server; its log has the reason.")
