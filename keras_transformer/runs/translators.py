"""Loads a `Translator` from a trained run or from an exported folder."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_transformer import types
from keras_transformer.atomic_file import restore_folder
from keras_transformer.decoding.translator import Translator


def load_translator(
    path: types.Path | Sequence[types.Path],
    *,
    model: types.Path | None = None,
    dtype: str | None = None,
    workers: int | None = None,
    device: str = "cpu",
    **settings: Any,
) -> Translator:
    """Returns the `Translator` of a folder.

    Args:
        path: path of a trained run, or of a folder that `export_ctranslate2` or
            `export_saved_model` wrote; or a list of runs, which translate as one ensemble.
        model, dtype: as in `load_run`, for runs.
        workers: as in `CTranslate2Engine` or `SavedModelEngine`, for their folders.
        device: as in `CTranslate2Engine`, for CTranslate2.
        **settings: settings of the search that differ from the folder's.

    Raises:
        FileNotFoundError: if there is no trained run, and no exported folder.
        ValueError: if there is no path, an argument belongs to another kind of folder, or the
            engine does not have a setting.

    Example: `load_translator("ct2")(["twenty-one"])`.
    """
    paths = [Path(path)] if isinstance(path, str | os.PathLike) else [*map(Path, path)]
    if not paths:
        raise ValueError("`path` must name a folder. Received: path=[]")
    kinds = {kind_of(path) for path in paths}
    run_options = {"model": model, "dtype": dtype}
    ctranslate2_options = {"device": None if device == "cpu" else device}
    if kinds == {"run"}:
        _refuse({"workers": workers}, "an exported folder, not one of a run", paths)
        _refuse(ctranslate2_options, "a folder of CTranslate2", paths)
        from keras_transformer.runs.load import load_run

        one_or_several: Any = paths if len(paths) > 1 else paths[0]
        return load_run(one_or_several, model, dtype=dtype, **settings)
    if len(paths) > 1:
        must = "Several folders must be those of runs: exported models have no ensembles."
        raise ValueError(f"{must} Received: {', '.join(map(repr, map(str, paths)))}")
    _refuse(run_options, "the folder of a run, not of an exported model", paths)
    if kinds == {"saved_model"}:
        _refuse(ctranslate2_options, "a folder of CTranslate2", paths)
        from keras_transformer.decoding.saved_model import SavedModelEngine

        return Translator(SavedModelEngine(paths[0], workers=workers), **settings)
    from keras_transformer.decoding.ctranslate2 import CTranslate2Engine

    return Translator(CTranslate2Engine(paths[0], workers=workers, device=device), **settings)


def kind_of(folder: types.Path) -> str:
    """Returns what a folder holds: `"ctranslate2"`, `"saved_model"` or else `"run"`.

    A folder that a killed export had moved away is moved back; see `restore_folder`.
    """
    folder = restore_folder(folder)
    if (folder / "model.bin").is_file():
        return "ctranslate2"
    return "saved_model" if (folder / "saved_model.pb").is_file() else "run"


def _refuse(options, needs, paths):
    """Raises a `ValueError` if an option is given that needs another kind of folder, `needs`."""
    for name, value in options.items():
        if value is not None:
            raise ValueError(f"`{name}` needs {needs}. Received: {name}={value!r}, {paths[0]}")
