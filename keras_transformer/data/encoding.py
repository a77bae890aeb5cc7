"""Pairs of strings -> token ids, on several cores: each core has a Python process.

The processes are started by this program, not by `multiprocessing`: that would run the user's
script again, and is refused in a daemonic process.

    python -m keras_transformer.data.encoding
"""

import collections
import concurrent.futures
import contextlib
import os
import pickle
import queue
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from keras_transformer.data.tokenizer_like import TokenizerLike, encode

PROGRAM = "-P", "-m", "keras_transformer.data.encoding"
Chunk: TypeAlias = tuple[list[str], list[str]]  # sources and targets
# Token ids of source and target, END after each row; and their lengths, int32 `(pairs, 2)`.
Encoded: TypeAlias = tuple[list[np.ndarray], np.ndarray]


def encode_chunk(chunk: Chunk, tokenizers: Sequence[TokenizerLike]) -> Encoded:
    """Returns the token ids of a chunk of pairs."""
    ids, lengths = [], []
    for tokenizer, lines in zip(tokenizers, chunk, strict=True):
        rows = encode(tokenizer, lines)
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
        idle: queue.SimpleQueue[_Process] = queue.SimpleQueue()
        for _ in range(cores):
            idle.put(stack.enter_context(contextlib.closing(_Process(tokenizers))))
        pool = concurrent.futures.ThreadPoolExecutor(cores)
        stack.callback(pool.shutdown, cancel_futures=True)

        def encode_in_process(chunk):
            process = idle.get()
            try:
                return process.encode(chunk)
            finally:
                idle.put(process)

        waiting: collections.deque[Any] = collections.deque()
        for chunk in chunks:
            waiting.append(pool.submit(encode_in_process, chunk))
            if len(waiting) > 2 * cores:  # bounds the memory
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


class _Process:
    """Encodes chunks in another process. Without one, this process encodes them."""

    def __init__(self, tokenizers):
        self._tokenizers, self._process = tokenizers, None

    def encode(self, chunk):
        try:
            if self._process is None:
                self._process = _start()
                pickle.dump(self._tokenizers, self._process.stdin)
            pickle.dump(chunk, self._process.stdin)
            self._process.stdin.flush()
            encoded = pickle.load(self._process.stdout)
        except Exception as error:  # also of tokenizers that cannot be pickled
            warnings.warn(
                f"No further process can tokenize ({error}): this one does it, on one core.",
                stacklevel=2,
            )
            encoded = None
        return encode_chunk(chunk, self._tokenizers) if encoded is None else encoded

    def close(self):
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


def _start():
    # What this process can import, the other one can.
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    return subprocess.Popen(
        [sys.executable, *PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": paths},
    )


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
        answer: Any
        try:
            answer = encode_chunk(chunk, tokenizers)
        except Exception:
            answer = None  # the process that asks encodes the chunk, and raises the error itself
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    _serve()
