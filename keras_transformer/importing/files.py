"""Reads the files of a model that another program wrote; errors name the file and the defect."""

import contextlib
import json
import reprlib
from pathlib import Path

import numpy as np
import yaml

from keras_transformer import types
from keras_transformer.texts import open_bytes, suffix_of

# The beginning of a pointer, which Git LFS leaves in place of a large file.
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
YAML_MARKERS = ("---", "...")  # the beginning and the end of a document
# {type of safetensors: dtype}. NumPy knows bfloat16 once Keras is imported.
FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "bfloat16"}


def has_file(folder, name):
    """Whether a folder has a file; a broken link is not one."""
    return (folder / name).is_file()


def file_of(folder, name):
    """Returns the path of a file; raises if it is missing, or a pointer of Git LFS."""
    path = folder / name
    if not path.is_file():
        what = "a link to a file that is missing" if path.is_symlink() else "missing"
        raise FileNotFoundError(f"{folder} must hold the file {name!r}, which is {what}.")
    with open(path, "rb") as file:
        if file.read(len(LFS_POINTER)) == LFS_POINTER:
            raise ValueError(
                f"{path} is a Git LFS pointer, which `git clone` leaves in place of a large file. "
                "Run `git lfs pull` in the clone."
            )
    return path


def one_file(folder, pattern):
    """Returns the path of the file that matches a pattern; raises unless there is exactly one."""
    names = sorted(path.name for path in folder.glob(pattern))
    if len(names) != 1:
        raise ValueError(
            f"{folder} must hold one `{pattern}`. Received: {', '.join(names) or 'none'}"
        )
    return file_of(folder, names[0])


def names_in(settings, key, path):
    """Returns the file names that settings list by a key, `[]` if the key is missing.

    Args:
        settings: dict of a YAML file.
        key: key of a list of names, or of one name.
        path: of the YAML file, for errors.
    """
    value = settings.get(key) or []
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(
            f"{path}: `{key}` must be a list of file names. Received: {reprlib.repr(names)}"
        )
    return names


@contextlib.contextmanager
def damaged(path, problem="is damaged"):
    """Turns errors of a reader, except those of the disk, into a `ValueError` with the path."""
    try:
        yield
    except OSError:  # of the disk
        raise
    except Exception as error:  # zipfile, zlib, NumPy and JSON raise many types
        raise ValueError(
            f"{path} {problem}: {' '.join(str(error).split())}. Download it again."
        ) from None


def read_text(path):
    """Returns UTF-8 text of a file, plain or compressed."""
    with damaged(path), open_bytes(path) as stream:
        return stream.read().decode("utf-8-sig")


def read_json(path):
    """Returns a value in JSON; names in it may hold control characters."""
    text = read_text(path)
    with damaged(path, "is damaged, or not JSON"):
        return json.loads(text, strict=False)


def read_mapping(path):
    """Returns a mapping in JSON or YAML."""
    value = read_json(path) if path.suffix == ".json" else parse_yaml(read_text(path), path)
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold a mapping. Received: {type(value).__name__}")
    return value


def read_optional(folder, name):
    """Returns a mapping in JSON or YAML, an empty one if there is no such file."""
    return read_mapping(file_of(folder, name)) if has_file(folder, name) else {}


def parse_yaml(text, path):
    """Returns a value in YAML; `path` is for errors."""
    with damaged(path):
        return yaml.safe_load(text)


def read_npz_file(path):
    """Returns the arrays of a `*.npz` by their names."""
    # Opened here, because NumPy leaves a damaged file open.
    with damaged(path), open(path, "rb") as content, np.load(content, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def map_safetensors(path):
    """Returns the arrays of a file by their names, memory-mapped, in the dtypes of the file."""
    with damaged(path):
        content = np.memmap(path, mode="r")
        # The file holds the size of its header (8 bytes), the header (JSON), and the numbers.
        start = 8 + int.from_bytes(content[:8].tobytes(), "little")
        header = json.loads(content[8:start].tobytes())
        header.pop("__metadata__", None)
        kinds = {name: str(entry["dtype"]) for name, entry in header.items()}
    for name, kind in kinds.items():
        if kind not in FLOATS:
            _refuse_numbers(path, name, kind)
    arrays = {}
    with damaged(path):
        for name, kind in kinds.items():
            first, last = header[name]["data_offsets"]
            array = np.ndarray(header[name]["shape"], FLOATS[kind], content, start + first)
            if array.nbytes != last - first:
                raise ValueError(f"{name} has {last - first} bytes, not {array.nbytes}")
            arrays[name] = array
    return arrays


def check_floats(array, name, path):
    """Raises a `ValueError` unless an array holds floats that are finite in float32."""
    if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
        _refuse_numbers(path, name, array.dtype)
    with np.errstate(over="ignore"):
        # Only float64 holds numbers beyond float32; a cast would copy the others.
        numbers = array.astype("float32") if array.dtype.itemsize > 4 else array
    if not np.isfinite(numbers).all():
        raise ValueError(f"{path}: {name} must hold finite numbers of float32.")


def _refuse_numbers(path, name, kind):
    raise ValueError(
        f"{path}: {name} must hold float32, float16, bfloat16 or float64; quantized weights cannot "
        f"be imported. Received: {kind}"
    )


def read_vocabulary(path: types.Path) -> dict[str, int]:
    """Returns `{piece: id}` of Marian's vocabulary: JSON, lines `piece: id`, or lines of pieces.

    The lines are not read as YAML, which would convert pieces such as `no` and `1.0`, and break
    pieces at Unicode's line breaks.
    """
    path = Path(path)
    text = read_text(path)
    is_mapping = suffix_of(path) in (".yml", ".yaml", ".json")
    if is_mapping and text.startswith("{"):
        return read_json(path)
    vocabulary: dict[str, int] = {}
    long_key = None  # a key from the line before, whose value is in this line
    for number, line in enumerate(text.removesuffix("\n").split("\n")):
        line = line.removesuffix("\r")
        if not is_mapping:
            vocabulary[line] = number
        elif line.startswith("? "):
            long_key = line[2:]
        elif line.strip() and (long_key is not None or line not in YAML_MARKERS):
            key, colon, value = line.rpartition(":")
            try:
                token_id = int(value if colon else "")
                vocabulary[_scalar(key if long_key is None else long_key)] = token_id
            except (ValueError, yaml.YAMLError):
                raise ValueError(
                    f"{path} must have lines `piece: id`. Received: line {number + 1}, "
                    f"{reprlib.repr(line)}. A list of pieces must be a file named `.txt`."
                ) from None
            long_key = None
    return vocabulary


def _scalar(text):
    """Returns the string that a scalar of YAML stands for."""
    if text.startswith('"') and text.endswith('"') and len(text) > 1:
        if "\\" not in text:
            return text[1:-1]
        # PyYAML refuses some characters unless they are escaped, such as U+0096.
        refused = yaml.reader.Reader.NON_PRINTABLE
        text = refused.sub(lambda character: f"\\U{ord(character[0]):08x}", text)
        return yaml.load(text, Loader=yaml.BaseLoader)
    if text.startswith("'") and text.endswith("'") and len(text) > 1:
        return text[1:-1].replace("''", "'")
    return text
