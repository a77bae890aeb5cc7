"""Reads the files of a model that another program wrote; an error says which file is damaged."""

import json
from pathlib import Path

import numpy as np
import yaml

from keras_transformer import types


def has_file(folder, name):
    return (folder / name).is_file()


def file_of(folder, name):
    """Returns the path of a file; raises if it is missing, or a link out of the folder."""
    path = folder / name
    if not path.is_file():
        raise FileNotFoundError(f"{folder} must hold the file {name!r}, which is missing.")
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ValueError(
            f"{path} must be in the folder, but is a link to {path.resolve()}. Copy the file."
        )
    return path


def one_file(folder, pattern, named):
    """Returns the one file that is named, or the only one of a pattern."""
    names = [Path(name).name for name in named]
    names = names or sorted(path.name for path in folder.glob(pattern))
    if len(set(names)) != 1:
        raise ValueError(
            f"{folder} must hold one `{pattern}`. Received: {', '.join(names) or 'none'}"
        )
    return file_of(folder, names[0])


def names_in(settings, key, path):
    """Returns the strings of a list in a YAML file; none if it is missing."""
    value = settings.get(key) or []
    value = [value] if isinstance(value, str) else value
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"{path}: `{key}` must be a list of file names. Received: {value!r}")
    return value


def read_json(folder, name):
    path = file_of(folder, name)
    try:
        value = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} must be a JSON object. Received: {type(value).__name__}")
    return value


def read_yaml_file(path):
    value = parse_yaml(path.read_bytes(), path)
    if not isinstance(value, dict):
        raise ValueError(f"{path} must be a YAML mapping. Received: {type(value).__name__}")
    return value


def parse_yaml(text, path):
    try:
        return yaml.safe_load(text.decode("utf-8"))
    except (ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{path} is damaged: {' '.join(str(error).split())}") from None


def read_npz_file(path):
    try:
        # Opened here: of a damaged file, NumPy would leave it open.
        with open(path, "rb") as content, np.load(content, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except Exception as error:  # zipfile, zlib and NumPy raise many types for damaged files
        raise ValueError(f"{path} is damaged: {error}. Unpack the archive again.") from None


def read_safetensors(path):
    try:
        from safetensors import SafetensorError
        from safetensors.numpy import load_file
    except ImportError as error:
        raise ImportError(
            "To read `model.safetensors`, install `safetensors` (extra `opus`)."
        ) from error
    try:
        return {name: np.asarray(a, "float32") for name, a in load_file(path).items()}
    except (SafetensorError, ValueError, TypeError, KeyError, OSError) as error:
        raise ValueError(f"{path} is damaged: {error}. Download it again.") from None


def read_vocabulary(path: types.Path) -> dict[str, int]:
    """Returns `{piece: id}` of Marian's `vocab.yml`, one piece in each line.

    As YAML, some pieces would be no strings (`no`, `1.0`), and others would be lost at line breaks
    of Unicode.
    """
    vocabulary: dict[str, int] = {}
    key = None
    try:
        text = Path(path).read_bytes().decode("utf-8")
        for line in text.split("\n"):
            line = line.removesuffix("\r")
            if line.startswith("? "):  # a long key, whose value is in the next line
                key = line[2:]
                continue
            if not line.strip() or (key is None and line in ("---", "...")):
                continue
            before, _, number = line.rpartition(":")
            vocabulary[_scalar(before if key is None else key)] = int(number)
            key = None
    except (ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{path} must have lines `piece: id`. Received: {error}") from None
    return vocabulary


def _scalar(text):
    """Returns the string that a scalar of YAML stands for."""
    if text.startswith('"') and text.endswith('"') and len(text) > 1:
        is_plain = "\\" not in text
        return text[1:-1] if is_plain else yaml.load(text, Loader=yaml.BaseLoader)
    if text.startswith("'") and text.endswith("'") and len(text) > 1:
        return text[1:-1].replace("''", "'")
    return text
