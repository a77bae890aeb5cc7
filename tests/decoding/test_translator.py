"""The translator: one translation per line, independent of the other lines."""

import functools
import itertools
import json
import math
import pathlib
import re
from dataclasses import replace

import keras
import keras_hub
import numpy as np
import pytest

from keras_transformer import Transformer, TransformerConfig, Translator
from keras_transformer.data.number_corpus import number_names
from keras_transformer.decoding.processors import suppress_tokens
from keras_transformer.decoding.search_settings import SearchSettings
from keras_transformer.training.losses import SmoothedCrossEntropy
from tests.builders import learned_tokenizer, randomize, to_numpy, token_inputs

BACKEND = keras.config.backend()
if BACKEND == "tensorflow":
    import tensorflow as tf

    from keras_transformer.export.graph_lines import longest_targets
    from keras_transformer.export.signatures import Signatures

pytestmark = pytest.mark.slow


@functools.cache
def numbers_tokenizer(protected_symbols):
    pairs = number_names("train", 500)
    return learned_tokenizer(pairs, 340, protected_symbols=protected_symbols)


def make_translator(protected_symbols=0, **overrides):
    """Random weights: the translations are nonsense, but always the same."""
    tokenizer = numbers_tokenizer(protected_symbols)
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 2, "hidden_dim": 32, "num_heads": 2}
    config = TransformerConfig.tiny(tokenizer.vocabulary_size, **sizes | overrides)
    model = randomize(Transformer(config), seed=3)
    return Translator(model, tokenizer, extra_length=6)


LINES = ["one", "seven hundred and one", "", "twelve thousand", " \t", "Ωμέγα 😀", "two", "one"]


@pytest.mark.parametrize("beam_size", [pytest.param(1, marks=pytest.mark.long), 4])
def test_translation_does_not_depend_on_the_batch(translator, beam_size):
    lines = [pair[0] for pair in number_names("held_out", 8)] + LINES
    together = translator(lines, beam_size=beam_size)
    assert [translator(line, beam_size=beam_size) for line in lines] == together
    assert translator(lines, beam_size=beam_size, batch_sentences=7) == together
    assert translator(lines[::-1], beam_size=beam_size)[::-1] == together


def by_hand(translator, line, tokens):
    """Log-probs, in float64, and attention scores of target tokens, by the model's full pass."""
    tokenizer, model = translator.source_tokenizer, translator.model
    target = np.array([[tokenizer.vocabulary.index(token) for token in tokens]])
    source = np.array([[*tokenizer.encode(line), model.config.end_token_id]])
    given = np.concatenate([[[model.config.start_token_id]], target[:, :-1]], axis=1)
    inputs = {"encoder_token_ids": source, "decoder_token_ids": given}
    logits = np.float64(to_numpy(model(inputs)))[0]
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return log_probs[np.arange(len(tokens)), target[0]], to_numpy(model.attention_scores(inputs))


def test_hypotheses_carry_what_the_full_pass_says_of_them(translator):
    lines = LINES[:3]
    options = {"return_attention": True, "distinct_texts": False}
    all_hypotheses = translator(lines, n_best=4, **options)
    assert [best[0].text for best in all_hypotheses] == translator(lines)
    for line, hypotheses in zip(lines, all_hypotheses, strict=True):
        assert len(hypotheses) == (4 if line else 1)
        assert [h.score for h in hypotheses] == sorted([h.score for h in hypotheses])[::-1]
        assert len({tuple(h.tokens) for h in hypotheses}) == len(hypotheses)
        for hypothesis in hypotheses:
            if not line:
                assert (hypothesis.tokens, hypothesis.score) == ([], 0.0)
                continue
            log_probs, attention = by_hand(translator, line, hypothesis.tokens)
            np.testing.assert_allclose(hypothesis.log_probs, log_probs, atol=1e-4)
            penalty = ((5 + len(log_probs)) / 6) ** 0.6
            np.testing.assert_allclose(hypothesis.score, log_probs.sum() / penalty, atol=1e-4)
            attention = {name: np.stack(blocks)[:, 0] for name, blocks in attention.items()}
            for name, expected in attention.items():
                np.testing.assert_allclose(getattr(hypothesis.attention, name), expected, atol=1e-5)
            assert hypothesis.attention.decoder_tokens == ["<s>", *hypothesis.tokens[:-1]]
            assert np.all(np.triu(hypothesis.attention.decoder, k=1) == 0.0)
            expected = attention["encoder_decoder"]
            assert hypothesis.alignment(-1, 1) == expected[-1, 1].argmax(-1).tolist()
            assert hypothesis.alignment() == expected.mean((0, 1)).argmax(-1).tolist()


@pytest.mark.slow_on_jax
def test_score_is_that_of_the_full_pass(translator):
    sources = ["one", "seven hundred and one", "twelve thousand"]
    targets = ["eins", "", "zwölftausend und eins"]
    progress = []
    scored = translator.score(sources, targets, batch_sentences=2, on_progress=progress.append)
    assert progress == [2, 1]
    for source, target, hypothesis in zip(sources, targets, scored, strict=True):
        log_probs, _ = by_hand(translator, source, hypothesis.tokens)
        assert hypothesis.tokens[-1] == "</s>"
        assert hypothesis.text == target
        np.testing.assert_allclose(hypothesis.log_probs, log_probs, atol=1e-4)
        np.testing.assert_allclose(hypothesis.perplexity, np.exp(-log_probs.mean()), rtol=1e-4)
    with pytest.raises(ValueError, match="2 sources, 1 targets"):
        translator.score(["one", "two"], ["eins"])


@pytest.mark.slow_on_jax
def test_score_of_a_model_that_rules_out_a_token():
    made = make_translator(output_bias=True)
    bias = to_numpy(made.model.logits_layer.bias).copy()
    bias[made.source_tokenizer.unk_token_id] = -np.inf
    made.model.logits_layer.bias.assign(bias)
    scored = made.score("seven", "zwei")
    log_probs, _ = by_hand(made, "seven", scored.tokens)
    np.testing.assert_allclose(scored.log_probs, log_probs, atol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("beam_size", [1, 4])
def test_score_of_a_translation_is_that_of_the_search(translator, beam_size):
    """The search may choose only the end token after the prefix."""
    config, targets = translator.model.config, ["drei", "acht", "", "drei und zwanzig"]
    only_end = suppress_tokens(set(range(config.vocabulary_size)) - {config.end_token_id})
    settings = {"length_penalty": "mean", "alpha": 1.0}
    made = Translator(translator.model, translator.source_tokenizer, **settings)
    search = {"beam_size": beam_size, "stopping": "first_beams", "processors": (only_end,)}
    found = made(["one"] * 4, target_prefix=targets, n_best=1, **search)
    for (best,), scored in zip(found, made.score(["one"] * 4, targets), strict=True):
        assert best.tokens == scored.tokens and best.tokens[-1] == "</s>"
        np.testing.assert_allclose(best.score, best.log_prob / len(best.tokens), rtol=1e-5)
        np.testing.assert_allclose(best.score, scored.score, rtol=1e-4)


def test_translation_begins_with_its_prefix(translator):
    lines, prefixes = ["one", "", "two", "seven"], ["drei", "acht", "", "drei und zwanzig"]
    translations = translator(lines, target_prefix=prefixes, extra_length=12)
    free = translator(lines, extra_length=12)
    assert translations[1] == ""  # an empty line stays empty
    assert translations[2] == free[2]  # no prefix
    for translation, prefix in zip(translations, prefixes, strict=True):
        assert not translation or translation.startswith(prefix)
    together = translator(lines, target_prefix="drei", extra_length=12)
    assert together[0] == translations[0] != free[0]
    with pytest.raises(ValueError, match="2 prefixes"):
        translator(lines, target_prefix=["drei", "acht"])


PREFIX = "drei und zwanzig"
WITHOUT_ROOM = {"lines": ["two", "", "one hundred"], "target_prefix": ["", PREFIX * 99, PREFIX]}


def test_prefix_without_room_is_an_error_with_its_numbers(translator):
    """Before anything is searched."""
    tokenizer = translator.source_tokenizer
    count, source = len(tokenizer.encode(PREFIX)), len(tokenizer.encode("one hundred"))
    for settings, limit in (
        ({"max_length": count}, count),
        ({"max_length": 1}, 1),
        ({"length_ratio": 0.6, "extra_length": 0}, int(0.6 * source)),
    ):
        words = f"line 3, a prefix of {count} tokens for a translation of at most {limit}. "
        with pytest.raises(ValueError, match=words):
            translator(**WITHOUT_ROOM, **settings)
    room = {"max_length": count + 1, "extra_length": 50}
    (best,) = translator("two", target_prefix=PREFIX, n_best=1, **room)
    assert len(best.tokens) == count + 1 and best.text.startswith(PREFIX)


@pytest.mark.long
@pytest.mark.backends("tensorflow")
def test_graph_of_a_saved_model_refuses_a_prefix_without_room(translator):
    lines, prefixes = map(tf.constant, WITHOUT_ROOM.values())
    count = len(translator.source_tokenizer.encode(PREFIX))
    words = rf"line \[3\], a prefix of \[{count}\] tokens for a translation of at most \[{count}\]"
    with pytest.raises(tf.errors.InvalidArgumentError, match=words):
        in_graph(translator, max_length=count)(lines, target_prefix=prefixes)


def in_graph(translator, **settings):
    """The signature `translate_n_best` of a SavedModel."""
    settings = vars(translator.settings) | settings
    made = Translator(translator.model, *translator.tokenizers, **settings)
    return Signatures(made).translate_n_best


def test_unfinished_says_that_the_end_token_is_missing(translator):
    lines = [*LINES, "one hundred " * 20]
    found = translator(lines, n_best=2, max_length=7, max_source_tokens=20)
    cut = {one.unfinished for line in found for one in line}
    assert cut == {True, False}, "both occur"
    for one in (one for line in found for one in line):
        ends = one.tokens.count("</s>")
        assert one.unfinished == bool(one.tokens and ends < one.pieces)
    assert not translator.score("one", "eins").unfinished


@pytest.fixture(scope="module")
def ambiguous(translator):
    """Few tokens with few texts, so that many hypotheses have equal texts."""
    tokenizer, texts = translator.source_tokenizer, ["▁", "o", "n", "▁o", "▁on", "on", "</s>"]
    tokens = enumerate(tokenizer.vocabulary)
    only = suppress_tokens([number for number, token in tokens if token not in texts])
    settings = {"processors": (only,), "max_length": 5, "beam_size": 8}
    return Translator(translator.model, tokenizer, **settings)


@pytest.fixture(scope="module")
def ambiguous_graph(ambiguous):
    if BACKEND != "tensorflow":
        return None
    return in_graph(ambiguous, max_source_tokens=20)


@pytest.mark.long
@pytest.mark.parametrize("n_best", [1, 2])
def test_texts_of_a_line_are_distinct(ambiguous, ambiguous_graph, n_best):
    """They are the best of each text among all hypotheses of the beam."""
    lines = [*LINES, "twelve thousand " * 20]
    options = {"max_source_tokens": 20, "n_best": n_best, "on_too_long": "truncate"}
    everything = ambiguous(lines, **options | {"n_best": 8}, distinct_texts=False)
    assert sum(len({one.text for one in line}) < len(line) for line in everything) > 5
    found = ambiguous(lines, **options)
    for all_of_line, line in zip(everything, found, strict=True):
        first = {one.text: one for one in reversed(all_of_line)}
        expected = [one for one in all_of_line if first[one.text] is one][:n_best]
        assert [(one.text, one.tokens) for one in line] == [(o.text, o.tokens) for o in expected]
        np.testing.assert_allclose([o.score for o in line], [o.score for o in expected], rtol=1e-5)
    if BACKEND != "tensorflow":
        return
    # The graph of a SavedModel picks the same; missing ones have no text and the score -inf.
    answer = ambiguous_graph(tf.constant(lines), n_best=tf.constant([n_best]))
    names = "translations", "scores", "lengths", "unfinished"
    texts, scores, lengths, unfinished = (answer[name] for name in names)
    for row, line in enumerate(found):
        missing = n_best - len(line)
        expected = [one.text for one in line] + [""] * missing
        assert [text.decode() for text in texts[row].numpy()] == expected
        expected = [one.score for one in line] + [-math.inf] * missing
        np.testing.assert_allclose(scores[row], expected, rtol=1e-4, atol=1e-5)
        assert lengths[row].numpy().tolist() == [len(one.tokens) for one in line] + [0] * missing
        expected = [one.unfinished for one in line] + [False] * missing
        assert unfinished[row].numpy().tolist() == expected


def test_settings_of_a_call_are_those_of_a_translator_made_with_them(translator):
    settings = {"beam_size": 3, "length_penalty": "mean", "alpha": 1.0, "length_ratio": 0.5}
    settings |= {"stopping": "first_beams", "max_length": 9}
    other = Translator(translator.model, translator.source_tokenizer, extra_length=6, **settings)
    assert other(LINES) == translator(LINES, **settings) != translator(LINES)
    with pytest.raises(TypeError, match="'beams'"):
        translator("one", beams=3)


@pytest.mark.backends("tensorflow")
def test_maximum_lengths_are_those_python_computes():
    """For token counts far beyond any line; settings are inputs of a graph."""
    config, counts = TransformerConfig.tiny(50), [1, 7, 100, 3_000_000]

    ratios, extras = (0.0, 0.29, 1.0, 1.1, 999.99, 1000.0), (0, 50, 1_000_000)
    for ratio, extra, most in itertools.product(ratios, extras, (None, 1, 200)):
        settings = SearchSettings(length_ratio=ratio, extra_length=extra, max_length=most)
        most = most or 2**31 - 1
        expected = [max(1, min(math.floor(ratio * n) + extra, most)) for n in counts]
        found = longest_targets(tf.constant(counts), settings, config, settings.most_tokens)
        assert found.numpy().tolist() == expected
    learned = TransformerConfig.tiny(50, positions="learned", max_sequence_length=9)
    for num_languages in (0, 1):
        found = longest_targets(tf.constant([100]), SearchSettings(), learned, 200, num_languages)
        assert found.numpy().tolist() == [9 - num_languages]


@pytest.mark.long
@pytest.mark.backends("tensorflow")  # elsewhere the copy is one
@pytest.mark.skipif(not pathlib.Path("/proc/self/status").exists(), reason="needs Linux")
def test_frozen_translator_takes_at_most_three_times_its_weights():
    """Two searches are two graphs: each would hold copies of constants."""
    live = make_translator(hidden_dim=2048, num_decoder_layers=1)
    before = resident_memory()
    frozen = Translator(live.model, live.source_tokenizer, frozen=True)
    for beam_size in (1, 4):
        frozen(["one"] * 4, beam_size=beam_size, max_length=3)
    assert resident_memory() - before <= 3 * 4 * live.model.count_params()


def resident_memory():
    """Bytes of this process that are no pages of files."""
    status = pathlib.Path("/proc/self/status").read_text("utf-8")
    return 1024 * int(re.search(r"RssAnon:\s+(\d+)", status)[1])


@pytest.mark.parametrize(
    "policy, jit_compile",
    [
        ("float32", False),
        pytest.param("mixed_bfloat16", False, marks=pytest.mark.long),
        # Keras's `torch.compile` gives many warnings of PyTorch, and is off unless one asks for it.
        pytest.param(
            "float32", True, marks=[pytest.mark.long, pytest.mark.backends("tensorflow", "jax")]
        ),
    ],
)
def test_translate_train_translate(translator, policy, jit_compile):
    """`fit` writes the variables whose memory a frozen translator shares."""
    config, tokenizer = translator.model.config, translator.source_tokenizer
    model = randomize(Transformer(config, dtype=policy), seed=3)
    options = {"extra_length": 6, "beam_size": 1}
    live, frozen = (Translator(model, tokenizer, frozen=flag, **options) for flag in (False, True))
    before = live(LINES)
    assert frozen(LINES) == before
    model.compile("sgd", SmoothedCrossEntropy(ignore_class=0), jit_compile=jit_compile)
    source, target = np.full((2, 2, 5), 7)
    model.fit(token_inputs(source, target), target, epochs=3, verbose=0)
    again = Translator(frozen.model, tokenizer, **options)  # of the copy's variables
    assert frozen(LINES) == again(LINES) == before != live(LINES)
    assert frozen.score("one", "eins").score != live.score("one", "eins").score


def test_bfloat16_is_a_copy_and_close(translator):
    copy = Translator(translator.model, translator.source_tokenizer, dtype="bfloat16")
    assert {weight.dtype for weight in copy.model.weights} == {"bfloat16"}
    assert {weight.dtype for weight in translator.model.weights} == {"float32"}
    lines, translations = ["seven hundred and one"], ["zwölftausend"]
    scores = [t.score(lines, translations)[0].log_prob for t in (copy, translator)]
    assert scores[0] != scores[1]
    np.testing.assert_allclose(*scores, rtol=0.05)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"n_best": 5}, "n_best=5, beam_size=4"),
        ({"n_best": 0}, "n_best=0"),
        ({"batch_sentences": 0}, "batch_sentences=0"),
        ({"sampler": keras_hub.samplers.BeamSampler()}, "draws single tokens"),
        ({"suppressed_tokens": [340]}, "less than 340. Received: suppressed_tokens=.340"),
    ],
)
def test_settings_out_of_range_or_of_another_type_are_named(translator, settings, message):
    with pytest.raises(ValueError, match=message):
        translator(["one"], **settings)


def test_engine_takes_no_other_tokenizer(translator):
    message = "An engine has its tokenizers .* Received: .*target_tokenizer=Tokenizer"
    with pytest.raises(ValueError, match=message):
        Translator(translator.engine, target_tokenizer=translator.target_tokenizer)


@pytest.mark.slow_on_jax
@pytest.mark.parametrize(
    "options, prefix, tolerance",
    [
        ({"frozen": True}, "drei", 1e-5),
        pytest.param({"dtype": "bfloat16"}, None, 0.03, marks=pytest.mark.long),
    ],
)
def test_attention_is_that_of_the_decoding_steps(translator, options, prefix, tolerance):
    """The full pass over each hypothesis gives the scores of the cached steps."""
    made = Translator(translator.model, translator.source_tokenizer, **options)
    lines, bound = ["one", "twelve thousand"], {"length_ratio": 0.0, "extra_length": 4}
    bound["distinct_texts"] = False
    found = made(lines, n_best=2, return_attention=True, target_prefix=prefix, **bound)
    for line, hypotheses in zip(lines, found, strict=True):
        assert len(hypotheses) == 2
        for hypothesis in hypotheses:
            expected = attention_by_steps(made, line, hypothesis.tokens)
            attention = hypothesis.attention.encoder_decoder
            assert attention.dtype == np.float32
            np.testing.assert_allclose(attention, expected, atol=tolerance)


def attention_by_steps(translator, line, tokens):
    """Encoder-decoder attention `(L, N, T, S)`, collected from cached steps of one token."""
    tokenizer, model = translator.source_tokenizer, translator.model
    source = np.array([[*tokenizer.encode(line), model.config.end_token_id]])
    token_id, cache, steps = model.config.start_token_id, model.init_cache(source), []
    for index, token in enumerate(tokens):
        _, cache, scores = model.decode_step(
            np.array([[token_id]]), cache, index, return_attention_scores=True
        )
        steps.append(np.stack([to_numpy(block)[0, :, 0] for block in scores]))
        token_id = tokenizer.vocabulary.index(token)
    return np.stack(steps, axis=2)


def test_hypothesis_without_tokens_has_attention_of_length_0(translator):
    impossible = {"processors": (suppress_tokens(range(340)),)}
    for line, options, score in (("", {}, 0.0), ("one", impossible, -math.inf)):
        (best,) = translator(line, return_attention=True, **options)
        assert (best.text, best.tokens, best.score) == ("", [], score)
        source = len(best.source_tokens)
        assert best.attention.encoder.shape == (1, 2, source, source)
        assert best.attention.decoder.shape == (2, 2, 0, 0)
        assert best.attention.encoder_decoder.shape == (2, 2, 0, source)
        assert best.attention.decoder_tokens == best.alignment() == []
    assert translator([], return_attention=True) == []


@pytest.mark.long
def test_learned_positions_bound_source_and_target():
    learned = {"positions": "learned", "max_sequence_length": 9}
    translator = make_translator(**learned)
    (best,) = translator("one hundred and two", return_attention=True)
    assert len(best.tokens) == 9, "the bound must be what ended it"
    too_long = "one hundred thousand, one hundred and seventeen and a half and more"
    with pytest.raises(ValueError, match="at most 9 tokens.*line 2"):
        translator(["one", too_long], on_too_long="error")
    with pytest.raises(ValueError, match="at most the model's 9 positions"):
        translator("one", max_source_tokens=10)
    with pytest.warns(UserWarning, match="Line 1 is too long for one"):
        translations = translator([too_long, "one"])
    assert translations[1] == translator("one")


def test_alignment_without_attention_says_what_to_do(translator):
    with pytest.raises(ValueError, match="return_attention=True"):
        translator("one", n_best=1)[0].alignment()


def test_hypothesis_as_a_dict_survives_json(translator):
    (best, *_) = translator("seven hundred and one", n_best=2, return_attention=True)
    row = best.to_dict()
    assert json.loads(json.dumps(row, allow_nan=False)) == row
    assert set(row) >= {"text", "score", "tokens", "log_probs", "log_prob", "perplexity"}
    assert row["score"] == best.score and row["log_prob"] == best.log_prob
    row["tokens"].clear()
    assert best.tokens
    impossible = replace(best, score=-math.inf, tokens=[], log_probs=[]).to_dict()
    assert (impossible["score"], impossible["perplexity"]) == (None, None)
    json.dumps(impossible, allow_nan=False)


def test_tokenizers_that_do_not_fit_are_named(translator):
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "hidden_dim": 8, "num_heads": 1}
    for vocabulary_size, fields, message in (
        (340, {"end_token_id": 9}, "`end_token_id`, 9. Received: 2"),
        (77, {}, "source tokenizer.*77.*340"),
    ):
        config = TransformerConfig.tiny(vocabulary_size, **sizes, **fields)
        with pytest.raises(ValueError, match=message):
            Translator(Transformer(config), translator.source_tokenizer)


def test_empty_lines_stay_empty_and_nothing_gives_nothing(translator):
    told = []
    assert (
        translator(["", "  ", "\u3000", ""], batch_sentences=3, on_progress=told.append) == [""] * 4
    )
    assert told == [3, 1], "every line is counted once"
    hypotheses = translator(["", " "], n_best=1)
    assert [(best.text, best.tokens, best.score) for (best,) in hypotheses] == [("", [], 0.0)] * 2
    assert translator([]) == []
