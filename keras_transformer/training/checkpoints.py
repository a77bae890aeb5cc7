"""Checkpoints: files that hold the whole state of a run, and a folder that keeps the right ones.

A checkpoint appears whole under its name or not at all; a damaged one is found out when it is read.
Paper, section 6.1: the average of the last checkpoints.
"""

import contextlib
import functools
import io
import json
import math
import os
import re
import zipfile
from pathlib import Path

import numpy as np
from keras import ops

METADATA = "metadata.json"
LISTING = "_arrays"  # in the metadata: what the file must hold
PARTS = ("model", "optimizer", "metrics")


class CorruptCheckpointError(ValueError):
    """A file is not the checkpoint that was once written.

    The message names the file and what is wrong with it.

    Example:

    >>> import pathlib
    >>> from keras_transformer.training import checkpoints
    >>> checkpoints.write_checkpoint("half.npz", {"bias": np.zeros(3)}, {"epoch": 1})
    >>> path = pathlib.Path("half.npz")
    >>> size = path.write_bytes(path.read_bytes()[:100])
    >>> try:
    ...     checkpoints.read_checkpoint(path)
    ... except checkpoints.CorruptCheckpointError as error:
    ...     print(error)
    half.npz is not a whole checkpoint: File is not a zip file.
    """


def write_checkpoint(path, arrays, metadata):
    """Writes one file that appears whole, and lasting, or not at all.

    An `.npz` file that `np.load` opens too: `metadata.json`, then one `.npy` per array.

    Args:
        path: path of the file; one that is there is replaced.
        arrays: dict of name to NumPy array of any shape and dtype but `object`.
        metadata: dict that JSON can hold.

    Raises:
        ValueError: an array of objects, a name that a zip file cannot hold, or `"_arrays"` in
            `metadata`.
        OSError: the file could not be written; what was there before is as it was.
    """
    path = Path(path)
    arrays = {name: np.asarray(array) for name, array in arrays.items()}
    listing = {name: [list(a.shape), a.dtype.name] for name, a in arrays.items()}
    for name, array in arrays.items():
        if array.dtype.hasobject or zipfile.ZipInfo(name).filename != name:
            raise ValueError(
                "`arrays` must hold arrays of numbers under names without NUL and backslash. "
                f"Received: {name!r} of dtype {array.dtype}"
            )
    if LISTING in metadata:
        raise ValueError(f"`metadata` must not have the key {LISTING!r}. Received: {metadata}")
    text = json.dumps({**metadata, LISTING: listing})  # before any file is touched
    partial = path.with_name(f".{path.name}.partial")
    try:
        with open(partial, "wb") as file:
            with zipfile.ZipFile(file, "w") as archive:
                archive.writestr(zipfile.ZipInfo(METADATA), text)
                for name, array in arrays.items():
                    if array.dtype.isbuiltin == 2:  # bfloat16: only bytes to the .npy format
                        array = array.view(f"V{array.itemsize}")
                    member = zipfile.ZipInfo(f"{name}.npy")
                    with archive.open(member, "w", force_zip64=True) as stream:
                        np.lib.format.write_array(stream, array, allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        if not isinstance(error, OSError):
            raise
        sentence = (
            f"The checkpoint {path} could not be written: {error.strerror or error}. The older "
            "ones are intact. Free space on the disk, or mend what else is named here, then run "
            "the same command again: it goes on from the newest."
        )
        raise OSError(error.errno, sentence) from error
    _sync_folder(path.parent)


def _sync_folder(path):
    """Makes the names in a folder lasting, where the system can: Windows opens no folders."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def read_checkpoint(path):
    """Reads a checkpoint and verifies all of it.

    Args:
        path: path of a file that `write_checkpoint` wrote.

    Returns:
        `(arrays, metadata)` as they were written.

    Raises:
        CorruptCheckpointError: the file is not as it was written.
        FileNotFoundError: there is no such file.
    """
    with _opened(path) as (archive, listing, metadata):
        arrays = {}
        for name, (shape, dtype) in listing.items():
            # All of it, as `read` then compares the checksum.
            array = _array(archive.read(f"{name}.npy"))
            if array.dtype.kind == "V" and array.dtype.name != dtype:
                array = array.view(dtype)
            if [list(array.shape), array.dtype.name] != [shape, dtype]:
                raise ValueError(
                    f"{name!r} must have shape {shape} and dtype {dtype}, and has "
                    f"{list(array.shape)} and {array.dtype.name}"
                )
            arrays[name] = array
    return arrays, metadata


def read_metadata(path):
    """Reads the metadata of a checkpoint and verifies it, but not the arrays.

    Args:
        path: path of a file that `write_checkpoint` wrote.

    Returns:
        dict as it was written.

    Raises:
        CorruptCheckpointError: the metadata, or the list of what the file holds, is not as written.
        FileNotFoundError: there is no such file.
    """
    with _opened(path) as (_, _, metadata):
        return metadata


def read_shapes(path):
    """Reads what arrays a checkpoint says it holds, to be checked before they are read.

    Args:
        path: path of a file that `write_checkpoint` wrote.

    Returns:
        dict of name to shape.

    Raises:
        CorruptCheckpointError: the metadata, or the list of what the file holds, is not as written.
        FileNotFoundError: there is no such file.
    """
    with _opened(path) as (_, listing, _):
        return {name: tuple(shape) for name, (shape, dtype) in listing.items()}


def _array(content):
    """The array in an `.npy` file, which must be as large as its header says.

    NumPy allocates what the header says.
    """
    stream = io.BytesIO(content)
    version = np.lib.format.read_magic(stream)
    read_header = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }[version]
    shape, _, dtype = read_header(stream)
    if math.prod(shape) * max(1, dtype.itemsize) != len(content) - stream.tell():
        raise ValueError(f"an array of shape {shape} and {dtype} has {len(content)} bytes")
    stream.seek(0)
    return np.lib.format.read_array(stream, allow_pickle=False)


@contextlib.contextmanager
def _opened(path):
    """Yields the zip file, what it must hold, and the metadata."""
    with open(path, "rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                members = archive.infolist()
                if any(member.compress_type != zipfile.ZIP_STORED for member in members):
                    raise ValueError("it is compressed")
                # Then nothing that is read takes more memory than the file takes of the disk.
                if sum(member.file_size for member in members) > os.path.getsize(path):
                    raise ValueError("it is smaller than what it says it holds")
                metadata = json.loads(archive.read(METADATA))
                listing = metadata.pop(LISTING)
                if archive.namelist() != [METADATA, *(f"{name}.npy" for name in listing)]:
                    raise ValueError("it does not hold the arrays that its metadata lists")
                yield archive, listing, metadata
        except MemoryError:
            raise  # says nothing about the file
        except Exception as error:  # a flipped bit makes zipfile raise a dozen kinds
            reason = str(error).rstrip(".") or type(error).__name__
            raise CorruptCheckpointError(f"{path} is not a whole checkpoint: {reason}.") from error


class CheckpointFolder:
    """The checkpoints of a run: `checkpoint-00001234.npz` is the one after 1234 updates.

    After each `save`, it holds the newest ones of each kind and the best ones; the others are
    deleted. A file that cannot be read is no checkpoint: it never counts as one of those kept.

    Args:
        path: path of the folder; the first `save` makes it.
        keep_last: int, how many of the newest of each kind are kept. Defaults to `5`.
        keep_best: int, how many of the best are kept. Defaults to `1`.
        mode: `"min"` or `"max"`, the better score. Defaults to `"min"`.

    Raises:
        ValueError: `keep_last` below 1, `keep_best` below 0, another `mode`.

    Example:

    >>> from keras_transformer.training.checkpoints import CheckpointFolder
    >>> folder = CheckpointFolder("checkpoints", keep_last=2)
    >>> for step, loss in [(100, 3.5), (200, 2.5), (300, 2.75), (400, 2.8)]:
    ...     path = folder.save(step, {"model/bias": np.zeros(3)}, {"epoch": 1}, score=loss)
    >>> [path.name for path in folder.last(2) + folder.best(1)]
    ['checkpoint-00000400.npz', 'checkpoint-00000300.npz', 'checkpoint-00000200.npz']
    >>> path, arrays, metadata = folder.newest()
    >>> metadata
    {'epoch': 1, 'score': 2.8}
    """

    def __init__(self, path, keep_last=5, keep_best=1, mode="min"):
        if keep_last < 1 or keep_best < 0 or mode not in ("min", "max"):
            raise ValueError(
                "`keep_last` must be at least 1, `keep_best` at least 0 and `mode` 'min' or 'max'. "
                f"Received: keep_last={keep_last}, keep_best={keep_best}, mode={mode!r}"
            )
        self.path = Path(path)
        self.keep_last = keep_last
        self.keep_best = keep_best
        self.mode = mode

    def save(self, step, arrays, metadata, score=None, kinds=()):
        """Writes a checkpoint, then deletes those that are neither among the last nor the best.

        Args:
            step: int, the number of updates. A checkpoint of the same step is replaced.
            arrays: dict of name to NumPy array.
            metadata: dict that JSON can hold; the score is added as `"score"`.
            score: float, of which `mode` says what is better. `None` and NaN are never the best.
            kinds: list of `"epoch"` (after an epoch) and `"updates"` (after every so many updates),
                or `["stop"]`: temporary, the next `save` deletes it. Added to the metadata as
                `"kinds"` where given. Defaults to an epoch's.

        Returns:
            path of the checkpoint.

        Raises:
            ValueError: as `write_checkpoint`, or a negative `step`.
            OSError: the checkpoint could not be written; those before are intact.
        """
        if step < 0:
            raise ValueError(f"`step` must not be negative. Received: step={step}")
        self.path.mkdir(parents=True, exist_ok=True)
        for stale in self.path.glob(".checkpoint-*.npz.partial"):  # of a process that was killed
            stale.unlink()
        path = self.path_of(step)
        score = None if score is None else float(score)
        kinds = {"kinds": list(kinds)} if kinds else {}
        write_checkpoint(path, arrays, {**metadata, "score": score, **kinds})
        kept = {path, *self.best(self.keep_best)}
        for kind in ("epoch", "updates"):
            kept.update(self.last(self.keep_last, kind))
        for other in self.metadata().keys() - kept:
            other.unlink()
        return path

    def path_of(self, step):
        """Returns the path of the checkpoint after so many updates, whether it is there or not."""
        return self.path / f"checkpoint-{step:08d}.npz"

    def metadata(self):
        """Returns a dict of path to metadata of the checkpoints, the newest first."""
        metadata = {}
        for path in self._files():
            with contextlib.suppress(CorruptCheckpointError, FileNotFoundError):
                metadata[path] = read_metadata(path)
        return metadata

    def last(self, n, kind=None):
        """Returns the paths of the `n` newest checkpoints, of one kind or all; the newest first."""
        metadata = self.metadata().items()
        return [path for path, at in metadata if kind is None or kind in _kinds(at)][:n]

    def best(self, n):
        """Returns the paths of the `n` best checkpoints, the best first; of equals, the earlier."""
        sign = 1 if self.mode == "min" else -1
        scores = {path: at.get("score") for path, at in self.metadata().items()}
        scored = [(p, s) for p, s in scores.items() if s is not None and not math.isnan(s)]
        ranked = sorted(reversed(scored), key=lambda item: sign * item[1])
        return [path for path, _ in ranked][:n]

    def newest(self, say=print, check=None):
        """Reads the newest checkpoint that is whole.

        Newer ones that are not are renamed to `<name>.corrupt`. If none is whole, all files stay
        as they are, so that no run starts again from nothing unasked.

        Args:
            say: called with one line for each checkpoint that is passed over.
            check: called with the dict of `read_shapes` before arrays are read; to raise an error
                where they cannot be of the model. Optional.

        Returns:
            `(path, arrays, metadata)`, or `None` if there are no checkpoints.

        Raises:
            CorruptCheckpointError: there are checkpoints and none is whole.
        """
        errors = {}
        for path in self._files():
            try:
                shapes = read_shapes(path)
                if check is not None:
                    check(shapes)
                arrays, metadata = read_checkpoint(path)
            except CorruptCheckpointError as error:
                errors[path] = str(error)  # the error itself would hold on to what was read
                continue
            for corrupt, error in errors.items():
                renamed = corrupt.replace(corrupt.with_name(f"{corrupt.name}.corrupt"))
                say(f"{error} It is now {renamed.name}; {path.name}, from before, is used instead.")
            return path, arrays, metadata
        if errors:
            raise CorruptCheckpointError(
                f"No checkpoint in {self.path} can be read. {' '.join(errors.values())} "
                "Put a copy of one of them there, or delete them to start from the beginning."
            )
        return None

    def _files(self):
        """Paths of what is named as a checkpoint, the newest first."""
        paths = [path for path in self.path.glob("checkpoint-*.npz") if step_of(path) >= 0]
        return sorted(paths, key=step_of, reverse=True)


def step_of(path):
    """Returns the number of updates in the name of a checkpoint; -1 for any other name."""
    match = re.fullmatch(r"checkpoint-(\d{8,})\.npz", Path(path).name)
    return int(match[1]) if match else -1


def _kinds(metadata):
    """The kinds of a checkpoint, also of those that were written before they said so."""
    old = "stop" if metadata.get("temporary") else "updates" if metadata.get("batch") else "epoch"
    return metadata.get("kinds", [old])


def average_checkpoints(paths, prefix="model/", ema=False):
    """Averages the floats of checkpoints, in float64; one of them is in memory at a time.

    Args:
        paths: paths of checkpoints of one model, in any order.
        prefix: str. What arrays are named whose name begins otherwise is left out.
        ema: bool. Whether to take the moving averages of weights where the optimizer kept some,
            see `ema_as_weights`. Defaults to `False`.

    Returns:
        dict of name to array: the mean in the array's own dtype. Arrays that are no floats, such
        as random seeds, are those of the newest checkpoint.

    Raises:
        ValueError: no paths, no such arrays, or checkpoints with other names or shapes.
        CorruptCheckpointError: a checkpoint cannot be read.
    """
    paths = sorted(paths, key=step_of)
    first, sums, arrays = None, {}, {}
    for path in paths:
        arrays = array = None  # or two checkpoints would be in memory
        arrays = read_checkpoint(path)[0]
        arrays = ema_as_weights(arrays) if ema else arrays
        arrays = {n: a for n, a in arrays.items() if n.startswith(prefix)}
        kinds = {name: f"{a.dtype} {list(a.shape)}" for name, a in arrays.items()}
        first = first or kinds
        for name in sorted(kinds.keys() | first.keys()):
            if kinds.get(name) != first.get(name):
                raise ValueError(
                    "Checkpoints that are averaged must hold the same arrays. Received: "
                    f"{name} is {first.get(name, 'missing')} in {paths[0]}, and "
                    f"{kinds.get(name, 'missing')} in {path}"
                )
        for name, array in arrays.items():
            if "float" in array.dtype.name:  # also bfloat16, which NumPy does not count as one
                sums[name] = np.add(sums.get(name, 0.0), array, dtype="float64")
    if not arrays:
        raise ValueError(
            "`paths` must name checkpoints with arrays whose names begin with `prefix`. "
            f"Received: paths={[str(path) for path in paths]}, prefix={prefix!r}"
        )
    means = {name: total / len(paths) for name, total in sums.items()}
    return {
        name: np.asarray(means.get(name, array)).astype(array.dtype, copy=False)
        for name, array in arrays.items()
    }


def ema_as_weights(arrays):
    """Puts the moving averages of an optimizer with `use_ema=True` in place of the weights.

    Args:
        arrays: dict of name to array, as of `model_state`. It stays as it is.

    Returns:
        dict of the same names; the same arrays where there are no moving averages.
    """
    # Keras names the average of "a/kernel" "adam/a_kernel_average".
    averages = {
        name.split("/")[-1].removesuffix("_average"): array
        for name, array in arrays.items()
        if name.startswith("optimizer/") and name.endswith("_average")
    }
    return {
        name: averages.get(name.removeprefix("model/").replace("/", "_"), array)
        for name, array in arrays.items()
    }


def model_state(model):
    """Returns all that training changes in a model.

    Args:
        model: `keras.Model`.

    Returns:
        dict of name to NumPy array: `model/<path>` for weights and the states of random numbers
        (which Keras saves nowhere), `optimizer/<path>` if the optimizer is built (`adam`, also
        where Keras calls it `adam_1`), and `metrics/<name>/<index>`.

    Raises:
        ValueError: two variables have the same name.
    """
    return {
        # `copy` makes a tensor of the variable: convert_to_numpy(variable) warns under NumPy 2.
        name: ops.convert_to_numpy(ops.copy(variable))
        for name, variable in _state_variables(model, PARTS).items()
    }


def check_model_state(model, shapes, parts=PARTS):
    """Checks, before any array is read, that a state can be put into a model.

    Args:
        model: `keras.Model`. An optimizer that is not built is built.
        shapes: dict of name to shape, as of `read_shapes`.
        parts: which of `"model"`, `"optimizer"` and `"metrics"`; all else is ignored. Defaults to
            all.

    Raises:
        ValueError: missing or additional names, or other shapes.
    """
    optimizer = getattr(model, "optimizer", None)
    if "optimizer" in parts and optimizer is not None and not optimizer.built:
        strategy = getattr(model, "distribute_strategy", None)  # TensorFlow's models have one
        with strategy.scope() if strategy else contextlib.nullcontext():
            optimizer.build(model.trainable_variables)
    variables = _state_variables(model, parts)
    shapes = {name: shape for name, shape in shapes.items() if name.split("/")[0] in parts}
    problems = [f"{name} is missing" for name in variables if name not in shapes]
    problems += [f"{name} is not in the model" for name in shapes if name not in variables]
    for name, shape in shapes.items():
        expected = tuple(variables[name].shape) if name in variables else shape
        if shape != expected:
            problems.append(f"{name} has shape {shape}, in the model {expected}")
    if problems:
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise ValueError(
            f"`arrays` must be the state of such a model. Received: {'; '.join(problems[:5])}"
            f"{more}. Make and compile the model as the one that was saved; metrics are built with "
            "the first batch; `parts=('model',)` restores the model alone."
        )


def restore_model_state(model, arrays, parts=PARTS):
    """Puts back what `model_state` returned. All of it, or, on an error, nothing.

    An optimizer that is not built is built. Keras builds the metrics given to `compile` with the
    first batch: in `fit`, before `on_train_begin`.

    Args:
        model: `keras.Model` made and compiled as the one that was saved.
        arrays: dict of name to array. What belongs to none of `parts` is ignored.
        parts: which of `"model"`, `"optimizer"` and `"metrics"`. Defaults to all.

    Raises:
        ValueError: missing or additional names, or other shapes.
    """
    check_model_state(model, {name: np.shape(array) for name, array in arrays.items()}, parts)
    for name, variable in _state_variables(model, parts).items():
        variable.assign(arrays[name])


def _state_variables(model, parts):
    """{name in a checkpoint: variable} of the given parts of a model's state."""
    if not set(parts) <= set(PARTS):
        raise ValueError(f"`parts` must be some of {PARTS}. Received: parts={parts!r}")
    of_metrics = {id(v) for v in model.metrics_variables}
    optimizer = getattr(model, "optimizer", None)
    built = optimizer is not None and optimizer.built
    # Keras numbers optimizers by how many were made before in the process: adam, adam_1.
    unnumbered = functools.partial(re.sub, r"^([^/]*?)(_\d+)?/", r"\1/")
    named = {
        "model": [(v.path, v) for v in model.variables if id(v) not in of_metrics],
        "optimizer": [(unnumbered(v.path), v) for v in optimizer.variables] if built else [],
        "metrics": [(f"{m.name}/{i}", v) for m in model.metrics for i, v in enumerate(m.variables)],
    }
    variables = {}
    for name, variable in ((f"{part}/{name}", v) for part in parts for name, v in named[part]):
        if variables.setdefault(name, variable) is not variable:
            raise ValueError(
                "Variables must have names of their own to be saved. Received: two that are "
                f"named {name}. Give their layers, seed generators or metrics a `name`."
            )
    return variables
