"""Imports a model of Marian, M2M-100 or NLLB-200 as a `Translator` and as a run like any other."""

import contextlib
import functools
import json
import math
import re
import reprlib
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer import types
from keras_transformer.atomic_file import write_text
from keras_transformer.console import count_bar
from keras_transformer.data.pieces import model_file
from keras_transformer.decoding.frozen import freeze
from keras_transformer.decoding.translator import Translator
from keras_transformer.importing.additions import Addition, add_to
from keras_transformer.importing.family import ForeignModel
from keras_transformer.importing.files import damaged, file_of, read_mapping
from keras_transformer.importing.hub import HUB_FILES, HUB_NAME, read_hub
from keras_transformer.importing.m2m_100 import M2M_100
from keras_transformer.importing.marian import ARITHMETIC, arrays_of, weight_of
from keras_transformer.importing.marian_hub import MARIAN
from keras_transformer.importing.marian_npz import read_npz
from keras_transformer.models.transformer import Transformer
from keras_transformer.runs.folder import RunFolder
from keras_transformer.runs.recipe import Recipe
from keras_transformer.training.model_state import save_model

# Names of the files that are taken out of a zip file, and the maximum of their bytes; the largest
# models have some 1 GB.
# Names that begin with `._` are those of hidden files of macOS.
UNPACKED = r"(?!\._)(.+\.(npz|yml|spm|bpe|model|json|safetensors|bin)|.*vocab.*|README\.md|LICENSE)"
LARGEST = 8 * 2**30
# Maximum number of elements of an array that are converted at once.
BLOCK_SIZE = 2**24
PRECISIONS = ("float32", "bfloat16")
# Tokens; Marian's default. Sinusoidal positions set no limit.
LONGEST_SOURCE = 512
# {`model_type` of `config.json`: family}.
FAMILIES = {"marian": MARIAN, "m2m_100": M2M_100}
FINE_TUNING = {"learning_rate": 1e-4, "warmup_steps": 200, "epochs": 5, "batch_tokens": 2048}


def import_model(
    folder: types.Path,
    run: types.Path | None = None,
    *,
    weights: str | None = None,
    arithmetic: str | None = None,
    add_language: str | None = None,
    like: str | None = None,
    add_pieces: types.Path | None = None,
    num_pieces: int | None = None,
    precision: str = "float32",
    print_fn: types.PrintFn = print,
    **settings: Any,
) -> Translator:
    """Imports a Transformer that Marian trained, such as OPUS-MT's, or M2M-100 or NLLB-200.

    Marian's models have two forms: its own files (`*.npz`, `decoder.yml`, and vocabularies: two of
    SentencePiece, or `*vocab.yml` with `source.spm` and `target.spm`), as a folder or its zip file;
    and the folder of the Hugging Face Hub (`config.json`, `model.safetensors`, `vocab.json`,
    `source.spm`, `target.spm`). M2M-100 and NLLB-200, without mixtures of experts, have the form of
    the Hub: `config.json`, `model.safetensors` or several with an index, `sentencepiece.bpe.model`
    and, for M2M-100, `vocab.json`. Nothing is trained: the weights are the same numbers as float32
    and in another order. There are two exceptions: `precision="bfloat16"` rounds, and the gelu of
    Marian up to 1.12.0 becomes a silu, with scaled weights before and behind it. The settings of
    the search come with the model.

    Args:
        folder: path of the folder or zip file; or a name on the Hub, such as
            `"Helsinki-NLP/opus-mt-en-de"`, or `"Helsinki-NLP/opus-mt-en-de@REV"` for a revision:
            `huggingface_hub` (extra `opus`) then downloads the files. If a folder `Helsinki-NLP`
            exists, it is a path.
        run: path of a run folder to write, new or empty. `load_run`, all commands and
            `training.init_from` of a recipe take it. Optional.
        weights: name of the `*.npz`, if the folder has several. Optional.
        arithmetic: for a model of Marian, the program that trained it: `"marian"` or
            `"transformers"`. They differ in positions, layer norm and padding. Defaults to
            `"marian"` for Marian's files. For files of the Hub, it defaults to the program that
            the files and the name tell, and a printed line says which and why.
        add_language: code of a language that M2M-100 or NLLB-200 lacks, spelled as the model's
            codes, such as `"tyv_Cyrl"`. Its token is the last of the vocabulary. Until it is
            trained, nothing else of the model changes. Optional.
        like: with `add_language`: code of the model's language that the new one starts as a copy
            of, such as `"kir_Cyrl"`.
        add_pieces: with `add_language`: path of a text in the new language. Pieces that are learned
            from it, and that the model lacks, become tokens too. Only text in the new language is
            split into them. Optional.
        num_pieces: the maximum number of these pieces. Defaults to 2,000.
        precision: dtype of the weights and of what is computed with them, `"float32"` or
            `"bfloat16"`, which rounds the weights to half of their size. Defaults to `"float32"`.
        print_fn: prints a line of text. Defaults to `print`.
        **settings: as in `Translator`, with `dtype`, and with `frozen` as in `load_run`. They
            override those of the model. The run does not get them: its weights have the dtype
            `precision`.

    Returns:
        `Translator`. Its `languages` lists those of a model that has several. M2M-100 and NLLB-200
        need the settings `source_language` and `target_language`.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if a file is damaged or does not fit the others, or the model has a part that
            this architecture does not, such as an RNN; the message names it. Or if a language
            cannot be added.
        ImportError: if `huggingface_hub` is needed and missing.

    Example: `import_model("opus-mt-en-de")(["Hello, world!"])`.
    """
    text = None if add_pieces is None else Path(add_pieces)
    addition = Addition.of_arguments(add_language, like, text, num_pieces)
    if precision not in PRECISIONS:
        choices = " or ".join(map(repr, PRECISIONS))
        raise ValueError(f"`precision` must be {choices}. Received: {precision!r}")
    run_folder = None if run is None else RunFolder(run)
    if run_folder is not None:
        _require_new(run_folder)
    name = str(folder) if _is_hub_name(folder) else None
    with _local(folder) as local:
        foreign_model = read_model_folder(local, name, weights, arithmetic)
        if addition is not None:
            foreign_model = add_to(foreign_model, addition)
        for note in foreign_model.notes:
            print_fn(note)
        model = build_model(foreign_model, precision)
    tokenizers = foreign_model.tokenizers
    settings = {"max_source_tokens": LONGEST_SOURCE, **foreign_model.search, **settings}
    frozen, dtype = settings.pop("frozen", True), settings.pop("dtype", None)
    used_model: Any = model
    if frozen or dtype is not None:
        # Nothing trains the model later: no copy is needed.
        used_model = freeze(model, dtype, is_shared=False)
    translator = Translator(used_model, *tokenizers, **settings)
    if run_folder is not None:
        _write_run(run_folder, foreign_model, model, tokenizers)
    return translator


def read_model_folder(
    folder: types.Path,
    name: str | None = None,
    weights: str | None = None,
    arithmetic: str | None = None,
) -> ForeignModel:
    """Reads a folder of any form and family.

    Args:
        folder: path of the folder.
        name: name of the model on the Hub, if it is known. Optional.
        weights, arithmetic: as in `import_model`.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if a file is damaged, does not fit the others, or the model has a part that this
            architecture does not.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"The folder of the model must exist. Received: {str(folder)!r}")
    if arithmetic not in (None, *ARITHMETIC):
        choices = " or ".join(map(repr, ARITHMETIC))
        raise ValueError(f"`arithmetic` must be {choices}. Received: {arithmetic!r}")
    snapshots = [*folder.glob("snapshots/*/")]  # of the Hub's cache
    hub = snapshots[0] if len(snapshots) == 1 else folder
    if (hub / "config.json").is_file():
        return _read_hub(hub, name, arithmetic)
    if any(folder.glob("*.npz")):
        return read_npz(folder, weights, arithmetic or "marian")
    raise FileNotFoundError(
        f"{folder} must hold a model: `config.json` and `model.safetensors` of the Hub, or the "
        "`*.npz` of Marian. Neither is there."
    )


def _read_hub(folder, name, arithmetic):
    """Reads a folder of the Hub by the family that its `config.json` names."""
    path = folder / "config.json"
    settings = read_mapping(file_of(folder, path.name))
    family = settings.get("model_type")
    if family not in FAMILIES:
        raise ValueError(
            f"{path}: `model_type` must be {' or '.join(map(repr, FAMILIES))}, because this "
            f"package has no such architecture. Received: {reprlib.repr(family)}"
        )
    return read_hub(folder, settings, FAMILIES[family], name, arithmetic)


def build_model(foreign_model: ForeignModel, precision: str = "float32") -> Transformer:
    """Returns a `Transformer` with the weights of a foreign model.

    Each weight is made once, from its array: none begins with random numbers or zeros. On a
    terminal, a bar shows how many are made.

    Args:
        foreign_model: `ForeignModel`. Each array is removed from it when its weight is made.
        precision: as in `import_model`.
    """
    # {path of a weight: (Marian's name, axes)}; an entry is removed when its weight is made.
    unused = {
        part.path: (name, part.axes) for name, part in arrays_of(foreign_model.config).items()
    }

    def initial_value(path, shape, dtype):
        name, axes = unused.pop(path)
        advance()
        return _tensor_of(foreign_model.arrays.pop(name), axes, dtype)

    try:
        # Keras makes the variables at the end of the scope.
        with count_bar(len(unused), "arrays") as advance, keras.StatelessScope():
            model = Transformer(foreign_model.config, dtype=precision)
            for variable in model.weights:
                variable._initializer = functools.partial(initial_value, variable.path)
    except BaseException:
        keras.utils.clear_session()  # else the next scope would make the remaining variables
        raise
    if unused:  # another version of Keras, which makes variables in another way
        raise RuntimeError(f"Weights were not assigned: {', '.join(unused)}.")
    return model


def _tensor_of(array, axes, dtype):
    """Returns a weight as a tensor.

    Args:
        array: an array of `ForeignModel`, or a list of arrays whose rows follow each other.
        axes: as in `Part`.
        dtype: `"float32"` or `"bfloat16"`.
    """
    parts = array if isinstance(array, list) else [array]
    axis = int(axes.startswith("D") and parts[0].ndim > 1)  # no block may cut the hidden dimension
    if dtype == "float32" or keras.config.backend() == "tensorflow":
        # Backends copy an array once or twice to convert it, so convert it in blocks. JAX would
        # concatenate blocks of bfloat16 in float32.
        blocks = []
        for part in parts:
            blocks += np.array_split(part, math.ceil(part.size / BLOCK_SIZE), axis)
        parts = blocks
    tensors = [
        ops.convert_to_tensor(weight_of(part, axes).astype(dtype, copy=False)) for part in parts
    ]
    return tensors[0] if len(tensors) == 1 else ops.concatenate(tensors, axis)


def _require_new(run):
    """Raises a `ValueError` if the folder holds a run already."""
    run.check()
    if run.trained or run.owned_files():
        raise ValueError(
            f"`run` must be a new or empty folder. Received: {str(run.path)!r}, which holds a run."
        )


def _write_run(run, foreign_model, model, tokenizers):
    """Writes tokenizers, origin, recipe and, last, the model into a new folder."""
    with run.locked():
        _require_new(run)  # again, under the lock: another process may have written it
        tokenizer_files = run.new_tokenizer_files(joint=len(tokenizers) == 1)
        other_files = run.origin_file, run.recipe_file, run.model_file
        files = [*tokenizer_files, *map(model_file, tokenizer_files), *other_files]
        run.add_owned_files(*(file.name for file in files))
        try:
            for tokenizer, file in zip(tokenizers, tokenizer_files, strict=True):
                tokenizer.save(file)
            origin = json.dumps(foreign_model.origin, indent=2, ensure_ascii=False)
            write_text(run.origin_file, origin + "\n")
            write_text(run.recipe_file, recipe_of(foreign_model, run.path).to_yaml())
            save_model(model, run.model_file)
        except BaseException:
            run.reset()  # delete half an import
            raise


def recipe_of(foreign_model: ForeignModel, run: types.Path) -> Recipe:
    """Returns a recipe that fine-tunes the model, once the user names the files."""
    sizes = "vocabulary_size", "source_vocabulary_size"  # the tokenizers know them
    fields = {
        name: value
        for name, value in foreign_model.config.to_dict().items()
        if name not in sizes and value is not None
    }
    sides = ("source", "target")
    files = [f"train.{foreign_model.origin[f'{side}_language'] or side}" for side in sides]
    return Recipe.from_dict(
        {
            "data": {"train": files, "max_length": LONGEST_SOURCE},
            "vocabulary": {
                "size": foreign_model.config.vocabulary_size,
                "joint": len(foreign_model.tokenizers) == 1,
            },
            "model": fields,
            "training": {"init_from": str(run), **FINE_TUNING},
            "search": foreign_model.search,
        }
    )


@contextlib.contextmanager
def _local(folder: types.Path) -> Iterator[Path]:
    """Yields a folder with the files: the given one, or a temporary one of a zip or the Hub."""
    path = Path(folder)
    is_zip = path.is_file() and path.suffix.lower() == ".zip"
    if not (is_zip or _is_hub_name(folder)):
        yield path
        return
    # Arrays that are mapped may keep a file from being deleted.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        copy = Path(temporary) / re.sub(r"@.*|\.zip$", "", path.name, flags=re.IGNORECASE)
        copy.mkdir()
        if is_zip:
            _unpack(file_of(path.parent, path.name), copy)
        else:
            _download(str(folder), copy)
        yield copy


def _unpack(path, folder):
    """Writes the files of a model into a folder; the folders of the archive are left out."""
    with contextlib.ExitStack() as stack:
        with damaged(path):
            archive = stack.enter_context(zipfile.ZipFile(path))
        names = {m: Path(m.filename).name for m in archive.infolist() if not m.is_dir()}
        wanted = {m: name for m, name in names.items() if re.fullmatch(UNPACKED, name)}
        if len(set(wanted.values())) < len(wanted):
            raise ValueError(f"{path} must hold one model, but has files of the same name.")
        size = sum(member.file_size for member in wanted)
        if size > LARGEST:
            raise ValueError(f"{path} must unpack to at most {LARGEST} bytes. Received: {size}")
        for member, name in wanted.items():
            with damaged(path), archive.open(member) as source, open(folder / name, "wb") as target:
                shutil.copyfileobj(source, target)


def _is_hub_name(folder):
    """Whether a folder is a name on the Hub; if its first part exists here, it is a path."""
    name = str(folder)
    return re.fullmatch(HUB_NAME, name) and not Path(name.partition("/")[0]).exists()


def _download(name, folder):
    """Downloads a model of the Hub into a folder; raises if that is not possible."""
    try:
        import huggingface_hub
    except ImportError as error:
        raise ImportError(
            f"There is no folder {name!r}. To download a model of this name from the Hugging Face "
            "Hub, install `huggingface_hub` (extra `opus`)."
        ) from error
    repository, revision = re.fullmatch(HUB_NAME, name).groups()
    try:
        huggingface_hub.snapshot_download(
            repository, revision=revision, allow_patterns=list(HUB_FILES), local_dir=folder
        )
    except Exception as error:  # of its HTTP client too
        raise ValueError(
            f"There is no folder {name!r}, and the Hugging Face Hub gave no model of this name: "
            f"{str(error).splitlines()[0] if str(error) else type(error).__name__}"
        ) from None
