"""Tags of target languages: one decision, in Python and in the graph of a SavedModel."""

import contextlib
import functools
import re

import keras
import pytest

from keras_transformer import Tokenizer, Transformer, TransformerConfig, Translator
from keras_transformer.data.number_corpus import number_names
from keras_transformer.decoding.languages import tag_lines
from tests.builders import learned_tokenizer, randomize

IS_TENSORFLOW = keras.config.backend() == "tensorflow"
if IS_TENSORFLOW:
    import tensorflow as tf

    from keras_transformer.export import graph_tags
    from keras_transformer.export.signatures import Signatures

CODES = ("deu", "fra", "zho_Hant")
UNKNOWN = "must be a language that the model has a tag for: {}. Received: target_language={}"
TAG = "A line must begin with at most one tag, that of {}. Received: line 2 begins with {}"
ALL = "deu, fra, zho_Hant"
# (line, option, languages of the model) -> the line that the model reads, or the error.
ROWS = [
    # Without an option
    ("one", None, CODES, "one"),
    ("", None, CODES, ""),
    (">>fra<< one", None, CODES, ">>fra<< one"),
    (">>fra<<one", None, CODES, ">>fra<<one"),
    (">>zho_Hant<< one", None, CODES, ">>zho_Hant<< one"),
    (">>fra<<", None, CODES, ">>fra<<"),
    (" \t\u3000>>fra<< one", None, CODES, ">>fra<< one"),
    ("one >>fra<<", None, CODES, "one >>fra<<"),
    (">> one", None, CODES, ">> one"),
    (">>fra<< >>quoted<< one", None, CODES, ">>fra<< >>quoted<< one"),
    (">>xyz<< one", None, CODES, ValueError(TAG.format(ALL, ">>xyz<<"))),
    (">>FRA<< one", None, CODES, ValueError(TAG.format(ALL, ">>FRA<<"))),
    (">><< one", None, CODES, ValueError(TAG.format(ALL, ">><<"))),
    (">>a\nb<< one", None, CODES, ValueError(TAG.format(ALL, ">>a b<<"))),
    (">>" + "é" * 99 + "<<", None, CODES, ValueError(TAG.format(ALL, ">>" + "é" * 29))),
    (">>fra<< >>deu<< one", None, CODES, ValueError(TAG.format(ALL, ">>fra<<>>deu<<"))),
    # With an option
    ("one", "fra", CODES, ">>fra<< one"),
    ("one >>deu<<", "fra", CODES, ">>fra<< one >>deu<<"),
    ("", "fra", CODES, ""),
    (" \t", "fra", CODES, " \t"),
    (">>fra<< one", "fra", CODES, ">>fra<< one"),
    ("  >>fra<< one", "fra", CODES, ">>fra<< one"),
    (">>fra<<", "fra", CODES, ">>fra<<"),
    (">>deu<< one", "fra", CODES, ValueError(TAG.format("`target_language`, >>fra<<", ">>deu<<"))),
    (">>xyz<< one", "fra", CODES, ValueError(TAG.format("`target_language`, >>fra<<", ">>xyz<<"))),
    ("one", "ita", CODES, ValueError(UNKNOWN.format(ALL, "ita"))),
    ("one", "FRA", CODES, ValueError(UNKNOWN.format(ALL, "FRA"))),
    ("one", ">>fra<<", CODES, ValueError(UNKNOWN.format(ALL, ">>fra<<"))),
    (">>ita<< one", "ita", CODES, ValueError(UNKNOWN.format(ALL, "ita"))),
    # A model without tags
    ("one", None, (), "one"),
    (">>fra<< one", None, (), ">>fra<< one"),
    (" >>xyz<<>>fra<< one", None, (), " >>xyz<<>>fra<< one"),
    ("one", "fra", (), ValueError(UNKNOWN.format("it has none", "fra"))),
]


def refused(expected):
    if not isinstance(expected, ValueError):
        return contextlib.nullcontext()
    return pytest.raises(ValueError, match=re.escape(str(expected)))


def refused_in_graph(expected):
    """The words are those of Python; tensors are shown in brackets."""
    if not isinstance(expected, ValueError):
        return contextlib.nullcontext()
    is_unknown = "a tag for" in str(expected)
    words = rf"a tag for: {ALL}\. .*=\[" if is_unknown else r"one tag, .*line \[2\] begins with \["
    return pytest.raises(tf.errors.InvalidArgumentError, match=words)


@functools.cache
def in_graph(codes):
    def tagged(text, languages):
        return graph_tags.tag_lines(text, languages, list(codes))

    specs = [tf.TensorSpec([None], tf.string)] * 2
    return tf.function(tagged, specs, autograph=False).get_concrete_function()


@pytest.mark.parametrize("line, option, codes, expected", ROWS)
def test_tag_is_in_front_once_or_an_error(line, option, codes, expected):
    """With a line before it, so that errors count."""
    with refused(expected):
        assert tag_lines(["two", line], option, list(codes))[1] == expected
    if IS_TENSORFLOW and codes:
        with refused_in_graph(expected):
            inputs = tf.constant(["two", line]), tf.constant([option or ""])
            assert in_graph(codes)(*inputs)[1].numpy().decode() == expected


@pytest.mark.long
def test_tags_of_blank_lines_and_of_pairs_in_python_and_in_a_saved_model():
    """With a random model, whose translations depend on the tag."""
    tokenizer = learned_tokenizer([[source] for source, _ in number_names("train", 200)], 300)
    pieces = ["</s>", "<unk>", *tokenizer.vocabulary[4:], *(f">>{c}<<" for c in CODES), "<pad>"]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    marian = Tokenizer.from_marian(tokenizer.model_bytes, vocabulary)
    config = TransformerConfig.tiny(
        len(vocabulary),
        **{"num_encoder_layers": 1, "num_decoder_layers": 1, "hidden_dim": 32, "num_heads": 2},
        **{"pad_token_id": marian.pad_token_id, "start_token_id": marian.start_token_id},
        end_token_id=marian.end_token_id,
    )
    model = randomize(Transformer(config), seed=2)
    translator = Translator(model, marian, max_length=9)
    lines = ["one", "two"]
    french = translator(lines, target_language="fra")
    assert french != translator(lines)
    for empty in (["one"], []):
        with pytest.raises(ValueError, match="Received: target_language=$"):
            translator(empty, target_language="")
    with pytest.raises(ValueError, match="line 2 begins with >>xyz<<"):
        translator.score(["one", ">>xyz<< two"], ["x", "x"])
    if not IS_TENSORFLOW:
        return
    served = Signatures(translator)
    asked = {"target_language": tf.constant(["fra"])}
    found = served.translate_n_best(tf.constant(lines), **asked)["translations"][:, 0]
    tagged = served.serve(tf.constant([f">>fra<< {line}" for line in lines]))["translation"]
    for texts in (found, tagged):
        assert [text.decode() for text in texts.numpy()] == french
    for blank in (["", " "], []):
        found = served.translate_n_best(tf.constant(blank, tf.string))["translations"].numpy()
        assert len(found) == len(blank) and (found == b"").all()
    fixed = Signatures(Translator(model, marian, target_language="fra"))
    scored = fixed.score(tf.constant(["one", "two"]), tf.constant(["x", "x"]))
    expected = translator.score([">>fra<< one", ">>fra<< two"], ["x", "x"])
    log_probs = [pair.log_prob for pair in expected]
    assert scored["log_prob"].numpy() == pytest.approx(log_probs, rel=1e-4)
    wrong = tf.constant(["one", ">>xyz<< two"])
    for name, tensors in {"serve": [wrong], "score": [wrong, wrong]}.items():
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"line \[2\] begins .*>>xyz<<"):
            getattr(served, name)(*tensors)
