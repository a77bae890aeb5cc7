"""Exports a translator as a model of CTranslate2, an engine in C++ for CPUs and GPUs.

https://github.com/OpenNMT/CTranslate2, extra `ct2`. The rules of the search are arguments of its
`translate_batch`; `model_card.json` has them.
"""

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ctranslate2
import keras
import numpy as np

from keras_transformer import types
from keras_transformer.atomic_file import atomic_folder, restore_folder
from keras_transformer.decoding import engine
from keras_transformer.decoding.ctranslate2 import ENGINE, CTranslate2Engine, distinct_tokens
from keras_transformer.decoding.ensemble import Ensemble
from keras_transformer.decoding.lines import learned_positions, longest_target
from keras_transformer.decoding.translator import Translator
from keras_transformer.export.folder_tokenizers import has_file, write_tokenizers
from keras_transformer.export.model_card import example_lines, write_examples, write_model_card
from keras_transformer.layers.decoder_block import DecoderBlock
from keras_transformer.layers.float_weight import float_weight
from keras_transformer.layers.parts import parts_of
from keras_transformer.present_weights import fetch_weights

# Keras's name of an activation -> CTranslate2's. Keras's "gelu" is the exact one.
ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "silu": "SWISH",
    "swish": "SWISH",
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
}
MAX_TOKENS = 1024
VERSIONED = ("keras", "ctranslate2", "sentencepiece")
SUPPRESSED = -1e9  # a logit; -inf would become NaN in a softmax of 16 bits


def export_ctranslate2(
    translator: Translator,
    path: types.Path,
    quantization: str | None = None,
    max_tokens: int = MAX_TOKENS,
    card: dict[str, Any] | None = None,
    examples: Iterable[str] | None = None,
) -> Path:
    """Writes a translator as a folder that `ctranslate2.Translator` loads.

    The tokens of the model are the pieces of the tokenizers. If the tokenizers are SentencePiece
    models or symbols, the folder also has them: `source.json` and `target.json`, or one
    `tokenizer.json`, with SentencePiece models beside them. For programs without this package, it
    then has `folder_tokenizer.py`, plain Python that needs at most `sentencepiece`. If the model
    sees the end token of a source, CTranslate2 appends it by itself.

    `load_translator` and `keras-transformer serve` translate with such a folder by the settings of
    the translator, as far as CTranslate2 has them: it divides by `n^alpha` and stops by
    `"first_beams"`. `search` in `model_card.json` has the settings that hold. `examples.jsonl` has
    lines with the folder's translations, for `keras-transformer verify`.

    A program of your own passes the settings to `translate_batch`: the page "Exported models" has
    one. Pass `max_input_length=0`: by default CTranslate2 cuts longer lines without a message.

    Args:
        translator: `Translator`.
        path: path of the folder to write. A CTranslate2 model that is there is replaced, as in
            `export_saved_model`.
        quantization: type of the weights in the file: `"int8"`, `"int16"`, `"float16"`,
            `"bfloat16"`, `"int8_float32"`, `"int8_float16"`, `"int8_bfloat16"`. They are made from
            the model's weights in float32, with LoRA added and int8 dequantized. Biases, positions
            and layer norms stay floats. Defaults to `None`, float32.
        max_tokens: int. Maximum number of tokens of a source, with its end token, and of a
            translation. CTranslate2 reads sinusoidal positions from a table of this size, and
            raises an error beyond it. A model with learned positions keeps the number of these.
            Defaults to `1024`.
        card, examples: as in `export_saved_model`.

    Returns:
        `pathlib.Path`, the folder.

    Raises:
        ImportError: if `ctranslate2` is not installed.
        ValueError: if CTranslate2 cannot express the model, or has no such quantization; if a layer
            is quantized in another way than int8; or if a language of a model that has tokens of
            them is missing.
        FileExistsError: if `path` exists and is not a CTranslate2 model.
        OSError: if it cannot be written; `path` is unchanged.
    """
    path = Path(path)
    if restore_folder(path).exists() and not ctranslate2.contains_model(str(path)):
        raise FileExistsError(f"{str(path)!r} exists and is not a CTranslate2 model.")
    if isinstance(translator.model, Ensemble):
        raise ValueError("CTranslate2 has no ensembles: export a SavedModel, or one of the models.")
    translator([])  # raises if languages are missing, or are those of single lines
    spec = transformer_spec(translator.model, max_tokens)
    config = translator.model.config
    source, target = (distinct_tokens(tokenizer.vocabulary) for tokenizer in translator.tokenizers)
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    set_special_tokens(spec, config, target)
    settings = held_settings(translator, max_tokens)
    forbidden = {*settings["suppressed_tokens"], config.forbidden_token_id} - {None}
    _suppress(spec.decoder.projection, sorted(forbidden), config.vocabulary_size)
    spec.config.add_source_eos = config.source_end_token
    if source[config.end_token_id] != spec.config.eos_token:
        must = "The end token must be one piece in source and target, because CTranslate2 has one."
        received = f"{source[config.end_token_id]!r} and {spec.config.eos_token!r}"
        raise ValueError(f"{must} Received: {received}")
    spec.validate()
    spec.optimize(quantization)
    entries = {"engine": ENGINE, "max_tokens": num_positions(config, max_tokens)}
    with atomic_folder(path) as new_folder:
        spec.save(str(new_folder))
        write_model_card(new_folder, translator, VERSIONED, card, settings, **entries)
        if all(map(has_file, translator.tokenizers)):
            write_tokenizers(new_folder, translator.tokenizers)
            lines = example_lines(translator, examples)
            answers = Translator(CTranslate2Engine(new_folder, workers=1))(lines, n_best=1)
            pairs = zip(lines, answers, strict=True)
            write_examples(new_folder, [(line, best.text, best.score) for line, (best,) in pairs])
    return path


def held_settings(translator: Translator, max_tokens: int = MAX_TOKENS) -> dict[str, Any]:
    """Returns the settings by which an exported model searches; see `export_ctranslate2`."""
    settings, config = translator.settings, translator.model.config
    positions = num_positions(config, max_tokens)
    if translator.source_tokenizer.language_ids:
        positions -= 1  # the token of the language has a position too
    bound = min(translator.text_settings.max_source_tokens or positions, positions)
    has_room = longest_target(bound, settings, config) <= positions
    max_length = settings.max_length if has_room else positions
    search_settings = asdict(engine.held_settings(CTranslate2Engine, settings))
    limits = {"max_source_tokens": bound, "max_length": max_length}
    return translator.all_settings | search_settings | limits


def num_positions(config: Any, max_tokens: int) -> int:
    """Returns the number of positions of an exported model: its learned ones, or `max_tokens`."""
    return learned_positions(config) or max_tokens


def transformer_spec(model: Any, max_tokens: int) -> Any:
    """Returns CTranslate2's `TransformerSpec` with the weights of a model, without vocabularies.

    Args:
        model: `Transformer`.
        max_tokens: int. Number of sinusoidal positions.

    Raises:
        ValueError: if CTranslate2 cannot express the model.
    """
    fetch_weights(model)  # on JAX within `fit`, the variables are outdated before
    config = model.config
    is_relative = config.positions == "relative"
    _require_expressible(model)
    spec = ctranslate2.specs.TransformerSpec.from_config(
        (config.num_encoder_layers, config.num_decoder_layers),
        config.num_heads,
        with_relative_position=is_relative,
        pre_norm=config.normalize_first,
        activation=ctranslate2.specs.Activation[ACTIVATIONS[config.activation]],
        alignment_heads=0,  # `return_attention` gives the mean of all heads of the last block
    )
    spec.config.layer_norm_epsilon = config.layer_norm_epsilon  # CTranslate2's default is 1e-5
    spec.encoder.embeddings[0].weight = float_weight(model.encoder.embedding, "embeddings")
    target_embeddings = float_weight(model.decoder.embedding, "embeddings")
    spec.decoder.embeddings.weight = spec.decoder.projection.weight = target_embeddings
    if model.output_projection is not None:
        _copy_dense(spec.decoder.projection, model.output_projection)
    if config.output_bias:
        spec.decoder.projection.bias = keras.ops.convert_to_numpy(model.output_bias)
    for stack_spec, stack in ((spec.encoder, model.encoder), (spec.decoder, model.decoder)):
        if not is_relative:
            positions = np.arange(num_positions(config, max_tokens))
            encodings = stack.embedding.encode_positions(positions)
            stack_spec.position_encodings.encodings = np.array(encodings)
        for layer, block in zip(stack_spec.layer, stack.blocks, strict=True):
            _copy_block(layer, block)
        if config.normalize_first:
            _copy_norm(stack_spec.layer_norm, stack.layer_norm)
    return spec


def set_special_tokens(spec: Any, config: Any, target: list[str]) -> None:
    """Tells CTranslate2 which pieces of the target start, end and are unknown."""
    spec.config.bos_token = spec.config.decoder_start_token = target[config.start_token_id]
    spec.config.eos_token = target[config.end_token_id]
    spec.config.unk_token = target[config.unk_token_id]


def _suppress(projection, token_ids, size):
    if token_ids:
        if not isinstance(projection.bias, np.ndarray):
            projection.bias = np.zeros(size, "float32")
        projection.bias[token_ids] = SUPPRESSED


def _require_expressible(model):
    config = model.config
    width = config.hidden_dim // config.num_heads
    problem = None
    if config.activation not in ACTIVATIONS:
        names = ", ".join(ACTIVATIONS)
        problem = f"`activation` must be one of {names}. Received: {config.activation!r}"
    elif (sizes := (config.key_dim, config.value_dim)) != (width, width):
        problem = f"`key_dim` and `value_dim` must be `hidden_dim // num_heads`. Received: {sizes}"
    elif custom := _custom_classes(model):
        problem = f"it has layers of its own. Received: {', '.join(custom)}"
    if problem:
        raise ValueError(f"CTranslate2 cannot express this model: {problem}.")


def _custom_classes(model):
    """Returns the names of a user's layer classes, and of the model's if it overrides `call`."""
    modules = {type(part): type(part).__module__ for part in parts_of(model, "").values()}
    modules[type(model)] = type(model).call.__module__
    packages = {kind: module.partition(".")[0] for kind, module in modules.items()}
    standard_packages = "keras", "keras_transformer"
    return sorted(
        kind.__name__ for kind, package in packages.items() if package not in standard_packages
    )


def _copy_block(layer, block):
    attention = block.self_attention
    fused, output = layer.self_attention.linear
    _copy_dense(fused, attention.query_dense, attention.key_dense, attention.value_dense)
    _copy_dense(output, attention.output_dense)
    if attention.max_relative_position:
        kernel = float_weight(attention.relative_dense, "kernel")
        layer.self_attention.relative_position_keys = kernel.T
        del layer.self_attention.relative_position_values  # an optional part
    _copy_norm(layer.self_attention.layer_norm, block.self_attention_residual.layer_norm)
    if isinstance(block, DecoderBlock):
        attention = block.encoder_attention
        query, fused, output = layer.attention.linear
        _copy_dense(query, attention.query_dense)
        _copy_dense(fused, attention.key_dense, attention.value_dense)
        _copy_dense(output, attention.output_dense)
        _copy_norm(layer.attention.layer_norm, block.encoder_attention_residual.layer_norm)
    _copy_dense(layer.ffn.linear_0, block.feed_forward.intermediate)
    _copy_dense(layer.ffn.linear_1, block.feed_forward.output_dense)
    _copy_norm(layer.ffn.layer_norm, block.feed_forward_residual.layer_norm)


def _copy_dense(linear, *layers):
    """Copies dense layers side by side; Keras's kernels are (in, out), CTranslate2's (out, in)."""
    linear.weight = np.concatenate([float_weight(layer, "kernel").T for layer in layers])
    if layers[0].bias is not None:
        linear.bias = np.concatenate([float_weight(layer, "bias") for layer in layers])


def _copy_norm(norm, layer):
    norm.gamma, norm.beta = float_weight(layer, "gamma"), float_weight(layer, "beta")
