"""Text that is read, translated and written chunk by chunk, so that memory is bounded.

A line ends at a line feed and nowhere else.
"""

import contextlib
import hashlib
import json
import os
import platform
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from keras_transformer.atomic_file import move_file, named_errors, write_text
from keras_transformer.cli.backend import backend_name
from keras_transformer.console import console
from keras_transformer.lock import file_lock
from keras_transformer.texts import CHUNK_BYTES, Chunk, lines_of

# Writes the translations of a chunk.
Write = Callable[[str, Chunk], None]


def translate_chunks(
    translator: Any, chunks: Iterable[Chunk], name: str, options: dict[str, Any], ahead: bool = True
) -> Iterator[tuple[Chunk, list[str], Any]]:
    """Yields each chunk with its lines and what the translator returns for them.

    At the end, it prints which symbols of all lines the source's vocabulary lacks, and how many
    translations are unfinished.

    Args:
        translator: called as a `Translator`.
        chunks: iterable of `Chunk`.
        name: name of their stream in errors.
        options: dict, those of each call.
        ahead: whether a next chunk may be read before one is yielded, so that CTranslate2 does not
            wait for Python between two. Defaults to `True`.
    """
    from keras_transformer.data.report import UnknownSymbols
    from keras_transformer.decoding.reports import count_unfinished, unfinished_report

    calls = 2 if ahead and translator.engine.has_threads else 1
    unknown = UnknownSymbols(translator.source_tokenizer)
    translations: Counter[str] = Counter()

    def done():
        chunk, lines, found = waiting.popleft().result()
        unknown.add(lines, chunk.first)
        translations.update(count_unfinished(found))
        return chunk, lines, found

    def translate(chunk):
        lines = chunk.lines(name)
        try:
            return chunk, lines, translator(lines, **options)
        except ValueError as error:
            if chunk.first > 1:
                error.args = (f"Counted from line {chunk.first:,}: {error}",)
            raise

    pool, waiting = ThreadPoolExecutor(calls), deque[Future[Any]]()
    for chunk in chunks:
        waiting.append(pool.submit(translate, chunk))
        if len(waiting) == calls:
            yield done()
    while waiting:
        yield done()
    if note := unknown.note("the source"):
        console.print(note)
    for report in unfinished_report(**translations):
        console.print(report)


@contextlib.contextmanager
def ends_at_once() -> Iterator[None]:
    """Ends the process at Ctrl-C, or if nobody reads its output: no search in a thread goes on."""
    try:
        yield
    except KeyboardInterrupt:
        os._exit(130)
    except BrokenPipeError:
        os._exit(141)  # as a program that SIGPIPE ended


def as_lines(texts):
    """Joins texts, each as one line: a byte-level model can produce line breaks."""
    return "".join(text.replace("\r", " ").replace("\n", " ") + "\n" for text in texts)


def is_device(path):
    """Whether a path is that of a device, such as `/dev/null`."""
    return path.exists() and not path.is_file()


def write_lines(lines, path=None):
    """Writes each string as one line: to a file, atomically, or as `open_output` does."""
    if path is None or is_device(path):
        with open_output(path) as (_, write):
            write(as_lines(lines), None)
    else:
        write_text(path.resolve(), as_lines(lines))


@contextlib.contextmanager
def open_output(path: Path | None) -> Iterator[tuple[int, Write]]:
    """Opens a device, or standard output for `None`, which shows each chunk when it is written.

    Yields:
        0, and the function that writes.
    """
    with open(path, "wb") if path else contextlib.nullcontext(sys.stdout.buffer) as file:

        def write(text, _):
            file.write(text.encode("utf-8"))
            file.flush()

        yield 0, write


@contextlib.contextmanager
def grow_file(path: Path, settings: dict[str, Any], stream: Any) -> Iterator[tuple[int, Write]]:
    """Opens a file that grows chunk by chunk; after a kill, the next call goes on.

    `NAME.json` beside it holds how many lines are done, by which settings and for which input.

    Args:
        path: path of the file.
        settings: dict of JSON: everything that can change a translation.
        stream: the input, at its beginning; what is done already is read.

    Yields:
        the number of lines that are done, and the function that writes.

    Raises:
        ValueError: if the file was begun with other settings or another input, or is not of this
            program.
    """
    path, digest = path.resolve(), hashlib.sha256()
    state_file = path.with_name(f"{path.name}.json")
    state: dict[str, Any] = {"lines": 0, "read": 0, "written": 0, "settings": settings}
    state["input"] = digest.hexdigest()
    with file_lock(path.with_name(f".{path.name}.lock"), work="writing this file"):
        size, is_known = path.stat().st_size if path.exists() else 0, state_file.exists()
        if size and is_known:
            state = json.loads(state_file.read_text("utf-8"))
        if size < state["written"] or (size and not is_known):
            must = f"{str(path)!r} must be as this program left it, beside {state_file.name!r}."
            cure = "Move it away, or delete it"
            raise ValueError(f"{must} Received: a file of {size:,} bytes. {cure}")
        if size:
            hash_bytes(stream, state["read"], digest)
            require_same(path, state, settings | {"input": digest.hexdigest()})
        if state["lines"]:
            console.print(f"Goes on after line {state['lines']:,}.")
        write_text(state_file, json.dumps(state))  # before the first byte of the file
        path.touch()
        os.truncate(path, state["written"])

        def write(text, chunk):
            digest.update(chunk.data)
            with named_errors(path), open(path, "ab") as file:
                file.write(text.encode("utf-8"))
                file.flush()
                os.fsync(file.fileno())
                state["written"] = file.tell()
            state["lines"] += chunk.num_lines
            state["read"] += len(chunk.data)
            state["input"] = digest.hexdigest()
            write_text(state_file, json.dumps(state))

        try:
            yield state["lines"], write
        except KeyboardInterrupt:
            console.print(f"Stopped after line {state['lines']:,}. The same command goes on.")
            raise


@contextlib.contextmanager
def resume_file(path: Path, settings: dict[str, Any], stream: Any) -> Iterator[tuple[int, Write]]:
    """As `grow_file`, for `NAME.partial`, which replaces `path` at the end of the block."""
    path = path.resolve()
    partial = path.with_name(f"{path.name}.partial")
    with grow_file(partial, settings, stream) as opened:
        yield opened
        move_file(partial, path)
        partial.with_name(f"{partial.name}.json").unlink()


def require_same(path, state, settings):
    """Raises if a partial file was begun with other settings or another input."""
    old = state["settings"] | {"input": state["input"]}
    if changed := [name for name in old | settings if old.get(name) != settings.get(name)]:
        must = f"{str(path)!r} must be finished with the model, options and input of its beginning."
        received = (f"{name}={settings.get(name)}, not {old.get(name)}" for name in changed)
        raise ValueError(f"{must} Received: {', '.join(received)}. To begin anew, delete it.")


def hash_bytes(stream, count, digest):
    """Reads at most `count` bytes of a stream into a digest."""
    while count and (block := stream.read(min(count, CHUNK_BYTES))):
        digest.update(block)
        count -= len(block)


def what_decides(translator, runs, model, options):
    """Returns a dict of JSON with all that decides a translation, beside its source.

    Args:
        translator: what `load_translator` returned for `runs` and `model`.
        options: dict of JSON, those of the call.
    """
    from keras_transformer.data.tokenizer_file import file_names
    from keras_transformer.runs.folder import RunFolder
    from keras_transformer.runs.translators import kind_of

    of_kind = {"ctranslate2": ("ctranslate2",), "saved_model": ("tensorflow", "tensorflow_text")}
    if engines := of_kind.get(kind_of(runs[0]), ()):
        files = sorted(path for path in runs[0].rglob("*") if path.is_file())
    else:
        engines, folder = ("keras", backend_name()), RunFolder(runs[0])
        models = [model] if model else [RunFolder(run).model_file for run in runs]
        files = [*models]
        for path in folder.tokenizer_files(folder.recipe().vocabulary.joint):
            of_path = (path.with_name(name) for name in file_names(path))
            files += filter(Path.is_file, of_path)
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.read_bytes())
    search = {name: repr(value) for name, value in translator.all_settings.items()}
    versions = {name: sys.modules[name].__version__ for name in ("keras_transformer", *engines)}
    own = {"model": digest.hexdigest()[:16], "processor": processor()}
    return own | versions | search | options


def processor():
    """Returns the architecture of the processor and, on Linux, a hash of its instruction set."""
    features = ""
    with contextlib.suppress(OSError):
        lines = lines_of("/proc/cpuinfo")
        features = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()} {hashlib.sha256(features.encode()).hexdigest()[:8]}"
