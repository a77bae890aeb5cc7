"""Reads an OPUS-MT model in the form of the Hugging Face Hub; its names are those of transformers.

No pickle is read, and PyTorch is not needed.
"""

import re
from typing import Any

import numpy as np

from keras_transformer.runs.imported_files import (
    file_of,
    has_file,
    read_json,
    read_safetensors,
)
from keras_transformer.runs.marian import (
    ACTIVATIONS,
    BLOCK,
    END,
    OUTPUT_BIAS,
    OUTPUT_KERNEL,
    PAD,
    MarianModel,
    check_arrays,
    check_options,
    checked_vocabulary,
    config_of,
    depths,
    is_kernel,
    origin_of,
    sentencepiece_models,
)

HUB_NAME = r"[\w.-]+/[\w.-]+"
HUB_FILES = ("config.json", "model.safetensors", "source.spm", "target.spm", "vocab.json")
OPTIONAL_HUB_FILES = ("tokenizer_config.json", "README.md", "LICENSE", "target_vocab.json")
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
}


def read_hub(folder):
    if not (folder / "model.safetensors").is_file() and (folder / "pytorch_model.bin").is_file():
        command = (
            "from transformers import MarianMTModel as M; "
            f"M.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})"
        )
        raise ValueError(
            f"{folder / 'pytorch_model.bin'} is a pickle, which can run any program when it is "
            "read. Convert it where `transformers` and `torch` are installed, if you trust it: "
            f'python -c "{command}"'
        )
    settings = read_json(folder, "config.json")
    check_options(settings, HUB_OPTIONS, folder / "config.json")
    if (folder / "target_vocab.json").is_file():
        raise ValueError(f"{folder} has a vocabulary for each side; one shared one is needed.")
    vocabulary = checked_vocabulary(read_json(folder, "vocab.json"), folder / "vocab.json")
    config = _hub_config(settings, vocabulary, folder / "config.json")
    names = {
        f"{side}_l{index + 1}_{theirs}": f"model.{side}.layers.{index}.{hub}"
        for side, count in depths(config).items()
        for index in range(count)
        for theirs, hub in BLOCK.items()
        if side == "decoder" or not theirs.startswith("context")
    }
    names[OUTPUT_BIAS] = "final_logits_bias"
    stored = read_safetensors(file_of(folder, "model.safetensors"))
    _take_positions(stored, config.hidden_dim, folder)
    names |= _take_embeddings(config, stored, folder)
    theirs_of = {hub: theirs for theirs, hub in names.items()}
    arrays = {theirs_of.get(hub, hub): array for hub, array in stored.items()}
    arrays = {name: array.T if is_kernel(name) else array for name, array in arrays.items()}
    check_arrays(arrays, config, folder / "model.safetensors", names)
    given = {}
    if has_file(folder, "tokenizer_config.json"):
        given = read_json(folder, "tokenizer_config.json")
    name = str(settings.get("_name_or_path"))
    name = name if re.fullmatch(HUB_NAME, name) else folder.resolve().name
    languages = [given.get("source_lang"), given.get("target_lang")]
    origin = origin_of(folder, name, "hub", languages)
    return MarianModel(
        config, arrays, vocabulary, *sentencepiece_models(folder, vocabulary), origin
    )


def _hub_config(settings, vocabulary, path):
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
    is_shared = settings.get("share_encoder_decoder_embeddings", True)
    is_tied = settings.get("tie_word_embeddings", True)
    if is_shared and not is_tied:
        raise ValueError(
            f"{path}: embeddings that both sides share must also be the output's. Received: "
            "tie_word_embeddings=False"
        )
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
        settings["vocab_size"] if "vocab_size" in settings else None,
        {ours: settings.get(theirs) for ours, theirs in sizes.items()},
        activation=HUB_ACTIVATIONS[settings.get("activation_function", "gelu")],
        tie_embeddings="all" if is_shared else "decoder" if is_tied else "none",
        **{n: settings.get(n, 0.0) for n in ("attention_dropout", "activation_dropout")},
        dropout=settings.get("dropout", 0.1),
    )


def _take_embeddings(config, stored, folder):
    """Returns the names of the embeddings, and removes copies of tied ones from `stored`."""
    head = "lm_head.weight"
    encoder, decoder = (f"model.{side}.embed_tokens.weight" for side in ("encoder", "decoder"))
    places = {
        "all": {"Wemb": ["model.shared.weight", encoder, decoder, head]},
        "decoder": {"encoder_Wemb": [encoder], "decoder_Wemb": [decoder, head]},
        "none": {"encoder_Wemb": [encoder], "decoder_Wemb": [decoder], OUTPUT_KERNEL: [head]},
    }[config.tie_embeddings]
    names = {}
    for theirs, choices in places.items():
        names[theirs], *copies = [name for name in choices if name in stored] or choices[:1]
        for copy in copies:
            if not np.array_equal(stored.pop(copy), stored[names[theirs]]):
                raise ValueError(
                    f"{folder / 'model.safetensors'}: {names[theirs]} and {copy} must be equal, "
                    "because `config.json` says that these embeddings are shared."
                )
    return names


def _take_positions(stored, width, folder):
    """Removes stored positions; raises unless they are the sinusoids the permutation expects."""
    for side in ("encoder", "decoder"):
        table = stored.pop(f"model.{side}.embed_positions.weight", None)
        if table is None:
            continue
        angles = np.arange(len(table))[:, None] / 10000 ** (np.arange(0, width, 2) / width)
        expected = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
        if table.shape != expected.shape or np.abs(table - expected).max() > 1e-3:
            raise ValueError(
                f"{folder / 'model.safetensors'}: the positions of the {side} must be sinusoidal, "
                "all sines before all cosines. Learned positions cannot be imported."
            )
