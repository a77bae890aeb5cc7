"""Reads an OPUS-MT model in the form of the Hugging Face Hub; its names are those of transformers.

No pickle is read, and PyTorch is not needed.
"""

import re
import reprlib
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.data.marian_tokenizer import checked_vocabulary, is_tag_piece
from keras_transformer.runs.imported_files import (
    file_of,
    has_file,
    map_safetensors,
    read_json,
    read_mapping,
)
from keras_transformer.runs.marian import (
    ACTIVATIONS,
    BLOCK,
    END,
    OUTPUT_BIAS,
    OUTPUT_KERNEL,
    PAD,
    MarianModel,
    check_options,
    checked_arrays,
    config_of,
    depths,
    is_kernel,
    name_of,
    origin_of,
    sentencepiece_models,
)

# A name on the Hub, and perhaps the revision to take.
HUB_NAME = r"([\w.-]+/[\w.-]+)(?:@([\w./-]+))?"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
HUB_FILES = (
    *("config.json", WEIGHTS, INDEX, "model-*.safetensors", "source.spm", "target.spm"),
    *("vocab.json", "added_tokens.json", "tokenizer_config.json", "README.md", "LICENSE"),
    "target_vocab.json",
)
HUB_ACTIVATIONS = ACTIVATIONS | {"gelu": "gelu"}
# As `MARIAN_OPTIONS`.
HUB_OPTIONS: dict[str, tuple[Any, list[Any]]] = {
    "model_type": (None, ["marian"]),
    "normalize_before": (False, [False]),
    "normalize_embedding": (False, [False]),
    "add_final_layer_norm": (False, [False]),
    "add_bias_logits": (False, [False]),
    "static_position_embeddings": (True, [True]),
    "scale_embedding": (False, [True]),
    "activation_function": ("gelu", list(HUB_ACTIVATIONS)),
    "share_encoder_decoder_embeddings": (True, [True, False]),
    "tie_word_embeddings": (True, [True, False]),
}


def read_hub(folder):
    path = folder / "config.json"
    settings = read_mapping(file_of(folder, "config.json"))
    check_options(settings, HUB_OPTIONS, path)
    if (folder / "target_vocab.json").is_file():
        raise ValueError(f"{folder} has a vocabulary for each side; one shared one is needed.")
    vocabulary = _hub_vocabulary(folder)
    stored, weights = _weights(folder)
    tied, names = _take_embeddings(settings, stored, weights)
    config = _hub_config(settings, vocabulary, tied, stored, path)
    _take_positions(stored, config.hidden_dim, weights)
    names |= {
        f"{side}_l{index + 1}_{theirs}": f"model.{side}.layers.{index}.{hub}"
        for side, count in depths(config).items()
        for index in range(count)
        for theirs, hub in BLOCK.items()
        if side == "decoder" or not theirs.startswith("context")
    }
    names[OUTPUT_BIAS] = "final_logits_bias"
    arrays = {theirs: stored[hub] for theirs, hub in names.items() if hub in stored}
    arrays = {name: array.T if is_kernel(name) else array for name, array in arrays.items()}
    foreign = {name: stored[name] for name in stored.keys() - names.values()}
    arrays = checked_arrays(arrays | foreign, config, weights, names)
    given = {}
    if has_file(folder, "tokenizer_config.json"):
        given = read_mapping(file_of(folder, "tokenizer_config.json"))
    name = str(settings.get("_name_or_path"))
    name = name if re.fullmatch(HUB_NAME, name) else name_of(folder)
    languages = [given.get("source_lang"), given.get("target_lang")]
    origin = origin_of(folder, name, "hub", languages)
    return MarianModel(
        config, arrays, vocabulary, *sentencepiece_models(folder, vocabulary), origin
    )


def _weights(folder):
    """Returns the arrays of the file or of the shards of an index, and the path to show."""
    pickles = sorted(folder.glob("pytorch_model*.bin"))
    if has_file(folder, INDEX) and not has_file(folder, WEIGHTS):
        shards = read_mapping(file_of(folder, INDEX)).get("weight_map")
        if not isinstance(shards, dict) or any(Path(str(n)).name != n for n in shards.values()):
            raise ValueError(
                f"{folder / INDEX}: `weight_map` must map each array to a file of the folder. "
                f"Received: {reprlib.repr(shards)}"
            )
        files = [map_safetensors(file_of(folder, name)) for name in sorted(set(shards.values()))]
        return {n: array for file in files for n, array in file.items()}, folder / INDEX
    if pickles and not has_file(folder, WEIGHTS):
        command = (
            "from transformers import MarianMTModel as M; "
            f"M.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})"
        )
        raise ValueError(
            f"{file_of(folder, pickles[0].name)} is a pickle, which can run any program when it is "
            "read. Convert it where `transformers` and `torch` are installed, if you trust it: "
            f'python -c "{command}"'
        )
    return map_safetensors(file_of(folder, WEIGHTS)), folder / WEIGHTS


def _hub_vocabulary(folder):
    """Returns `vocab.json` with the tokens that were added to it."""
    path = file_of(folder, "vocab.json")
    vocabulary = checked_vocabulary(read_json(path), path)
    if has_file(folder, "added_tokens.json"):
        path = file_of(folder, "added_tokens.json")
        added = read_mapping(path)
        if others := [p for p in added if p not in vocabulary and not is_tag_piece(p)]:
            raise ValueError(
                f"{path}: only tags of languages, such as `>>fra<<`, can be added to the "
                "vocabulary; other tokens would have to be found inside of words. Received: "
                f"{reprlib.repr(others)}"
            )
        vocabulary = checked_vocabulary(vocabulary | added, path)
    return vocabulary


def _hub_config(settings, vocabulary, tied, stored, path):
    def same(first, second):
        if settings.get(first) != settings.get(second):
            raise ValueError(
                f"{path}: `{first}` and `{second}` must be equal. Received: "
                f"{settings.get(first)}, {settings.get(second)}"
            )

    same("encoder_attention_heads", "decoder_attention_heads")
    same("encoder_ffn_dim", "decoder_ffn_dim")
    same("pad_token_id", "decoder_start_token_id")
    if settings.get("decoder_vocab_size"):
        same("vocab_size", "decoder_vocab_size")
    for name, piece in (("pad_token_id", PAD), ("eos_token_id", END)):
        if settings.get(name) != vocabulary[piece]:
            raise ValueError(
                f"{path}: `{name}` must be the id of {piece!r} in the vocabulary, "
                f"{vocabulary[piece]}. Received: {settings.get(name)}"
            )
    sizes = {
        "hidden_dim": "d_model",
        "intermediate_dim": "encoder_ffn_dim",
        "num_heads": "encoder_attention_heads",
        "num_encoder_layers": "encoder_layers",
        "num_decoder_layers": "decoder_layers",
    }
    return config_of(
        path,
        vocabulary,
        settings.get("vocab_size"),
        {ours: settings.get(theirs) for ours, theirs in sizes.items()},
        stored,
        activation=HUB_ACTIVATIONS[settings.get("activation_function", "gelu")],
        tie_embeddings=tied,
        **{n: settings.get(n, 0.0) for n in ("attention_dropout", "activation_dropout")},
        dropout=settings.get("dropout", 0.1),
    )


def _take_embeddings(settings, stored, path):
    """Returns which embeddings are one matrix, and their names; removes copies from `stored`."""
    shared, head = "model.shared.weight", "lm_head.weight"
    encoder, decoder = (
        name if name in stored else shared
        for name in (f"model.{side}.embed_tokens.weight" for side in ("encoder", "decoder"))
    )
    is_shared = settings.get("share_encoder_decoder_embeddings", True)
    is_tied = settings.get("tie_word_embeddings", True)
    first, *others = [shared, encoder, decoder, head] if is_shared else [decoder, head]
    first = first if first in stored else encoder
    unequal = [n for n in others if n in stored and not np.array_equal(stored[n], stored[first])]
    if is_tied and unequal:
        raise ValueError(
            f"{path}: {first} and {unequal[0]} must be equal, because `config.json` says that "
            "these embeddings are shared."
        )
    if is_shared and not unequal and (is_tied or head in stored):
        tied, names = "all", {"Wemb": first}
    else:
        tied = "decoder" if is_tied else "none"
        names = {"encoder_Wemb": encoder, "decoder_Wemb": decoder}
        names |= {} if is_tied else {OUTPUT_KERNEL: head}
    for name in {shared, encoder, decoder, head} - set(names.values()):
        stored.pop(name, None)
    return tied, names


def _take_positions(stored, width, path):
    """Removes stored positions; raises unless they are the sinusoids the permutation expects."""
    for side in ("encoder", "decoder"):
        table = stored.pop(f"model.{side}.embed_positions.weight", None)
        if table is None:
            continue
        # The width first: a table of another one must not be computed. Rounded as in bfloat16.
        is_wide = table.shape[1:] == (width,)
        if not (is_wide and np.allclose(table, _sinusoids(*table.shape), rtol=0, atol=5e-3)):
            raise ValueError(
                f"{path}: the positions of the {side} must be sinusoidal, all sines before all "
                "cosines. Learned positions cannot be imported."
            )


def _sinusoids(count, width):
    angles = np.arange(count)[:, None] / 10000 ** (np.arange(0, width, 2) / width)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
