"""Measures `keras-transformer serve`: latency, throughput, memory, overload, kill and restart.

    python benchmarks/serve.py --served SERVED --source SOURCE
    python benchmarks/serve.py --served SERVED --source SOURCE --requests 2000
    python benchmarks/serve.py --engines SERVED CT2 CT2_INT8 --source SOURCE

It starts the server on an exported folder, and clients that send one line at a time, in threads of
this process. Every answer is compared with the answer that the line got when it was sent alone.

- With batching and without (`--max-batch 1`): times and sentences per second of 1, 4 and 16
  clients.
- `--requests` requests of 16 clients, a third of which leave before the answer: memory of the
  server, the medians in the second tenth and in the last, and an empty queue. `--soak` measures
  this alone.
- More clients than a short queue holds: answers 503, and normal ones afterwards.
- `kill -9` and a restart while 16 clients retry: all get their answers.
- Floods, `--floods` alone: how long the line of a client that sends one a second and `/health` take
  alone, and beside clients of another address that send many long lines, bodies of many empty
  lines, requests that they do not wait for, or long prefixes.
- Engines, `--engines` alone: several exported folders, with 1 and 2 workers, at 1, 4, 16 and 64
  clients; seconds from the start to the first answer, memory, and the cores that the clients take.

Linux only.
"""

import argparse
import concurrent.futures
import contextlib
import http.client
import itertools
import json
import os
import pathlib
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import numpy as np
from decode_peers.timing import print_row, print_verdict, progress
from process_memory import memory_status

SERVE = [sys.executable, "-c", "from keras_transformer.cli import app; app()", "serve"]
CLIENTS = (1, 4, 16)
ENGINE_CLIENTS, ENGINE_WORKERS = (1, 4, 16, 64), (1, 2)
ENGINE_WIDTHS = (20, 7, 7, 9, 9, 12, 9, 13)
WIDTHS = (8, 9, 9, 9, 12, 10)
# Throughput with batching / without, at 16 clients; and growth of the memory.
LEAST_GAIN, MOST_GROWTH = 3, 0.05
LEAVES_WITHIN = 0.05  # seconds
WAITING = "keras_transformer_queue_rows"  # metric
OVERLOAD_CLIENTS, OVERLOAD_QUEUE, OVERLOAD_LINES = 64, 32, 16
FLOOD_CLIENTS, FLOOD_SECONDS, FLOOD_ADDRESS = 4, 30, "127.0.0.2"
LONG_LINES, LINE_CHARACTERS = "128 long lines", 500
# The line of another client: at most so many times what it takes alone, and one batch more.
MOST_SLOWER, MOST_HEALTH_MS = 3, 100


class Server:
    """A server in a process of its own, ready when it is made."""

    def __init__(self, folder, *options, port=0):
        self.errors = tempfile.NamedTemporaryFile("w+")
        self.process = subprocess.Popen(
            [*SERVE, folder, "--port", str(port), *options],
            stdout=subprocess.DEVNULL,
            stderr=self.errors,
        )
        began = time.perf_counter()
        self.port = int(self._wait_for(r"Listening on \S+:(\d+)\n")[1])
        self._wait_for(r"Ready after .*\n")
        self.start_seconds = time.perf_counter() - began

    def _wait_for(self, pattern):
        while not (found := re.search(pattern, pathlib.Path(self.errors.name).read_text())):
            if self.process.poll() is not None:
                raise RuntimeError(pathlib.Path(self.errors.name).read_text())
            time.sleep(0.05)
        return found

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.errors.close()


class Client:
    """A connection that is kept alive."""

    def __init__(self, port):
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)

    def translate(self, line):
        """Returns the status, and the translation if it is 200."""
        body = json.dumps({"q": line})
        self._connection.request("POST", "/translate", body, {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        answer = json.loads(response.read())
        return response.status, answer.get("translatedText")

    def leave(self, line):
        """Asks, and goes away within 50 ms, before or after the answer; returns as `translate`."""
        body = json.dumps({"q": line})
        self._connection.request("POST", "/translate", body, {"Content-Type": "application/json"})
        time.sleep(random.uniform(0, LEAVES_WITHIN))
        self._connection.close()
        return None, None

    def health(self, line):
        """Returns as `translate`."""
        self._connection.request("GET", "/health")
        response = self._connection.getresponse()
        response.read()
        return response.status, None

    def translate_with_retries(self, line):
        """Returns the translation, although the server may be away or busy."""
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException):
                status, translation = self.translate(line)
                if status == 200:
                    return translation
            self._connection.close()
            time.sleep(0.1)


def send(port, lines, clients, work):
    """Calls `work(client, line)` for each line, in as many threads as there are clients.

    Returns:
        list of results, and the seconds that all took.
    """
    results = [None] * len(lines)
    numbers = iter(range(len(lines)))  # `next` of it is atomic

    def run():
        client = Client(port)
        for number in numbers:
            results[number] = work(client, lines[number])

    threads = [threading.Thread(target=run) for _ in range(clients)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results, time.perf_counter() - began


def timed(client, line, ask=Client.translate):
    began = time.perf_counter()
    status, translation = ask(client, line)
    return time.perf_counter() - began, status, translation


def mistakes(lines, translations, expected):
    """Returns how many lines got another answer than their own."""
    pairs = zip(lines, translations, strict=True)
    return sum(translation != expected[line] for line, translation in pairs)


def throughput(folder, lines, requests, expected, show):
    """Prints the table, and returns the sentences per second of 16 clients by maximum batch."""
    print_row(WIDTHS, "clients", "batch", "p50, ms", "p99, ms", "sentences/s", "mistakes")
    rates = {}
    for max_batch in (32, 1):
        with Server(folder, "--max-batch", str(max_batch)) as server:
            for clients in CLIENTS:
                show(f"{clients} clients, batches of {max_batch}")
                sent = list(itertools.islice(itertools.cycle(lines), requests))
                send(server.port, sent[: requests // 10], clients, timed)
                results, seconds = send(server.port, sent, clients, timed)
                taken, _, translations = zip(*results, strict=True)
                p50, p99 = np.percentile(taken, (50, 99)) * 1e3
                rates[max_batch] = len(sent) / seconds
                wrong = mistakes(sent, translations, expected)
                cells = f"{p50:.1f}", f"{p99:.1f}", f"{rates[max_batch]:.1f}", wrong
                print_row(WIDTHS, clients, max_batch, *cells)
    return rates


def engines(folders, lines, requests):
    """Prints the speed of each exported folder, with one worker and with two."""
    sent = list(itertools.islice(itertools.cycle(lines), requests))
    titles = "folder", "workers", "clients", "p50, ms", "p99, ms", "sentences/s", "mistakes"
    print_row(ENGINE_WIDTHS, *titles, "clients' cores")
    for folder, workers in itertools.product(folders, ENGINE_WORKERS):
        began = time.perf_counter()
        with Server(folder, "--workers", str(workers)) as server:
            Client(server.port).translate(lines[0])
            first = time.perf_counter() - began
            alone, _ = send(server.port, lines, 1, timed)
            expected = {line: text for line, (_, _, text) in zip(lines, alone, strict=True)}
            for clients in ENGINE_CLIENTS:
                send(server.port, sent[: requests // 10], clients, timed)
                used = time.process_time()
                results, seconds = send(server.port, sent, clients, timed)
                used = time.process_time() - used
                taken, _, translations = zip(*results, strict=True)
                times = (f"{each * 1e3:.1f}" for each in np.percentile(taken, (50, 99)))
                cells = f"{len(sent) / seconds:.1f}", mistakes(sent, translations, expected)
                row = pathlib.Path(folder).name, workers, clients, *times, *cells
                print_row(ENGINE_WIDTHS, *row, f"{used / seconds:.2f}")
            anonymous, resident = (
                memory_status(field, server.process.pid) / 1e6 for field in ("RssAnon", "VmRSS")
            )
            print(
                f"first answer after {first:.1f} s; RssAnon {anonymous:,.0f} MB, of {resident:,.0f}"
                " MB resident\n"
            )


def soak(folder, lines, requests, expected):
    """Sends all requests from 16 clients, a third of which leave, and compares the memory."""
    sent, numbers = list(itertools.islice(itertools.cycle(lines), requests)), itertools.count()
    looks, tenth = [], requests // 10

    def ask(client, line):
        leaves = next(numbers) % 3 == 2
        looks.append(memory_status("RssAnon", server.process.pid) / 2**20)
        return line, *timed(client, line, Client.leave if leaves else Client.translate)[1:]

    with Server(folder) as server:
        results, _ = send(server.port, sent, CLIENTS[-1], ask)
        metrics = urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics").read().decode()
        waiting = float(re.search(rf"^{WAITING} (\S+)", metrics, re.MULTILINE)[1])
    asked = [(line, status, text) for line, status, text in results if status is not None]
    wrong = sum(status != 200 or text != expected[line] for line, status, text in asked)
    what = f"{requests} requests of {CLIENTS[-1]} clients, of which {requests - len(asked)} leave"
    print_verdict(not wrong and not waiting, f"{what}: {wrong} mistakes, {waiting:.0f} lines wait")
    early, late = np.median(looks[tenth : 2 * tenth]), np.median(looks[-tenth:])
    growth = late / early - 1
    what = f"RssAnon {early:,.0f} MiB after a tenth, {late:,.0f} MiB at the end: {growth:+.1%}"
    print_verdict(growth <= MOST_GROWTH, what)


def overload(folder, lines, requests, expected):
    """Sends from more clients than the queue holds, then from one."""
    limits = f"--max-queue={OVERLOAD_QUEUE}", f"--max-lines={OVERLOAD_LINES}", "--max-batch=8"
    with Server(folder, *limits) as server:
        sent = list(itertools.islice(itertools.cycle(lines), requests))
        results, _ = send(server.port, sent, OVERLOAD_CLIENTS, timed)
        answered = [(line, text) for line, (_, status, text) in zip(sent, results, strict=True)
                    if status == 200]  # fmt: skip
        refused = sum(status == 503 for _, status, _ in results)
        afterwards, _ = send(server.port, lines[:10], 1, timed)
    wrong = mistakes(*zip(*answered, strict=True), expected)
    is_fine = refused and refused + len(answered) == len(sent) and not wrong
    is_fine = is_fine and all(status == 200 for _, status, _ in afterwards)
    print_verdict(is_fine, f"overload: {len(answered)} answered, {refused} refused, then recovered")


def restart(folder, lines, requests, expected):
    """Kills the server under load and starts it again."""
    sent = list(itertools.islice(itertools.cycle(lines), requests))
    with Server(folder) as server, contextlib.ExitStack() as stack:

        def kill_and_start():
            time.sleep(2)
            server.process.kill()
            server.process.wait()
            stack.enter_context(Server(folder, port=server.port))

        killer = threading.Thread(target=kill_and_start)
        killer.start()
        work = Client.translate_with_retries
        translations, seconds = send(server.port, sent, CLIENTS[-1], work)
        killer.join()
    wrong = mistakes(sent, translations, expected)
    what = f"kill -9 and restart: {len(sent)} answers in {seconds:.0f} s, {wrong} mistakes"
    print_verdict(not wrong, what)


def predict(signature, inputs):
    """Returns the bytes of a request."""
    body = json.dumps({"signature_name": signature, "inputs": inputs}).encode()
    head = f"POST /v1/models/MODEL:predict HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


def flood_requests(lines):
    """{name: (bytes of a request, seconds that its client waits for the answer)}."""
    batch = list(itertools.islice(itertools.cycle(lines), 32))
    long = list(itertools.islice(itertools.cycle(long_lines(lines)), 128))
    prefixes = {"text": batch, "target_prefix": [" ".join(lines)[:900]] * len(batch)}
    return {
        "nothing": (b"", 0),
        LONG_LINES: (predict("serving_default", {"text": long}), 60),
        "empty lines": (predict("serving_default", {"text": [""] * 250_000}), 60),
        "clients that leave": (predict("serving_default", {"text": batch}), 0.05),
        "long prefixes": (predict("translate_n_best", prefixes), 60),
    }


def long_lines(lines):
    """Returns 32 lines of sentences."""
    text = " ".join(itertools.islice(itertools.cycle(lines), 32 * LINE_CHARACTERS))
    return [text[n * LINE_CHARACTERS :][:LINE_CHARACTERS] for n in range(32)]


def flood(port, request, patience, until):
    """Sends a request again and again, each on a new connection."""
    while request and time.perf_counter() < until:
        with contextlib.suppress(OSError):
            wait = min(patience, max(until - time.perf_counter(), 0.01))
            source = (FLOOD_ADDRESS, 0)
            with socket.create_connection(("127.0.0.1", port), wait, source) as connection:
                connection.sendall(request)
                connection.recv(1)


def another_client(port, lines, until, ask):
    """Returns the seconds of one client's requests, one a second at most."""
    client, seconds = Client(port), []
    for line in itertools.cycle(lines):
        if time.perf_counter() > until:
            return seconds
        taken, status, _ = timed(client, line, ask)
        if status == 200:
            seconds.append(taken)
        time.sleep(max(0, 1 - taken))


def floods(folder, lines):
    """Prints how long another client waits beside each flood."""
    print_row(WIDTHS, "", "p50, ms", "p99, ms", "answers", "health p99", "max, ms")
    alone = None
    with Server(folder, "--lines") as server:
        model = json.loads(
            urllib.request.urlopen(f"http://127.0.0.1:{server.port}/model_card").read()
        )
        # The server runs no more bytes than 8 long lines at once.
        short_ms = one_batch_ms(server.port, lines, 32)
        long_ms = one_batch_ms(server.port, long_lines(lines), 8)
        for name, (request, patience) in flood_requests(lines).items():
            request = request.replace(b"MODEL", model["model"].encode(), 1)
            until = time.perf_counter() + FLOOD_SECONDS
            with concurrent.futures.ThreadPoolExecutor(FLOOD_CLIENTS + 2) as pool:
                for _ in range(FLOOD_CLIENTS):
                    pool.submit(flood, server.port, request, patience, until)
                asked = [pool.submit(another_client, server.port, lines, until, ask)
                         for ask in (Client.translate, Client.health)]  # fmt: skip
                translated, health = (np.array(one.result()) * 1e3 for one in asked)
            p50, p99 = np.percentile(translated, (50, 99))
            alone = alone or p99
            health_p99 = np.percentile(health, 99)
            cells = f"{p50:.0f}", f"{p99:.0f}", len(translated), f"{health_p99:.0f}"
            print_row(WIDTHS, "", *cells, f"{health.max():.0f}")
            batch_ms = long_ms if name == LONG_LINES else short_ms
            is_fine = p99 <= MOST_SLOWER * alone + batch_ms and health_p99 <= MOST_HEALTH_MS
            print_verdict(is_fine, f"beside {name}; one batch takes {batch_ms:.0f} ms")


def one_batch_ms(port, lines, size):
    """Returns the milliseconds of the slowest batch of so many lines; all workers have some."""
    batches = [lines[start:][:size] for start in range(0, 4 * size, size)]
    results, _ = send(port, batches * 2, len(os.sched_getaffinity(0)), timed)
    return max(seconds for seconds, *_ in results) * 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    exclusive = parser.add_mutually_exclusive_group(required=True)
    exclusive.add_argument("--served", help="exported folder")
    exclusive.add_argument("--engines", nargs="+", help="exported folders to compare")
    parser.add_argument("--source", type=pathlib.Path, required=True, help="file of sentences")
    parser.add_argument("--requests", type=int, default=20_000)
    parts = parser.add_mutually_exclusive_group()
    parts.add_argument("--floods", action="store_true", help="measure the floods alone")
    parts.add_argument("--soak", action="store_true", help="measure many requests alone")
    arguments = parser.parse_args()
    folder, requests = arguments.served, arguments.requests
    lines = list(dict.fromkeys(arguments.source.read_text("utf-8").splitlines()))[:requests]
    if arguments.engines:
        engines(arguments.engines, lines, min(requests, 1_000))
        return
    if arguments.floods:
        floods(folder, lines)
        return
    with progress(2 * len(CLIENTS) + 4) as show:
        with Server(folder) as server:
            show("each line alone")
            print(f"start until ready: {server.start_seconds:.1f} s\n")
            alone, _ = send(server.port, lines, 1, timed)
        expected = {line: text for line, (_, _, text) in zip(lines, alone, strict=True)}
        if arguments.soak:
            soak(folder, lines, requests, expected)
            return
        rates = throughput(folder, lines, requests // 40, expected, show)
        gain = rates[32] / rates[1]
        print()
        print_verdict(gain >= LEAST_GAIN, f"16 clients: batching is {gain:.1f} times as fast")
        for work in (soak, overload, restart):
            show(work.__name__)
            work(folder, lines, requests if work is soak else requests // 40, expected)
    floods(folder, lines)


if __name__ == "__main__":
    main()
