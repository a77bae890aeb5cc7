"""`Journal`: an output file that the same command resumes after a kill."""

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from keras_transformer.atomic_file import move_file, named_errors, write_text
from keras_transformer.console import console
from keras_transformer.lock import file_lock
from keras_transformer.texts import CHUNK_BYTES, Chunk


@dataclasses.dataclass
class State:
    """How far a file is written, and what its content depends on.

    Args:
        lines: number of input lines that are done.
        read: number of bytes of these lines.
        written: number of bytes in the file.
        settings: dict of JSON: the `settings` of the `Journal` that created the file.
        input: SHA-256 of the bytes that were read.
    """

    lines: int
    read: int
    written: int
    settings: dict[str, Any]
    input: str


class Journal:
    """A file that grows chunk by chunk. After a kill, only the same call can go on.

    `NAME.json` beside the file holds its `State`. `.NAME.lock` is there while a process writes.

    Args:
        path: path of the file.
        settings: dict of JSON: everything but the input that can change the content.

    Example:

        with Journal(path, settings).opened(stream) as journal:
            for chunk in read_chunks(stream, journal.lines + 1):
                journal.append(text_of(chunk), chunk)
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self._path = path.resolve()
        self._state_file = self._path.with_name(f"{self._path.name}.json")
        self._digest = hashlib.sha256()
        self._state = State(0, 0, 0, settings, self._digest.hexdigest())

    @property
    def lines(self) -> int:
        """The number of input lines that are done."""
        return self._state.lines

    @contextlib.contextmanager
    def opened(self, stream: Any, moves_to: Path | None = None) -> Iterator[Self]:
        """Creates the file, or opens it to go on after the lines that are done.

        Args:
            stream: the input, at its beginning. The lines that are done are read and skipped.
            moves_to: path that the file is moved to at the end of the block. Optional.

        Raises:
            ValueError: if the file was begun with other settings or another input, or by another
                program. The file is unchanged.
            RunInUseError: if another process writes the file.
        """
        with file_lock(self._path.with_name(f".{self._path.name}.lock"), "writing this file"):
            if (stored := self._stored_state()) is not None:
                self._resume(stored, stream)
            self._write_state()  # before the first byte of the file
            self._path.touch()
            os.truncate(self._path, self._state.written)
            try:
                yield self
            except KeyboardInterrupt:
                console.print(f"Stopped after line {self.lines:,}. The same command goes on.")
                raise
            if moves_to is not None:
                move_file(self._path, moves_to.resolve())
                self._state_file.unlink()

    def append(self, text: str, chunk: Chunk) -> None:
        """Writes the output of the next chunk of the input, and flushes it to disk."""
        state = self._state
        with named_errors(self._path), open(self._path, "ab") as file:
            file.write(text.encode("utf-8"))
            file.flush()
            os.fsync(file.fileno())
            state.written = file.tell()
        self._digest.update(chunk.data)
        state.lines += chunk.num_lines
        state.read += len(chunk.data)
        state.input = self._digest.hexdigest()
        self._write_state()

    def _write_state(self):
        write_text(self._state_file, json.dumps(dataclasses.asdict(self._state)))

    def _stored_state(self):
        """Returns the `State` of a file that was begun, or `None`."""
        size = self._path.stat().st_size if self._path.exists() else 0
        if not size:
            return None
        with contextlib.suppress(FileNotFoundError, ValueError, TypeError):
            stored = State(**json.loads(self._state_file.read_text("utf-8")))
            if stored.written <= size:
                return stored
        raise ValueError(
            f"{str(self._path)!r} must be unchanged since this program wrote it, with "
            f"{self._state_file.name!r} beside it. Received: a file of {size:,} bytes. Move it "
            "away, or delete it"
        )

    def _resume(self, stored, stream):
        """Skips the input that is done; raises a `ValueError` if it or a setting has changed."""
        remaining = stored.read
        while remaining and (block := stream.read(min(remaining, CHUNK_BYTES))):
            self._digest.update(block)
            remaining -= len(block)
        old = stored.settings | {"input": stored.input}
        new = self._state.settings | {"input": self._digest.hexdigest()}
        if changed := [name for name in old | new if old.get(name) != new.get(name)]:
            received = (f"{name}={new.get(name)}, not {old.get(name)}" for name in changed)
            raise ValueError(
                f"{str(self._path)!r} must be finished with the model, options and input that it "
                f"was begun with. Received: {', '.join(received)}. To begin anew, delete it."
            )
        self._state = stored
        if stored.lines:
            console.print(f"Goes on after line {stored.lines:,}.")
