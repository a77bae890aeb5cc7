"""`keras-transformer serve` as a process: start, SIGTERM, kill -9, and errors of its start."""

import http.client
import json
import re
import signal
import socket
import sys
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

import pytest

from tests.cli.small_run import cli
from tests.processes import Popen, run
from tests.serving.stand_in import SLOW, translation_of

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]
SERVE = [sys.executable, "-c", "from keras_transformer.cli import app; app()", "serve"]


class Server:
    """A server in a process of its own."""

    def __init__(self, folder, tmp_path, *options, port=0):
        self._log, self._errors = tmp_path / f"log{time.time()}", tmp_path / f"errors{time.time()}"
        with open(self._log, "w") as log, open(self._errors, "w") as errors:
            self.process = Popen(
                [*SERVE, str(folder), "--port", str(port), *options], stdout=log, stderr=errors
            )
        while not (listening := re.search(r"Listening on http://127.0.0.1:(\d+)\n", self.errors)):
            assert self.process.poll() is None, self.errors
            time.sleep(0.05)
        self.port = int(listening[1])

    @property
    def errors(self):
        return self._errors.read_text()

    @property
    def log(self):
        return [json.loads(line) for line in self._log.read_text().splitlines()]

    def wait_until_ready(self):
        while request(self.port, "GET", "/health/ready")[0] != 200:
            assert self.process.poll() is None, self.errors
            time.sleep(0.05)
        return self


@pytest.fixture
def start(folder, tmp_path):
    servers = []

    def start(*options, **arguments):
        servers.append(Server(folder, tmp_path, *options, **arguments))
        return servers[-1]

    yield start
    for server in servers:
        server.process.kill()
        server.process.wait()


def request(port, method, path, body=None):
    """Status and JSON of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body and json.dumps(body))
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def translate(port, line):
    return request(port, "POST", "/v1/models/stand_in:predict", {"instances": [line]})


def translate_with_retries(port, line):
    while True:
        try:
            status, answer = translate(port, line)
        except (OSError, http.client.HTTPException):
            time.sleep(0.05)
            continue
        if status == 200:
            return answer
        assert status == 503
        time.sleep(0.05)


def test_server_starts_answers_and_on_sigterm_answers_open_requests(start):
    server = start("--max-batch", "1")
    # It listens before it is ready.
    assert request(server.port, "GET", "/health") == (200, {"status": "ok"})
    server.wait_until_ready()
    lines = [f"{SLOW} {number}" for number in range(6)]
    with ThreadPoolExecutor(6) as pool:
        found = [pool.submit(translate, server.port, line) for line in lines]
        wait(found, return_when=FIRST_COMPLETED)
        assert not all(one.done() for one in found), "the model is too fast for this test"
        server.process.send_signal(signal.SIGTERM)
        answers = [one.result() for one in found]
    for line, (status, answer) in zip(lines, answers, strict=True):
        assert status == 200 and answer["predictions"][0]["translation"] == translation_of(line)
    assert server.process.wait(30) == 0
    assert "Traceback" not in server.errors
    assert [one["rows"] for one in server.log if one["method"] == "POST"] == [1] * 6


def test_answers_are_not_held_back_by_the_network(start):
    """The parts of an answer are sent at once, not 40 ms later, when the client confirms one."""
    connection = http.client.HTTPConnection("127.0.0.1", start().port, timeout=60)
    seconds = []
    for _ in range(20):
        began = time.perf_counter()
        connection.request("GET", "/health")
        connection.getresponse().read()
        seconds.append(time.perf_counter() - began)
    connection.close()
    assert sorted(seconds)[10] < 0.03


def test_clients_that_retry_get_all_answers_across_a_kill(start):
    server = start().wait_until_ready()
    lines = [f"line {number}" for number in range(200)]
    with ThreadPoolExecutor(8) as pool:
        found = [pool.submit(translate_with_retries, server.port, line) for line in lines]
        while sum(one.done() for one in found) < 20:
            time.sleep(0.01)
        server.process.kill()
        server.process.wait()
        assert not all(one.done() for one in found)
        start(port=server.port)
        for line, one in zip(lines, found, strict=True):
            answer = one.result(60)["predictions"][0]
            assert answer["translation"] == translation_of(line)


def test_errors_of_the_start_are_one_line(folder, tmp_path):
    words = [*SERVE, str(tmp_path), "--port", "0"]
    ran = run(words, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 2
    assert ran.stderr.splitlines()[-1].startswith("Error: There is no SavedModel in")
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        ran = cli("serve", folder, "--port", port)
    message = f"Error: Cannot listen on 127.0.0.1, port {port}: Address already in use"
    assert ran.exit_code == 2 and ran.stderr.startswith(message) and ran.stderr.count("\n") == 1
    ran = cli("serve", folder, "--max-queue", 5)
    assert ran.exit_code == 2 and "`max_queue` must be at least `max_lines`" in ran.stderr
    hidden = "import sys; sys.modules['starlette'] = None; " + SERVE[2]
    ran = run([sys.executable, "-c", hidden, "serve", str(folder)], capture_output=True, text=True)
    assert ran.returncode == 2
    assert ran.stderr.startswith("Error: A server needs the extra `serve`: pip install")
