"""The process: socket, signals, uvicorn."""

import contextlib
import signal
import socket
import time
from collections.abc import Callable, Sequence
from types import FrameType

import uvicorn

from keras_transformer import types
from keras_transformer.console import console
from keras_transformer.serving.app import build_app
from keras_transformer.serving.engine import Engine
from keras_transformer.serving.limits import Limits
from keras_transformer.serving.metrics import Metrics
from keras_transformer.serving.observation import log_to_stdout

# Orchestrators kill a process 30 s after SIGTERM.
DRAIN_SECONDS = 25


def serve(
    folder: types.Path,
    *,
    host: str,
    port: int,
    limits: Limits,
    max_batch: int,
    max_wait: float,
    threads: int,
    cors_origins: Sequence[str] = (),
    import_tensorflow: Callable[[], None],
) -> None:
    """Serves a SavedModel until SIGTERM or Ctrl-C; open requests are answered first.

    Args:
        folder: path of the SavedModel.
        host: str, the address to listen on.
        port: int; 0 for any free one, which is printed.
        limits: `Limits`.
        max_batch: int, lines in a batch.
        max_wait: float, seconds that a line waits for others.
        threads: int, cores that TensorFlow may use.
        cors_origins: list of strings: pages of these origins may call the server.
        import_tensorflow: function that imports TensorFlow without its messages.

    Raises:
        OSError: if the server cannot listen there.
        Exception: what the model raised while it was loaded.
    """
    listener = _listen(host, port)
    address = f"[{host}]" if ":" in host else host
    console.print(f"Listening on http://{address}:{listener.getsockname()[1]}")
    engine = Engine(
        lambda: _load(folder, threads, import_tensorflow),
        limits=limits,
        metrics=Metrics(),
        max_batch=max_batch,
        max_wait=max_wait,
    )
    log_to_stdout()
    config = uvicorn.Config(
        build_app(engine, cors_origins),
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=DRAIN_SECONDS,
    )
    # Uvicorn raises the signal again when it has ended. Then SIGTERM would end this process with
    # an error, so it is ignored there.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with contextlib.suppress(KeyboardInterrupt):
        _Server(config, engine).run(sockets=[listener])
    if engine.failure:
        raise engine.failure


def _listen(host, port):
    """Returns a socket: it listens before the model is loaded, so that `/health/ready` answers."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise OSError(f"Cannot listen on {host}, port {port}: {error.strerror}.") from error
    # Connections inherit it. asyncio sets it on its own sockets only, and without it each answer,
    # which is written in two parts, is 40 ms late.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _load(folder, threads, import_tensorflow):
    began = time.perf_counter()
    console.print(f"Loading {folder} ...")
    # It takes seconds, in which the server already says that it is not ready.
    import_tensorflow()
    from keras_transformer.serving.model import ServedModel, use_threads

    use_threads(threads)
    model = ServedModel(folder)
    model.warm_up()
    console.print(f"Ready after {time.perf_counter() - began:.1f} s: {', '.join(model.signatures)}")
    return model


class _Server(uvicorn.Server):
    """Ends when the model cannot be loaded, and tells the engine when it is to end."""

    def __init__(self, config: uvicorn.Config, engine: Engine) -> None:
        super().__init__(config)
        self._engine = engine

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._engine.drain()
        super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        return bool(self._engine.failure) or await super().on_tick(counter)
