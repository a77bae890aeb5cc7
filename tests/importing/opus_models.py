"""Small random models: of OPUS-MT by `transformers`, the same in Marian's form, and of Marian."""

import functools
import importlib.util
import json
import re

import numpy as np
import pytest
import sentencepiece
import tokenizer_agreement

from keras_transformer.data.number_corpus import number_names
from keras_transformer.importing import marian

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="`transformers` computes these models with PyTorch, which .ci/run installs",
)
TAGS = (">>deu<<", ">>fra<<")
# Names of Marian's arrays by those of `transformers`, as Marian's sources and the original
# conversion of OPUS-MT models have them.
PROJECTIONS = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "out_proj": "o"}
ATTENTIONS = {"self_attn": "self", "encoder_attn": "context"}


# Options of a small model as Marian writes them.
OPTIONS = {
    **{"type": "transformer", "dim-emb": 16, "enc-depth": 2, "dec-depth": 1},
    **{"transformer-heads": 2, "transformer-dim-ffn": 24, "transformer-ffn-activation": "relu"},
    **{"transformer-preprocess": "", "transformer-postprocess": "dan"},
    **{"transformer-postprocess-emb": "d", "transformer-postprocess-top": ""},
    **{"transformer-decoder-autoreg": "self-attention", "transformer-no-projection": False},
    **{"transformer-guided-alignment-layer": "last", "version": "v1.12.42 b7be0e964"},
    **{"tied-embeddings-all": False, "tied-embeddings": False, "tied-embeddings-src": False},
}


@functools.cache
def sentencepiece_models():
    """SentencePiece models of source and target, trained on number names."""
    return tuple(train_sentencepiece(side, 80) for side in (0, 1))


@functools.cache
def train_sentencepiece(side, size, **options):
    lines = (pair[side] for pair in number_names("train", 2000, 0))
    return tokenizer_agreement.train_sentencepiece(lines, size, character_coverage=1.0, **options)


@functools.cache
def vocabulary():
    """`{piece: id}`: the end and unknown tokens first, padding last, as OPUS-MT has them."""
    pieces = ["</s>", "<unk>"]
    for model in sentencepiece_models():
        one = sentencepiece.SentencePieceProcessor(model_proto=model)
        ids = range(one.get_piece_size())
        pieces += [one.id_to_piece(i) for i in ids if not (one.is_control(i) or one.is_unknown(i))]
    pieces = [*dict.fromkeys(pieces), *TAGS, "<pad>"]
    return {piece: token_id for token_id, piece in enumerate(pieces)}


def make_marian(seed=0, is_random=True, gain=1.5, bias=1.0, end_bias=2.5, **changes):
    """Returns a `MarianMTModel`, with random biases and norms too unless `is_random` is false.

    `gain` and `bias` scale kernels and the logits' biases: with more of one and less of the other,
    translations vary more. The larger `end_bias`, the more of them end.
    """
    import torch
    from transformers import MarianConfig, MarianMTModel

    size = len(vocabulary())
    fields = {
        **{"vocab_size": size, "decoder_vocab_size": size, "d_model": 32, "scale_embedding": True},
        **{"encoder_layers": 2, "decoder_layers": 1, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48},
        **{"encoder_attention_heads": 4, "decoder_attention_heads": 4, "dropout": 0.1},
        **{"activation_function": "swish", "max_position_embeddings": 64, "max_length": 64},
        **{"pad_token_id": size - 1, "decoder_start_token_id": size - 1, "eos_token_id": 0},
        **{"forced_eos_token_id": 0, "share_encoder_decoder_embeddings": True},
        **{"tie_word_embeddings": True},
    }
    generator = torch.Generator().manual_seed(seed)
    config = MarianConfig(**fields | changes)
    model = MarianMTModel(config).eval()
    if not is_random:
        return model
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "embed_positions" in name:
                continue
            noise = torch.randn(weight.shape, generator=generator)
            if weight.ndim == 2:
                scale = weight.shape[-1] ** -0.5
                weight.copy_(noise * scale * (1.0 if "embed" in name or "shared" in name else gain))
                if weight.shape[0] == config.vocab_size:
                    weight[-1] = 0.0  # the embedding of padding, as in the models of OPUS-MT
            else:
                weight.copy_(noise * 0.1 + float("norm.weight" in name))
        biases = bias * torch.randn(model.final_logits_bias.shape, generator=generator)
        biases[:, config.eos_token_id], biases[:, -1] = end_bias, 0.0
        model.final_logits_bias.copy_(biases)
    return model


def write_hub(model, folder):
    """Writes the model and its tokenizer as the Hub has them."""
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    write_sentencepiece(folder)
    (folder / "vocab.json").write_text(json.dumps(vocabulary()), "utf-8")
    return folder


def write_sentencepiece(folder):
    for side, content in zip(("source", "target"), sentencepiece_models(), strict=True):
        (folder / f"{side}.spm").write_bytes(content)


def write_npz(model, folder, **changes):
    """Writes the model as Marian does: without padding, kernels `(in, out)`, biases `(1, n)`."""
    folder.mkdir(parents=True, exist_ok=True)
    config, state = model.config, {n: a.numpy() for n, a in model.state_dict().items()}
    arrays = {"decoder_ff_logit_out_b": state["final_logits_bias"][:, :-1]}
    is_tied_all = config.share_encoder_decoder_embeddings and config.tie_word_embeddings
    if is_tied_all:
        arrays["Wemb"] = state["model.shared.weight"][:-1]
    else:
        for side in ("encoder", "decoder"):
            arrays[f"{side}_Wemb"] = state[f"model.{side}.embed_tokens.weight"][:-1]
        if not config.tie_word_embeddings:
            arrays["decoder_ff_logit_out_W"] = state["lm_head.weight"][:-1].T
    for name, array in state.items():
        if found := re.fullmatch(r"model\.(\w+)\.layers\.(\d+)\.(.+)\.(weight|bias)", name):
            side, index, part, kind = found.groups()
            theirs = f"{side}_l{int(index) + 1}_{marian_name(part, kind)}"
            arrays[theirs] = array.T if array.ndim == 2 else array[None]
    options = OPTIONS | {
        **{"dim-emb": config.d_model, "dim-vocabs": [config.vocab_size - 1] * 2},
        **{"enc-depth": config.encoder_layers, "dec-depth": config.decoder_layers},
        **{"transformer-heads": config.encoder_attention_heads},
        **{"transformer-dim-ffn": config.encoder_ffn_dim},
        **{"transformer-ffn-activation": config.activation_function},
        **{"tied-embeddings-all": is_tied_all, "tied-embeddings": config.tie_word_embeddings},
    }
    text = json.dumps(options | changes).encode() + b"\0"  # JSON is YAML
    arrays["special:model.yml"] = np.frombuffer(text, np.int8)
    np.savez(folder / "opus.model1.npz", **arrays)
    lines = [
        f"{json.dumps(piece, ensure_ascii=False)}: {number}\n"
        for piece, number in vocabulary().items()
        if piece != "<pad>"  # the last
    ]
    (folder / "opus.vocab.yml").write_text("".join(lines), "utf-8")
    names = "models:\n  - opus.model1.npz\nvocabs:\n  - opus.vocab.yml\n  - opus.vocab.yml\n"
    (folder / "decoder.yml").write_text(names + "beam-size: 6\n", "utf-8")
    write_sentencepiece(folder)
    return folder


def marian_name(part, kind):
    """Marian's name of an array of a block, by that of `transformers`."""
    if part in ("fc1", "fc2"):
        return f"ffn_{'W' if kind == 'weight' else 'b'}{part[-1]}"
    if part.endswith("layer_norm"):
        layer = part.removesuffix("_layer_norm")
        prefix = "ffn_ffn" if layer == "final" else f"{ATTENTIONS[layer]}_Wo"
        return f"{prefix}_ln_{'scale' if kind == 'weight' else 'bias'}"
    attention, projection = part.split(".")
    return f"{ATTENTIONS[attention]}_{'W' if kind == 'weight' else 'b'}{PROJECTIONS[projection]}"


PRE_NORM = {
    **{"transformer-preprocess": "n", "transformer-postprocess": "da"},
    "transformer-postprocess-top": "n",
}


def write_form(folder, sizes, **changes):
    """Writes random weights with SentencePiece vocabularies, one if `sizes` is one; see `OPTIONS`.

    Returns:
        `(arrays, options)` as in the `*.npz`.
    """
    ids = {"eos_id": 0, "unk_id": 1, "bos_id": -1, "pad_id": -1}
    names = ["source.side.spm", "target.side.spm"][-len(sizes) :]
    for name, size in zip(names, sizes, strict=True):
        (folder / name).write_bytes(train_sentencepiece(names.index(name), size, **ids))
    pieces = [sentencepiece.SentencePieceProcessor(model_file=str(folder / n)) for n in names]
    counts = [pieces[side].get_piece_size() for side in (0, -1)]
    options = OPTIONS | {"dim-vocabs": counts} | changes
    arrays = dict(random_arrays(options, np.random.default_rng(0)))
    text = np.frombuffer(json.dumps(options).encode() + b"\0", np.int8)
    np.savez(folder / "model.npz", **arrays, **{"special:model.yml": text})
    decoder = {"models": ["/desk/model.npz"], "vocabs": [f"/desk/{names[n]}" for n in (0, -1)]}
    (folder / "model.npz.decoder.yml").write_text(json.dumps(decoder), "utf-8")
    return arrays, options


def random_arrays(options, rng):
    """Yields names and arrays of Marian."""
    width, inner = options["dim-emb"], options["transformer-dim-ffn"]
    source, target = options["dim-vocabs"]
    is_all, is_source, is_target = (options[f"tied-embeddings{k}"] for k in ("-all", "-src", ""))

    def normal(*shape):
        return rng.normal(size=shape, scale=shape[0] ** -0.5 if shape[0] > 1 else 0.5).astype("f4")

    if is_all or is_source:
        yield "Wemb", normal(target, width)
    else:
        yield "encoder_Wemb", normal(source, width)
        yield "decoder_Wemb", normal(target, width)
    if not (is_all or is_target):
        yield "decoder_ff_logit_out_Wt", normal(target, width)
    yield "decoder_ff_logit_out_b", normal(1, target)
    is_pre = options["transformer-preprocess"] == "n"
    norms = []
    for side in ("encoder", "decoder"):
        norms += [(f"{side}_top", "")] if is_pre else []
        for layer in range(1, options[f"{side[:3]}-depth"] + 1):
            name = f"{side}_l{layer}"
            for attention in ("self", "context") if side == "decoder" else ("self",):
                for part in "qkvo":
                    yield f"{name}_{attention}_W{part}", 2 * normal(width, width)
                    yield f"{name}_{attention}_b{part}", normal(1, width)
                norms.append((f"{name}_{attention}_Wo", "_pre" if is_pre else ""))
            yield f"{name}_ffn_W1", normal(width, inner)
            yield f"{name}_ffn_b1", normal(1, inner)
            yield f"{name}_ffn_W2", normal(inner, width)
            yield f"{name}_ffn_b2", normal(1, width)
            norms.append((f"{name}_ffn_ffn", "_pre" if is_pre else ""))
    for name, suffix in norms:
        yield f"{name}_ln_scale{suffix}", 1 + normal(1, width)
        yield f"{name}_ln_bias{suffix}", normal(1, width)


def sentences(count):
    return [source for source, _ in number_names("held_out", count)]


def tokenizer_files(read):
    """Returns the tokens and the SentencePiece model of each tokenizer of a model."""
    return [(tokenizer.vocabulary, tokenizer.model_bytes) for tokenizer in read.tokenizers]


def weights_of(read):
    """Returns the weights of a model that was read, by their paths in a `Transformer`."""
    parts = marian.arrays_of(read.config)
    return {
        part.path: marian.weight_of(read.arrays[name], part.axes) for name, part in parts.items()
    }


def assert_same_weights(found, expected):
    assert found.keys() == expected.keys()
    for path, array in expected.items():
        np.testing.assert_array_equal(found[path], array, err_msg=path)
