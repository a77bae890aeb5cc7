"""Every user error on the command line."""

import shutil

import pytest

from tests.cli.small_run import cli

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]

# Copies of the run with one file cut off: name -> file, and what is left of it.
BROKEN = {
    "emptied": ("config.yaml", slice(0)),
    "damaged": ("report.json", slice(12)),
    "halved": ("model.keras", slice(-100)),
}
# Command -> what the error names.
MISTAKES = {
    "train train.en": ["train.en", "`data`", "YAML"],
    "train train.de.gz": ["train.de.gz", "UTF-8"],
    "train nowhere.yaml": ["nowhere.yaml", "number_names"],
    "train recipe.yaml --run r --data /no": ["/no/train.en"],
    "train recipe.yaml --run r --set data.train=[empty.en,empty.de]": ["`train`", "empty.en | "],
    "train recipe.yaml --run r --set data.train=[train.en,short.de]": ["short.de", "train.en"],
    "train recipe.yaml --run r --set data.train=[bad.tsv]": ["bad.tsv", "line 2"],
    "train recipe.yaml --set training.bach_tokens=5": [
        "recipe.yaml with training.bach_tokens=5",
        "'batch_tokens'",
    ],
    "train recipe.yaml --run run --set training.warmup_steps=7": [
        "another recipe: training.warmup_steps is 50 there, 7 here.",
        "--no-resume",
    ],
    "train recipe.yaml --run emptied": ["emptied/config.yaml", "nothing"],
    "doctor recipe.yaml --set epochs=5": ["SECTION.KEY=VALUE", "'epochs=5'"],
    "doctor recipe.yaml --run run --set training.warmup_steps=7": ["another recipe"],
    "average no_run": ["no_run"],
    "average run --last 9": ["keeps only 2", "keep_last"],
    "average run --last 2 --output nodir/x.keras": ["nodir", "--output"],
    "translate no_run": ["no_run", "no trained model"],
    "translate halved": ["halved/model.keras", "complete"],
    "translate run --input no.en": ["No such file or directory: no.en"],
    "translate run --input run": ["Is a directory: run"],
    "translate run --input train.en --output nodir/out": ["nodir", "--output"],
    "translate run --n-best 5": ["n_best=5", "beam_size=4"],
    "translate run --mbr 2 --n-best 3": ["`--n-best` must be at most `--mbr`. Received: 3, 2"],
    "translate run --mbr 5 --beam-size 4": ["n_best=5", "beam_size=4"],
    "translate run --extra-length 2147483647": [
        "extra_length=2147483647",
        "from 0 to 1,000,000",
    ],
    "score no_run train.en train.en": ["no_run"],
    "score run train.en short.de": ["train.en", "short.de", "1500 and 1 lines"],
    "evaluate damaged": ["damaged/report.json", "Delete it"],
    "evaluate run --source empty.en --reference empty.de": ["empty.en"],
    "evaluate run --source a": ["--reference"],
    "evaluate run --output .": ["--output"],
    "plot no_run": ["no_run"],
    "export run .": ["not a SavedModel"],
    "export run new --quantization int8": ["needs `--format ctranslate2`"],
    "export run new --end-bias nan": ["`auto` or a finite number. Received: nan"],
    "export run new --end-bias long": ["`auto` or a finite number. Received: long"],
    "export run new --end-bias 1 --source train.en": ["`--source` needs `--end-bias auto`"],
    "export run new --tokenized": ["`--tokenized` needs `--end-bias auto`"],
    "export run new --end-bias auto --source train.en": ["--reference None"],
    "export run new --end-bias auto --reference train.en": ["--source None"],
    "export run new --end-bias auto --source train.en --reference short.de": ["1500 and 1 lines"],
    "export run new --format ctranslate2 --stopping exhaustive": [
        "`stopping` must be 'first_beams' in CTranslate2. Received: stopping='exhaustive'",
    ],
}


@pytest.fixture(scope="module")
def broken(trained):
    for name, content in (("short.de", b"eins\n"), ("empty.en", b""), ("empty.de", b"")):
        (trained / name).write_bytes(content)
    (trained / "bad.tsv").write_bytes(b"one\teins\ntwo\tzw\xffei\n")
    for name, (file, left) in BROKEN.items():
        run = shutil.copytree(trained / "run", trained / name)
        (run / file).write_bytes((run / file).read_bytes()[left])


@pytest.mark.parametrize("command", MISTAKES)
def test_mistake_ends_in_one_clear_line_and_exit_code_2(folder, broken, command):
    ran = cli(*command.split())
    assert ran.exit_code == 2, ran.stderr
    assert ran.stderr.startswith("Error: ") and ran.stderr.count("\n") == 1, ran.stderr
    for name in MISTAKES[command]:
        assert name in ran.stderr
    assert "KERAS_TRANSFORMER_TRACEBACK" not in ran.stderr, "it is written for the user"
