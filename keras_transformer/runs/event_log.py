"""Logs for TensorBoard, written without TensorFlow: an event file, and the callback for `fit`."""

import itertools
import os
import pathlib
import socket
import struct
import time
from typing import Any

import keras
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.image import metadata as images
from tensorboard.plugins.scalar import metadata as scalars
from tensorboard.plugins.text import metadata as texts
from tensorboard.summary.writer.record_writer import RecordWriter
from tensorboard.util.tensor_util import make_tensor_proto

from keras_transformer.types import Path

_NUMBERS = itertools.count()  # of the files of this process


class EventLog:
    """An event file of TensorBoard. It is made with the first value, and closed after each.

    Args:
        folder: path of the folder that the file is in, made if it is missing.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = pathlib.Path(folder)
        self._file: pathlib.Path | None = None

    def scalar(self, tag: str, value: float, step: int) -> None:
        """Adds a number."""
        self._add(tag, float(value), step, scalars.create_summary_metadata("", ""))

    def text(self, tag: str, text: str, step: int) -> None:
        """Adds a text in Markdown."""
        self._add(tag, text, step, texts.create_summary_metadata("", ""))

    def image(self, tag: str, png: bytes, step: int) -> None:
        """Adds an image, as the bytes of a PNG file."""
        size = struct.unpack(">II", png[16:24])  # width and height, in the header of the file
        value = [*(str(number).encode() for number in size), png]
        self._add(tag, value, step, images.create_summary_metadata("", ""))

    def _add(self, tag, value, step, metadata):
        kind = "float32" if isinstance(value, float) else "string"
        tensor = make_tensor_proto(value, dtype=kind)
        entry = Summary.Value(tag=tag, metadata=metadata, tensor=tensor)
        events = [Event(step=step, summary=Summary(value=[entry]))]
        if self._file is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            place = socket.gethostname(), os.getpid(), next(_NUMBERS)
            name = ".".join(map(str, ("events.out.tfevents", int(time.time()), *place, "v2")))
            self._file = self._folder / name
            events.insert(0, Event(file_version="brain.Event:2"))
        # Not kept open: an error within `fit` would leave it so.
        with open(self._file, "ab") as file:
            for event in events:
                event.wall_time = time.time()
                RecordWriter(file).write(event.SerializeToString())


class EventLogger(keras.callbacks.Callback):
    """Logs the values of each epoch for TensorBoard.

    It writes the tags of `keras.callbacks.TensorBoard`, which needs TensorFlow on every backend.

    Args:
        folder: path of the folder: its subfolder `train` gets the values of training, and
            `validation` those of validation.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._train = EventLog(os.path.join(folder, "train"))
        self._validation = EventLog(os.path.join(folder, "validation"))

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        for name, value in (logs or {}).items():
            update = int(self.model.optimizer.iterations.numpy())
            self._validation.scalar(f"evaluation_{name}_vs_iterations", value, update)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        for name, value in (logs or {}).items():
            own = name.removeprefix("val_")
            log = self._train if own == name else self._validation
            log.scalar(f"epoch_{own}", value, epoch)
