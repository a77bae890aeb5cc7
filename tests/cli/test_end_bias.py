"""The option `--end-bias` of `export`."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from keras_transformer.cli.directions import Part
from keras_transformer.cli.end_bias import FEWEST_LINES, EndBias, best_bias, chosen_bias
from tests.cli.small_run import small, succeed, write_lines

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]


@pytest.fixture
def few_biases(monkeypatch):
    biases = (-2.0, 0.0, 2.0)
    monkeypatch.setattr("keras_transformer.cli.end_bias.BIASES", biases)
    monkeypatch.setattr("keras_transformer.cli.end_bias.FEWEST_LINES", 20)
    return biases


RULES = {"length_penalty": "mean", "stopping": "first_beams"}


def caught(monkeypatch, format):
    """Replaces the writing of an export; returns what it is called with."""
    seen = {}

    def export(translator, path, *options, card, **others):
        seen.update(translator=translator, card=card)
        return path

    name = f"keras_transformer.export.{format}.export_{format}"
    monkeypatch.setattr(name, export)
    monkeypatch.setattr("keras_transformer.cli.export.compare_examples", lambda *both: None)
    return seen


@pytest.mark.long
@pytest.mark.parametrize(("format", "rules"), [("ctranslate2", RULES), ("saved_model", {})])
def test_export_takes_the_end_bias_of_the_best_score(
    folder, tmp_path, monkeypatch, few_biases, format, rules
):
    """Its scores are computed again from a model for each bias, by the rules of the export."""
    from sacrebleu.metrics import CHRF
    from sacrebleu.significance import PairedTest

    import keras_transformer as kt

    sources, references = small(folder)
    run, scores, translations = kt.load_run("run", **rules), {}, {}
    for bias in few_biases:
        model = kt.with_end_bias(run.model, bias, run.target_tokenizer)
        texts = kt.Translator(model, *run.tokenizers, **run.all_settings)(sources)
        translations[bias] = texts
        ratio = len("".join(texts)) / len("".join(references))
        scores[bias] = CHRF().corpus_score(texts, [references]).score, ratio
    best = max(scores, key=lambda bias: scores[bias][0])
    assert len(set(scores.values())) > 1, "the bias must matter"
    systems = [("none", translations[0.0]), ("best", translations[best])]
    _, compared = PairedTest(systems, {"chrF": CHRF()}, [references], test_type="bs")()
    is_chance = compared["chrF2"][1].p_value * (len(few_biases) - 1) >= 0.05
    written = 0.0 if is_chance else best
    seen = caught(monkeypatch, format)
    write_lines(tmp_path / "val.en", sources)
    write_lines(tmp_path / "val.de", references)
    text = "--source", tmp_path / "val.en", "--reference", tmp_path / "val.de"
    said = []
    for words in ((), text):  # the recipe's validation split has the same lines
        ran = succeed("export", "run", "new", "--format", format, "--end-bias", "auto", *words)
        title, *rows, chosen = ran.stderr.splitlines()[: len(few_biases) + 2]
        assert title.split() == ["bias", "length", "ratio", "chrF2"]
        for row, (bias, (score, ratio)) in zip(rows, scores.items(), strict=True):
            assert row.split() == [f"{bias:+.2f}", f"{ratio:.3f}", f"{score:.2f}"]
        assert chosen.startswith(f"--end-bias {best:g} has the best chrF2 on 20 lines (nrefs:1|")
        said.append(ran.stderr)
        end = seen["translator"].model.config.end_token_id
        assert ("no bias is written" in ran.stderr) == (written != best)
        bias = seen["translator"].model.output_bias if written else np.zeros(end + 1)
        assert float(bias[end]) == written
        assert (seen["card"]["end_bias"] or {"bias": 0.0})["bias"] == written
    assert said[0] == said[1]


@pytest.mark.parametrize(
    ("scores", "metric", "best"),
    [
        ([(-0.5, 30.0), (-0.25, 31.0), (0.0, 30.5)], "bleu", -0.25),
        ([(-0.5, 30.0), (-0.25, 31.0), (0.0, 30.5)], "per", -0.5),
        ([(-0.5, 31.0), (-0.25, 31.0), (0.0, 30.5), (0.5, 31.0)], "bleu", -0.25),
        ([(-0.5, 3.0), (0.0, 3.0), (0.5, 3.0)], "wer", 0.0),
    ],
)
def test_best_bias_has_the_best_score_and_is_near_0(scores, metric, best):
    assert best_bias(scores, metric) == best


@pytest.mark.parametrize(
    ("lines", "better", "tries", "written"),
    [
        (100, 10, 8, -0.5),
        (100, 4, 1, -0.5),  # p is 0.02
        (100, 4, 8, 0.0),  # the best of eight is as good by chance in one of six cases
        (100, 1, 1, 0.0),
        (20, 20, 1, 0.0),
    ],
)
def test_bias_that_may_be_better_by_chance_is_not_written(capsys, lines, better, tries, written):
    references = [f"line {number} of many that are read aloud" for number in range(lines)]
    without = [f"line {number} of many that is read out" for number in range(lines)]
    texts = {-0.5: references[:better] + without[better:], 0.0: without}
    texts |= {float(bias): [""] * lines for bias in range(1, tries)}
    assert chosen_bias(texts, [references], "bleu", False) == written
    said = capsys.readouterr().err
    assert f"--end-bias -0.5 has the best BLEU on {lines} lines (nrefs:1|" in said
    assert ("so no bias is written" in said) == (not written)
    if lines < FEWEST_LINES:
        assert "20 lines are too few to tell it from chance" in said
    else:
        assert f"corrected for the best of {tries})" in said


def test_text_of_several_directions_is_refused():
    codes = {"eng_Latn": 4, "deu_Latn": 5, "fra_Latn": 6}
    translator = SimpleNamespace(
        source_tokenizer=SimpleNamespace(language_ids=codes),
        text_settings=SimpleNamespace(source_language="eng_Latn", target_language=None),
    )
    parts = tuple(
        Part(sources=["one"], references=[["eins"]], languages=(None, target))
        for target in ("deu_Latn", "fra_Latn")
    )
    with pytest.raises(ValueError, match="one direction.*eng_Latn-deu_Latn, eng_Latn-fra_Latn"):
        EndBias(parts=parts).applied(translator, {})


@pytest.mark.long
def test_exports_with_an_end_bias_give_the_strings_of_the_biased_model(folder, tmp_path):
    import keras_transformer as kt

    lines, bias = small(folder)[0], 1.5
    run = kt.load_run("run", beam_size=1)
    model = kt.with_end_bias(run.model, bias, run.target_tokenizer)
    expected = kt.Translator(model, *run.tokenizers, **run.all_settings)(lines)
    assert expected != run(lines), "the bias must matter"
    for format in ("saved_model", "ctranslate2"):
        words = "--format", format, "--beam-size", 1, "--end-bias", bias
        succeed("export", "run", tmp_path / format, *words)
        assert kt.load_translator(tmp_path / format)(lines) == expected
        card = json.loads((tmp_path / format / "model_card.json").read_text("utf-8"))
        assert card["end_bias"] == {"bias": bias, "tokens": ["</s>"]}
