"""The checks before a training: if one fails, the run in the folder is unchanged."""

import itertools
import re
import shutil
import signal
from dataclasses import replace

import numpy as np
import pytest
import yaml
from scipy.special import log_softmax

from keras_transformer import load_model
from keras_transformer.data.corpora import Corpora, Corpus
from keras_transformer.data.pipeline import BatchStream
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.lock import RunInUseError
from keras_transformer.runs.build import load_tokenizers
from keras_transformer.runs.fit_scope import TrainingInterrupted
from keras_transformer.runs.folder import RunFolder
from keras_transformer.runs.recipe import Recipe
from keras_transformer.runs.trainer import Trainer
from tests.runs import tiny_run
from tests.runs.test_folder import tree
from tests.session import made_once

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]

# Most validation pairs are longer than `max_length`.
LENGTH, BATCH = 12, 30
TRAINING = {"batch_tokens": BATCH, "epochs": 1, "learning_rate": 0.01, "warmup_steps": 5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Data, the run of one epoch that was trained on it, and what this printed."""
    return made_once(tmp_path_factory, "start", fill)


def fill(folder):
    words = "one two three four five six seven eight nine ten".split()
    numbers = "eins zwei drei vier fuenf sechs sieben acht neun zehn".split()
    short = list(zip(words, numbers, strict=True))
    joined = [(" ".join(words[:n]), " ".join(numbers[:n])) for n in range(2, 11)]
    ratio = ("one", " ".join(numbers[:6]))
    valid = [*short[:2], *joined, ratio, ("one", ""), ("", "eins")]
    for name, pairs in (("train", short), ("valid", valid)):
        (folder / f"{name}.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in pairs))
    made = trainer(recipe(), folder, folder / "run")
    made.train()
    (folder / "said").write_text("\n".join(made.said))


def recipe(**changes):
    sections = {
        "data": {
            **{"train": ["train.tsv"], "validation": ["valid.tsv"]},
            **{"max_length": LENGTH, "max_length_ratio": 3.0},
        },
        "vocabulary": {"size": 300},
        "model": {
            **{"preset": "tiny", "num_encoder_layers": 1, "num_decoder_layers": 1},
            **{"hidden_dim": 8, "intermediate_dim": 8, "num_heads": 2},
        },
        "training": TRAINING,
    }
    return Recipe.from_dict({k: v | changes.get(k, {}) for k, v in sections.items()})


def trainer(recipe, folder, run, **options):
    said = []
    made = Trainer(recipe, folder, run, print_fn=said.append, **options)
    made.said = said
    return made


@pytest.fixture(scope="module")
def run(folder):
    return folder / "run"


@pytest.fixture
def copy(run, tmp_path):
    return shutil.copytree(run, tmp_path / "copy")


# Everything is checked before anything is deleted.

BROKEN = {
    "no such data": ({"data": {"train": ["tpyo.tsv"]}}, "tpyo"),
    "no such validation": ({"data": {"validation": ["tpyo.tsv"]}}, "tpyo"),
    "nothing to train on": ({"data": {"max_length": 2}}, "`pairs` must hold a pair.*`max_length`"),
    "vocabulary too small": ({"vocabulary": {"size": 20}}, "vocabulary"),
    "no such tokenizer": ({"vocabulary": {"files": ["tpyo.model"]}}, "tpyo"),
    "no such device": ({"training": TRAINING | {"devices": ["GPU:9"]}}, "GPU:9"),
    "no such run": ({"training": TRAINING | {"init_from": "tpyo"}}, "tpyo"),
    "from itself": ({"training": TRAINING | {"init_from": "{run}"}}, "another run"),
    "a size beside another run": (
        {"vocabulary": {"size": 299}, "training": TRAINING | {"init_from": "{original}"}},
        "`size` of `vocabulary` must be left out: .* that of `init_from`.* Received: size=299",
    ),
    "two vocabularies beside another run": (
        {"vocabulary": {"joint": False}, "training": TRAINING | {"init_from": "{original}"}},
        "`joint` of `vocabulary` must be True",
    ),
    "a model beside a file": (
        {"vocabulary": {"files": ["run/tokenizer.json"], "model_type": "unigram"}},
        "`.*` of `vocabulary` must be left out: the vocabulary is that of `files`",
    ),
    # The last check: everything else is prepared by then. Dropout may differ.
    "from another model": (
        {
            "model": {"num_heads": 4, "intermediate_dim": 16, "dropout": 0.3},
            "training": TRAINING | {"init_from": "{original}"},
        },
        "where intermediate_dim is 8, not 16, num_heads is 2, not 4, (key_dim|value_dim)",
    ),
}


@pytest.mark.parametrize("mistake", BROKEN)
def test_new_start_that_fails_leaves_the_old_run_as_it_was(folder, copy, mistake):
    changes, named = BROKEN[mistake]
    text = yaml.safe_dump(changes).replace("{run}", str(copy))
    changes = yaml.safe_load(text.replace("{original}", str(folder / "run")))
    before = tree(copy)
    with pytest.raises((ValueError, OSError), match=named):
        trainer(recipe(**changes), folder, copy, resume=False).train()
    assert tree(copy) == before


UNSEEN = {"train": [{"file": "train.tsv", "tag": "<x>"}], "tag": "<x>"}


@pytest.mark.parametrize(
    ("data", "training", "named"),
    [
        (UNSEEN, {"init_from": "{original}"}, "`tag` must be one token of the vocabulary"),
        ({"validation": ["tpyo.tsv"]}, {}, "tpyo.tsv"),
    ],
    ids=["tag", "validation"],
)
def test_settings_are_checked_before_the_corpus_is_tokenised(
    folder, tmp_path, data, training, named
):
    """A token store is what tokenising leaves behind."""
    training = {key: value.format(original=folder / "run") for key, value in training.items()}
    store = tmp_path / "store"
    changed = recipe(data=data | {"store": str(store)}, training=TRAINING | training)
    with pytest.raises((ValueError, OSError), match=named):
        trainer(changed, folder, tmp_path / "run").train()
    assert not store.exists()


LOST = {
    "config.yaml": "config.yaml' is missing.*--no-resume",
    "tokenizer.json": "tokenizer.json' is missing.*--no-resume",
    "checkpoints": "no checkpoint to resume from.*--no-resume",
    "model.keras": "model.keras', the model of epoch 1, is missing.*copy",
}


@pytest.mark.parametrize("part", LOST)
def test_run_that_lost_a_part_is_neither_trained_over_nor_deleted_unasked(folder, copy, part):
    path = copy / part
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    before = tree(copy)
    with pytest.raises(ValueError, match=LOST[part]):
        trainer(recipe(), folder, copy).train()
    assert tree(copy) == before
    trainer(recipe(), folder, copy, resume=False)


def test_files_that_a_killed_start_left_do_not_reach_the_run(folder, copy):
    """Those of a start with `--no-resume`, killed before its first update."""
    run = RunFolder(copy)
    vocabulary = (copy / "tokenizer.json").read_bytes()
    run.staging.mkdir()
    for name in ("tokenizer.json", "origin.json"):
        (run.staging / name).write_text("{}")
    trainer(replace(recipe(), search={"beam_size": 2}), folder, copy).train()
    assert run.recipe().search["beam_size"] == 2
    assert (copy / "tokenizer.json").read_bytes() == vocabulary
    assert not run.origin_file.exists() and not run.staging.exists()


# One process at a time.


@pytest.mark.parametrize("resume", [True, False])
def test_training_in_a_folder_in_use_is_refused_and_touches_nothing(folder, copy, resume):
    with RunFolder(copy).locked():
        before = tree(copy)
        with pytest.raises(RunInUseError, match="is training this run"):
            trainer(recipe(), folder, copy, resume=resume).train()
        assert tree(copy) == before


# The limits of length.


@pytest.mark.parametrize("own", [{}, {"length_ratio": 3.0, "extra_length": 9, "beam_size": 2}])
def test_run_has_the_limits_of_length_that_its_pairs_need_unless_the_user_set_them(tmp_path, own):
    """From one word to 76 characters."""
    (tmp_path / "train.tsv").write_text("a\t" + "b" * 76 + "\n" + "b\tab\n", "utf-8")
    values = recipe(training=TRAINING | {"batch_tokens": 200}).to_dict()
    values["data"] = {"train": ["train.tsv"], "max_length_ratio": 50}
    values["vocabulary"] = {"source": "words", "target": "characters", "size": 50}
    changed = Recipe.from_dict(values | {"search": own})
    made = trainer(changed, tmp_path, tmp_path / "run")
    made._fit = lambda *args: None
    made.train()
    run = RunFolder(tmp_path / "run")
    assert run.recipe().search == (own or {"length_ratio": 27.0})
    assert ("length_ratio: 27.0" in "".join(made.said)) == (not own)
    run.model_file.touch()  # `_fit` writes it
    assert trainer(changed, tmp_path, run.path).finished
    other = replace(changed, search={"beam_size": 3})
    assert not trainer(other, tmp_path, run.path).finished


def test_limits_of_length_count_no_tokens_of_languages(tmp_path):
    """As the search: three words, for 76 words and the end token."""
    tokenizer = Tokenizer.words(["a b c d"]).with_language("x", "__x__").with_language("y", "__y__")
    corpus = Corpus("1", [("a b c", "d " * 76)], languages=["x", "y"])
    stream = BatchStream(Corpora([corpus]), tokenizer, batch_sentences=1, max_length_ratio=None)
    made = trainer(recipe(), tmp_path, tmp_path / "run")
    made._learn_limits(stream, (tokenizer, tokenizer))
    assert made.recipe.search == {"length_ratio": (77 - 50) / 3}


# The vocabulary of another run.


def test_text_that_an_inherited_vocabulary_lacks_is_a_warning_of_each_split(folder, tmp_path):
    """Of Latin letters, so that every letter of Cyrillic is two bytes."""
    words = "один два три четыре пять шесть семь восемь девять десять".split()
    for name, pairs in (("train", zip(words, words[::-1], strict=True)), ("valid", [words[:2]])):
        (tmp_path / f"{name}.tsv").write_text("".join(map("{0[0]}\t{0[1]}\n".format, pairs)))
    changed = recipe(
        data={"max_length": 30}, training=TRAINING | {"init_from": str(folder / "run")}
    )
    made = trainer(changed, tmp_path, tmp_path / "run")
    made._fit = lambda *args: None
    made.train()
    train, valid = "\n".join(made.said).split("Validation: ")
    for said, side in itertools.product((train, valid), ("source", "target")):
        assert re.search(rf"Warning: 0.00% of the {side} tokens are unknown, [89]\d\...% are", said)


# The validation data.


def test_validation_loss_is_that_of_all_pairs_with_text_on_both_sides(folder, run):
    """Computed with NumPy pair by pair, including pairs that training drops."""
    model = load_model(run / "model.keras")
    source, target = load_tokenizers(RunFolder(run).tokenizer_files(joint=True))
    pairs = [line.split("\t") for line in (folder / "valid.tsv").read_text().splitlines()]
    pairs = [(s, t) for s, t in pairs if s and t]
    loss, number, lengths = 0.0, 0, []
    for one, other in pairs:
        ids = np.array(source.encode(one, add_end=True))
        labels = target.encode(other, add_end=True)
        shifted = np.array([target.start_token_id, *labels[:-1]])
        inputs = {"encoder_token_ids": ids[None], "decoder_token_ids": shifted[None]}
        log_probs = log_softmax(np.array(model(inputs)[0], "float64"), axis=-1)
        right = log_probs[np.arange(len(labels)), labels]
        loss -= np.sum(0.9 * right + 0.1 * log_probs.mean(-1))
        number, lengths = number + len(labels), [*lengths, max(len(ids), len(labels))]
    assert max(lengths) > BATCH and sum(length > LENGTH for length in lengths) > 3
    (row,) = tiny_run.history(run)
    np.testing.assert_allclose(row["val_loss"], loss / number, rtol=1e-4)
    said = (folder / "said").read_text()
    assert "Validation: 12 of 14 pairs kept (dropped: empty 2, too long 0, length ratio 0)" in said


def test_validation_pairs_beyond_learned_positions_are_left_out(folder, tmp_path):
    model = {"positions": "learned", "max_sequence_length": LENGTH}
    learned = trainer(recipe(model=model), folder, tmp_path / "run")
    tokenizers = learned.tokenizers()
    tokenizer = tokenizers[0]
    pairs = [line.split("\t") for line in (folder / "valid.tsv").read_text().splitlines()]
    longest = [max(len(tokenizer.encode(t, add_end=True)) for t in pair) for pair in pairs]
    too_long = sum(length > LENGTH for length in longest)
    assert too_long > 3
    report = learned.stream(tokenizers, "validation").report
    assert report.dropped == {"empty": 2, "too long": too_long, "length ratio": 0}


@pytest.mark.parametrize("split", ["training", "validation"])
def test_resume_says_which_data_changed(folder, copy, tmp_path, split):
    data = shutil.copytree(folder, tmp_path / "data", ignore=lambda *_: ["run"])
    name = {"training": "train.tsv", "validation": "valid.tsv"}[split]
    with open(data / name, "a") as file:
        file.write("two\tzwei\n")
    before = tree(copy)
    with pytest.raises(ValueError, match=f"The {split} pairs differ.*--no-resume"):
        trainer(recipe(training=TRAINING | {"epochs": 2}), data, copy).train()
    assert tree(copy) == before


def test_report_counts_training_pairs_that_are_in_validation_too(run):
    """Of `short[:2]`, whose first source stands with other targets too."""
    assert RunFolder(run).report()["overlaps"] == {"validation": {"sources": 2, "pairs": 2}}


# The report.


def test_report_has_no_scores_of_an_older_model(folder, copy):
    """`evaluate` may score a run that is finished, or interrupted."""

    def interrupt(*args):
        RunFolder(copy).add_to_report(exact_match=0.75)
        raise TrainingInterrupted(signal.SIGTERM, "checkpoints")

    report = RunFolder(copy).report()
    RunFolder(copy).add_to_report(exact_match=0.5)
    longer = recipe(training=TRAINING | {"epochs": 2})
    interrupted = trainer(longer, folder, copy)
    interrupted._fit = interrupt
    with pytest.raises(TrainingInterrupted):
        interrupted.train()
    assert RunFolder(copy).report() == {"exact_match": 0.75}
    resumed = trainer(longer, folder, copy)
    assert not resumed.finished
    resumed._fit = lambda *args: None
    final = resumed.train()
    assert RunFolder(copy).report() == final and final["updates"] == report["updates"]
    assert "exact_match" not in final
