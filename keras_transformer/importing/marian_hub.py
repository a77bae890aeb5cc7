"""Reads a Marian model in the form of the Hugging Face Hub; its names are those of transformers.

No pickle is read, and PyTorch is not needed.
"""

import re
import reprlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_transformer.data.sentencepiece_parts import checked_vocabulary, is_tag_piece
from keras_transformer.importing import files, marian
from keras_transformer.importing.marian import ACTIVATIONS, END, OUTPUT_KERNEL, PAD

HELSINKI_NAME = "Helsinki-NLP/"
# A name on the Hub, and perhaps the revision to take.
HUB_NAME = r"([\w.-]+/[\w.-]+)(?:@([\w./-]+))?"
WEIGHTS = "model.safetensors"
HUB_FILES = (
    *("config.json", "generation_config.json", WEIGHTS),
    *("source.spm", "target.spm"),
    *("vocab.json", "added_tokens.json", "tokenizer_config.json", "README.md", "LICENSE"),
    "target_vocab.json",
)
SIZES = "d_model encoder_ffn_dim encoder_attention_heads encoder_layers decoder_layers".split()
LACKING = ("normalize_before", "normalize_embedding", "add_final_layer_norm", "add_bias_logits")
# {option of `config.json`: (its value if it is missing, the values that our model follows)}.
HUB_OPTIONS: dict[str, tuple[Any, list[Any]]] = {
    "model_type": (None, ["marian"]),
    **dict.fromkeys(LACKING, (False, [False])),
    "static_position_embeddings": (True, [True]),
    "scale_embedding": (False, [True]),
    "activation_function": ("gelu", list(ACTIVATIONS)),
    "share_encoder_decoder_embeddings": (True, [True, False]),
    "tie_word_embeddings": (True, [True, False]),
}
# Settings that must be equal; the first pair if the second of them is given.
EQUAL = (
    ("vocab_size", "decoder_vocab_size"),
    ("encoder_attention_heads", "decoder_attention_heads"),
    ("encoder_ffn_dim", "decoder_ffn_dim"),
    ("pad_token_id", "decoder_start_token_id"),
)
# Settings of the search of `transformers`, with the value that ours has.
WITHOUT_EQUAL: dict[str, Any] = {
    **{"min_length": 0, "do_sample": False, "no_repeat_ngram_size": 0, "repetition_penalty": 1.0},
    **dict.fromkeys(("forced_bos_token_id", "suppress_tokens", "begin_suppress_tokens")),
    "bad_words_ids": [],
}


def read_hub(folder, given_name=None, arithmetic=None):
    path = folder / "config.json"
    settings = files.read_mapping(files.file_of(folder, "config.json"))
    marian.check_options(settings, HUB_OPTIONS, path)
    if (folder / "target_vocab.json").is_file():
        raise ValueError(f"{folder} has a vocabulary for each side; one shared one is needed.")
    vocabulary = _hub_vocabulary(folder)
    vocabularies = vocabulary, vocabulary
    tokenizer = files.read_optional(folder, "tokenizer_config.json")
    generation = files.read_optional(folder, "generation_config.json")
    kind, why = arithmetic, "chosen"
    if kind is None:
        readme, name = marian.read_stated(folder, "README.md"), given_name or marian.name_of(folder)
        kind, why = arithmetic_of(name, settings, tokenizer, readme)
    stored, weights = _weights(folder, given_name)
    tied, names = _take_embeddings(settings, stored, weights)
    fields = {**marian.ARITHMETIC[kind], "tie_embeddings": tied}
    config = _hub_config(settings, vocabularies, fields, stored, path)
    _take_positions(stored, config.hidden_dim, weights)
    parts = marian.arrays_of(config)
    names = {theirs: part.hub for theirs, part in parts.items()} | names
    arrays = {
        # The Hub stores kernels `(out, in)`.
        theirs: stored[hub].T if parts[theirs].path.endswith("kernel") else stored[hub]
        for theirs, hub in names.items()
        if hub in stored
    }
    foreign = {name: stored[name] for name in stored.keys() - names.values()}
    arrays = marian.checked_arrays(arrays | foreign, config, weights, names)
    name = str(settings.get("_name_or_path"))
    name = given_name or (name if re.fullmatch(HUB_NAME, name) else marian.name_of(folder))
    languages = [tokenizer.get("source_lang"), tokenizer.get("target_lang")]
    origin = marian.origin_of(folder, name, "hub", languages)
    search, unequal = _search(settings, generation, vocabulary, path)
    (other,) = marian.ARITHMETIC.keys() - {kind}
    notes = [f"Arithmetic of {kind}: {why}. For the other: --arithmetic {other}", *unequal]
    models = marian.sentencepiece_models(folder, vocabularies)
    return marian.MarianModel(config, arrays, vocabularies, models, search, notes, origin)


def arithmetic_of(
    name: str, config: Mapping[str, Any], tokenizer: Mapping[str, Any], readme: str
) -> tuple[str, str]:
    """Returns whose arithmetic the weights need, `"marian"` or `"transformers"`, and why.

    Helsinki converted weights that Marian trained; others trained or fine-tuned weights with
    `transformers`, whose positions differ. The files look alike, so what they tell of their way
    decides.

    Args:
        name: on the Hub, or of the folder.
        config: `config.json`. What `transformers` saves again names the model that it loaded.
        tokenizer: `tokenizer_config.json`.
        readme: `README.md`.
    """
    loaded, converted = str(config.get("_name_or_path") or ""), str(tokenizer.get("name_or_path"))
    weights = re.search(r"(OPUS|Tatoeba)-MT-models/\S+\.zip", readme)
    rows = (
        (name.startswith(HELSINKI_NAME), "marian", f"{name} was converted by Helsinki"),
        (re.search("^base_model:", readme, re.M), "transformers", "README.md has a `base_model`"),
        (loaded.startswith("/tmp/" + HELSINKI_NAME), "marian", f"Helsinki converted {loaded}"),
        (loaded, "transformers", f"`transformers` saved what it had loaded from {loaded}"),
        (converted.startswith("marian-models/"), "marian", f"converted from {converted}"),
        (weights, "marian", "README.md links Marian's weights"),
        ("transformers_version" not in config, "marian", "config.json is as the first conversions"),
        (True, "transformers", "nothing says that Marian's weights were converted"),
    )
    return next((kind, why) for holds, kind, why in rows if holds)


def _search(config, generation, vocabulary, path):
    """Returns the settings of the search, and a line on those that ours cannot follow."""
    options = config | {name: value for name, value in generation.items() if value is not None}
    banned = options.get("bad_words_ids") or []
    longest = (
        options.get("max_new_tokens") or (options.get("max_length") or 0) - 1
    )  # without the start
    search = {
        "beam_size": options.get("num_beams") or 1,
        "length_penalty": "mean",
        "alpha": options.get("length_penalty", 1.0),
        "stopping": "first_beams" if options.get("early_stopping") is True else "exhaustive",
        "suppressed_tokens": tuple(b[0] for b in banned if len(b) == 1 and b != [vocabulary[PAD]]),
        "force_end": options.get("forced_eos_token_id") == vocabulary[END],
    }
    if longest > 0:
        search |= {"extra_length": longest, "max_length": longest}
    options["bad_words_ids"] = [ids for ids in banned if len(ids) > 1]
    return search, marian.without_equal(options, WITHOUT_EQUAL, path)


def _weights(folder, given_name):
    """Returns the arrays of the file, and its path."""
    # Lazy: a pickle beside whole weights may be a pointer of Git LFS.
    pickles = (files.file_of(folder, path.name) for path in folder.glob("pytorch_model*.bin"))
    if not files.has_file(folder, WEIGHTS) and (list(pickles) or given_name):
        name = (given_name or str(folder)).partition("@")[0]
        command = (
            "from transformers import MarianMTModel as M, MarianTokenizer as T; "
            f"[kind.from_pretrained({name!r}).save_pretrained('copy') for kind in (M, T)]"
        )
        raise ValueError(
            f"{name} has no `model.safetensors`. A `pytorch_model.bin` is a pickle, which can run "
            "any program when it is read. If you trust it, convert it where `transformers`, "
            "`sentencepiece` and `torch` are installed, and import the folder 'copy' (with "
            f'`--arithmetic marian`, if Marian trained it): python -c "{command}"'
        )
    return files.map_safetensors(files.file_of(folder, WEIGHTS)), folder / WEIGHTS


def _hub_vocabulary(folder):
    """Returns `vocab.json` with the tokens that were added to it."""
    path = files.file_of(folder, "vocab.json")
    vocabulary = checked_vocabulary(files.read_json(path), path)
    if files.has_file(folder, "added_tokens.json"):
        path = files.file_of(folder, "added_tokens.json")
        added = files.read_mapping(path)
        if others := [p for p in added if p not in vocabulary and not is_tag_piece(p)]:
            raise ValueError(
                f"{path}: only tags of languages, such as `>>fra<<`, can be added to the "
                "vocabulary; other tokens would have to be found inside of words. Received: "
                f"{reprlib.repr(others)}"
            )
        vocabulary = checked_vocabulary(vocabulary | added, path)
    return vocabulary


def _hub_config(settings, vocabularies, fields, stored, path):
    vocabulary, _ = vocabularies
    for first, second in EQUAL if settings.get("decoder_vocab_size") else EQUAL[1:]:
        if settings.get(first) != settings.get(second):
            raise ValueError(
                f"{path}: `{first}` and `{second}` must be equal. Received: "
                f"{settings.get(first)}, {settings.get(second)}"
            )
    for name, piece in (("pad_token_id", PAD), ("eos_token_id", END)):
        if settings.get(name) != vocabulary[piece]:
            raise ValueError(
                f"{path}: `{name}` must be the id of {piece!r} in the vocabulary, "
                f"{vocabulary[piece]}. Received: {settings.get(name)}"
            )
    dropouts = {n: settings.get(n, 0.0) for n in ("attention_dropout", "activation_dropout")}
    fields |= {**dropouts, "dropout": settings.get("dropout", 0.1)}
    fields["activation"] = ACTIVATIONS[settings.get("activation_function", "gelu")]
    counts = [settings.get("vocab_size")] * 2
    return marian.config_of(path, vocabularies, counts, map(settings.get, SIZES), stored, **fields)


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
