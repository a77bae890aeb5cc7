"""A translator above CTranslate2 answers as `Translator` with the settings of its model card.

What a translator does with text, on this engine too: `tests/test_one_path.py`.
"""

import shutil
import subprocess
import sys
import warnings

import numpy as np
import pytest

from keras_transformer import Translator, cores, export_ctranslate2, load_translator
from keras_transformer.data import number_names
from tests.builders import run_fresh
from tests.decoding.test_translator import LINES, make_translator

pytest.importorskip("ctranslate2")
pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]

LONG = "seven thousand and one " * 60  # 400 tokens
PROTECTED = "%s seven thousand <b>and one \u4e00"
TEXTS = [*LINES[:4], LONG, PROTECTED, *LINES[4:]]
TEXTS += [english for english, _ in number_names("held_out", 12)]
PREFIXES = ["ein" if number % 3 else "" for number in range(len(TEXTS))]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A translator, and the folder that it was exported to."""
    # Prefixes, long lines and batches must not change a distance.
    made = make_translator(protected_symbols=3, positions="relative")
    made = Translator(made.model, made.source_tokenizer, beam_size=3, extra_length=6)
    return made, export_ctranslate2(made, tmp_path_factory.mktemp("ct2") / "ct2")


@pytest.fixture(scope="module")
def pair(exported):
    """`Translator` with the settings of the card, and the same model in CTranslate2."""
    made, folder = exported
    engine = load_translator(folder, workers=2)
    search = engine.engine.card["search"]
    return Translator(made.model, made.source_tokenizer, **search), engine


CALLS = {
    "each line has a bound of its own": {"length_ratio": 0.2, "extra_length": 2, "alpha": 1.5},
    "prefixes": {"target_prefix": PREFIXES},
    "greedy": {"beam_size": 1},
    "no penalty": {"length_penalty": None},
}


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(options, id=name, marks=[] if "length_ratio" in options else pytest.mark.long)
        for name, options in CALLS.items()
    ],
)
def test_hypotheses_are_those_of_translator(pair, options):
    ours, engine = pair
    n_best = options.get("beam_size", 3)
    expected, found = (each(TEXTS, n_best=n_best, **options) for each in pair)
    assert len({best.text for best, *_ in expected}) > 8, "the texts must differ"
    names = "text", "tokens", "source_tokens", "pieces", "too_long", "dropped_tokens", "unfinished"
    for some, others in zip(expected, found, strict=True):
        for name in names:
            assert [getattr(h, name) for h in some] == [getattr(h, name) for h in others]
        for name in ("score", "log_prob"):
            values = ([getattr(h, name) for h in each] for each in (some, others))
            np.testing.assert_allclose(*values, rtol=1e-4)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`max_source_tokens` is")
        for size in (256, 5):
            assert engine(TEXTS, batch_sentences=size, **options) == [h.text for h, *_ in found]


def test_scores_are_those_of_translator(pair):
    sources, targets = ["one", "", "two hundred", " ", "two"], ["eins", "zwei", "", "", "zwei drei"]
    for ours, theirs in zip(*(each.score(sources, targets) for each in pair), strict=True):
        assert (ours.text, ours.tokens) == (theirs.text, theirs.tokens)
        np.testing.assert_allclose(ours.log_probs, theirs.log_probs, rtol=1e-4)
        np.testing.assert_allclose(ours.score, theirs.score, rtol=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {"length_penalty": "gnmt"},
        {"suppressed_tokens": [3]},
    ],
)
def test_settings_that_the_engine_does_not_have_are_refused(pair, changes):
    (name,) = changes
    with pytest.raises(ValueError, match=f"`{name}` must be .* in CTranslate2. Received: {name}="):
        pair[1]("one", **changes)


def test_progress_counts_each_line_once_and_nothing_gives_nothing(pair):
    done = []
    pair[1](TEXTS, n_best=1, batch_sentences=4, on_progress=done.append)
    assert sum(done) == len(TEXTS) and len(done) > 3
    assert pair[1]([]) == []


WITHOUT_KERAS = """
import sys
sys.modules["keras"] = sys.modules["tensorflow"] = sys.modules["google.protobuf"] = None
from keras_transformer import load_translator
translator = load_translator({folder!r}, workers=1)
print([best.text for best, *_ in translator({lines!r}, n_best=2)])
"""


def test_needs_neither_keras_nor_tensorflow(exported, pair):
    printed = run_fresh(WITHOUT_KERAS.format(folder=str(exported[1]), lines=LINES))
    assert printed == f"{pair[1](LINES)}\n"


def test_folder_without_a_card_is_refused(exported, tmp_path):
    folder = shutil.copytree(exported[1], tmp_path / "ct2")
    (folder / "model_card.json").unlink()
    message = "without model_card.json. `keras-transformer export`"
    with pytest.raises(FileNotFoundError, match=message):
        load_translator(folder)


def test_no_folder_is_refused():
    with pytest.raises(ValueError, match="`path` must name a folder"):
        load_translator([])


FORKED = """
import os, signal, sys
from keras_transformer import load_translator
translator = load_translator({folder!r}, workers=2)
expected = translator({lines!r}), translator.score("one", "two").score
for is_used in (True, False):
    if child := os.fork():
        signal.alarm(60)  # a signal ends what waits
        print(os.waitpid(child, 0)[1], flush=True)
    else:
        signal.alarm(50)
        if is_used:
            found = translator({lines!r}), translator.score("one", "two").score
        sys.exit(is_used and found != expected)
assert translator({lines!r}) == expected[0]
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not fork by default")
def test_forked_process_translates_and_ends(exported):
    code = FORKED.format(folder=str(exported[1]), lines=LINES)
    command = [sys.executable, "-W", "ignore", "-c", code]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.stdout == "0\n0\n", ran.stderr


def test_cores_are_bounded_by_the_quota_of_the_container(tmp_path, monkeypatch):
    monkeypatch.setattr(cores, "CGROUPS", tmp_path)
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda process: range(8))
    assert cores.usable_cores() == 8
    for text, expected in (("max 100000", 8), ("150000 100000", 2), ("50000 100000", 1)):
        (tmp_path / "cpu.max").write_text(text)
        assert cores.usable_cores() == expected
    (tmp_path / "cpu.max").unlink()
    (tmp_path / "cpu").mkdir()
    for quota, expected in (("-1\n", 8), ("300000\n", 3)):
        (tmp_path / "cpu/cpu.cfs_quota_us").write_text(quota)
        (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000\n")
        assert cores.usable_cores() == expected


def test_empty_source_has_no_score_if_the_model_sees_no_end(tmp_path):
    made = make_translator(source_end_token=False)
    engine = load_translator(export_ctranslate2(made, tmp_path / "ct2"), workers=1)
    empty, other = engine.score(["", "two"], ["one", "one"])
    assert np.isnan([empty.score, *empty.log_probs]).all()
    assert other.log_probs == pytest.approx(made.score("two", "one").log_probs, rel=1e-4)


def test_prefix_and_given_translation_may_hold_a_suppressed_token(pair, tmp_path):
    tokenizer = pair[0].target_tokenizer
    prefix = tokenizer.encode("ein")
    without = Translator(pair[0].model, tokenizer, suppressed_tokens=sorted({*prefix}))
    engine = load_translator(export_ctranslate2(without, tmp_path / "ct2"), workers=1)
    (best,) = engine("two", target_prefix="ein", max_length=20, n_best=1)
    token_ids = [tokenizer.vocabulary.index(token) for token in best.tokens]
    assert token_ids[: len(prefix)] == prefix and -1e3 < best.log_prob < 0
    assert token_ids[len(prefix) :] and not {*prefix} & {*token_ids[len(prefix) :]}
    *log_probs, of_end = engine.score("two", "ein").log_probs
    assert np.isnan(log_probs).all() and np.isfinite(of_end), "CTranslate2 does not know them"
