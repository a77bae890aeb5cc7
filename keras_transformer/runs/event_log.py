"""Logs for TensorBoard, written without TensorFlow."""

import pathlib
import socket
import time
from typing import Any

import keras
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.scalar.metadata import create_summary_metadata
from tensorboard.summary.writer.record_writer import RecordWriter
from tensorboard.util.tensor_util import make_tensor_proto

from keras_transformer.types import Path


class EventLogger(keras.callbacks.Callback):
    """Logs the values of each epoch for TensorBoard.

    It writes the same tags as `keras.callbacks.TensorBoard`, which needs TensorFlow on every
    backend.

    Args:
        folder: path of the folder: its subfolder `train` gets the values of training, and
            `validation` those of validation.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = pathlib.Path(folder)
        self._name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.v2"

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        for name, value in (logs or {}).items():
            update = int(self.model.optimizer.iterations.numpy())
            self._write("validation", f"evaluation_{name}_vs_iterations", value, update)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        for name, value in (logs or {}).items():
            folder = "validation" if name.startswith("val_") else "train"
            self._write(folder, f"epoch_{name.removeprefix('val_')}", value, epoch)

    def _write(self, folder, tag, value, step):
        """Appends a number to the file of a subfolder; makes both if they are missing."""
        path = self._folder / folder / self._name
        path.parent.mkdir(parents=True, exist_ok=True)
        tensor = make_tensor_proto(float(value), dtype="float32")
        entry = Summary.Value(tag=tag, metadata=create_summary_metadata("", ""), tensor=tensor)
        events = [Event(step=step, summary=Summary(value=[entry]))]
        if not path.exists():
            events.insert(0, Event(file_version="brain.Event:2"))
        # Open the file for each number: if it stayed open, an error in `fit` would never close it.
        with open(path, "ab") as file:
            for event in events:
                event.wall_time = time.time()
                RecordWriter(file).write(event.SerializeToString())
