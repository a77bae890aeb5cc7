"""Reads an OPUS-MT model in Marian's own form: `*.npz`, its options, and its vocabulary."""

from typing import Any

import numpy as np

from keras_transformer.data.marian_tokenizer import checked_vocabulary
from keras_transformer.runs.imported_files import (
    file_of,
    has_file,
    names_in,
    one_file,
    parse_yaml,
    read_mapping,
    read_npz_file,
    read_vocabulary,
)
from keras_transformer.runs.marian import (
    ACTIVATIONS,
    OUTPUT_BIAS,
    OUTPUT_KERNEL,
    PAD,
    MarianModel,
    check_options,
    checked_arrays,
    config_of,
    name_of,
    origin_of,
    sentencepiece_models,
)

# Options that this architecture needs: {name: (value if it is missing, values that it can hold)}.
MARIAN_OPTIONS: dict[str, tuple[Any, list[Any]]] = {
    "type": (None, ["transformer"]),
    "transformer-decoder-autoreg": ("self-attention", ["self-attention"]),
    "transformer-preprocess": ("", [""]),
    "transformer-postprocess": ("dan", ["dan"]),
    "transformer-postprocess-emb": ("d", ["d", ""]),
    "transformer-postprocess-top": ("", [""]),
    "transformer-train-position-embeddings": (False, [False]),
    "transformer-no-projection": (False, [False]),
    "transformer-ffn-depth": (2, [2]),
    "transformer-tied-layers": ([], [[], None]),
    "transformer-decoder-dim-ffn": (0, [0]),
    "transformer-decoder-ffn-depth": (0, [0, 2]),
    "transformer-ffn-activation": ("swish", list(ACTIVATIONS)),
    "transformer-no-bias": (False, [False]),
    "lemma-dim-emb": (0, [0]),
    "ulr": (False, [False]),
    "right-left": (False, [False]),
}
# Arrays with a place for each token, and the axis of the tokens.
PADDED = {"Wemb": 0, "encoder_Wemb": 0, "decoder_Wemb": 0, OUTPUT_BIAS: 1, OUTPUT_KERNEL: 1}


def read_npz(folder):
    decoder = {}
    if has_file(folder, "decoder.yml"):
        decoder = read_mapping(file_of(folder, "decoder.yml"))
    named = {key: names_in(decoder, key, folder / "decoder.yml") for key in ("models", "vocabs")}
    path = one_file(folder, "*.npz", named["models"])
    stored = read_npz_file(path)
    settings = _model_yaml(stored, path)
    check_options(settings, MARIAN_OPTIONS, path)
    if len(set(named["vocabs"])) > 1:
        raise ValueError(f"{folder} has a vocabulary for each side; one shared one is needed.")
    vocabulary_path = one_file(folder, "*vocab.yml*", named["vocabs"])
    vocabulary = read_vocabulary(vocabulary_path)
    vocabulary.setdefault(PAD, len(vocabulary))
    checked_vocabulary(vocabulary, vocabulary_path)
    config = _npz_config(settings, vocabulary, stored, path)
    transposed = OUTPUT_KERNEL + "t"  # (V, D)
    if transposed in stored:
        stored[OUTPUT_KERNEL] = stored.pop(transposed).T
    # Marian starts the decoder with an embedding of zeros and has no padding. We give this
    # embedding to padding, the start token, as `transformers` does.
    for name, axis in PADDED.items():
        if name in stored and stored[name].ndim == 2:
            stored[name] = np.pad(stored[name], [(0, 1 - axis), (0, axis)])
    arrays = checked_arrays(stored, config, path)
    origin = origin_of(folder, name_of(folder), "marian", [None, None])
    return MarianModel(
        config, arrays, vocabulary, *sentencepiece_models(folder, vocabulary), origin
    )


def _npz_config(settings, vocabulary, stored, path):
    sizes = {
        "hidden_dim": "dim-emb",
        "intermediate_dim": "transformer-dim-ffn",
        "num_heads": "transformer-heads",
        "num_encoder_layers": "enc-depth",
        "num_decoder_layers": "dec-depth",
    }
    tied_all = settings.get("tied-embeddings-all", False)
    tied = settings.get("tied-embeddings", False) or tied_all
    tied_source = settings.get("tied-embeddings-src", False) or tied_all
    if tied_source and not tied:
        raise ValueError(
            f"{path}: embeddings that both sides share must also be the output's. Received: "
            "tied-embeddings-src without tied-embeddings"
        )
    sizes_given = settings.get("dim-vocabs")
    is_list = isinstance(sizes_given, list) and all(type(size) is int for size in sizes_given)
    if not is_list or len(set(sizes_given)) != 1:
        raise ValueError(
            f"{path}: both sides must share one vocabulary, so `dim-vocabs` must be two equal "
            f"numbers. Received: {sizes_given}"
        )
    return config_of(
        path,
        vocabulary,
        sizes_given[0] + 1,  # and padding
        {ours: settings.get(theirs) for ours, theirs in sizes.items()},
        stored,
        activation=ACTIVATIONS[settings.get("transformer-ffn-activation", "swish")],
        tie_embeddings="all" if tied_source else "decoder" if tied else "none",
        dropout=0.1,
    )


def _model_yaml(stored, path):
    text = stored.pop("special:model.yml", None)
    settings = None if text is None else parse_yaml(text.tobytes().rstrip(b"\0"), path)
    if not isinstance(settings, dict):
        raise ValueError(f"{path} must hold `special:model.yml`, the options of its training.")
    return settings
