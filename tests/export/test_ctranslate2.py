"""CTranslate2 finds with our weights the hypotheses that our search finds."""

import json
import subprocess
import sys
from dataclasses import replace

import keras
import numpy as np
import pytest

from keras_transformer import (
    Tokenizer,
    Transformer,
    TransformerConfig,
    Translator,
    export_ctranslate2,
    layers,
)
from keras_transformer.data import number_names
from keras_transformer.models import TransformerDecoder
from tests.builders import normal, quantize, randomize
from tests.decoding.test_translator import LINES, make_translator

ctranslate2 = pytest.importorskip("ctranslate2")
pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]

# The search of CTranslate2 in the words of our settings; see `docs/pages/decoding.md`.
RULES = {"stopping": "first_beams", "length_penalty": "mean", "alpha": 0.6}
LONGEST = 12
LIMITS = {"length_ratio": 0.0, "extra_length": LONGEST}
PRE_NORM = {"normalize_first": True, "use_bias": False, "num_encoder_layers": 3}
UNTIED = {"tie_embeddings": "none", "activation": "gelu", "layer_norm_epsilon": 1e-3}
LEARNED = {"tie_embeddings": "decoder", "activation": "swish", "positions": "learned"}
MARIAN = {"hidden_dim": 64, "positions": "tensor2tensor", "first_position": 1}
MODELS = {
    "the paper's": {"hidden_dim": 64},
    "pre-norm, without biases, depths differ": PRE_NORM,
    "untied, gelu, epsilon": UNTIED,
    "tied in the decoder, swish, learned positions": LEARNED | {"max_sequence_length": 60},
    "relative positions, shorter than the lines": {"positions": "relative"}
    | {"max_relative_position": 2, "normalize_first": True},
    "Marian's positions, counted from 1, and softmax; no end of the source": MARIAN
    | {"output_bias": True, "predict_padding": False, "source_end_token": False},
}


def cases(table, *quick):
    """Parameters of a test: all rows of a table but the quick ones are `long`."""
    return [
        pytest.param(*row, id=name, marks=() if name in quick else pytest.mark.long)
        for name, row in table.items()
    ]


# What a user without this package writes.
USE = """
import json, os, sys
sys.modules["keras_transformer"] = sys.modules["tensorflow"] = None  # importing them would fail
import ctranslate2

folder, lines, beam_sizes = json.loads(sys.stdin.read())
sys.path.insert(0, folder)
from folder_tokenizer import load_pieces

joint = os.path.isfile(folder + "/tokenizer.json")
names = ["tokenizer"] * 2 if joint else ["source", "target"]
source, target = (load_pieces(f"{folder}/{name}.json") for name in names)
engine = ctranslate2.Translator(folder, intra_threads=1)
pieces, options = source.encode(lines), {"return_scores": True}
options |= {"length_penalty": 0.6, "max_decoding_length": 12, "min_decoding_length": 0}
found = [
    engine.translate_batch(pieces, beam_size=n, num_hypotheses=n, max_input_length=0, **options)
    for n in beam_sizes
]
print(json.dumps([
    [list(zip(target.decode(one.hypotheses), one.scores))
     for one in each]
    for each in found
]))
"""


def used(folder, lines, *beam_sizes):
    """For each beam size, the texts and scores of each line, in a process without this package."""
    request = json.dumps([str(folder), lines, beam_sizes])
    command = [sys.executable, "-P", "-c", USE]
    ran = subprocess.run(command, input=request, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def held_out():
    return [line for line, _ in number_names("held_out", 30)] + LINES


@pytest.mark.parametrize("options", cases({n: [o] for n, o in MODELS.items()}, [*MODELS][-1]))
def test_hypotheses_and_scores_are_ours(options, tmp_path):
    translator = make_translator(**options)
    folder = export_ctranslate2(translator, tmp_path / "ct2")
    lines = [line for line in held_out() if line.strip()]
    for beam_size, theirs in zip((1, 3), used(folder, lines, 1, 3), strict=True):
        ours = translator(
            lines, beam_size=beam_size, n_best=beam_size, distinct_texts=False, **RULES, **LIMITS
        )
        assert len({hypotheses[0].text for hypotheses in ours}) > 3, "the texts must differ"
        for hypotheses, others in zip(ours, theirs, strict=True):
            found = [hypothesis.text for hypothesis in hypotheses]
            assert found == [text for text, _ in others]
            scores = [hypothesis.score for hypothesis in hypotheses]
            np.testing.assert_allclose(scores, [score for _, score in others], rtol=1e-4)


def add_lora(model):
    for layer in (model.encoder.blocks[0], model.decoder.blocks[1], model.encoder.embedding):
        layer.enable_lora(2, lora_alpha=6)
    for number, weight in enumerate(w for w in model.weights if "lora" in w.name):
        weight.assign(0.3 * normal(*weight.shape, seed=number))


def weights_only(model, filters=None):
    config = keras.quantizers.Int8QuantizationConfig(activation_quantizer=None)
    quantize(model, None, filters=filters, config=config)


def add_lora_to_int8(model):
    weights_only(model, "intermediate")
    add_lora(model)


# What is done to the model; its options; the tolerance of a score, or the error.
STATES = {
    "plain": (lambda model: None, {}, 1e-4),
    "LoRA": (add_lora, {}, 1e-4),
    "LoRA in half precision": (add_lora, {"dtype": "mixed_bfloat16"}, 0.05),
    "cast to bfloat16": (lambda model: None, {"dtype": "bfloat16"}, 0.05),
    "int8": (quantize, {}, 0.05),
    "int8, weights alone": (weights_only, {}, 1e-4),
    "int8, weights alone, untied": (weights_only, {"tie_embeddings": "none"}, 1e-4),
    "int8 in part": (lambda model: quantize(model, filters="intermediate"), {}, 0.05),
    "int8 weights in part": (lambda model: weights_only(model, "intermediate"), {}, 1e-4),
    "LoRA on int8": (add_lora_to_int8, {}, 1e-4),
    "int4": (lambda model: quantize(model, "int4", filters="output"), {}, "_mode='int4'"),
    "float8": (lambda model: quantize(model, "float8", filters="value"), {}, "_mode='float8'"),
}


@pytest.mark.parametrize(("adapt", "options", "expected"), cases(STATES, "LoRA on int8", "int4"))
def test_scores_are_those_of_the_model_whatever_was_done_to_it(
    adapt, options, expected, translator, tmp_path
):
    config = replace(translator.model.config, tie_embeddings=options.get("tie_embeddings", "all"))
    model = randomize(Transformer(config, dtype=options.get("dtype")), seed=3)
    adapt(model)
    adapted = Translator(model, translator.source_tokenizer, extra_length=6)
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=expected):
            export_ctranslate2(adapted, tmp_path / "ct2")
        assert not (tmp_path / "ct2").exists()
        return
    ours = log_probs(adapted)
    if adapt in (add_lora, add_lora_to_int8):
        assert np.abs(ours - log_probs(translator)).max() > 0.1, "LoRA must matter"
    folder = export_ctranslate2(adapted, tmp_path / "ct2")
    theirs = scores_of(folder, translator.source_tokenizer)
    np.testing.assert_allclose(theirs, ours, rtol=expected)


SOURCES, TARGETS = ["one", "twelve thousand", "two"], ["zwei", "zwölftausend", "hundert"]


@pytest.fixture(scope="module")
def translator():
    return make_translator()


def log_probs(translator):
    return np.array([best.log_prob for best in translator.score(SOURCES, TARGETS)])


def scores_of(folder, tokenizer):
    """CTranslate2's log-probabilities of the targets."""
    source, target = (tokens_of(tokenizer, lines) for lines in (SOURCES, TARGETS))
    scored = ctranslate2.Translator(str(folder), intra_threads=1).score_batch(source, target)
    return [sum(one.log_probs) for one in scored]


def tokens_of(tokenizer, lines):
    return [[tokenizer.vocabulary[i] for i in row] for row in tokenizer.encode(lines)]


def test_two_vocabularies_and_ids_without_a_piece(tmp_path):
    """The target's tokenizer numbers its pieces anew and has more ids than pieces."""
    english, german = zip(*number_names("train", 500), strict=True)
    source = Tokenizer.train_on_lines(english, 300, tmp_path / "en.model")
    model = Tokenizer.train_on_lines(german, 320, tmp_path / "de.model").model_bytes
    target = Tokenizer.from_sentencepiece(model, vocabulary_size=330)
    sizes = {"hidden_dim": 32, "num_heads": 2, "num_layers": 1, "tie_embeddings": "decoder"}
    config = TransformerConfig.tiny(330, source_vocabulary_size=300, **sizes)
    translator = Translator(randomize(Transformer(config), seed=3), source, target, **LIMITS)
    folder = export_ctranslate2(translator, tmp_path / "ct2")
    lines = ["one", "twenty-two", "nine"]
    (theirs,) = used(folder, lines, 2)
    assert [best[0][0] for best in theirs] == translator(lines, beam_size=2, **RULES)


@pytest.mark.long
def test_suppressed_tokens_and_the_attention_of_the_last_block_are_ours(translator, tmp_path):
    lines = ["one", "seven hundred and one", "twelve thousand"]
    tokenizer = translator.target_tokenizer
    common = {token for best in translator(lines, n_best=1, **LIMITS) for token in best[0].tokens}
    common -= {"</s>"}
    suppressed = [tokenizer.vocabulary.index(token) for token in sorted(common)]
    without = Translator(translator.model, tokenizer, suppressed_tokens=suppressed)
    folder = export_ctranslate2(without, tmp_path / "ct2")
    engine = ctranslate2.Translator(str(folder), intra_threads=1)
    options = {"beam_size": 1, "max_decoding_length": LONGEST, "return_attention": True}
    theirs = engine.translate_batch(tokens_of(tokenizer, lines), min_decoding_length=0, **options)
    rules = {"beam_size": 1, "suppressed_tokens": suppressed, **LIMITS}
    ours = translator(lines, return_attention=True, **rules)
    for (best, *_), other in zip(ours, theirs, strict=True):
        found, attention = other.hypotheses[0], best.attention.encoder_decoder[-1].mean(axis=0)
        assert found and not common & set(found)
        assert found == best.tokens[: len(found)] and best.tokens[len(found) :] in ([], ["</s>"])
        np.testing.assert_allclose(other.attention[0], attention[: len(found), :-1], atol=1e-4)


@pytest.mark.long
def test_int8_is_a_quarter_and_answers_every_line(tmp_path):
    translator = make_translator(hidden_dim=128)
    sizes = {}
    for quantization in (None, "int8"):
        folder = tmp_path / str(quantization)
        export_ctranslate2(translator, folder, quantization, max_tokens=80)
        sizes[quantization] = (folder / "model.bin").stat().st_size
    assert sizes["int8"] < 0.3 * sizes[None]
    lines = held_out()
    (answers,) = used(tmp_path / "int8", lines, 1)
    assert len(answers) == len(lines)
    assert [answer[0][0] for answer, line in zip(answers, lines, strict=True) if not line] == [""]


def test_folder_is_replaced_and_others_are_not(translator, tmp_path):
    for _ in range(2):
        export_ctranslate2(translator, tmp_path / "ct2")
    assert sorted(path.name for path in (tmp_path / "ct2").iterdir()) == [
        *("config.json", "examples.jsonl", "folder_tokenizer.py", "model.bin", "model_card.json"),
        *("shared_vocabulary.json", "tokenizer.json", "tokenizer.spm"),
    ]
    (tmp_path / "precious").mkdir()
    with pytest.raises(FileExistsError, match="precious.*not a CTranslate2 model"):
        export_ctranslate2(translator, tmp_path / "precious")
    with pytest.raises(ValueError, match="int3 is not a valid quantization"):
        export_ctranslate2(translator, tmp_path / "ct2", "int3")
    assert ctranslate2.contains_model(str(tmp_path / "ct2"))
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"ct2", "precious"}, "temporary files are left"


class OwnCall(Transformer):
    def call(self, inputs, training=None, mask=None, return_hidden=False):
        return super().call(inputs, training, mask, return_hidden)


class Unscaled(layers.MultiHeadAttention):
    def attend(self, query, key, value, attention_mask=None, dropout=None):
        return layers.scaled_dot_product_attention(query, key, value, attention_mask, scaled=False)


class Block(layers.DecoderBlock):
    encoder_attention_class = Unscaled


class Decoder(TransformerDecoder):
    block_class = Block


class OwnAttention(Transformer):
    decoder_class = Decoder


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (Transformer, {"activation": "elu"}, "`activation` must be one of relu.*Received: 'elu'"),
        (Transformer, {"key_dim": 8}, r"hidden_dim // num_heads`. Received: \(8, 16\)"),
        (OwnCall, {}, "layers of its own. Received: OwnCall"),
        (OwnAttention, {}, "layers of its own. Received: Block, Decoder, Unscaled"),
    ],
)
def test_what_cannot_be_expressed_is_refused_by_name(kind, options, message, translator, tmp_path):
    model = kind(replace(translator.model.config, **options))
    translator = Translator(model, translator.source_tokenizer)
    with pytest.raises(ValueError, match=f"CTranslate2 cannot express this model: .*{message}"):
        export_ctranslate2(translator, tmp_path / "ct2")
    assert not (tmp_path / "ct2").exists()
