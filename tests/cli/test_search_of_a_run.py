"""The section `search` of a run's recipe: what it says is the default of every command."""

from types import SimpleNamespace

import pytest
import yaml

import keras_transformer as kt
from keras_transformer.runs import load
from tests.cli.small_run import RECIPE, cli

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]
SEARCH = {
    **{"beam_size": 3, "length_penalty": None, "alpha": 1.5},
    **{"length_ratio": 0.5, "extra_length": 2, "max_length": 6, "force_end": True},
}
OF_DATA = {"max_source_tokens": 256}  # of the recipe


@pytest.fixture
def run(own_run):
    """A run whose most common token is suppressed, and its recipe's `search`."""
    common = kt.Tokenizer.load(own_run / "tokenizer.json").encode("eins")[0]
    search = SEARCH | {"suppressed_tokens": [int(common)]}
    (own_run / "config.yaml").write_text(yaml.safe_dump(RECIPE | {"search": search}), "utf-8")
    return own_run, search


NOT_FORCED = {"suppressed_tokens": [7], "force_end": False}
COMMANDS = {
    "translate": (),
    "score": ("small.tsv", "small.tsv"),
    "evaluate": (),
    "plot": ("--text", "one"),
    "export": ("served",),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_command_overrides_only_what_the_user_gives(run, monkeypatch, command):
    folder, search = run

    def make(model, *tokenizers, **settings):
        raise ValueError(f"made with {sorted(settings.items())}")

    # Positions that are not learned bound no line.
    config = SimpleNamespace(positions="sinusoidal", max_sequence_length=9)
    model = SimpleNamespace(config=config)
    monkeypatch.setattr(load, "load_model", lambda path, compile: model)
    monkeypatch.setattr(load, "freeze", lambda model, *options, **others: model)
    monkeypatch.setattr(load, "Translator", make)
    for words, given in (
        ((), {}),
        (("--alpha", 0.5), {"alpha": 0.5}),
        (("--length-penalty", "mean"), {"length_penalty": "mean"}),
        (("--suppressed-tokens", 7, "--no-force-end"), NOT_FORCED),
    ):
        if command == "score" and given == NOT_FORCED:
            continue  # it does not search
        expected = search | OF_DATA | given
        expected |= {"on_too_long": "truncate"} if command == "plot" else {}
        ran = cli(command, folder, *COMMANDS[command], *words)
        assert f"made with {sorted(expected.items())}" in ran.stderr
