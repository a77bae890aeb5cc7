"""Reads a model in Marian's own form: `*.npz`, its options, and its vocabularies."""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.data.sentencepiece_parts import checked_vocabulary, read_model
from keras_transformer.importing import files, marian
from keras_transformer.importing.family import ForeignModel
from keras_transformer.importing.marian import END, OUTPUT_BIAS, OUTPUT_KERNEL, PAD, UNK

TIED = ("tied-embeddings-all", "tied-embeddings-src", "tied-embeddings")
LACKING = (
    "transformer-disable-position-embeddings transformer-no-affine transformer-no-bias "
    "transformer-no-projection transformer-pool right-left ulr"
).split()
# {option: (its value if it is missing, the values that this package supports)}.
# "d" is dropout. Marian 1.12 reads "transformer-train-position-embeddings" under another name, so
# its Transformers have sinusoids in any case.
MARIAN_OPTIONS: dict[str, tuple[Any, list[Any]]] = {
    "type": (None, ["transformer"]),
    "transformer-decoder-autoreg": ("self-attention", ["self-attention"]),
    "transformer-preprocess": ("", ["", "n"]),
    "transformer-postprocess-emb": ("d", ["d", ""]),
    "transformer-attention-mask": ("default", ["default"]),
    "transformer-ffn-depth": (2, [2]),
    "transformer-tied-layers": ([], [[], None]),
    "transformer-decoder-ffn-depth": (0, [0, 2]),
    "transformer-ffn-activation": ("swish", list(marian.ACTIVATIONS)),
    **dict.fromkeys(("transformer-decoder-dim-ffn", "lemma-dim-emb"), (0, [0])),
    **dict.fromkeys(LACKING, (False, [False])),
    **dict.fromkeys(TIED, (False, [False, True])),
}
POST_NORM = {"transformer-postprocess": ("dan", ["dan"]), "transformer-postprocess-top": ("", [""])}
PRE_NORM = {"transformer-postprocess": ("dan", ["da"]), "transformer-postprocess-top": ("", ["n"])}
SIZES = "dim-emb transformer-dim-ffn transformer-heads enc-depth dec-depth".split()
# Up to this version, Marian's gelu was x * sigmoid(1.702 x).
LAST_SWISH_GELU, GELU = (1, 12, 0), 1.702
# Settings of Marian's search that ours lacks, with the value at which they change nothing.
WITHOUT_EQUAL = {"word-penalty": 0, "output-sampling": [], "shortlist": []}
# Arrays with a row or a column for each token: {name: (axis of the tokens, side)}; side 0: source.
OF_TOKENS = {"encoder_Wemb": (0, 0), "decoder_Wemb": (0, 1), "Wemb": (0, 1)}
OF_TOKENS |= {OUTPUT_BIAS: (1, 1), OUTPUT_KERNEL: (1, 1)}


def read_npz(folder, weights=None, arithmetic="marian"):
    """Returns the `ForeignModel` of a folder in Marian's own form.

    Args:
        folder: path of the folder.
        weights: name of the `*.npz`, if there are several. Optional.
        arithmetic: program whose arithmetic the weights need, a key of `marian.ARITHMETIC`.

    Raises:
        FileNotFoundError, ValueError: as `read_model_folder`.
    """
    decoder, decoder_path = _decoder_settings(folder, weights)
    path = _weights_file(folder, files.names_in(decoder, "models", decoder_path), weights)
    stored = files.read_npz_file(path)
    settings = _model_yaml(stored, path)
    marian.check_options(settings, MARIAN_OPTIONS, path)
    is_pre_norm = settings.get("transformer-preprocess") == "n"
    marian.check_options(settings, PRE_NORM if is_pre_norm else POST_NORM, path)
    vocabularies, models = _vocabularies(folder, files.names_in(decoder, "vocabs", decoder_path))
    fields = {
        **marian.ARITHMETIC[arithmetic],
        "normalize_first": is_pre_norm,
        "dropout": 0.1,
        "output_bias": True,
        "tie_embeddings": _take_embeddings(settings, stored, vocabularies, path),
        "activation": marian.ACTIVATIONS[settings.get("transformer-ffn-activation", "swish")],
    }
    counts = settings.get("dim-vocabs")
    if not isinstance(counts, list) or not all(type(count) is int for count in counts):
        raise ValueError(f"{path}: `dim-vocabs` must be two numbers. Received: {counts}")
    vocabularies = _take_tokens(vocabularies, stored)
    marian.check_counts([count + 1 for count in counts], vocabularies, path)  # with padding
    tokenizers = marian.tokenizers_of(models, vocabularies)
    config = marian.config_of(path, tokenizers, map(settings.get, SIZES), stored, **fields)
    stored = {name.removesuffix("_pre"): array for name, array in stored.items()}
    arrays = marian.checked_arrays(stored, config, path)
    if config.activation == "gelu" and _version(settings) <= LAST_SWISH_GELU:
        config = replace(config, activation="silu")
        _scale_gelu(arrays)
    search = _search(decoder, vocabularies[1], decoder_path)
    notes = marian.without_equal(decoder, WITHOUT_EQUAL, decoder_path)
    origin = marian.origin_of(folder, marian.name_of(folder), "marian", [None, None])
    return ForeignModel(config, arrays, tokenizers, search, notes, origin)


def _weights_file(folder, named, weights):
    """Returns the path of the `*.npz`: `weights`, else the `named` one, else the only one.

    Args:
        folder: path of the folder.
        named: names in `decoder.yml`.
        weights: name that the user chose, or `None`.
    """
    npz_names = sorted(p.name for p in folder.glob("*.npz") if not p.match("*.optimizer.npz"))
    names = {weights or Path(name).name for name in named or npz_names}
    if len(names) != 1 or weights not in (None, *npz_names):
        raise ValueError(
            f"{folder}: `weights` (`--weights`) must name one of {', '.join(npz_names)}. "
            f"Received: {weights}"
        )
    return files.file_of(folder, *names)


def _decoder_settings(folder, weights):
    """Returns the settings of the search, `{}` if there are none, and the path of their file.

    It is `<weights>.decoder.yml`, else `decoder.yml`, else the only `*.decoder.yml`.
    """
    name = "decoder.yml"
    if files.has_file(folder, f"{weights}.decoder.yml"):
        name = f"{weights}.decoder.yml"
    elif not files.has_file(folder, name) and any(folder.glob("*.decoder.yml")):
        name = files.one_file(folder, "*.decoder.yml").name
    return files.read_optional(folder, name), folder / name


def _vocabularies(folder, names):
    """Returns the vocabularies of source and target, with padding, and their SentencePiece models.

    Equal vocabularies are one object. `names` are those of the files in `decoder.yml`, if any.
    """
    paths = [files.file_of(folder, Path(name).name) for name in names]
    paths = paths or [files.one_file(folder, "*vocab.yml*")]
    source, target = (_read_vocabulary(path) for path in (paths[0], paths[-1]))
    vocabularies = (source, source) if source == target else (source, target)
    if all(path.suffix == ".spm" for path in paths):
        return vocabularies, [paths[0].read_bytes(), paths[-1].read_bytes()]
    return vocabularies, marian.sentencepiece_models(folder, vocabularies)


def _read_vocabulary(path):
    """Returns `{piece: id}` of a file. Padding is the last piece, unless the file has it."""
    if path.suffix == ".spm":
        vocabulary = {piece.piece: i for i, piece in enumerate(read_model(path)[1].pieces)}
    else:
        vocabulary = files.read_vocabulary(path)
    vocabulary.setdefault(PAD, len(vocabulary))
    return checked_vocabulary(vocabulary, path)


def _take_embeddings(settings, stored, vocabularies, path):
    """Returns `tie_embeddings` of the config, and renames the embeddings in `stored` to match it.

    If both sides share a matrix that the output does not share, it gets both names.
    """
    is_all, is_source, is_target = (settings.get(name, False) for name in TIED)
    is_all = is_all or (is_source and is_target)
    if is_all and vocabularies[0] is not vocabularies[1]:
        raise ValueError(f"{path}: `tied-embeddings-all` needs one vocabulary for both sides.")
    if is_source and not is_all and "Wemb" in stored:
        stored["encoder_Wemb"] = stored["decoder_Wemb"] = stored.pop("Wemb")
    if OUTPUT_KERNEL + "t" in stored:  # (V, D)
        stored[OUTPUT_KERNEL] = stored.pop(OUTPUT_KERNEL + "t").T
    return "all" if is_all else "decoder" if is_target else "none"


def _take_tokens(vocabularies, stored):
    """Returns the vocabularies in our order; adds padding to the arrays of `OF_TOKENS` in `stored`.

    Marian starts the decoder with an embedding of zeros and has no padding. We give this embedding
    to padding, the start token, as `transformers` does. Padding is the last token of a shared
    vocabulary. Two vocabularies begin with the special tokens, because these need the same ids on
    both sides.
    """
    special = [] if vocabularies[0] is vocabularies[1] else [END, UNK, PAD]
    orders = [list(dict.fromkeys([*special, *sorted(v, key=v.get)])) for v in vocabularies]
    for name, (axis, side) in OF_TOKENS.items():
        array, ids = stored.get(name), [vocabularies[side][piece] for piece in orders[side]]
        if array is not None and array.ndim == 2 and array.shape[axis] + 1 == len(ids):
            # Append padding's zeros, then take the rows or columns in our order.
            stored[name] = np.pad(array, [(0, 1 - axis), (0, axis)]).take(ids, axis)
    return tuple({piece: i for i, piece in enumerate(order)} for order in orders)


def _version(settings):
    """Returns the version of Marian that trained the model, `(0, 0, 0)` if it is not stated."""
    match = re.match(r"v?(\d+)\.(\d+)\.(\d+)", str(settings.get("version")))
    return tuple(map(int, match.groups())) if match else (0, 0, 0)


def _scale_gelu(arrays):
    """Scales both projections, so that silu is Marian's gelu: x * sigmoid(c x) = silu(c x) / c."""
    for name in arrays:
        if name.endswith(("_ffn_W1", "_ffn_b1")):
            arrays[name] = arrays[name].astype("float32") * GELU
        elif name.endswith("_ffn_W2"):
            arrays[name] = arrays[name].astype("float32") / GELU


def _search(decoder, vocabulary, path):
    """Returns the settings of the search in `decoder.yml`, with Marian's defaults."""
    power, factor = decoder.get("normalize", 0), decoder.get("max-length-factor", 3)
    if not (isinstance(factor, int | float) and 0 <= factor <= 1000):
        raise ValueError(f"{path}: `max-length-factor` must be 0 to 1000. Received: {factor!r}")
    penalty = {"length_penalty": "mean", "alpha": power} if power else {"length_penalty": None}
    return {
        "beam_size": decoder.get("beam-size", 12),
        **penalty,
        "length_ratio": factor,
        "extra_length": math.ceil(factor),  # our ratio does not count the end token
        "suppressed_tokens": () if decoder.get("allow-unk") else (vocabulary[UNK],),
    }


def _model_yaml(stored, path):
    """Removes the options of the training from `stored` and returns them."""
    text = stored.pop("special:model.yml", None)
    settings = None if text is None else files.parse_yaml(text.tobytes().rstrip(b"\0"), path)
    if not isinstance(settings, dict):
        raise ValueError(f"{path} must hold `special:model.yml`, the options of its training.")
    return settings
