"""A model that Marian trained, beside what Marian itself printed for it.

The files are not in the repository; see `benchmarks/marian.py`, which prints the same figures.
"""

import importlib

import pytest

import keras_transformer as kt
from tests.builders import ROOT
from tests.shared_data import DATA, missing

FOLDER = DATA / "marian_trained"
pytestmark = [
    pytest.mark.tensorflow_only,
    pytest.mark.long,
    pytest.mark.skipif(not FOLDER.is_dir(), reason=missing("outputs of Marian")),
]


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "en_de"
    kt.import_model(FOLDER, folder)
    return kt.load_run(folder)


@pytest.mark.parametrize(
    ("name", "fewest"), [("greedy", 300), ("beam6_normalize1", 291), ("beam12_normalize0.6", 291)]
)
def test_log_probs_and_texts_are_those_of_marian(name, fewest, translator, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    differences, count, differing = importlib.import_module("marian").compare(
        translator, FOLDER, name
    )
    assert differences.max() <= 1e-4
    assert count - len(differing) >= fewest
    # Ours finds a better one, because hypotheses that ended take no beam slots.
    assert sum(ours < theirs for _, _, ours, _, theirs in differing) <= 1


def test_search_is_that_of_decoder_yml(translator):
    settings = translator.settings
    assert (settings.beam_size, settings.length_penalty, settings.alpha) == (6, "mean", 1)
    assert settings.suppressed_tokens == (translator.target_tokenizer.unk_token_id,)


def test_ctranslate2_export_gives_the_texts_of_the_translator(translator, tmp_path):
    """Its search ends by another rule, which ours has too."""
    import ctranslate2

    kt.export_ctranslate2(translator, tmp_path / "ct2")
    lines = (FOLDER / "test.en").read_text("utf-8").splitlines()
    source, target = translator.tokenizers
    pieces = [[source.vocabulary[i] for i in row] for row in source.encode(lines)]
    engine = ctranslate2.Translator(str(tmp_path / "ct2"), intra_threads=1)
    for options, fewest in (({"beam_size": 1}, 300), ({"beam_size": 6, "length_penalty": 1}, 297)):
        found = engine.translate_batch(pieces, max_input_length=0, **options)
        ours = translator(lines, n_best=1, stopping="first_beams", beam_size=options["beam_size"])
        tokens = [[t for t in best.tokens if t != "</s>"] for (best,) in ours]
        equal = sum(o == one.hypotheses[0] for o, one in zip(tokens, found, strict=True))
        assert equal >= fewest
