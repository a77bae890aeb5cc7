"""Reads a Marian model in the form of the Hugging Face Hub."""

import re
import reprlib
from collections.abc import Mapping
from typing import Any

from keras_transformer.data.sentencepiece_parts import checked_vocabulary, is_tag_piece
from keras_transformer.importing import files, hub, marian
from keras_transformer.importing.family import Family, Options
from keras_transformer.importing.marian import ACTIVATIONS, END, PAD

HELSINKI_NAME = "Helsinki-NLP/"
LACKING = ("normalize_before", "normalize_embedding", "add_final_layer_norm", "add_bias_logits")
OPTIONS: Options = {
    **dict.fromkeys(LACKING, (False, [False])),
    "static_position_embeddings": (True, [True]),
    "scale_embedding": (False, [True]),
    "activation_function": ("gelu", list(ACTIVATIONS)),
    "share_encoder_decoder_embeddings": (True, [True, False]),
    "tie_word_embeddings": (True, [True, False]),
}


def read_tokenizers(folder, settings):
    """As `Family.read_tokenizers`."""
    path = folder / "config.json"
    if (folder / "target_vocab.json").is_file():
        raise ValueError(f"{folder} must have one vocabulary that both sides share. Received: two.")
    vocabulary = _hub_vocabulary(folder)
    if settings.get("decoder_vocab_size"):
        hub.require_equal(settings, [("vocab_size", "decoder_vocab_size")], path)
    for name, piece in (("pad_token_id", PAD), ("eos_token_id", END)):
        if settings.get(name) != vocabulary[piece]:
            raise ValueError(
                f"{path}: `{name}` must be the id of {piece!r} in the vocabulary, "
                f"{vocabulary[piece]}. Received: {settings.get(name)}"
            )
    counts, vocabularies = [settings.get("vocab_size")] * 2, (vocabulary, vocabulary)
    marian.check_counts(counts, vocabularies, path)
    return marian.tokenizers_of(marian.sentencepiece_models(folder, vocabularies), vocabularies), []


def arithmetic_of(
    name: str, config: Mapping[str, Any], tokenizer: Mapping[str, Any], readme: str
) -> tuple[str, str]:
    """Returns whose arithmetic the weights need, `"marian"` or `"transformers"`, and why.

    The University of Helsinki converted weights that Marian trained; others trained or fine-tuned
    weights with `transformers`, whose positions differ. The weights do not show who trained them,
    so the clues to their origin in the other files decide.

    Args:
        name: name on the Hub, or of the folder.
        config: contents of `config.json`. If `transformers` saved it, it names the model that was
            loaded before.
        tokenizer: contents of `tokenizer_config.json`.
        readme: text of `README.md`.
    """
    loaded, converted = str(config.get("_name_or_path") or ""), str(tokenizer.get("name_or_path"))
    weights = re.search(r"(OPUS|Tatoeba)-MT-models/\S+\.zip", readme)
    # (whether it holds, program, why): the first that holds decides.
    clues = (
        (name.startswith(HELSINKI_NAME), "marian", f"{name} was converted by Helsinki"),
        (re.search("^base_model:", readme, re.M), "transformers", "README.md has a `base_model`"),
        (loaded.startswith("/tmp/" + HELSINKI_NAME), "marian", f"Helsinki converted {loaded}"),
        (loaded, "transformers", f"`transformers` saved what it had loaded from {loaded}"),
        (converted.startswith("marian-models/"), "marian", f"converted from {converted}"),
        (weights, "marian", "README.md links Marian's weights"),
        ("transformers_version" not in config, "marian", "config.json is as the first conversions"),
        (True, "transformers", "nothing says that Marian's weights were converted"),
    )
    return next((program, why) for holds, program, why in clues if holds)


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


MARIAN = Family(
    options=OPTIONS,
    equal=(*hub.EQUAL_SIDES, ("pad_token_id", "decoder_start_token_id")),
    read_tokenizers=read_tokenizers,
    fields={"output_bias": True},
    arithmetics=marian.ARITHMETIC,
    find_arithmetic=arithmetic_of,
)
