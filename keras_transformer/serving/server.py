"""Runs the server as a process: socket, signals, uvicorn."""

import asyncio
import contextlib
import functools
import gc
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

import uvicorn

from keras_transformer.console import console
from keras_transformer.decoding.translator import Translator
from keras_transformer.serving.app import build_app
from keras_transformer.serving.limits import Limits
from keras_transformer.serving.service import Service
from keras_transformer.serving.signature import signatures_of

# The process ends within 25 s after SIGTERM, because Kubernetes kills it after 30 s.
DRAIN_SECONDS, EXIT_SECONDS = 20, 24
WARM_UP_WORDS = (1, 8, 32)


def serve(
    load: Callable[[], Translator],
    *,
    host: str,
    port: int,
    limits: Limits,
    workers: int = 1,
    max_batch: int = 32,
    cors_origins: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    proxies: str = "",
) -> None:
    """Serves a model until SIGTERM or Ctrl-C, then ends the process.

    Open requests are answered first.

    Args:
        load: function without arguments that returns the translator of an exported folder. It is
            called in a thread.
        host: str, the address to listen on.
        port: int; 0 for any free one, which is printed.
        limits: `Limits`.
        workers: int, threads that run the model. Defaults to `1`.
        max_batch: int, maximum number of lines in a batch. Defaults to `32`.
        cors_origins: list of strings: pages of these origins may call the server.
        settings: mapping of the settings of `/translate`, such as `split` and `protect`, that
            differ from the model's. Optional.
        proxies: str, addresses and networks of proxies, separated by commas. Their requests name
            the client in `X-Forwarded-For`. Defaults to none.

    Raises:
        OSError: if the server cannot listen there.
        Exception: what the model raised while it was loaded.
    """
    listener = listen(host, port)
    address = f"[{host}]" if ":" in host else host
    console.print(f"Listening on http://{address}:{listener.getsockname()[1]}")
    service = Service(functools.partial(_load, load), limits, settings, workers, max_batch)
    config = uvicorn.Config(
        build_app(service, cors_origins),
        log_config=None,
        access_log=False,
        server_header=False,
        http="h11",
        timeout_keep_alive=limits.keep_alive,
        forwarded_allow_ips=proxies,
        ws="none",
    )
    server = _Server(config, service)
    # Handles SIGTERM while Uvicorn does not: before its start, and at its end, when it sends the
    # signal again. Without this handler, the process would then end with an error.
    signal.signal(signal.SIGTERM, server.handle_exit)
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listener])
    if service.failure:
        raise service.failure
    _exit()


def _exit():
    """Ends the process even if a thread runs the model: Python would wait for the thread."""
    with contextlib.suppress(OSError):  # nobody reads the log any more, or its disk is full
        print(end="", flush=True)
    os._exit(0)


def listen(host: str, port: int) -> socket.socket:
    """Returns a socket. It listens before the model is loaded, so that `/health/ready` answers.

    Args:
        host: str, an address of IPv4 or IPv6; "::" for all addresses of both.
        port: int; 0 for any free one.

    Raises:
        OSError: if the address is not of this machine, or the port is in use.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    is_dualstack = host == "::" and socket.has_dualstack_ipv6()
    try:
        listener = socket.create_server(
            (host, port), family=family, backlog=2048, dualstack_ipv6=is_dualstack
        )
    except OSError as error:
        raise OSError(f"Cannot listen on {host}, port {port}: {error.strerror}.") from error
    # Connections inherit this option; asyncio sets it only on sockets that it creates. Without it,
    # each answer is 40 ms late, because it is written in two parts.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _load(load):
    start = time.perf_counter()
    console.print("Loading the model ...")
    translator = load()
    _warm_up(translator)
    gc.freeze()  # the garbage collector then skips the model and its libraries
    names = ", ".join(signatures_of(translator))
    console.print(f"Ready after {time.perf_counter() - start:.1f} s: {names}")
    return translator


def _warm_up(translator):
    """Translates and scores lines of a few lengths: first calls are slow."""
    for words in WARM_UP_WORDS:
        line = "a " * words
        with contextlib.suppress(ValueError):  # more tokens than the model has learned positions
            translator.score(line, line)
        for n_best in (1, translator.settings.max_hypotheses):
            translator(line, n_best=n_best, on_too_long="truncate")


class _Server(uvicorn.Server):
    """Ends when the model cannot be loaded, and tells the service when the server stops."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._service.drain()
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Waits for answers; after `DRAIN_SECONDS` answers 503; after `EXIT_SECONDS` exits."""
        loop = asyncio.get_running_loop()
        loop.call_later(DRAIN_SECONDS, self._service.stop)
        loop.call_later(EXIT_SECONDS, _exit)
        await super().shutdown(sockets)

    async def on_tick(self, counter: int) -> bool:
        return bool(self._service.failure) or await super().on_tick(counter)
