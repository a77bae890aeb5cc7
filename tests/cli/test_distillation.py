"""`distil`: which pairs are kept, the files, and what a kill changes: nothing."""

import re
from types import SimpleNamespace

import pytest
import yaml

from keras_transformer.cli import translators
from keras_transformer.cli.distillation import languages_of_pairs
from keras_transformer.data.corpus import read_parallel
from keras_transformer.decoding.engine import Engine
from keras_transformer.decoding.hypothesis import Hypothesis
from keras_transformer.runs.recipe import Recipe
from tests.cli.small_run import RECIPE, cli, succeed, write_lines

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]

SURE = {"tokens": ["x", "</s>"], "log_probs": [-0.1, -0.1]}
UNSURE = {"tokens": ["x", "</s>"], "log_probs": [-3.0, -1.0]}
# {a source: the translations of the teacher, best first, and what is wrong with each}.
SAID = {
    "one": [("eins", SURE, None), ("einz", UNSURE, "improbable")],
    "\u2028 two": [("zwei\u2028", SURE, None), ("zw\nei", SURE, "line break")],
    "same": [(" same ", SURE, "identical sides"), ("gleich", SURE, None)],
    "  ": [("", {"tokens": [], "log_probs": []}, "empty")],
    "no": [("", SURE, "empty"), ("n" * 11, SURE, "character ratio")],
    "cut off": [("aus", SURE | {"unfinished": True}, "cut"), ("ausge", SURE, None)],
    "too long": [("zu", SURE | {"dropped_tokens": 3}, "cut")],
    "in pieces": [("in", SURE | {"pieces": 2}, "cut"), ("\ufeffin", SURE, "line break")],
    "one more": [("in pieces", SURE | {"pieces": 2}, "cut"), ("mehr", SURE, None)],
}


@pytest.fixture
def teacher(monkeypatch, folder, tmp_path):
    """Runs `distil` with a teacher that says `SAID`; returns the result and what it was given."""
    monkeypatch.chdir(tmp_path)
    targets = {"eins": [("one", SURE, None)], "zwei": [("zwei", SURE, "identical sides")]}
    write_lines(tmp_path / "all.en", SAID)
    write_lines(tmp_path / "all.de", ["eins", "zwei", *["eins"] * (len(SAID) - 2)])
    (tmp_path / "more.txt").write_text("one\nsame", "utf-8")
    recipe = {"data": {"train": ["all.en", "all.de"]}, "training": {"label_smoothing": 0.0}}
    (tmp_path / "my.yaml").write_text(yaml.safe_dump(recipe), "utf-8")
    given = []

    class Teacher:
        engine, all_settings = Engine(), {}
        source_tokenizer = SimpleNamespace(unknown=None, tag=None)

        def __call__(self, lines, n_best, on_progress=None, **options):
            given.extend(lines)
            said = [(SAID | targets)[line][:n_best] for line in lines]
            return [
                [Hypothesis(text=t, score=0.0, source_tokens=[], **how) for t, how, _ in ranks]
                for ranks in said
            ]

    monkeypatch.setattr(translators, "load_folders", lambda *_, **__: Teacher())

    def distil(*words, output="d"):
        given.clear()
        return cli("distil", "my.yaml", folder / "run", "--output", output, *words), given

    return distil


def pairs_of(n_best=9, least=0.0):
    """The pairs that are kept of `SAID`, and {reason: the others}."""
    kept, left_out = [], {}
    for source, said in SAID.items():
        for text, _, reason in said[:n_best]:
            if reason is None or (reason == "improbable" and least == 0.0):
                kept.append((source, text))
            else:
                left_out.setdefault(reason, []).append((source, text))
    return kept, left_out


def test_pairs_that_a_student_should_not_learn_are_left_out_and_counted(teacher, tmp_path):
    ran, given = teacher("--n-best", 2, "--min-probability", 0.5)
    assert ran.exit_code == 0, ran.stderr
    assert given == list(SAID)
    kept, left_out = pairs_of(least=0.5)
    assert list(read_parallel("d.en", "d.de")) == kept
    *notes, last = ran.stdout.splitlines()[:-1], ran.stdout.splitlines()[-1]
    report = "\n".join(notes[0])
    for reason, pairs in left_out.items():
        assert f"left out, {reason}: {len(pairs)}, such as " in report, report
    assert report.count("left out") == len(left_out) == 6
    assert last == f"{len(kept)} pairs in d.en and d.de, one more corpus in d.yaml"
    student = Recipe.load("d.yaml")
    parts = [{"source": f"{name}.en", "target": f"{name}.de"} for name in ("all", "d")]
    assert student.data.train == parts and student.training.label_smoothing == 0.0


def test_other_limits_choose_again_without_a_translation(teacher, tmp_path):
    teacher("--n-best", 2, "--min-probability", 0.5)
    ran, given = teacher("--n-best", 2)
    assert ran.exit_code == 0 and not given, ran.stderr
    assert list(read_parallel("d.en", "d.de")) == pairs_of()[0]
    refused, _ = teacher("--n-best", 1)
    assert refused.exit_code == 2 and "n_best=1, not 2" in refused.stderr
    (tmp_path / "d.jsonl").unlink()
    ran, given = teacher("--n-best", 1, "--max-length-ratio", 6)
    assert given == list(SAID) and list(read_parallel("d.en", "d.de")) == pairs_of(1)[0]


def test_back_translation_and_further_text(teacher, tmp_path):
    ran, given = teacher("--reverse", "--no-corpus", "--text", "all.de", "--text", "more.txt")
    assert ran.exit_code == 0, ran.stderr
    assert given == ["eins", "zwei", *["eins"] * (len(SAID) - 2), "one", "same"]
    ones = [("one", "eins")] * (len(SAID) - 1)
    assert list(read_parallel("d.en", "d.de")) == [*ones, ("eins", "one")]
    (tmp_path / "far" / "away").mkdir(parents=True)
    (tmp_path / "link").symlink_to("far/away")  # the data folder: paths of the recipe begin there
    for name in ("all.en", "all.de"):
        (tmp_path / name).rename(tmp_path / "link" / name)
    ran, given = teacher("--text", "more.txt", "--data", "link", output="e")
    assert given == [*SAID, "one", "same"]
    kept = [*pairs_of(1)[0], ("one", "eins")]
    assert list(read_parallel("e.en", "e.de")) == kept
    student = Recipe.load("e.yaml").data
    assert list(student.pairs("train", "link"))[len(SAID) :] == kept


def test_files_of_others_are_not_replaced(teacher, tmp_path):
    for output in ("all", "my"):
        refused, given = teacher(output=output)
        assert refused.exit_code == 2 and refused.stderr.count("\n") == 1 and not given
        assert "`--output` must be a new name" in refused.stderr
    (tmp_path / "new.jsonl").write_text("mine\n")
    assert "Move it away, or delete it" in teacher(output="new")[0].stderr
    assert "needs `--text`" in teacher("--no-corpus")[0].stderr
    assert (tmp_path / "new.jsonl").read_text() == "mine\n"


def test_every_pair_is_what_the_teacher_says_to_the_whole_line(folder, tmp_path):
    """With a real run, whose lines of more than 20 tokens are left out."""
    from keras_transformer import load_run

    lines = (folder / "train.en").read_text("utf-8").splitlines()[:60]
    (tmp_path / "text.en").write_text("\n".join(lines), "utf-8")
    words = "--no-corpus", "--text", tmp_path / "text.en", "--max-source-tokens", 20
    ran = succeed("distil", "recipe.yaml", "run", *words, "--output", tmp_path / "d")
    assert "left out, cut: " in ran.stdout
    translator = load_run("run", max_source_tokens=20)
    said = dict(zip(lines, translator(lines, n_best=1), strict=True))
    pairs = list(read_parallel(tmp_path / "d.en", tmp_path / "d.de"))
    assert 5 < len(pairs) < 60
    assert all(said[source][0].text == target for source, target in pairs)
    assert {source for source, _ in pairs} <= {s for s, (best,) in said.items() if best.pieces == 1}


@pytest.mark.long
def test_student_is_trained_on_the_corpus_and_the_pairs(folder, tmp_path):
    lines = (folder / "train.en").read_text("utf-8").splitlines()[:60]
    (tmp_path / "text.en").write_text("\n".join(lines), "utf-8")
    words = "--no-corpus", "--text", tmp_path / "text.en", "--output", tmp_path / "d"
    succeed("distil", "recipe.yaml", "run", *words)
    changes = "model.num_decoder_layers=1", "training.epochs=1", "training.label_smoothing=0.0"
    options = [word for change in changes for word in ("--set", change)]
    ran = succeed("train", tmp_path / "d.yaml", "--run", tmp_path / "student", *options)
    pairs = len((tmp_path / "d.en").read_text("utf-8").splitlines())
    assert f"{pairs:,} pairs, 1 times an epoch" in ran.stderr
    assert RECIPE["training"]["epochs"] == 2, "the recipe itself is the same"


EN_DE, DE_EN, EN_TYV = ["en", "de"], ["de", "en"], ["en", "tyv"]
GERMAN = ["eng_Latn", "deu_Latn"]
IDS = {"eng_Latn": 1, "deu_Latn": 2, "tyv_Cyrl": 3}
# The tokens of the teacher, the languages of each corpus, whether it translates targets, and the
# languages of the pairs.
ROWS = [
    (IDS, [None, None], False, None),
    (IDS, [EN_DE, None, GERMAN], False, GERMAN),
    (IDS, [DE_EN], True, GERMAN[::-1]),
    (IDS, [EN_DE, EN_TYV], False, ValueError(EN_TYV)),
    (IDS, [DE_EN], False, ValueError(DE_EN)),
    (IDS, [EN_DE], True, ValueError(EN_DE)),
    # A line may begin with the tag of its own language.
    ({}, [EN_DE, None, EN_DE], False, EN_DE),
    ({}, [EN_DE, EN_TYV], False, None),
]


@pytest.mark.parametrize(("ids", "languages", "is_reverse", "expected"), ROWS)
def test_all_corpora_are_of_the_languages_of_the_teacher(ids, languages, is_reverse, expected):
    teacher = SimpleNamespace(
        source_tokenizer=SimpleNamespace(language_ids=ids),
        text_settings=SimpleNamespace(source_language="en", target_language="deu"),
    )
    corpora = [{"file": "a.tsv", "languages": each} for each in languages]
    corpora.append({"file": "b.tsv", "languages": ["de", "tyv"], "weight": 0})  # not read
    if isinstance(expected, ValueError):
        message = f"languages={expected.args[0]!r}, not "
        with pytest.raises(ValueError, match=re.escape(message)):
            languages_of_pairs(corpora, teacher, is_reverse, is_translated=True)
    else:
        found = languages_of_pairs(corpora, teacher, is_reverse, is_translated=True)
        assert found == expected
