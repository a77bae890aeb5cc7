"""Reads models in the form of the Hugging Face Hub: what all families of models have in common.

Arrays and settings have the names of `transformers`. No pickle is read, and PyTorch is not needed.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.importing import files, marian
from keras_transformer.importing.family import Family, ForeignModel
from keras_transformer.importing.marian import OUTPUT_KERNEL

# A name on the Hub, perhaps with a revision: `owner/name@revision`.
HUB_NAME = r"([\w.-]+/[\w.-]+)(?:@([\w./-]+))?"
WEIGHTS = "model.safetensors"
PARTS = WEIGHTS + ".index.json"  # says which of several files holds each array
HUB_FILES = (
    *("config.json", "generation_config.json", WEIGHTS, PARTS, "model-*.safetensors"),
    *("source.spm", "target.spm", "sentencepiece.bpe.model"),
    *("vocab.json", "added_tokens.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("README.md", "LICENSE", "target_vocab.json"),
)
# Arrays that this architecture lacks: {regular expression of their names: what they belong to}.
LACKING = {
    r"\.(experts|router)\.": "a mixture of experts",
    r"\.layernorm_embedding\.": "layer norms of embeddings, as BART and mBART have",
}
SIZES = "d_model encoder_ffn_dim encoder_attention_heads encoder_layers decoder_layers".split()
EQUAL_SIDES = (
    ("encoder_attention_heads", "decoder_attention_heads"),
    ("encoder_ffn_dim", "decoder_ffn_dim"),
)
# Rates of `config.json`, with their values if they are missing.
DROPOUT = {"attention_dropout": 0.0, "activation_dropout": 0.0, "dropout": 0.1}
# Settings of the search of `transformers` that ours lacks, with the value that changes nothing.
WITHOUT_EQUAL: dict[str, Any] = {
    **{"min_length": 0, "do_sample": False, "no_repeat_ngram_size": 0, "repetition_penalty": 1.0},
    **dict.fromkeys(("forced_bos_token_id", "suppress_tokens", "begin_suppress_tokens")),
    "bad_words_ids": [],
}


def read_hub(
    folder: Path,
    settings: dict[str, Any],
    family: Family,
    given_name: str | None = None,
    arithmetic: str | None = None,
) -> ForeignModel:
    """Returns the model of a folder in the form of the Hub.

    Args:
        folder: path of the folder.
        settings: contents of `config.json`.
        family: that of the model.
        given_name: name of the model on the Hub, if it is known. Optional.
        arithmetic: program that trained the model, one of `family.arithmetics`. Optional.

    Raises:
        FileNotFoundError, ValueError: as `read_model_folder`.
    """
    path = folder / "config.json"
    marian.check_options(settings, family.options, path)
    require_equal(settings, family.equal, path)
    fields, notes = _arithmetic(folder, settings, family, given_name, arithmetic)
    tokenizers, tokenizer_notes = family.read_tokenizers(folder, settings)
    stored, weights = stored_arrays(folder, given_name)
    _require_known_parts(stored, weights)
    fields["tie_embeddings"], names = take_embeddings(settings, stored, weights)
    default, _ = family.options["activation_function"]
    fields["activation"] = marian.ACTIVATIONS[str(settings.get("activation_function", default))]
    fields |= {name: settings.get(name, rate) for name, rate in DROPOUT.items()}
    fields |= family.fields
    sizes = map(settings.get, SIZES)
    config = marian.config_of(path, tokenizers, sizes, stored, **fields)
    take_positions(stored, config.hidden_dim, weights)
    arrays = arrays_of_model(stored, config, names, weights)
    search, search_notes = _search(folder, settings, family, tokenizers[-1])
    notes = [*notes, *tokenizer_notes, *search_notes]
    origin = _origin(folder, settings, family, given_name)
    return ForeignModel(config, arrays, tokenizers, search, notes, origin)


def _require_known_parts(names, path):
    """Raises a `ValueError` if an array belongs to a part that this architecture lacks."""
    for pattern, part in LACKING.items():
        if name := next((name for name in names if re.search(pattern, name)), None):
            raise ValueError(
                f"{path} must be a model without {part}, because this package has no such "
                f"architecture. Received: {name}"
            )


def _arithmetic(folder, settings, family, given_name, chosen):
    """Returns the config's fields for the program that trained the model, and a line that names it.

    Args:
        folder, settings, family, given_name: as in `read_hub`.
        chosen: the user's choice of the program, or `None`.
    """
    if not family.arithmetics:
        if chosen is not None:
            kind = settings["model_type"]
            must = f"`arithmetic` must not be given for a model of {kind!r}, which has one."
            raise ValueError(f"{must} Received: arithmetic={chosen!r}")
        return {}, []
    program, reason = chosen, "chosen"
    if chosen is None:
        name = given_name or marian.name_of(folder)
        tokenizer = files.read_optional(folder, "tokenizer_config.json")
        readme = marian.read_stated(folder, "README.md")
        program, reason = family.find_arithmetic(name, settings, tokenizer, readme)
    (other,) = family.arithmetics.keys() - {program}
    line = f"Arithmetic of {program}: {reason}. For the other: --arithmetic {other}"
    return dict(family.arithmetics[program]), [line]


def _origin(folder, settings, family, given_name):
    """Returns `ForeignModel.origin`."""
    stated_name = str(settings.get("_name_or_path"))
    is_hub_name = re.fullmatch(HUB_NAME, stated_name)
    name = given_name or (stated_name if is_hub_name else marian.name_of(folder))
    tokenizer = files.read_optional(folder, "tokenizer_config.json")
    languages = [tokenizer.get("source_lang"), tokenizer.get("target_lang")]
    origin = marian.origin_of(folder, name, "hub", languages)
    if origin["license"] == marian.NOT_STATED:
        licences = (licence for part, licence in family.licenses.items() if part in name.lower())
        origin["license"] = next(licences, marian.NOT_STATED)
    return origin


def _search(folder, settings, family, tokenizer):
    """Returns the settings of search and text, and a line on what our search cannot follow."""
    generation = files.read_optional(folder, "generation_config.json")
    options = settings | {name: value for name, value in generation.items() if value is not None}
    options = {name: value for name, value in options.items() if name not in family.requested}
    search, notes = search_settings(
        options, tokenizer.pad_token_id, tokenizer.end_token_id, folder / "config.json"
    )
    unused_ids = [token_id for token_id, token in enumerate(tokenizer.vocabulary) if not token]
    search["suppressed_tokens"] = (*search["suppressed_tokens"], *unused_ids)
    return search | family.search, notes


def require_equal(settings: dict[str, Any], pairs: Any, path: Path) -> None:
    """Raises a `ValueError` unless the two settings of each pair are equal."""
    for first, second in pairs:
        if settings.get(first) != settings.get(second):
            raise ValueError(
                f"{path}: `{first}` and `{second}` must be equal. Received: "
                f"{settings.get(first)}, {settings.get(second)}"
            )


def search_settings(
    options: dict[str, Any], pad_token_id: int, end_token_id: int, path: Path
) -> tuple[dict[str, Any], list[str]]:
    """Returns the settings of the search, and a line on what our search cannot follow.

    Args:
        options: those of `config.json` and `generation_config.json`.
        pad_token_id, end_token_id: ids of the model.
        path: path of the file, for the line.
    """
    banned = options.get("bad_words_ids") or []
    # `max_length` counts the start token, `max_new_tokens` does not.
    longest = options.get("max_new_tokens") or (options.get("max_length") or 0) - 1
    search = {
        "beam_size": options.get("num_beams") or 1,
        "length_penalty": "mean",
        "alpha": options.get("length_penalty", 1.0),
        "stopping": "first_beams" if options.get("early_stopping") is True else "exhaustive",
        "suppressed_tokens": tuple(b[0] for b in banned if len(b) == 1 and b != [pad_token_id]),
        "force_end": options.get("forced_eos_token_id") == end_token_id,
    }
    if longest > 0:
        search |= {"extra_length": longest, "max_length": longest}
    options = options | {"bad_words_ids": [ids for ids in banned if len(ids) > 1]}
    return search, marian.without_equal(options, WITHOUT_EQUAL, path)


def stored_arrays(folder: Path, given_name: str | None) -> tuple[dict[str, np.ndarray], Path]:
    """Returns the arrays of a model by their names, and the path of the file, for errors.

    Args:
        folder: path of the folder.
        given_name: name of the model on the Hub, if it is known.

    Raises:
        FileNotFoundError: if there are no weights.
        ValueError: if a file is damaged, or there are only weights in a pickle.
    """
    if not files.has_file(folder, WEIGHTS):
        if files.has_file(folder, PARTS):
            return _arrays_of_parts(folder), folder / PARTS
        _refuse_pickles(folder, given_name)
    return files.map_safetensors(files.file_of(folder, WEIGHTS)), folder / WEIGHTS


def _refuse_pickles(folder, given_name):
    """Raises a `ValueError` if a model without `model.safetensors` has pickles or is on the Hub."""
    # `file_of` raises if a pickle is a pointer of Git LFS.
    pickles = [files.file_of(folder, path.name) for path in folder.glob("pytorch_model*.bin")]
    if pickles or given_name:
        name = (given_name or str(folder)).partition("@")[0]
        is_marian = files.has_file(folder, "source.spm")
        advice = " (with `--arithmetic marian`, if Marian trained it)" if is_marian else ""
        command = (
            "from transformers import AutoModelForSeq2SeqLM as M, AutoTokenizer as T; "
            f"[kind.from_pretrained({name!r}).save_pretrained('copy') for kind in (M, T)]"
        )
        raise ValueError(
            f"{name} has no `model.safetensors`. A `pytorch_model.bin` is a pickle, which can run "
            "any program when it is read. If you trust it, convert it where `transformers`, "
            f"`sentencepiece` and `torch` are installed, and import the folder 'copy'{advice}: "
            f'python -c "{command}"'
        )


def _arrays_of_parts(folder):
    """Returns the arrays of several files, by the index that names them."""
    path = files.file_of(folder, PARTS)
    with files.damaged(path):
        file_of_array = json.loads(path.read_text("utf-8"))["weight_map"]
        names = sorted({Path(name).name for name in file_of_array.values()})
    stored: dict[str, np.ndarray] = {}
    for name in names:
        stored |= files.map_safetensors(files.file_of(folder, name))
    if missing := sorted(file_of_array.keys() - stored.keys()):
        raise ValueError(
            f"{path} names arrays that its files lack: {', '.join(missing[:3])}. Download them "
            "again."
        )
    return stored


def arrays_of_model(
    stored: dict[str, np.ndarray], config: Any, names: dict[str, str], path: Path
) -> dict[str, np.ndarray]:
    """Returns all arrays of the model by Marian's names; see `marian.checked_arrays`.

    Args:
        stored: arrays by the names of the Hub, without positions.
        config: `TransformerConfig`.
        names: {Marian's name: name on the Hub} of the embeddings; see `take_embeddings`.
        path: path of the file, for errors.
    """
    parts = marian.arrays_of(config)
    names = {name: part.hub for name, part in parts.items()} | names
    arrays = {}
    for name, hub_name in names.items():
        if hub_name in stored:
            array = stored[hub_name]
            # The Hub stores kernels `(out, in)`.
            arrays[name] = array.T if parts[name].path.endswith("kernel") else array
    other_arrays = {name: stored[name] for name in stored.keys() - names.values()}
    return marian.checked_arrays(arrays | other_arrays, config, path, names)


def take_embeddings(settings, stored, path):
    """Returns `tie_embeddings` of the config, and {Marian's name: name in `stored`}.

    Removes the copies of a matrix from `stored`. Raises if arrays differ that must be one matrix.

    Args:
        settings: contents of `config.json`.
        stored: arrays by the names of the Hub.
        path: path of the file, for errors.
    """
    shared, head = "model.shared.weight", "lm_head.weight"
    encoder, decoder = (
        name if name in stored else shared
        for name in (f"model.{side}.embed_tokens.weight" for side in ("encoder", "decoder"))
    )
    is_shared = settings.get("share_encoder_decoder_embeddings", True)
    is_tied = settings.get("tie_word_embeddings", True)
    tables = [shared, encoder, decoder] if is_shared else [decoder]
    # A file may hold any one of the copies. If there is none, `arrays_of_model` raises.
    first = next((name for name in tables if name in stored), decoder)
    others = [name for name in (*tables, head) if name in stored and name != first]
    unequal = [
        name
        for name in others
        if first in stored and not np.array_equal(stored[name], stored[first])
    ]
    if is_tied and unequal:
        raise ValueError(
            f"{path}: {first} and {unequal[0]} must be equal, because `config.json` says that "
            "these embeddings are shared."
        )
    # Equal matrices are one, even if `config.json` does not tie the output.
    if is_shared and not unequal and (is_tied or head in stored):
        tied, names = "all", {"Wemb": first}
    else:
        tied = "decoder" if is_tied else "none"
        names = {"encoder_Wemb": encoder, "decoder_Wemb": decoder}
        names |= {} if is_tied else {OUTPUT_KERNEL: head}
    for name in {shared, encoder, decoder, head} - set(names.values()):
        stored.pop(name, None)
    return tied, names


def take_positions(stored, width, path):
    """Removes positions from `stored`; raises unless they are the sinusoids of `_sinusoids`."""
    for side in ("encoder", "decoder"):
        stored.pop(f"model.{side}.embed_positions.weights", None)  # M2M-100's, which are computed
        table = stored.pop(f"model.{side}.embed_positions.weight", None)
        if table is None:
            continue
        # Compare the width before a table is computed. The tolerance is for bfloat16.
        has_width = table.shape[1:] == (width,)
        if not (has_width and np.allclose(table, _sinusoids(*table.shape), rtol=0, atol=5e-3)):
            raise ValueError(
                f"{path}: the positions of the {side} must be sinusoidal, all sines before all "
                "cosines. Learned positions cannot be imported."
            )


def _sinusoids(count, width):
    """Returns positions `(count, width)`: all sines, then all cosines, as `weight_of` expects."""
    angles = np.arange(count)[:, None] / 10000 ** (np.arange(0, width, 2) / width)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
