"""A server as a process: start, requests that do not arrive, SIGTERM, kill -9."""

import contextlib
import functools
import http.client
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from keras_transformer import load_translator
from keras_transformer.serving import server
from keras_transformer.serving.server import listen
from tests.builders import ROOT
from tests.cli.small_run import cli
from tests.processes import Popen, run
from tests.waiting import wait_until

SERVE = ["-m", "keras_transformer", "serve"]
SERVING_PAGE = ROOT / "docs" / "pages" / "serving.md"
# The server promises 25 s after SIGTERM. What a test makes it wait for takes 60 s.
LONGER_THAN_PROMISED = 40
BODY = b"Host: a\r\nContent-Length: 9999\r\n\r\n{"
HALF_OF_A_BODY = b"POST /translate HTTP/1.1\r\n" + BODY
HALF_OF_A_SECOND_BODY = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n" + HALF_OF_A_BODY
UNFINISHED = [
    *(b"", b"POST /translate HTTP/1.1\r\nHost: a\r\nContent-"),
    *(HALF_OF_A_BODY, HALF_OF_A_SECOND_BODY),
    b"POST /no HTTP/1.1\r\n" + BODY,  # which nobody reads
]


class Server:
    """A Python program that prints the port on which it listens."""

    def __init__(self, folder, *words, popen=Popen, **options):
        self._log, self._errors = (folder / f"{name}{time.time()}" for name in ("log", "errors"))
        with open(self._log, "w") as log, open(self._errors, "w") as errors:
            words = [sys.executable, *map(str, words)]
            self.process = popen(words, stdout=log, stderr=errors, **options)
        self.port = int(self.wait_for(r"Listening on http://\S+:(\d+)\n")[1])

    def wait_for(self, pattern):
        def find():
            found = re.search(pattern, self.errors)
            assert found or self.process.poll() is None, self.errors
            return found

        return wait_until(find)

    def wait_until_ready(self):
        self.wait_for("Ready after")  # it is a moment later
        wait_until(lambda: self.request("GET", "/health/ready")[0] == 200)

    @property
    def errors(self):
        return self._errors.read_text()

    @property
    def log(self):
        return [json.loads(line) for line in self._log.read_text().splitlines()]

    def statuses(self, path):
        """Of the answers in the log. A line of the log follows its answer: tests wait for it."""
        return [one["status"] for one in self.log if one["path"] == path]

    @property
    def rows(self):
        """How many lines the model was given, and how many wait for it."""
        text = self.request("GET", "/metrics", read=lambda response: response.read().decode())[2]
        values = dict(re.findall(r"^keras_transformer_(\w+) (\S+)$", text, re.MULTILINE))
        return float(values["batch_rows_sum"]), float(values["queue_rows"])

    def request(self, method, path, body=None, *, read=json.load, **headers):
        """Status, seconds after which to try again, and JSON of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, path, body and json.dumps(body), headers)
            response = connection.getresponse()
            return response.status, response.getheader("Retry-After"), read(response)

    def translate(self, line, **headers):
        return self.request("POST", "/translate", {"q": line}, **headers)

    def stop(self):
        """Sends SIGTERM; the process has to end without errors, before what it waits for."""
        self.process.send_signal(signal.SIGTERM)
        self.wait_for_end()

    def wait_for_end(self):
        assert self.process.wait(LONGER_THAN_PROMISED) == 0, self.errors
        assert "Traceback" not in self.errors and "rror" not in self.errors, self.errors

    def refuses(self):
        """Whether it listens no more."""
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=60).close()
        except ConnectionRefusedError:
            return True
        return False


@pytest.fixture
def start(tmp_path):
    with contextlib.ExitStack() as stack:

        def start(*words, **options):
            server = Server(tmp_path, *words, **options)
            stack.callback(server.process.wait)
            stack.callback(server.process.kill)
            return server

        yield start


@pytest.fixture
def start_plain(start, tmp_path):
    """Starts a server of the stand-in without TensorFlow, ready unless it loads for some time."""

    def start_plain(**options):
        options = {"gate": str(tmp_path / "gate")} | options
        server = start("-m", "tests.serving.plain_engine", json.dumps(options))
        if "seconds_to_load" not in options:
            server.wait_until_ready()
        return server

    return start_plain


def start_on_a_free_port(start, *words, **options):
    """Starts a server with a port in its words; with another one if a program took the first."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        try:
            return start(*words, "--port", port, **options)
        except AssertionError as error:
            if "Cannot listen" not in str(error):
                raise


def served_files(folder):
    return {path: path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))}


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs a folder that nobody can write")
def test_container_needs_no_home_and_writes_nothing(start, folder):
    """The commands of the Dockerfile on the page on serving, behind a proxy that leads nowhere."""
    dockerfile = re.search("```dockerfile\n(.*?)```", SERVING_PAGE.read_text("utf-8"), re.DOTALL)[1]
    program, *words = json.loads(re.search(r"ENTRYPOINT (.*)", dockerfile)[1])
    assert (program, words[:2]) == ("keras-transformer", ["serve", "/model"])
    before = served_files(folder)
    unusable = {"HOME": "/proc/home", "TMPDIR": "/proc/tmp", "http_proxy": "http://127.0.0.1:9"}
    environment = os.environ | unusable | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    words = [*SERVE, folder, *words[2:]]
    options = {"popen": subprocess.Popen, "env": environment, "cwd": "/proc"}
    server = start_on_a_free_port(start, *words, **options)
    check = json.loads(re.search(r"HEALTHCHECK .*CMD (.*)", dockerfile)[1])
    check = [
        sys.executable,
        *check[1:-1],
        check[-1].replace("/proc/1/", f"/proc/{server.process.pid}/"),
    ]
    server.wait_until_ready()
    # On a busy machine, an answer may take longer than the three seconds of one check.
    wait_until(lambda: subprocess.run(check, env=environment).returncode == 0)
    assert server.translate("one")[0] == 200
    server.stop()
    assert subprocess.run(check, env=environment, stderr=subprocess.DEVNULL).returncode == 1
    assert served_files(folder) == before


def open_requests(server, pool, lines):
    """The answers to come: the model runs the first line, and the others wait."""
    answers = [pool.submit(server.translate, lines[0])]
    wait_until(lambda: server.rows == (1, 0))
    answers += [pool.submit(server.translate, line) for line in lines[1:]]
    wait_until(lambda: server.rows == (1, len(lines) - 1))
    return answers


def test_on_sigterm_open_requests_are_answered(start_plain, tmp_path):
    server = start_plain(drain_seconds=50, exit_seconds=60)
    lines = ["stuck", *"abcde"]
    with ThreadPoolExecutor(6) as pool:
        answers = open_requests(server, pool, lines)
        server.process.send_signal(signal.SIGTERM)
        wait_until(server.refuses)
        (tmp_path / "gate").touch()
        server.wait_for_end()
        for line, answer in zip(lines, answers, strict=True):
            assert answer.result() == (200, None, {"translatedText": line.upper()})
    assert [one["rows"] for one in server.log if one["method"] == "POST"] == [1] * 6


@pytest.mark.slow
def test_clients_that_retry_get_all_answers_across_a_kill(start, folder):
    server = start(*SERVE, folder, "--port", 0, "--max-batch", 16)
    # It listens before it is ready.
    assert server.request("GET", "/health") == (200, None, {"status": "ok"})
    server.wait_until_ready()
    answers = itertools.count(1)

    def translated(line):
        with contextlib.suppress(OSError, http.client.HTTPException):
            status, _, answer = server.translate(line)
            assert status in (200, 503)
            if status == 200 and next(answers) == 10:
                server.process.kill()
            return status == 200 and answer

    lines = [f"line {number}" for number in range(60)]
    expected = load_translator(folder)(lines)
    with ThreadPoolExecutor(8) as pool:
        found = [pool.submit(wait_until, functools.partial(translated, line)) for line in lines]
        server.process.wait(60)
        start(*SERVE, folder, "--port", server.port)
        for text, one in zip(expected, found, strict=True):
            assert one.result() == {"translatedText": text}


@pytest.mark.slow
def test_errors_of_the_start_are_one_line(folder, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        for words, message in (
            ([tmp_path], "A folder that `keras-transformer export`"),
            ([folder, "--port", port], f"Cannot listen on 127.0.0.1, port {port}: Address"),
            ([folder, "--max-queue", 5], "`max_queue` must be at least twice `max_lines`"),
        ):
            ran = cli("serve", *words)
            assert ran.exit_code == 2 and ran.stderr.startswith("Error: ") and message in ran.stderr
    hidden = "import sys; sys.modules['starlette'] = None; from keras_transformer.cli import app; "
    words = [sys.executable, "-c", hidden + "app()", "serve", str(folder)]
    ran = run(words, capture_output=True, text=True)
    message = "Error: A server needs the extra `serve`: pip in"
    assert ran.returncode == 2 and ran.stderr.splitlines()[-1].startswith(message)


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ([], {}),
        (["--protect", "none"], {"protect": ()}),
        (["--protect", "urls"], {"protect": ["urls"]}),
    ],
)
def test_options_of_text_are_settings_of_translate(folder, monkeypatch, words, settings):
    found = {}
    monkeypatch.setattr(server, "serve", lambda load, **options: found.update(options))
    assert cli("serve", folder, *words).exit_code == 0
    assert found["settings"] == {"split": "sentences"} | settings


def test_sigterm_while_the_model_is_loaded_ends_at_once(start_plain):
    server = start_plain(seconds_to_load=60, exit_seconds=60)
    assert server.translate("a")[0] == 503
    server.stop()


@pytest.mark.long
@pytest.mark.parametrize("seconds", [0, 2, 5])
def test_sigterm_at_any_time_of_the_start_ends_in_time(start, folder, seconds):
    """While TensorFlow is imported, the model loaded, and its signatures called."""
    server = start(*SERVE, folder, "--port", 0, popen=subprocess.Popen)
    time.sleep(seconds)
    server.stop()


@pytest.mark.parametrize("module", ["typer", "uvicorn"])
def test_sigterm_ends_while_the_server_is_imported(folder, module):
    """The first process of a container ignores a signal that has no handler."""
    program = f"""
import sys, time

class Slow:
    def find_spec(self, name, *_):
        if name == {module!r}:
            print("importing", flush=True)
            time.sleep(60)

sys.meta_path.insert(0, Slow())
from keras_transformer.__main__ import main
main()
"""
    words = [sys.executable, "-c", program, "serve", str(folder)]
    with Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"importing\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(LONGER_THAN_PROMISED) == 0


@pytest.mark.slow
def test_sigterm_during_a_long_batch_answers_503_and_ends_in_time(start_plain):
    server = start_plain(drain_seconds=1, exit_seconds=5)
    with ThreadPoolExecutor(3) as pool:
        answers = open_requests(server, pool, ["stuck", "a", "b"])
        server.stop()
        for answer in answers:
            status, retry_after, body = answer.result()
            assert (status, retry_after) == (503, "1") and "being stopped" in body["error"]


@pytest.mark.slow
def test_a_strict_model_starts_and_a_log_without_a_reader_changes_nothing(start_plain):
    """The lines of the warm-up are longer than what the model takes."""
    strict = {"on_too_long": "error", "max_source_tokens": 8}
    server = start_plain(settings=strict, has_reader=False)
    assert [server.translate(line)[0] for line in ("a", "a" * 9)] == [200, 400]
    server.stop()


def send(server, content):
    """Opens a connection, and returns it when the content is sent."""
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    connection.sendall(content)
    return connection


@pytest.mark.slow
def test_requests_that_do_not_arrive_are_answered_408_and_hold_no_sigterm(start_plain):
    server = start_plain(max_receive_seconds=1, drain_seconds=50, exit_seconds=60)
    for content in (HALF_OF_A_BODY, HALF_OF_A_SECOND_BODY):
        with send(server, content) as connection:
            answers = b"".join(iter(functools.partial(connection.recv, 9999), b""))
        last = answers[answers.rindex(b"HTTP/1.1 ") :]
        assert last.startswith(b"HTTP/1.1 408 ") and b"must arrive within 1 s" in last
    # A client that sends a byte now and then gains no time.
    with send(server, HALF_OF_A_BODY) as slow, pytest.raises(OSError):
        for _ in range(200):
            slow.sendall(b"a")
            time.sleep(0.1)
    assert server.translate("a")[2] == {"translatedText": "A"}
    wait_until(lambda: server.statuses("/translate") == [408] * 3 + [200])
    waiting = [send(server, content) for content in UNFINISHED]
    wait_until(lambda: server.statuses("/no"))
    server.stop()
    for connection in waiting:
        connection.close()


@pytest.mark.parametrize("proxies", ["", "10.0.0.1, 127.0.0.0/8"])
def test_header_of_a_proxy_says_who_the_client_is_only_if_the_proxy_is_named(start_plain, proxies):
    server = start_plain(proxies=proxies, max_queue=4, max_lines=2)
    with ThreadPoolExecutor(5) as pool:

        def translate(line, client):
            return pool.submit(server.translate, line, **{"X-Forwarded-For": client})

        for line, rows in (("stuck", (1, 0)), (["a", "b"], (1, 2))):  # one runs, and two may wait
            translate(line, "1.1.1.1")
            wait_until(lambda rows=rows: server.rows == rows)
        clients = "1.1.1.1", "2.2.2.2, 1.1.1.1", "1.1.1.1, 2.2.2.2"  # the last is what a proxy adds
        answers = [translate("c", client) for client in clients]
        waiting = 3 if proxies else 2
        wait_until(lambda: sum(one.done() for one in answers) == 5 - waiting)
        wait_until(lambda: server.rows == (1, waiting))
        server.process.kill()
    for one in answers[: 5 - waiting]:
        assert "lines wait for the model" in one.result()[2]["error"]


def test_client_that_leaves_is_seen_to_leave(start_plain):
    server = start_plain()
    head = b"POST /translate HTTP/1.1\r\nHost: a\r\nContent-Length: 14\r\n\r\n"
    with send(server, head + b'{"q": "stuck"}'):
        wait_until(lambda: server.rows == (1, 0))
    others = "/metrics", "/health/ready"
    log = wait_until(lambda: [one for one in server.log if one["path"] not in others])
    assert [one["status"] for one in log] == [499]


@pytest.mark.long
def test_connection_stays_open_for_as_long_as_told(start_plain):
    """Longer than 5 seconds, which is Uvicorn's default."""
    connection = http.client.HTTPConnection("127.0.0.1", start_plain(keep_alive=6).port, timeout=60)
    with contextlib.closing(connection):
        began = time.monotonic()
        connection.request("GET", "/health")
        assert connection.getresponse().read()
        assert connection.sock.recv(1) == b""  # waits until the server closes it
    assert time.monotonic() - began > 6


def test_too_large_a_body_is_answered_although_the_client_still_sends(start_plain):
    status, _, answer = start_plain().translate("x" * 10_000_000)
    assert status == 413 and "at most 1048576 bytes" in answer["error"]


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_all_addresses_of_ipv6_are_also_those_of_ipv4():
    with listen("::", 0) as listener:
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, listener.getsockname()[1]), timeout=5).close()
