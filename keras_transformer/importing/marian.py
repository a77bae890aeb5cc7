"""Marian's names of a Transformer's arrays; checks of foreign models, and our layout of arrays."""

import math
import re
import reprlib
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.data.sentencepiece_parts import read_model
from keras_transformer.data.sentencepiece_proto import NORMAL
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.importing.files import check_floats, file_of, has_file
from keras_transformer.models.config import TransformerConfig
from keras_transformer.texts import first_of

SIZES = "hidden_dim intermediate_dim num_heads num_encoder_layers num_decoder_layers".split()
PAD, END, UNK = "<pad>", "</s>", "<unk>"
# {name of an activation in the files: Keras's}.
ACTIVATIONS = {"swish": "silu", "silu": "silu", "relu": "relu", "gelu": "gelu"}
# {program: fields of the config that its files do not state, because they are in its code}.
ARITHMETIC: dict[str, dict[str, Any]] = {
    "marian": {"positions": "tensor2tensor", "layer_norm_epsilon": 1e-6, "predict_padding": False},
    "transformers": {"layer_norm_epsilon": 1e-5},
}


class Part(NamedTuple):
    """An array of the model.

    Attributes:
        hub: its name on the Hub; empty if the name is not fixed.
        path: its path in a `Transformer`.
        axes: a letter for the size of each axis: D hidden dimension, K key dimension of all heads,
            F intermediate dimension, S and V vocabularies of source and target.
    """

    hub: str
    path: str
    axes: str


# Arrays of one block, by Marian's names.
BLOCK: dict[str, Part] = {}
for theirs, hub, ours, axes in (
    ("self_{}q", "self_attn.q_proj", "self_attention/query", "DK"),
    ("self_{}k", "self_attn.k_proj", "self_attention/key", "DK"),
    ("self_{}v", "self_attn.v_proj", "self_attention/value", "DK"),
    ("self_{}o", "self_attn.out_proj", "self_attention/output", "KD"),
    ("context_{}q", "encoder_attn.q_proj", "encoder_attention/query", "DK"),
    ("context_{}k", "encoder_attn.k_proj", "encoder_attention/key", "DK"),
    ("context_{}v", "encoder_attn.v_proj", "encoder_attention/value", "DK"),
    ("context_{}o", "encoder_attn.out_proj", "encoder_attention/output", "KD"),
    ("ffn_{}1", "fc1", "feed_forward/intermediate", "DF"),
    ("ffn_{}2", "fc2", "feed_forward/output", "FD"),
):
    BLOCK[theirs.format("W")] = Part(f"{hub}.weight", f"{ours}/kernel", axes)
    BLOCK[theirs.format("b")] = Part(f"{hub}.bias", f"{ours}/bias", axes[1])
for theirs, hub, ours in (
    ("self_Wo", "self_attn", "self_attention"),
    ("context_Wo", "encoder_attn", "encoder_attention"),
    ("ffn_ffn", "final", "feed_forward"),
):
    path = f"{ours}_residual/layer_norm"
    BLOCK[f"{theirs}_ln_scale"] = Part(f"{hub}_layer_norm.weight", f"{path}/gamma", "D")
    BLOCK[f"{theirs}_ln_bias"] = Part(f"{hub}_layer_norm.bias", f"{path}/beta", "D")
# How the names of a layer's arrays begin, Marian's or the Hub's; `{}` is the side.
LAYER = r"(?:model\.)?{}(?:_l|\.layers\.)([0-9]+)[_.]"
OUTPUT_BIAS, OUTPUT_KERNEL = "decoder_ff_logit_out_b", "decoder_ff_logit_out_W"
NOT_STATED = "not stated"
# How files name the University of Helsinki as a model's maker, and the attribution of its models.
HELSINKI = "Helsinki-NLP|University of Helsinki|(OPUS|Tatoeba)-MT-models"
OPUS_MT = (
    "OPUS-MT, Language Technology at the University of Helsinki (Tiedemann and Thottingal, 2020), "
    "https://github.com/Helsinki-NLP/Opus-MT"
)


def arrays_of(config: TransformerConfig) -> dict[str, Part]:
    """Returns the parts of a model by Marian's names."""
    if config.tie_embeddings == "all":
        parts = {"Wemb": Part("", "encoder/embedding/embeddings", "VD")}
    else:
        parts = {
            "encoder_Wemb": Part("", "encoder/source_embedding/embeddings", "SD"),
            "decoder_Wemb": Part("", "decoder/target_embedding/embeddings", "VD"),
        }
    if config.tie_embeddings == "none":
        parts[OUTPUT_KERNEL] = Part("", "output_projection/kernel", "DV")
    if config.output_bias:
        parts[OUTPUT_BIAS] = Part("final_logits_bias", "logits/bias", "V")
    for side in ("encoder", "decoder"):
        if config.normalize_first:
            hub, ours = f"model.{side}.layer_norm", f"{side}/layer_norm"
            parts[f"{side}_top_ln_scale"] = Part(f"{hub}.weight", f"{ours}/gamma", "D")
            parts[f"{side}_top_ln_bias"] = Part(f"{hub}.bias", f"{ours}/beta", "D")
        for index in range(getattr(config, f"num_{side}_layers")):
            hub, ours = f"model.{side}.layers.{index}", f"{side}/block_{index}"
            for name, part in BLOCK.items():
                if side == "decoder" or not name.startswith("context"):
                    parts[f"{side}_l{index + 1}_{name}"] = Part(
                        f"{hub}.{part.hub}", f"{ours}/{part.path}", part.axes
                    )
    return parts


def weight_of(array: np.ndarray, axes: str) -> np.ndarray:
    """Returns an array of a foreign model in float32, its hidden dimensions in our order.

    Args:
        array: array of any float dtype, its hidden dimensions in the order of the files.
        axes: as in `Part`.
    """
    if "D" not in axes:
        return array.astype("float32")
    # The order is that of the positions: theirs are all sines, then all cosines; ours alternate.
    axis = axes.index("D")
    pairs = np.stack(np.split(array, 2, axis), axis + 1, dtype="float32")  # no other copy is made
    return np.ascontiguousarray(pairs.reshape(array.shape))


def config_of(path, tokenizers, sizes, names, **fields):
    """Returns the config; raises unless the arrays have as many layers as the options state.

    A wrong number of layers is an error before a model of that size is made.

    Args:
        path: path of the file with the options, for errors.
        tokenizers: as in `ForeignModel`.
        sizes: the values of `SIZES` that the options state.
        names: names of the arrays, Marian's or the Hub's.
        **fields: other fields of the config.
    """
    sizes = checked_sizes(sizes, names, path)
    source, target = tokenizers[0], tokenizers[-1]
    try:
        config = TransformerConfig(
            vocabulary_size=target.vocabulary_size,
            source_vocabulary_size=source.vocabulary_size,
            pad_token_id=target.pad_token_id,
            start_token_id=target.start_token_id,
            end_token_id=target.end_token_id,
            unk_token_id=target.unk_token_id,
            **sizes,
            **fields,
        )
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if config.hidden_dim % 2:
        raise ValueError(f"{path}: `hidden_dim` must be even. Received: {config.hidden_dim}")
    return config


def checked_sizes(values, names, path):
    """Returns the values of `SIZES` by their names; raises unless the arrays have as many layers.

    Args:
        values: those that the options state.
        names, path: as in `config_of`.
    """
    sizes = dict(zip(SIZES, values, strict=True))
    for side in ("encoder", "decoder"):
        layers = {match[1] for name in names if (match := re.match(LAYER.format(side), name))}
        if sizes[f"num_{side}_layers"] != len(layers):
            raise ValueError(
                f"{path} must say the number of layers of the {side} that the weights have, "
                f"{len(layers)}. Received: {reprlib.repr(sizes[f'num_{side}_layers'])}"
            )
    return sizes


def check_options(settings, options, path):
    """Raises a `ValueError` unless the settings have values that this package supports.

    Args:
        settings: dict of the settings.
        options: `Options`.
        path: path of the file of the settings, for errors.
    """
    for name, (default, allowed) in options.items():
        value = settings.get(name, default)
        if value not in allowed:
            choices = " or ".join(repr(choice) for choice in allowed if choice is not None)
            raise ValueError(
                f"{path}: `{name}` must be {choices}, because this package has no such "
                f"architecture. Received: {reprlib.repr(value)}"
            )


def checked_arrays(arrays, config, path, names=None):
    """Returns all arrays of the model in their shapes.

    Raises a `ValueError` if one is missing, unknown, of another size, or not finite.

    Args:
        arrays: arrays by Marian's names, kernels `(in, out)`, of any float dtype. A missing bias of
            the logits is added, with zeros.
        config: `TransformerConfig`.
        path: path of the file, for errors.
        names: names to show in errors, by Marian's names. Optional.
    """
    if config.output_bias:
        arrays.setdefault(OUTPUT_BIAS, np.zeros(config.vocabulary_size, "float32"))
    sizes = {
        "D": config.hidden_dim,
        "K": config.hidden_dim,
        "F": config.intermediate_dim,
        "V": config.vocabulary_size,
        "S": config.source_vocabulary_size,
    }
    expected = {name: tuple(map(sizes.get, part.axes)) for name, part in arrays_of(config).items()}
    shown_names = {name: (names or {}).get(name, name) for name in expected}
    missing = sorted(shown_names[name] for name in expected if name not in arrays)
    if missing:
        raise ValueError(f"{path} lacks arrays of the architecture: {first_of(missing, 3)}.")
    unknown = sorted(name for name in arrays if name not in expected)
    if unknown:
        raise ValueError(
            f"{path} has unknown arrays, which the architecture lacks: {first_of(unknown, 3)}."
        )
    for name, shape in expected.items():
        actual = arrays[name].shape  # a vector may be stored as a row, `(1, D)`
        if math.prod(actual) != math.prod(shape) or actual[-1:] != shape[-1:]:
            raise ValueError(
                f"{path}: {shown_names[name]} must have the shape {shape}, by the sizes that the "
                f"model's configuration says. Received: {actual}"
            )
        check_floats(arrays[name], shown_names[name], path)
    return {name: arrays[name].reshape(shape) for name, shape in expected.items()}


def check_counts(counts, vocabularies, path):
    """Raises a `ValueError` unless the vocabularies have as many tokens as the model.

    Args:
        counts: numbers of tokens of source and target in the options of the model.
        vocabularies: `{piece: id}` of source and target.
        path: path of the file of the options, for errors.
    """
    expected = [len(vocabulary) for vocabulary in vocabularies]
    if counts != expected:
        raise ValueError(
            f"{path} and the vocabulary must have the same number of tokens. Received: "
            f"{reprlib.repr(counts)} in the model, {expected} in the vocabulary, padding included"
        )


def tokenizers_of(models, vocabularies):
    """Returns the tokenizers of both sides.

    Args:
        models: contents of the files of SentencePiece.
        vocabularies: `{piece: id}` of source and target.
    """
    return [Tokenizer.from_marian(*side) for side in zip(models, vocabularies, strict=True)]


def sentencepiece_models(folder, vocabularies):
    """Returns the contents of the files of SentencePiece of both sides.

    Raises a `ValueError` if less than half of the pieces of a file are in its vocabulary.
    """
    if has_file(folder, "source.bpe") and not has_file(folder, "source.spm"):
        raise ValueError(
            f"{folder} has `source.bpe`, an older kind of vocabulary that needs a tokenizer of its "
            "own. Only models with `source.spm` and `target.spm` can be imported."
        )
    models = []
    for name, vocabulary in zip(("source.spm", "target.spm"), vocabularies, strict=True):
        content, proto = read_model(file_of(folder, name))
        pieces = {piece.piece for piece in proto.pieces if piece.type == NORMAL}
        num_shared = len(pieces & vocabulary.keys())
        if 2 * num_shared < len(pieces):
            raise ValueError(
                f"{folder / name} must be of the same model as the vocabulary, which has only "
                f"{num_shared} of its {len(pieces)} pieces."
            )
        models.append(content)
    return models


def without_equal(settings, usual, path):
    """Returns a list with a line on the settings that our search does not support; `[]` if none.

    Args:
        settings: dict of the settings.
        usual: {name of a setting that our search lacks: value at which it changes nothing}.
        path: path of the file of the settings, for the line.
    """
    differing = [name for name in usual if settings.get(name) not in (usual[name], None)]
    listed = ", ".join(f"{name}={reprlib.repr(settings[name])}" for name in differing)
    return [f"{path.name}: our search does not support {listed}"] if differing else []


def name_of(folder):
    """Returns the name of a model by its folder."""
    folder = folder.resolve()
    # The Hub's cache has folders `models--OWNER--NAME/snapshots/REVISION`.
    if folder.parent.name != "snapshots":
        return folder.name
    return folder.parents[1].name.removeprefix("models--").replace("--", "/")


def read_stated(folder, name):
    """Returns the text of a README or a licence, `""` if there is none."""
    return file_of(folder, name).read_text("utf-8", "replace") if has_file(folder, name) else ""


def origin_of(folder, name, form, languages):
    """Returns `ForeignModel.origin`: where the model is from, as its files and its name say.

    Args:
        folder: path of the folder.
        name: name of the model.
        form: `"hub"` or `"marian"`.
        languages: codes of source and target that the files state, or `None`: then the name may
            tell them.
    """
    match = re.search(r"opus-mt(?:-[a-z]+)*-([a-z]{2,3})-([a-z]{2,3})(?:@.*)?$", name)
    guesses = match.groups() if match else (None, None)
    codes = [
        code if re.fullmatch("[a-z]{2,3}", str(code)) else guess
        for code, guess in zip(languages, guesses, strict=True)
    ]
    readme, license_text = (read_stated(folder, file) for file in ("README.md", "LICENSE"))
    licence = re.search(r"^license: *(\S+) *$", readme, re.MULTILINE)
    is_helsinki = any(re.search(HELSINKI, text) for text in (name, readme, license_text))
    is_cc_by = "Attribution 4.0 International" in license_text
    return {
        "name": name,
        "form": form,
        "license": licence[1] if licence else "cc-by-4.0" if is_cc_by else NOT_STATED,
        "attribution": OPUS_MT if is_helsinki else NOT_STATED,
        "source_language": codes[0],
        "target_language": codes[1],
    }
