"""The translator: a line for a line, whatever the line and whatever stands beside it."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import Tokenizer, Transformer, TransformerConfig, Translator
from keras_transformer.data.number_names import number_names
from tests.builders import randomize

pytestmark = pytest.mark.tensorflow_only


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    """Random weights: it translates nonsense, but always the same nonsense."""
    return make_translator(tmp_path_factory.mktemp("tokenizer") / "numbers.model")


def make_translator(path, **overrides):
    text = (text for pair in number_names("train", 500) for text in pair)
    tokenizer = Tokenizer.train(text, 340, path)
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 2, "hidden_dim": 32, "num_heads": 2}
    config = TransformerConfig.tiny(tokenizer.vocabulary_size, **sizes | overrides)
    return Translator(randomize(Transformer(config), seed=3), tokenizer, extra_length=6)


def plain_translation(translator, line):
    """One sentence, the whole prefix through the model's full pass at every step."""
    config, tokenizer = translator.model.config, translator.source_tokenizer
    source = [*tokenizer.tokenize(line).numpy(), config.end_token_id]
    target = [config.start_token_id]
    for _ in range(len(source) - 1 + translator.extra_length):
        logits = translator.model(
            {"encoder_token_ids": np.array([source]), "decoder_token_ids": np.array([target])}
        )
        target.append(int(np.argmax(logits[0, -1])))
        if target[-1] == config.end_token_id:
            break
    return tokenizer.detokenize(target).numpy().decode()


LINES = ["one", "seven hundred and one", "", "twelve thousand", " \t", "Ωμέγα 😀", "two", "one"]


def test_translation_is_the_argmax_of_the_full_pass_at_every_step(translator):
    expected = [plain_translation(translator, line) if line.strip() else "" for line in LINES]
    assert len(set(expected)) > 3, "the lines must differ to prove anything"
    assert translator(LINES) == expected


def test_translation_does_not_depend_on_the_batch(translator):
    lines = [pair[0] for pair in number_names("held_out", 60)] + LINES
    together = translator(lines)
    assert [translator(line) for line in lines] == together
    assert translator(lines, batch_sentences=7) == together
    assert translator(lines[::-1])[::-1] == together


def test_empty_lines_stay_empty_and_nothing_gives_nothing(translator):
    assert translator(["", "  ", "\u3000"]) == ["", "", ""]
    assert translator([]) == []


def test_progress_is_told_of_every_sentence_once(translator):
    told = []
    translator(LINES, batch_sentences=3, on_progress=told.append)
    assert told == [3, 3, 2]


def test_lines_that_are_no_strings_are_named(translator):
    with pytest.raises(TypeError, match="line 2 is 7"):
        translator(["one", 7])


def test_attention_is_that_of_the_translation(translator):
    attention = translator.attention("seven hundred and one")
    source, target = len(attention.source_tokens), len(attention.target_tokens)
    assert attention.source_tokens[-1] == "</s>"
    assert attention.decoder_tokens == ["<s>", *attention.target_tokens[:-1]]
    shapes = {name: scores.shape for name, scores in attention.scores.items()}
    assert shapes == {
        "encoder": (1, 2, source, source),
        "decoder": (2, 2, target, target),
        "encoder_decoder": (2, 2, target, source),
    }
    for scores in attention.scores.values():
        np.testing.assert_allclose(scores.sum(-1), 1.0, atol=1e-6)
    assert np.all(np.triu(attention.scores["decoder"], k=1) == 0.0)
    pieces = "".join(token for token in attention.target_tokens if token != "</s>")
    if not any(token.startswith("<0x") for token in attention.target_tokens):
        assert pieces.replace("▁", " ").strip() == translator("seven hundred and one")


def test_attention_of_an_empty_line_is_refused(translator):
    with pytest.raises(ValueError, match="empty line"):
        translator.attention(" ")


def test_vocabularies_that_do_not_fit_are_refused(translator):
    model = Transformer(TransformerConfig.tiny(77, num_encoder_layers=1, num_decoder_layers=1))
    with pytest.raises(ValueError, match="source tokenizer.*77 tokens.*340"):
        Translator(model, translator.source_tokenizer)


def test_learned_positions_bound_source_and_target(tmp_path):
    learned = {"positions": "learned", "max_sequence_length": 9}
    translator = make_translator(tmp_path / "numbers.model", **learned)
    longest = translator.attention("one hundred and two").target_tokens
    assert len(longest) == 9, "else the bound is not what ended it"
    too_long = "one hundred thousand, one hundred and seventeen and a half and more"
    with pytest.raises(ValueError, match="at most 9 tokens.*line 2"):
        translator(["one", too_long])
    # In the graph, as in a SavedModel, there is no line to name.
    with pytest.raises(tf.errors.InvalidArgumentError, match="A line is longer than"):
        translator.translate(tf.constant([too_long]))
