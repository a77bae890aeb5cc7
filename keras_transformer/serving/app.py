"""The application: routes, errors and middleware around a service."""

import contextlib
from collections.abc import AsyncIterator, Sequence

import anyio.to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse

from keras_transformer.serving import libretranslate, status, tf_serving
from keras_transformer.serving.bodies import LargeBodies
from keras_transformer.serving.errors import RequestError, shown
from keras_transformer.serving.observation import observed
from keras_transformer.serving.service import Service

ROUTES = [*status.routes, *libretranslate.routes, *tf_serving.routes]
RETRY_SECONDS = 1
TEXT_THREADS = 2  # split and join texts


def build_app(
    service: Service,
    cors_origins: Sequence[str] = (),
) -> Starlette:
    """Returns the ASGI application.

    Args:
        service: `Service`. It runs as long as the application does.
        cors_origins: list of strings: pages of these origins may call the server.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        # Python runs one thread at a time, and the event loop has to wait for its turn among them.
        anyio.to_thread.current_default_thread_limiter().total_tokens = TEXT_THREADS
        async with service.running():
            yield

    middleware = [Middleware(observed, metrics=service.metrics)]
    if cors_origins:
        cors = Middleware(
            CORSMiddleware,
            allow_origins=cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"],
        )
        middleware.append(cors)
    errors = RequestError, ClientDisconnect, HTTPException, Exception
    app = Starlette(
        routes=ROUTES,
        middleware=middleware,
        lifespan=lifespan,
        exception_handlers=dict.fromkeys(errors, _answer_error),
    )
    app.router.redirect_slashes = False  # many clients do not follow the redirect of a POST
    app.state.service, app.state.large_bodies = service, LargeBodies()
    return app


async def _answer_error(request: Request, error: Exception) -> JSONResponse:
    """Answers an error in the form that both protocols have."""
    status_code, message, headers = 500, "Error in the server; its log has the reason.", {}
    if isinstance(error, RequestError):
        status_code, message = error.status, str(error)
    elif isinstance(error, ClientDisconnect):  # nobody reads the answer; the log has the status
        status_code, message = 499, "The client closed the connection before it was answered."
    elif isinstance(error, HTTPException):
        status_code, headers = error.status_code, dict(error.headers or {})
        received = f"{request.method} {shown(request.url.path)}"
        message = f"The routes are described in /openapi.json. Received: {received}"
    if status_code == 503:
        headers["Retry-After"] = str(RETRY_SECONDS)
    if status_code == 408:
        headers["Connection"] = "close"  # do not wait for the rest of the body
    return JSONResponse({"error": message}, status_code, headers)
