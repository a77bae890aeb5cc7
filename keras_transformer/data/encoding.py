"""Pairs of strings -> token ids, on several cores: each core has a Python process.

Each process runs the program below. `multiprocessing` would run the user's script again, and a
daemonic process cannot use it.

    python -m keras_transformer.data.encoding
"""

import collections
import contextlib
import itertools
import os
import pickle
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from keras_transformer.data.tokenizer_like import TokenizerLike, encode_in_languages

PROGRAM = "-P", "-m", "keras_transformer.data.encoding"
# Token ids of source and target, END after each row; and their lengths, int32 `(pairs, 2)`.
Encoded: TypeAlias = tuple[list[np.ndarray], np.ndarray]


class Chunk(NamedTuple):
    """Pairs that are encoded together.

    Attributes:
        sources, targets: lists of strings.
        source_languages, target_languages: the language token of each string, if that decides how
            it is split. Optional.
    """

    sources: list[str]
    targets: list[str]
    source_languages: list[int] | None = None
    target_languages: list[int] | None = None


def encode_chunk(chunk: Chunk, tokenizers: Sequence[TokenizerLike]) -> Encoded:
    """Returns the token ids of a chunk of pairs; `tokenizers` are those of source and target."""
    ids, lengths = [], []
    sides = (
        (chunk.sources, chunk.source_languages),
        (chunk.targets, chunk.target_languages),
    )
    for tokenizer, side in zip(tokenizers, sides, strict=True):
        rows = encode_in_languages(tokenizer, *side)
        lengths.append(np.fromiter(map(len, rows), np.int32, len(rows)))
        ends = np.cumsum(lengths[-1])
        ids.append(np.insert(np.concatenate(rows), ends, tokenizer.end_token_id))
    return ids, np.stack(lengths, axis=1) + np.int32(1)


def encode_chunks(
    chunks: Iterable[Chunk], tokenizers: Sequence[TokenizerLike], cores: int = 1
) -> Iterator[Encoded]:
    """Yields the token ids of chunks, in their order.

    Args:
        chunks: iterable of chunks.
        tokenizers: those of source and target.
        cores: number of processes. Defaults to `1`: this process.
    """
    if cores == 1:
        yield from (encode_chunk(chunk, tokenizers) for chunk in chunks)
        return
    with contextlib.ExitStack() as stack:
        contexts = [contextlib.closing(_Process(tokenizers)) for _ in range(cores)]
        processes = [stack.enter_context(context) for context in contexts]
        # The processes take turns, so the first of these has the next result.
        busy: collections.deque[_Process] = collections.deque()
        for chunk, process in zip(chunks, itertools.cycle(processes), strict=False):
            if len(busy) == cores:
                yield busy.popleft().receive()
            process.send(chunk)
            busy.append(process)
        while busy:
            yield busy.popleft().receive()


class _Process:
    """Another process, which encodes one chunk at a time. If it fails, this process encodes."""

    def __init__(self, tokenizers):
        self._tokenizers, self._process, self._works = tokenizers, None, True
        # The other process must be able to import whatever this one can.
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        with self._or_here():
            command = [sys.executable, *PROGRAM]
            environment = {**os.environ, "PYTHONPATH": paths}
            self._process = subprocess.Popen(command, env=environment, **pipes)
            pickle.dump(tokenizers, self._process.stdin)

    def send(self, chunk):
        self._chunk = chunk
        with self._or_here():
            pickle.dump(chunk, self._process.stdin)
            self._process.stdin.flush()

    def receive(self):
        """Returns the token ids of the chunk that was sent."""
        encoded = None
        with self._or_here():
            encoded = pickle.load(self._process.stdout)
        return encoded or encode_chunk(self._chunk, self._tokenizers)

    def close(self):
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    @contextlib.contextmanager
    def _or_here(self):
        """Ends the other process if the block fails, so that `receive` encodes here; warns once."""
        try:
            yield
        except Exception as error:  # such as a tokenizer that cannot be pickled
            if self._works:
                message = f"No further process can tokenize ({error}): this one does it."
                warnings.warn(message, stacklevel=1)
            self._works = False
            self.close()


def _serve() -> None:
    """Answers chunks on standard input with their token ids, until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that asks handles Ctrl-C
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a tokenizer may print
    tokenizers = pickle.load(sys.stdin.buffer)
    while True:
        try:
            chunk = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        encoded = None
        with contextlib.suppress(Exception):  # the process that asks raises the error itself
            encoded = encode_chunk(chunk, tokenizers)
        pickle.dump(encoded, answers)
        answers.flush()


if __name__ == "__main__":
    _serve()
