"""How far a line goes: calls and changes of file, in frames of this package alone.

`http FOLDER` serves an exported folder in this process, and counts one request of one line to
`/translate`, from socket to answer; `graph` counts what the trace of a string through an exported
graph (`serving_default`) calls.

    python benchmarks/calls.py http served
    python benchmarks/calls.py graph
"""

import collections
import json
import pathlib
import sys
import tempfile
import threading
import urllib.request

import typer

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
PACKAGE = f"{ROOT}/keras_transformer/"
app = typer.Typer(help=__doc__)


class Counter:
    """Counts calls in all threads that start after it, while `is_on`.

    Expressions that Python runs as functions (comprehensions, lambdas) belong to their function.
    """

    def __init__(self) -> None:
        self.is_on = False
        self.files: list[str] = []
        self.functions: collections.Counter = collections.Counter()
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def _profile(self, frame, event, argument):
        code = frame.f_code
        is_ours = code.co_filename.startswith(PACKAGE) and code.co_name[0] != "<"
        if self.is_on and event == "call" and is_ours:
            self.files.append(code.co_filename.removeprefix(PACKAGE))
            self.functions[self.files[-1], code.co_qualname] += 1

    def report(self, what: str) -> None:
        changes = sum(a != b for a, b in zip(self.files, self.files[1:], strict=False))
        print(
            f"{what}: {len(self.files)} calls of {len(self.functions)} functions in "
            f"{len(set(self.files))} files, {changes} changes of file"
        )
        for file, count in collections.Counter(self.files).most_common():
            print(f"{count:5} {file}")


@app.command()
def http(folder: str, line: str = "twenty-one", port: int = 8765) -> None:
    """Counts the calls of one request."""
    from keras_transformer.cli import app as program

    counter = Counter()

    def translate():
        data = json.dumps({"q": line}).encode()
        headers = {"Content-Type": "application/json"}
        url = f"http://127.0.0.1:{port}/translate"
        with urllib.request.urlopen(urllib.request.Request(url, data, headers)) as answer:
            return answer.read()

    def client():
        sys.setprofile(None)
        while True:
            try:
                translate()
                break
            except OSError:  # it is not ready
                threading.Event().wait(0.5)
        translate()
        threading.Event().wait(0.2)
        counter.is_on = True
        translate()
        threading.Event().wait(0.1)
        counter.is_on = False
        counter.report(f"a line over HTTP, {folder}")
        sys.stdout.flush()
        __import__("os")._exit(0)

    threading.Thread(target=client, daemon=True).start()
    program(["serve", folder, "--port", str(port)], standalone_mode=False)


@app.command()
def graph() -> None:
    """Counts the calls of the trace of a string through an exported graph."""
    import keras_transformer as kt
    from keras_transformer.export.signatures import Signatures

    with tempfile.TemporaryDirectory() as folder:
        text = [text for pair in kt.number_names("train", 500) for text in pair]
        tokenizer = kt.Tokenizer.train_on_lines(text, 340, pathlib.Path(folder) / "t.json")
        sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "hidden_dim": 32}
        config = kt.TransformerConfig.tiny(tokenizer.vocabulary_size, **sizes)
        translator = kt.Translator(kt.Transformer(config), tokenizer)
    translator("one")  # builds the model
    signatures = Signatures(translator)
    counter = Counter()
    counter.is_on = True
    signatures.serve.get_concrete_function()
    counter.is_on = False
    counter.report("a string through the exported graph")


if __name__ == "__main__":
    app()
