"""A server process without TensorFlow: requests that do not arrive, and the end after SIGTERM."""

import contextlib
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from keras_transformer.serving.server import EXIT_SECONDS, listen
from tests.processes import Popen

BODY = b"Host: a\r\nContent-Length: 99\r\n\r\n{"
UNFINISHED = {
    "nothing": b"",
    "half of the headers": b"POST /translate HTTP/1.1\r\nHost: a\r\nContent-",
    "half of the body": b"POST /translate HTTP/1.1\r\n" + BODY,
    "half of a body that nobody reads": b"POST /no HTTP/1.1\r\n" + BODY,
    "half of a second request": b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
    b"POST /translate HTTP/1.1\r\n" + BODY,
}


class Server:
    def __init__(self, tmp_path, seconds_to_load=0, receive_seconds=10):
        self._errors = tmp_path / "errors"
        words = [sys.executable, "-m", "tests.serving.plain_model"]
        with open(self._errors, "w") as errors:
            self.process = Popen(
                [*words, str(seconds_to_load), str(receive_seconds)],
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )
        self.port = int(self.wait_for(r"Listening on http://127.0.0.1:(\d+)\n")[1])

    def wait_for(self, pattern):
        while not (found := re.search(pattern, self.errors)):
            assert self.process.poll() is None, self.errors
            time.sleep(0.05)
        return found

    @property
    def errors(self):
        return self._errors.read_text()

    def translate(self, line):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            connection.request("POST", "/translate", json.dumps({"q": line}))
            response = connection.getresponse()
            return response.status, response.getheader("Retry-After"), json.load(response)

    def stop(self):
        """Sends SIGTERM, and returns the seconds until the process has ended, without errors."""
        began = time.perf_counter()
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(30) == 0, self.errors
        assert "Traceback" not in self.errors and "rror" not in self.errors, self.errors
        return time.perf_counter() - began


@pytest.fixture
def start(tmp_path):
    with contextlib.ExitStack() as stack:

        def start(*arguments):
            server = Server(tmp_path, *arguments)
            stack.callback(server.process.wait)
            stack.callback(server.process.kill)
            return server

        yield start


def received(connection):
    """All that a server sends until it closes the connection."""
    with contextlib.closing(connection):
        return b"".join(iter(lambda: connection.recv(9999), b""))


def test_sigterm_while_the_model_is_loaded_ends_at_once(start):
    server = start(60)
    assert server.translate("a")[0] == 503
    assert server.stop() < EXIT_SECONDS


@pytest.mark.slow
def test_sigterm_during_a_long_batch_answers_503_and_ends_in_time(start):
    server = start()
    server.wait_for("Ready after")
    with ThreadPoolExecutor(3) as pool:
        answers = [pool.submit(server.translate, line) for line in ("stuck", "a", "b")]
        time.sleep(0.5)
        assert server.stop() < EXIT_SECONDS + 1
        for answer in answers:
            status, retry_after, body = answer.result()
            assert (status, retry_after) == (503, "1") and "being stopped" in body["error"]


def test_requests_that_do_not_arrive_are_closed_and_hold_no_sigterm(start):
    server = start(0, 1)
    server.wait_for("Ready after")

    def send_all():
        for sent in UNFINISHED.values():
            connection = socket.create_connection(("127.0.0.1", server.port), timeout=30)
            connection.sendall(sent)
            yield connection

    answers = dict(zip(UNFINISHED, map(received, list(send_all())), strict=True))
    assert answers["nothing"] == b""
    for name in ("half of the headers", "half of the body"):
        assert answers[name].startswith(b"HTTP/1.1 408 "), name
        assert b"must arrive within 1 s" in answers[name]
    assert answers["half of a body that nobody reads"].startswith(b"HTTP/1.1 404 ")
    assert answers["half of a second request"].count(b"HTTP/1.1 408 ") == 1
    # A client that sends a byte now and then gains no time.
    slow = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    began = time.perf_counter()
    with pytest.raises(OSError):
        while time.perf_counter() - began < 20:
            slow.sendall(b"a")
            time.sleep(0.1)
    slow.close()
    assert server.translate("a")[2] == {"translatedText": "A"}
    waiting = list(send_all())
    assert server.stop() < EXIT_SECONDS - 4
    for connection in waiting:
        connection.close()


def test_too_large_a_body_is_answered_although_the_client_still_sends(start):
    status, _, answer = start().translate("x" * 10_000_000)
    assert status == 413 and "at most 1048576 bytes" in answer["error"]


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_all_addresses_of_ipv6_are_also_those_of_ipv4():
    with listen("::", 0) as listener:
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, listener.getsockname()[1]), timeout=5).close()
