"""A stand-in for the server: the page, and made-up answers to the requests of the page."""

import http.server
import json
import threading

from keras_transformer.serving.status import HERE, PAGE_HEADERS

CARD = {
    "model": "multi30k_en_de",
    "name": "multi30k_en_de",
    "source_language": "en",
    "target_language": "de",
    "vocabulary": {"source": 8000, "target": 8000},
    "search": {"beam_size": 4, "alpha": 0.6},
    "bleu": {"score": 38.24, "signature": "BLEU|tok:13a"},
    "limits": {"max_line_chars": 200, "max_lines": 4, "max_body_bytes": 10_000},
}


def pieces(text):
    return [*("▁" + word for word in text.split()), "</s>"]


def translation(line):
    return line.upper()


def translate(text):
    scores = [-0.25] * len(text)
    truncated = [len(line) > 100 for line in text]
    return {
        "translation": [translation(line) for line in text],
        "score": scores,
        "truncated": truncated,
    }


def translate_n_best(text):
    """Three hypotheses, of which the third is missing."""
    return {
        "translations": [[translation(line), translation(line) + " AGAIN", ""] for line in text],
        "scores": [[-0.25, -1.5, None]] * len(text),
        "lengths": [[len(pieces(line)), len(pieces(line)) + 1, 0] for line in text],
        "truncated": [len(line) > 100 for line in text],
    }


def align(text, target):
    """Each token reads 70 % of its own position; one more row and column are padding."""
    source, target = pieces(text[0]), pieces(target[0])
    rest = 0.3 / max(len(source) - 1, 1)
    weights = [
        [0.7 if s == t else rest for s in range(len(source))] + [0.0] for t in range(len(target))
    ]
    return {
        "attention": [[*weights, [0.0] * (len(source) + 1)]],
        "source_tokens": [[*source, ""]],
        "target_tokens": [[*target, ""]],
        "source_lengths": [len(source)],
        "target_lengths": [len(target)],
    }


def search_tree(text):
    """Three slots: the winner, which alternates between two, a dropped prefix, an empty one."""
    tokens = pieces(translation(text[0]))
    winner = [t % 2 for t in range(len(tokens))]
    steps = range(len(tokens))
    return {
        "tokens": [[[tokens[t] if w == winner[t] else "▁no" for w in range(3)] for t in steps]],
        "parents": [[[winner[t - 1] if t else 0] * 3 for t in steps]],
        "log_probs": [
            [
                [-0.5 * (t + 1) - (w != winner[t]) if w < 2 else None for w in range(3)]
                for t in steps
            ]
        ],
        "is_winner": [[[w == winner[t] for w in range(3)] for t in steps]],
    }


class StandIn(http.server.ThreadingHTTPServer):
    """Serves the page at `url`.

    Attributes:
        signatures: {name: function of the inputs -> outputs}; a missing one is answered with 404.
        failures: (status, headers) that the next requests for a prediction are answered with.
        requests: (signature, inputs) of every request for a prediction.
        hold: Event; requests for a prediction wait until it is set.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.reset()
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def reset(self):
        self.card = CARD
        self.signatures = {
            each.__name__: each for each in (translate_n_best, align, search_tree)
        } | {"serving_default": translate}
        self.failures, self.requests, self.hold = [], [], threading.Event()
        self.hold.set()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/":
            page = (HERE / "page" / "index.html").read_bytes()
            self.answer(200, page, type="text/html; charset=utf-8")
        elif self.path == "/model_card":
            self.answer(200, self.server.card)
        else:
            self.answer(404, {"error": "not found"})

    def do_POST(self):
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name, inputs = body["signature_name"], body["inputs"]
        server.requests.append((name, inputs))
        server.hold.wait(60)
        if server.failures:
            status, headers = server.failures.pop(0)
            self.answer(status, {"error": "made up"}, headers)
        elif self.path != "/v1/models/multi30k_en_de:predict" or name not in server.signatures:
            self.answer(404, {"error": f"no signature {name}"})
        else:
            self.answer(200, {"outputs": server.signatures[name](**inputs)})

    def answer(self, status, body, headers=None, type="application/json"):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        sent = {"Content-Type": type, "Content-Length": len(data), **(headers or {})}
        for name, value in (sent | PAGE_HEADERS).items():
            self.send_header(name, str(value))
        self.end_headers()
        try:
            self.wfile.write(data)
        except ConnectionError:
            pass  # the page aborted the request

    def log_message(self, *_):
        pass
