"""The SavedModel answers like the translator, in a process without this package."""

import json
import math
import shutil
import sys

import keras_hub
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from keras_transformer import Translator, export_saved_model, load_translator
from keras_transformer.decoding.batches import LONGEST_ROW
from keras_transformer.serving.verification import verify
from tests.decoding.test_translator import LINES, make_translator
from tests.processes import run
from tests.session import made_once

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]

# Inputs -> outputs of each signature: a letter for the type, and a sign for each axis.
CONTRACT = """
serving_default: text s? -> translation s?, score f?, truncated b?, unfinished b?
translate_n_best: text s?, n_best i?, alpha f?, max_length i?, target_prefix s?
    -> translations s??, scores f??, lengths i??, truncated b?, unfinished b??
score: source s?, target s? -> log_prob f?, tokens i?, perplexity f?
search: token_ids i??, prefix_ids i??, n_best i?, alpha f?, max_length i?
    -> token_ids i?4?, lengths i?4, scores f?4, log_probs f?4?
score_ids: token_ids i??, target_ids i?? -> log_probs f??
attend: token_ids i??, target_ids i??
    -> encoder f?12??, decoder f?22??, encoder_decoder f?22??
search_tree: token_ids i?? -> token_ids i??4, parents i??4, log_probs f??4, is_winner b??4
tokenize: text s? -> token_ids i??, lengths i?
detokenize: token_ids i?? -> text s?
"""
TYPES = {"s": "string", "f": "float32", "i": "int32", "b": "bool"}


def contract(side):
    """{signature: {name: [type, shape]}} of the inputs (0) or the outputs (1)."""
    lines = CONTRACT.replace("\n    ", " ").strip().splitlines()
    tables = {}
    for name, sides in (line.split(": ") for line in lines):
        named = (one.split() for one in sides.split(" -> ")[side].split(", "))
        tables[name] = {
            tensor: [TYPES[kind], [int(axis) if axis.isdigit() else None for axis in axes]]
            for tensor, (kind, *axes) in named
        }
    return tables


LONGEST = 40  # maximum tokens of a line that is not cut; `LINES` have fewer
SERVE = """
import json, sys
sys.modules["keras_transformer"] = None  # importing it would fail
import tensorflow as tf
import tensorflow_text
served = tf.saved_model.load(sys.argv[1])
signatures = served.signatures

def specs(all):
    return {name: [spec.dtype.name, spec.shape.as_list()] for name, spec in all.items()}

def plain(answer):
    return {name: [v.decode() if isinstance(v, bytes) else v for v in value.numpy().tolist()]
            for name, value in answer.items()}

def strings(lines):
    return tf.constant(lines, tf.string)

batches, sources, targets = json.loads(sys.stdin.read())
tokens = signatures["tokenize"](text=strings(targets))
print(json.dumps({
    "inputs": {name: specs(one.structured_input_signature[1]) for name, one in signatures.items()},
    "outputs": {name: specs(one.structured_outputs) for name, one in signatures.items()},
    "answers": [plain(signatures["serving_default"](text=strings(lines))) for lines in batches],
    "serve": plain(served.serve(strings(batches[0]))),
    "scores": plain(signatures["score"](source=strings(sources), target=strings(targets))),
    "tokens": plain(tokens),
    "texts": plain(signatures["detokenize"](token_ids=tokens["token_ids"])),
}))
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A translator, and a copy of the folder that it was exported to, whose path it must not need.

    `tests/decoding/test_saved_model.py` has it too.
    """
    # Not tied, so that the embedding of a source token has no part in the other lines.
    fields = {"normalize_first": True, "tie_embeddings": "decoder"}
    fields |= {"positions": "relative", "output_bias": True, "predict_padding": False}
    made = make_translator(**fields)
    translator = Translator(
        made.model, made.source_tokenizer, extra_length=6, max_source_tokens=LONGEST
    )

    def export(folder):
        card = {"name": "numbers", "source_language": "en", "target_language": "de"}
        examples = ["twenty-one", "Ωμέγα 😀", ""]
        options = {"card": card, "examples": examples, "inspect": True}
        export_saved_model(translator, folder / "served", **options)

    return translator, made_once(tmp_path_factory, "exported", export) / "served"


def test_saved_model_answers_like_the_translator_in_a_process_without_this_package(exported):
    translator, path = exported
    long = ["one", "seven hundred and one. " * 40, "", "two"]
    batches = [LINES, ["one"], [], long]
    sources, targets = ["one", "", "Ωμέγα 😀"], ["eins", "two", "seven  hundred"]
    command = [sys.executable, "-c", SERVE, str(path)]
    request = json.dumps([batches, sources, targets])
    ran = run(command, input=request, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert "unsaved custom gradients" not in ran.stderr, "a warning that alarms without cause"
    served = json.loads(ran.stdout)
    assert served["inputs"] == contract(0) and served["outputs"] == contract(1)
    for lines, answer in zip(batches, served["answers"], strict=True):
        expected = translator(lines, n_best=1, on_too_long="truncate")
        assert answer["translation"] == [best.text for (best, *_) in expected]
        scores = [best.score for (best, *_) in expected]
        np.testing.assert_allclose(answer["score"], scores, rtol=1e-4)
        assert answer["truncated"] == [best.dropped_tokens > 0 for (best, *_) in expected]
        assert answer["unfinished"] == [best.unfinished for (best, *_) in expected]
    assert served["serve"] == served["answers"][0]
    expected = translator.score(sources, targets)
    totals = [sum(one.log_probs) for one in expected]
    np.testing.assert_allclose(served["scores"]["log_prob"], totals, rtol=1e-5)
    assert served["scores"]["tokens"] == [len(one.tokens) for one in expected]
    perplexities = [math.exp(-np.mean(one.log_probs)) for one in expected]
    np.testing.assert_allclose(served["scores"]["perplexity"], perplexities, rtol=1e-5)
    token_ids = translator.source_tokenizer.graph.tokenize(targets)
    assert served["tokens"]["token_ids"] == token_ids.to_tensor(0).numpy().tolist()
    assert served["tokens"]["lengths"] == token_ids.row_lengths().numpy().tolist()
    assert served["texts"]["text"] == ["eins", "two", "seven hundred"]


def test_saved_model_holds_each_weight_once(exported):
    translator, path = exported
    reader = tf.train.load_checkpoint(str(path / "variables" / "variables"))
    shapes = reader.get_variable_to_shape_map()
    stored = sum(tf.TensorShape(shape).num_elements() for name, shape in shapes.items()
                 if "OBJECT_GRAPH" not in name)  # fmt: skip
    # Only the weights, and perhaps a save counter.
    assert 0 <= stored - translator.model.count_params() <= 1


def test_servers_know_all_operations_and_compile_none(exported):
    """TensorFlow Serving has the operations of TensorFlow and tensorflow_text, and no XLA."""
    _, path = exported
    saved = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
    graph = saved.meta_graphs[0].graph_def
    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    operations = {node.op for node in nodes} - {f.signature.name for f in graph.library.function}
    core = {name for name in operations if hasattr(tf.raw_ops, name)}
    assert operations - core == {
        *("SentencepieceOp", "SentencepieceTokenizeOp", "SentencepieceDetokenizeOp"),
        "NormalizeUTF8",
    }
    assert not core & {"PyFunc", "EagerPyFunc", "PyFuncStateless", "XlaLaunch"}
    attributes = [*(node.attr for node in nodes), *(f.attr for f in graph.library.function)]
    assert not any(attribute["_XlaMustCompile"].b for attribute in attributes)


@pytest.fixture(scope="module")
def served(exported):
    _, path = exported
    return tf.saved_model.load(str(path))


def strings(tensor):
    return np.char.decode(tensor.numpy().astype(bytes), "utf-8").tolist()


def assert_n_best(expected, texts, scores, lengths):
    """A row has the hypotheses, and nothing where the beam holds fewer texts."""
    missing = len(texts) - len(expected)
    assert strings(texts) == [one.text for one in expected] + [""] * missing
    wanted = [one.score for one in expected] + [-np.inf] * missing
    np.testing.assert_allclose(scores, wanted, rtol=1e-4, atol=1e-5)
    assert lengths.numpy().tolist() == [len(one.tokens) for one in expected] + [0] * missing


OPTIONS = {
    "n_best": [1, 3, 2, 4, 4],
    "alpha": [0.0, 1.5, 0.6, -1.0, 1.0],
    "max_length": [2, 9, 5, 100, 7],
    "target_prefix": ["", "zwei", "drei", "", "acht"],
}


@pytest.mark.parametrize(
    "names", [tuple(OPTIONS), pytest.param((), marks=pytest.mark.long)], ids=["own", "defaults"]
)
def test_each_line_has_its_own_options(exported, served, names):
    """Without an option, all have the default: those of the translator, and all hypotheses."""
    translator, _ = exported
    lines = ["one", "seven hundred and one", "", "two", "twelve thousand " * 30]
    options = {name: OPTIONS[name] for name in names}
    tensors = {name: tf.constant(values) for name, values in options.items()}
    found = served.translate_n_best(tf.constant(lines), **tensors)
    outputs = (found[name] for name in ("translations", "scores", "lengths"))
    for number, (line, *row) in enumerate(zip(lines, *outputs, strict=True)):
        of_line = {"n_best": 4} | {name: values[number] for name, values in options.items()}
        assert_n_best(translator(line, on_too_long="truncate", **of_line), *row)


def test_options_are_for_all_lines_or_for_each(served):
    lines = tf.constant(["one", "two", "three"])
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="`alpha` must be a vector, .* or one row"
    ):
        served.translate_n_best(lines, alpha=tf.constant([0.1, 0.2]))
    # Values beyond their ranges are taken as the ends.
    found = served.translate_n_best(
        lines, n_best=tf.constant([9]), max_length=tf.constant([-5, 0, 1])
    )
    assert found["translations"].shape == [3, 4]
    assert found["lengths"].numpy().max() == 1


def test_line_without_numbers_spoils_no_other_line(exported, served):
    """A source token whose embedding is NaN gives NaN logits in its lines, and only there."""
    translator, _ = exported
    signatures = served.signatures
    lines = ["one", "seven hundred and one", "two", "", "seven", "twelve thousand"]
    *_, seven = translator.source_tokenizer.encode("seven")
    before = signatures["translate_n_best"](**all_inputs(lines))
    shape = [translator.source_tokenizer.vocabulary_size, 32]
    embeddings = [v for v in served.weights if v.shape == shape and "encoder" in v.name]
    (embedding,) = embeddings
    weights = embedding.numpy()
    embedding.scatter_nd_update([[seven]], tf.fill([1, 32], np.nan))
    answers = signatures["translate_n_best"](**all_inputs(lines))
    scores = served.serve(tf.constant(lines))["score"]
    embedding.assign(weights)
    is_bad = np.array(["seven" in line for line in lines])
    assert np.isnan(scores).tolist() == is_bad.tolist()
    assert np.isnan(answers["scores"].numpy())[is_bad, 0].all()
    assert (answers["translations"].numpy()[is_bad] == b"").all()
    for name in ("translations", "lengths", "truncated", "unfinished"):
        assert (answers[name].numpy()[~is_bad] == before[name].numpy()[~is_bad]).all(), name
    scores, wanted = (answer["scores"].numpy()[~is_bad] for answer in (answers, before))
    np.testing.assert_allclose(scores, wanted, rtol=1e-5)


def all_inputs(lines):
    options = {"n_best": [4], "alpha": [0.6], "max_length": [50], "target_prefix": [""]}
    return {name: tf.constant(value) for name, value in {"text": lines, **options}.items()}


def ids_of(translator, lines):
    """Rows of ids with their end tokens, padded."""
    rows = translator.source_tokenizer.encode(lines, add_end=True)
    return tf.ragged.constant(rows, tf.int32).to_tensor(0)


@pytest.mark.long
def test_search_tree_holds_the_translation_and_adds_up(exported, served):
    """Every hypothesis of the tree has the log-probs that teacher forcing gives its tokens."""
    translator, _ = exported
    lines = ["seven hundred and one", "", "two"]
    found = served.search_tree(ids_of(translator, lines))
    tree = {name: value.numpy() for name, value in found.items()}
    vocabulary = translator.target_tokenizer.vocabulary
    assert not (tree["log_probs"][1] > -np.inf).any(), "an empty line has no steps"
    for row in (0, 2):
        (best,) = translator(lines[row], n_best=1)
        prefixes, winner = [[]], []
        for step in range(tree["parents"].shape[1]):
            slots = np.flatnonzero(tree["log_probs"][row, step] > -np.inf)
            if not slots.size:
                break
            parents = tree["parents"][row, step]
            last = [vocabulary[token] for token in tree["token_ids"][row, step]]
            extended = {slot: [*prefixes[parents[slot]], last[slot]] for slot in slots}
            assert len(set(map(tuple, extended.values()))) == len(slots), "they are distinct"
            on_path = tree["is_winner"][row, step]
            for slot, tokens in extended.items():
                assert on_path[slot] == (tokens == best.tokens[: step + 1])
            for slot in np.flatnonzero(on_path):
                winner.append(tree["log_probs"][row, step, slot])
            prefixes = [extended.get(slot) for slot in range(len(parents))]
        # The end token is no active hypothesis.
        assert len(winner) >= len(best.tokens) - 1
        expected = np.cumsum(best.log_probs)[: len(winner)]
        np.testing.assert_allclose(winner, expected, rtol=1e-4)


def test_files_beside_the_graph_tell_the_truth(exported, served):
    translator, path = exported
    card = json.loads((path / "model_card.json").read_text("utf-8"))
    assert (card["format"], card["search"]["beam_size"]) == (3, 4)
    assert (card["name"], card["target_language"]) == ("numbers", "de")
    assert card["architecture"] == translator.model.config.to_dict()
    assert card["signatures"].keys() == contract(0).keys()
    assert card["signatures"]["translate_n_best"]["outputs"]["scores"] == "float32 (None, None)"
    assert not (path / "assets.extra").exists(), "it would cause a warning"
    pairs = [json.loads(line) for line in (path / "examples.jsonl").read_text("utf-8").splitlines()]
    assert [pair["text"] for pair in pairs] == ["twenty-one", "Ωμέγα 😀", ""]
    found = served.serve(tf.constant([pair["text"] for pair in pairs]))
    assert [pair["translation"] for pair in pairs] == strings(found["translation"])
    np.testing.assert_allclose([pair["score"] for pair in pairs], found["score"], rtol=1e-5)


def test_export_replaces_nothing_but_a_saved_model(exported, tmp_path):
    (tmp_path / "file").write_text("kept")
    with pytest.raises(FileExistsError, match="not a SavedModel"):
        export_saved_model(exported[0], tmp_path)
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.long
def test_greedy_search_gives_the_same_and_flags_what_is_cut_off(exported, tmp_path):
    """Of a translator that splits and refuses lines; it replaces another SavedModel."""
    made, path = exported
    folder = shutil.copytree(path, tmp_path / "served")
    lines = ["one", "seven hundred and one", "", "One is here.  Nobody said so!\tTwo."]
    rules = {"max_source_tokens": 5, "on_too_long": "error", "split": "sentences"}
    translator = Translator(made.model, made.source_tokenizer, beam_size=1, **rules)
    assert export_saved_model(translator, folder, examples=lines) == folder
    served = tf.saved_model.load(str(folder))
    answer = served.serve(tf.constant(lines))
    whole = {"split": "lines", "on_too_long": "truncate"}  # whatever the translator does
    expected = translator(lines, n_best=1, **whole)
    assert strings(answer["translation"]) == [best.text for (best,) in expected]
    scores = [best.score for (best,) in expected]
    np.testing.assert_allclose(answer["score"], scores, rtol=1e-4)
    assert answer["truncated"].numpy().tolist() == [False, True, False, True]
    assert answer["unfinished"].numpy().tolist() == [best.unfinished for (best,) in expected]
    assert served.translate_n_best(tf.constant(lines))["translations"].shape == [4, 1]
    assert not hasattr(served, "search_tree"), "without `inspect=True`"
    replayed = list(verify(load_translator(folder), folder))
    assert [answer.text for answer in replayed if answer.is_equal] == lines


@pytest.mark.long
def test_sampler_is_in_the_graph_with_its_state(exported, tmp_path):
    made, _ = exported

    def new_translator():
        sampler = keras_hub.samplers.RandomSampler(seed=1)
        return Translator(made.model, made.source_tokenizer, sampler=sampler, extra_length=6)

    path = export_saved_model(new_translator(), tmp_path / "served")
    served, translator = tf.saved_model.load(str(path)), new_translator()
    lines = ["seven hundred and one"]  # one, because the draws of several depend on each other
    expected = [translator(lines) for _ in range(2)]
    found = [strings(served.serve(tf.constant(lines))["translation"]) for _ in range(2)]
    assert found == expected and found[0] != found[1]


@pytest.mark.long
def test_request_without_lines_has_an_answer_without_lines(served):
    signatures = served.signatures
    specs = {name: one.structured_input_signature[1] for name, one in signatures.items()}
    for name in contract(0):
        nothing = {
            key: tf.zeros([0] * spec.shape.rank, spec.dtype) for key, spec in specs[name].items()
        }
        assert all(len(value) == 0 for value in signatures[name](**nothing).values()), name


def test_line_that_is_too_long_to_be_scored_has_no_score(served):
    lines = tf.constant(["one", "one " * LONGEST_ROW])
    scored = served.score(lines, tf.constant(["two", "two"]))
    assert np.isnan(scored["log_prob"]).tolist() == [False, True]
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="`target` must be a vector, with one row for each"
    ):
        served.score(lines, lines[:1])


def test_input_that_is_not_a_vector_raises_one_clear_error(served):
    serve = served.signatures["serving_default"]
    for wrong, shape in (("one", r"\[\]"), ([["one", "two"]], r"\[1 2\]")):
        with pytest.raises(tf.errors.InvalidArgumentError) as refused:
            serve(text=tf.constant(wrong))
        refused.match(
            rf"`text` must be a vector, with one row for each line. Received: .*shape\] .*{shape}"
        )
    assert serve(text=tf.constant(["one"]))["translation"].shape == [1]
