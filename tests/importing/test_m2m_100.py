"""Imported M2M-100 and NLLB-200 against `transformers`, SentencePiece and the published lists."""

import json
import shutil

import keras
import numpy as np
import pytest
import yaml
from sacrebleu import metrics

import keras_transformer as kt
from keras_transformer.data.language_codes import find_language
from keras_transformer.data.number_corpus import number_names
from keras_transformer.importing import importer
from keras_transformer.importing.languages import M2M_100, NLLB_200
from keras_transformer.importing.m2m_100 import read_tokenizer
from tests.cli.small_run import cli, succeed
from tests.importing import multilingual_models, opus_models
from tests.importing.opus_models import sentences

pytestmark = [opus_models.needs_torch, pytest.mark.tensorflow_only]

CODES = {"nllb": ("eng_Latn", "deu_Latn", "fra_Latn"), "m2m": ("en", "de", "fr")}
# What is the same Python for both; their tokenizers differ.
ONE_KIND = ["m2m", pytest.param("nllb", marks=pytest.mark.long)]
TYPED = ["</s>", "<mask>", "eng_Latn", "__en__", "<s> one", "one\u00a0two", "\u200bthree ", "😀"]


@pytest.fixture(scope="module", params=CODES)
def imported(request, tmp_path_factory):
    """Kind, model of `transformers`, model of SentencePiece, our translator and its run."""
    kind, folder = request.param, tmp_path_factory.mktemp("models")
    theirs, processor = multilingual_models.make_model(folder / kind, kind)
    run, notes = folder / "run", []
    kt.import_model(folder / kind, run, print_fn=notes.append)
    source, target, _ = CODES[kind]
    translator = kt.load_run(run, source_language=source, target_language=target, max_length=20)
    assert len(notes) == (kind == "m2m")
    return kind, theirs, processor, translator, run


@pytest.mark.slow
@pytest.mark.parametrize("kind", ONE_KIND)
def test_logits_are_those_of_transformers(kind, tmp_path):
    import torch

    theirs, _ = multilingual_models.make_model(tmp_path / kind, kind, gain=0.3)
    translator = kt.import_model(tmp_path / kind, print_fn=str)
    rng = np.random.default_rng(0)
    for length in (1, 7, 300):
        source, target = rng.integers(4, 200, (2, 3, length))
        source[1:, length // 2 + 1 :] = 1  # padding
        mask = torch.tensor((source != 1).astype("int64"))
        expected = theirs(
            input_ids=torch.tensor(source),
            attention_mask=mask,
            decoder_input_ids=torch.tensor(target),
        ).logits
        inputs = {"encoder_token_ids": source, "decoder_token_ids": target}
        found = translator.model({name: ids.astype("int32") for name, ids in inputs.items()})
        np.testing.assert_allclose(found, expected.detach(), atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("imported", ONE_KIND, indirect=True)
@pytest.mark.parametrize("beam_size", [pytest.param(1, marks=pytest.mark.long), 4])
def test_token_ids_are_those_that_transformers_generates(imported, beam_size):
    """With no length penalty: `transformers` counts the language as a token, and we do not."""
    kind, theirs, _, translator, _ = imported
    tokenizer, (code, *targets) = translator.source_tokenizer, CODES[kind]
    ids, lines = tokenizer.language_ids, sentences(60)
    rows = [[ids[code], *tokenizer.encode(line), 2] for line in lines]
    token_ids = {token: i for i, token in enumerate(tokenizer.vocabulary)}
    search = {"beam_size": beam_size, "length_penalty": None, "stopping": "exhaustive"}
    search |= {"extra_length": 20, "suppressed_tokens": (), "force_end": False}
    texts, rows_found = set(), set()
    for target in targets:
        expected = multilingual_models.generated(theirs, rows, ids[target], num_beams=beam_size)
        answers = translator(lines, n_best=1, target_language=target, **search)
        found = [[token_ids[token] for token in best.tokens] for (best,) in answers]
        different = [n for n, row in enumerate(found) if row != expected[n]]
        assert len(different) <= 6
        for number in different:  # ours is better, or as good but for rounding
            (best,) = answers[number]
            columns = [np.array([row], "int32") for row in (rows[number], expected[number])]
            scored = translator.engine.score(*columns, np.array([[ids[target]]], "int32"))
            assert best.score >= scored.sum() - 1e-3
        texts.update(best.text for (best,) in answers)
        rows_found.update(map(tuple, found))
    assert len(rows_found) > 10, "the model is no test"
    assert not any("_" in text for text in texts), "languages are no text"


@pytest.mark.slow
@pytest.mark.parametrize("imported", ONE_KIND, indirect=True)
def test_the_token_of_a_language_takes_one_of_the_learned_positions(imported):
    kind, _, _, translator, _ = imported
    learned = {"positions": "learned", "max_sequence_length": 9, "first_position": 0}
    config = kt.TransformerConfig.from_dict(translator.model.config.to_dict() | learned)
    tokenizer, (source, target, _) = translator.source_tokenizer, CODES[kind]
    rules = {"beam_size": 1, "suppressed_tokens": [tokenizer.end_token_id]}
    rules |= {"source_language": source, "target_language": target}
    made = kt.Translator(kt.Transformer(config), tokenizer, **rules)
    (best,) = made("one", n_best=1)
    assert len(best.tokens) == 8, "the bound must be what ended it"
    (best,) = made(" ".join(["one"] * 20), n_best=1, split="lines")
    assert best.pieces > 1
    with pytest.raises(ValueError, match="at most the model's 8 positions"):
        made("one", max_source_tokens=9)
    with pytest.raises(ValueError, match="at most 8 tokens"):
        made.score(" ".join(["one"] * 20), "one")


@pytest.mark.long
def test_attention_is_that_of_transformers_behind_start_and_language(imported):
    """Rows are the tokens of the translation; columns are what the decoder reads."""
    import torch

    kind, theirs, _, translator, _ = imported
    tokenizer, (source, *targets) = translator.source_tokenizer, CODES[kind]
    lines, codes = [*sentences(3), ""], [*targets, *targets]
    options = {"target_language": codes, "n_best": 2, "beam_size": 2, "return_attention": True}
    theirs.set_attn_implementation("eager")  # the other ones return no attention
    *answers, (empty,) = translator(lines, **options)
    assert empty.attention.decoder_tokens == [] and empty.attention.decoder.shape[2:] == (0, 0)
    ids = {token: i for i, token in enumerate(tokenizer.vocabulary)}
    for line, code, ranked in zip(lines, codes, answers, strict=False):
        for best in ranked:
            row = [tokenizer.language_ids[source], *tokenizer.encode(line), 2]
            read = [2, tokenizer.language_ids[code], *[ids[token] for token in best.tokens[:-1]]]
            assert [ids[token] for token in best.attention.decoder_tokens] == read
            assert [ids[token] for token in best.source_tokens] == row
            outputs = theirs(
                input_ids=torch.tensor([row]),
                decoder_input_ids=torch.tensor([read]),
                output_attentions=True,
            )
            for ours, expected, first in (
                (best.attention.encoder, outputs.encoder_attentions, 0),
                (best.attention.decoder, outputs.decoder_attentions, 1),
                (best.attention.encoder_decoder, outputs.cross_attentions, 1),
            ):
                expected = torch.cat(expected).detach()[:, :, first:]
                np.testing.assert_allclose(ours, expected, atol=1e-5)


def test_ids_are_those_of_sentencepiece_and_the_published_lists(imported):
    kind, _, processor, translator, _ = imported
    tokenizer = translator.source_tokenizer
    lines = [*multilingual_models.lines(300), *TYPED]
    if kind == "nllb":
        expected = [[i + 1 if i else 3 for i in row] for row in processor.encode(lines)]
        first, codes = processor.get_piece_size() + 1, NLLB_200
    else:
        table = {piece: i for i, piece in enumerate(tokenizer.vocabulary) if i < 200}
        pieces = processor.encode(lines, out_type=str)
        expected = [[table.get(piece, 3) for piece in row] for row in pieces]
        first, codes = len(tokenizer.vocabulary) - 108, M2M_100
    found = tokenizer.encode(lines)
    assert found == expected
    assert tokenizer.language_ids == {code: first + n for n, code in enumerate(codes)}
    special = {0, 1, 2, *tokenizer.language_ids.values()}
    assert not special.intersection(*[{i for row in found for i in row}])
    assert NLLB_200.index("eng_Latn") == 256047 - 256001, "as published"
    assert tokenizer.graph.tokenize(lines).to_list() == expected
    text = [7, first + 3, 9, 2, 1]
    assert tokenizer.decode([text]) == tokenizer.decode([[7, 9]])
    assert tokenizer.graph.detokenize([text]).numpy()[0].decode() == tokenizer.decode([[7, 9]])[0]


@pytest.mark.parametrize("listed", multilingual_models.LISTED)
def test_languages_are_found_wherever_they_are_listed(tmp_path, listed):
    processor, size = multilingual_models.write_tokenizer(tmp_path, "nllb", listed)
    tokenizer, _ = read_tokenizer(tmp_path, size)
    first = processor.get_piece_size() + 1
    expected = {code: first + n for n, code in enumerate(NLLB_200)}
    if "one more" in listed:
        expected["tyv_Cyrl"] = first + 203
    assert tokenizer.language_ids == expected
    assert tokenizer.vocabulary[first + 202] == "<mask>"


@pytest.mark.parametrize("imported", ONE_KIND, indirect=True)
def test_batches_are_those_of_transformers_and_the_language_is_no_label(imported):
    """Its loss of the same rows, without the language, is that of our batch."""
    import torch

    kind, theirs, _, translator, _ = imported
    tokenizer, (source, target, _) = translator.source_tokenizer, CODES[kind]
    pairs = kt.number_names("train", 40)
    dataset, report = kt.make_dataset(
        pairs,
        tokenizer,
        batch_sentences=8,
        source_language=source,
        target_language=target,
        word_dropout=0.3,
    )
    assert report.pairs_kept == 40
    rows = dataset.stream.batches(0)[0]
    inputs, labels, weights = dataset.stream.arrays(rows)
    ids = tokenizer.language_ids
    for row, number in enumerate(rows):
        (source_row, target_row) = tokenizer.encode([*pairs[number]], add_end=True)
        label = [ids[target], *target_row]
        assert labels[row].tolist() == label + [1] * (labels.shape[1] - len(label))
        expected = [0.0, *[1.0] * len(target_row)]
        assert weights[row].tolist() == expected + [0.0] * (labels.shape[1] - len(label))
        assert inputs["encoder_token_ids"][row][0] == ids[source], "which no dropout takes"
        assert inputs["decoder_token_ids"][row][:2].tolist() == [2, ids[target]]
        assert np.count_nonzero(inputs["encoder_token_ids"][row] != 1) == len(source_row) + 1
    model = translator.model
    model.compile("adam", kt.SmoothedCrossEntropy(0.0))
    found = model.test_on_batch(inputs, labels, weights)
    logits = theirs(
        input_ids=torch.tensor(inputs["encoder_token_ids"]),
        attention_mask=torch.tensor((inputs["encoder_token_ids"] != 1).astype("int64")),
        decoder_input_ids=torch.tensor(inputs["decoder_token_ids"]),
    ).logits
    wanted = torch.tensor(np.where(weights > 0, labels, -100)).long()
    expected = torch.nn.functional.cross_entropy(logits.transpose(1, 2), wanted)
    assert found == pytest.approx(expected.item(), rel=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("imported", ONE_KIND, indirect=True)
def test_run_is_trained_between_the_languages_of_its_search(imported, tmp_path):
    kind, _, _, translator, run = imported
    source, target, _ = CODES[kind]
    recipe = kt.runs.RunFolder(run).recipe()
    search = recipe.search | {"source_language": source, "target_language": target}
    search |= {"beam_size": 1}
    changed = recipe.to_dict() | {"search": search}
    there = {"number_names": "train", "size": 200}
    back = {"number_names": "held_out", "size": 20, "languages": [target, source]}
    changed["data"] |= {"train": [there, back]}
    changed["data"] |= {"validation": {"number_names": "held_out", "size": 40}}
    changed["training"] |= {"epochs": 2, "batch_tokens": 1024, "learning_rate": 0.01}
    changed["training"] |= {"warmup_steps": 5}
    changed = kt.runs.Recipe.from_dict(changed)
    report = kt.runs.Trainer(changed, ".", tmp_path / "tuned", print_fn=str).train()
    history = kt.runs.RunFolder(tmp_path / "tuned").history()
    assert history[1]["val_loss"] < history[0]["val_loss"] and report["updates"] > 5
    (line,) = kt.load_run(tmp_path / "tuned")(["one"])
    assert isinstance(line, str), "the languages are those of the recipe"


@pytest.mark.long
@pytest.mark.parametrize("imported", ["m2m"], indirect=True)
def test_evaluate_prints_a_row_for_each_direction(imported, tmp_path):
    """Of files and of a recipe; the scores are sacreBLEU's of what the translator says.

    Most texts of the small NLLB-200 are empty.
    """
    _, _, _, translator, run = imported
    source, *targets = CODES["m2m"]
    english, german = map(list, zip(*number_names("held_out", 12, 0), strict=True))
    rules = {"beam_size": 1, "max_length": 9, "split": "lines"}
    right = translator(english[:5], target_language=targets[1], **rules)
    files = {"a.en": english, "a.xx": german, "b.en": english[:5], "b.xx": right}
    for name, lines in files.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), "utf-8")
    run = shutil.copytree(run, tmp_path / "run")
    search = [f"--{name.replace('_', '-')}={value}" for name, value in rules.items()]
    sides = ["source", "reference"] * 2
    pairs = [f"--{side}={tmp_path / name}" for side, name in zip(sides, files, strict=True)]
    languages = ["--source-language=en", f"--target-language=de,{targets[1]}"]
    ran = succeed("evaluate", run, *pairs, *languages, *search, "--samples=0")
    header, *rows = (line.split() for line in ran.stdout.splitlines() if ":" not in line)
    assert header == ["direction", "lines", "BLEU", "chrF2", "unfinished"]
    expected = []
    corpora = (english, german), (english[:5], right)
    for target, (lines, references) in zip(targets, corpora, strict=True):
        answers = translator(lines, n_best=1, target_language=target, **rules)
        texts = [best.text for (best,) in answers]
        made = metrics.BLEU(force=True), metrics.CHRF()
        scores = [f"{metric.corpus_score(texts, [references]).score:.2f}" for metric in made]
        if not made[0].corpus_score(references, [references]).score:
            scores[0] = "-"  # no reference has a 4-gram
        unfinished = sum(best.tokens[-1] != "</s>" for (best,) in answers)
        expected.append([f"{source}-{target}", str(len(lines)), *scores, str(unfinished)])
    assert rows == expected and rows[1][3] == "100.00"
    recipe = yaml.safe_load((run / "config.yaml").read_text("utf-8"))
    recipe["search"] |= rules | {"source_language": source, "target_language": targets[0]}
    first = {"source": "a.en", "target": "a.xx"}  # between the languages of `search`
    other = {"source": "b.en", "target": "b.xx", "languages": [source, targets[1]]}
    recipe["data"]["test"] = [first, other, other | {"languages": ["en", targets[1]]}]
    (run / "config.yaml").write_text(yaml.safe_dump(recipe), "utf-8")
    ran = succeed("evaluate", run, "--data", tmp_path, "--output", tmp_path / "out")
    assert "not finished" not in ran.stderr
    one, two = json.loads((run / "report.json").read_text("utf-8"))["directions"]
    assert f"{one['chrF2']['value']:.2f}" == rows[0][3] and one["lines"] == 12
    assert f"{two['chrF2']['value']:.2f}" == rows[1][3] and two["lines"] == 10
    assert (two["source_language"], two["target_language"]) == (source, targets[1])
    assert len((tmp_path / "out").read_text("utf-8").splitlines()) == 22
    for words, said in (
        (pairs[:3], "one `--reference` each. Received: 2 --source, 1 --reference"),
        ([*pairs, "--target-language=de,fr,es"], "or 2 with commas, one for each `--source`"),
        (["--data", tmp_path, "--baseline", tmp_path / "a.en"], "must be of one direction"),
    ):
        ran = cli("evaluate", run, *words)
        assert ran.exit_code == 2 and said in " ".join(ran.stderr.split())


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("de", "deu_Latn"), ("de-DE", "deu_Latn"), ("deu", "deu_Latn"), ("EN_us", "eng_Latn"),
        ("zh-Hans", "zho_Hans"), ("zh-TW", "zho_Hant"), ("fa", "pes_Arab"), ("no", "nob_Latn"),
        ("ak", "aka_Latn"), ("tw", "twi_Latn"), ("twi", "twi_Latn"),
        ("sr-Latn", None), ("tyv", None), ("German", None), ("", None), ("und", None),
    ],
)  # fmt: skip
def test_codes_that_people_type_find_the_language_or_are_refused(code, expected):
    ids = dict(zip(NLLB_200, range(202), strict=True))
    if expected is None:
        with pytest.raises(ValueError, match="`target_language` must be a language of the model"):
            find_language(code, "target_language", ids)
    else:
        assert find_language(code, "target_language", ids) == expected


def test_wrong_languages_are_one_error(imported, tmp_path):
    _, _, _, translator, run = imported
    for options, said in (
        ({"target_language": "xx"}, "`target_language` must be a language of the model"),
        ({"target_language": ["de", "fr"]}, "one for each line. Received: 2 codes, 1 lines"),
        ({"target_language": [None]}, "`target_language` .* must be given.* none for line 1"),
    ):
        with pytest.raises(ValueError, match=said):
            translator(["one"], **options)
    with pytest.raises(TypeError, match="`target_language` must hold codes.* 7 for line 1"):
        translator(["one"], target_language=[7])
    plain = kt.load_run(run)
    several = {"source_language": "en", "target_language": ("de", "fr")}
    several = kt.Translator(plain.engine, **plain.all_settings | several)
    for export in (kt.export_saved_model, kt.export_ctranslate2):
        with pytest.raises(ValueError, match="one for each line. Received: 2 codes, 0 lines"):
            export(several, tmp_path / "made")
        with pytest.raises(ValueError, match="`source_language` .* must be given"):
            export(plain, tmp_path / "made")
    with pytest.raises(ValueError, match="`source_language` .* must be given"):
        plain(["one"])
    with pytest.raises(ValueError, match="`inspect` must be False"):
        kt.export_saved_model(translator, "served", inspect=True)
    pairs, tokenizer = [("one", "eins")], translator.source_tokenizer
    with pytest.raises(ValueError, match="`source_language` must be given"):
        kt.make_dataset(pairs, tokenizer, batch_sentences=1)
    with pytest.raises(ValueError, match="`target_language` must be a language of the model"):
        languages = {"source_language": "en", "target_language": "xx"}
        kt.make_dataset(pairs, tokenizer, batch_sentences=1, **languages)


@pytest.mark.long
@pytest.mark.parametrize("imported", ONE_KIND, indirect=True)
def test_weights_of_half_the_size_are_those_of_a_cast_run(imported, tmp_path):
    kind, *_, run = imported
    source, target, _ = CODES[kind]
    half = tmp_path / "half"
    kt.import_model(run.parent / kind, half, precision="bfloat16", print_fn=str)
    settings = {"source_language": source, "target_language": target, "max_length": 20}
    expected = kt.load_run(run, dtype="bfloat16", **settings)
    found = kt.load_run(half, **settings)
    for weight, other in zip(found.model.weights, expected.model.weights, strict=True):
        assert weight.dtype == other.dtype == "bfloat16"
        np.testing.assert_array_equal(weight, other)
    assert found(sentences(20)) == expected(sentences(20))
    with pytest.raises(ValueError, match="`precision` must be 'float32' or 'bfloat16'"):
        kt.import_model(run.parent / kind, precision="int8")


def test_import_that_is_interrupted_breaks_no_later_one(tmp_path, monkeypatch):
    multilingual_models.make_model(tmp_path / "m2m", "m2m")
    calls, weight_of = [], importer.weight_of

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == 7:
            raise KeyboardInterrupt
        return weight_of(*arguments)

    monkeypatch.setattr(importer, "weight_of", interrupted)
    with pytest.raises(KeyboardInterrupt):
        kt.import_model(tmp_path / "m2m", tmp_path / "run", print_fn=str)
    assert not (tmp_path / "run").exists()
    with keras.StatelessScope():
        pass  # at its end, Keras makes what is left of interrupted models
    assert len(calls) == 7
    kt.import_model(tmp_path / "m2m", tmp_path / "run", print_fn=str)
