"""Text that is read, translated and written chunk by chunk, so that memory is bounded.

A line ends at a line feed and nowhere else.
"""

import contextlib
import hashlib
import os
import platform
import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from keras_transformer.atomic_file import write_text
from keras_transformer.console import console
from keras_transformer.processor import features
from keras_transformer.texts import Chunk


def translate_chunks(
    translator: Any, chunks: Iterable[Chunk], name: str, options: dict[str, Any], ahead: bool = True
) -> Iterator[tuple[Chunk, list[str], Any]]:
    """Yields each chunk with its lines and what the translator returns for them.

    At the end, it prints which symbols of the lines are not in the source's vocabulary, and how
    many translations are unfinished.

    Args:
        translator: called as a `Translator`.
        chunks: iterable of `Chunk`.
        name: name of their stream in errors.
        options: dict of keyword arguments of each call.
        ahead: whether the next chunk may be read before a chunk is yielded, so that CTranslate2
            does not wait for Python between two chunks. Defaults to `True`.
    """
    from keras_transformer.data.report import UnknownSymbols
    from keras_transformer.decoding.reports import count_unfinished, unfinished_report

    calls = 2 if ahead and translator.engine.has_threads else 1
    pool, waiting = ThreadPoolExecutor(calls), deque[Future[Any]]()
    unknown = UnknownSymbols(translator.source_tokenizer)
    translations: Counter[str] = Counter()

    def translate(chunk):
        lines = chunk.lines(name)
        try:
            return chunk, lines, translator(lines, **options)
        except ValueError as error:
            if chunk.first > 1:
                error.args = (f"Line 1 below is line {chunk.first:,} of the text: {error}",)
            raise

    def next_result():
        chunk, lines, answers = waiting.popleft().result()
        unknown.add(lines, chunk.first)
        translations.update(count_unfinished(answers))
        return chunk, lines, answers

    for chunk in chunks:
        waiting.append(pool.submit(translate, chunk))
        if len(waiting) == calls:
            yield next_result()
    while waiting:
        yield next_result()
    if note := unknown.note("the source"):
        console.print(note)
    for report in unfinished_report(**translations):
        console.print(report)


@contextlib.contextmanager
def ends_at_once() -> Iterator[None]:
    """Ends the process at Ctrl-C, or if nobody reads its output, without waiting for threads."""
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
    """Writes each string as one line, to a file (atomically), a device or standard output."""
    if path is None or is_device(path):
        with open_output(path) as output:
            output.append(as_lines(lines))
    else:
        write_text(path.resolve(), as_lines(lines))


class Output:
    """A device or standard output, which shows each chunk when it is written.

    Args:
        file: binary file.
    """

    lines = 0

    def __init__(self, file: Any) -> None:
        self._file = file

    def append(self, text: str, chunk: Chunk | None = None) -> None:
        """Writes text, as `Journal.append`."""
        self._file.write(text.encode("utf-8"))
        self._file.flush()


@contextlib.contextmanager
def open_output(path: Path | None) -> Iterator[Output]:
    """Opens a device, or standard output for `None`."""
    with open(path, "wb") if path else contextlib.nullcontext(sys.stdout.buffer) as file:
        yield Output(file)


def journal_settings(translator, runs, model, options):
    """Returns the `settings` of a `Journal`: all that decides a translation, but its source.

    Args:
        translator: what `load_translator` returned for `runs` and `model`.
        runs: list of paths: runs, or one exported folder.
        model: path of another model file of the run, or `None`.
        options: dict of JSON: the options of the call.

    Returns:
        dict of JSON.
    """
    from keras_transformer.data.tokenizer_file import file_names
    from keras_transformer.runs.folder import RunFolder
    from keras_transformer.runs.translators import kind_of

    engine = translator.engine
    if kind_of(runs[0]) != "run":
        files = sorted(path for path in runs[0].rglob("*") if path.is_file())
    else:
        folder = RunFolder(runs[0])
        models = [model] if model else [RunFolder(run).model_file for run in runs]
        files = [*models]
        for path in folder.tokenizer_files(folder.recipe().vocabulary.joint):
            tokenizer_files = (path.with_name(name) for name in file_names(path))
            files += filter(Path.is_file, tokenizer_files)
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.read_bytes())
    search = {name: repr(value) for name, value in translator.all_settings.items()}
    # What is not set is left out: earlier versions did not write it.
    tag = translator.source_tokenizer.tag
    tags = {} if tag is None else {"tag": tag}
    libraries = ("keras_transformer", *engine.libraries)
    versions = {name: sys.modules[name].__version__ for name in libraries}
    variables = {name: os.environ[name] for name in engine.variables if name in os.environ}
    computation = {"model": digest.hexdigest()[:16], "processor": processor()}
    return computation | versions | variables | search | tags | options


def processor():
    """Returns the architecture of the processor and, on Linux, a hash of its instruction set."""
    return f"{platform.machine()} {hashlib.sha256(features().encode()).hexdigest()[:8]}"
