"""One path for a line: the same text from every engine, in Python, `translate` and `serve`.

The engines search by the same rules, in float32. The model is a small random one of Marian's form,
with tags of two target languages; each engine is made once.
"""

import contextlib
import errno
import shutil

import keras
import pytest
import yaml

import keras_transformer as kt
from keras_transformer import decoding
from keras_transformer.decoding.model_card import read_card
from keras_transformer.runs.translators import kind_of
from tests.cli.small_run import cli, succeed
from tests.importing import opus_models
from tests.serving.clients import client_of

pytestmark = [opus_models.needs_torch, pytest.mark.slow]

RULES = {"length_penalty": "mean", "stopping": "first_beams", "beam_size": 3, "extra_length": 5}
# CTranslate2 shares the probability of suppressed tokens among the others.
RULES |= {"suppressed_tokens": [], "alpha": 1.0}
SENTENCES = "Seven hundred and one.  Eighty is a number! Dr. Two sleeps."
LONG = "one hundred and two thousand three " * 6
MARKED = "seven %s and {name} <b>two</b>, https://a.b/c me@a.org `ls` \U0001f600 Ωμέγα A-17 one"
LINES = ["twenty-one", "", " \t", "Ωμέγα 😀", "seven hundred and one", "one\u2028two", "two  "]
# What is asked -> lines, options.
ROWS = {
    "empty and odd lines": (LINES, {}),
    "tags": ([">>fra<< two", "seven", ">>deu<<one"], {}),
    "a language": (["two", "", ">>fra<< seven"], {"target_language": "fra"}),
    "sentences": ([SENTENCES, "one", f">>fra<< {SENTENCES}"], {"split": "sentences"}),
    "long lines split": ([LONG, "one", ""], {"max_source_tokens": 12}),
    "truncated": ([LONG, "one"], {"max_source_tokens": 12, "on_too_long": "truncate"}),
    "a prefix": (LINES[:2] + [LONG], {"target_prefix": "ein", "max_source_tokens": 20}),
    "prefixes": (LINES[3:5], {"target_prefix": ["eins", ""]}),
    "n-best": (LINES, {"n_best": 3}),
    "n-best of sentences": ([SENTENCES, "one"], {"n_best": 2, "split": "sentences"}),
    "alpha and length": (LINES, {"alpha": 2.0, "max_length": 4}),
    "all that is protected": ([MARKED, "one"], {"protect": ("urls", "tags", "unknown", "braces")}),
    **{
        f"protected {name}": ([MARKED, "one %s", "%s"], {"protect": (name,)})
        for name in ("printf", "braces", "tags", "urls", "emails", "backticks", "emoji", "unknown")
    },
    "an expression": ([MARKED], {"protect": (r"\b[A-Z]-\d+",), "split": "sentences"}),
}
# What is refused -> lines, options, a part of the error.
REFUSED = {
    "too long": ([LONG], {"max_source_tokens": 12, "on_too_long": "error"}, "line 1 of `lines`"),
    "another tag": (["one", ">>ita<< two"], {}, "Received: line 2 begins with >>ita<<"),
    "another language": (["one"], {"target_language": "ita"}, "Received: target_language=ita"),
    "no room": (["one"], {"target_prefix": "ein " * 99}, "must leave room for one more token"),
}
ENGINES = ["keras", "ctranslate2"]
if keras.config.backend() == "tensorflow":
    ENGINES.append("saved_model")


def long(engine):
    """`translate` and the server do the same above all engines, whose texts are compared."""
    return pytest.param(engine, marks=pytest.mark.long)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """{engine: its folder}; that of Keras is a run."""
    parent = tmp_path_factory.mktemp("one_path")
    marian = opus_models.write_npz(opus_models.make_marian(), tmp_path_factory.mktemp("npz"))
    run = parent / "en_de"
    kt.import_model(marian, run)
    recipe = yaml.safe_load((run / "config.yaml").read_text("utf-8"))
    recipe["search"] |= RULES
    (run / "config.yaml").write_text(yaml.safe_dump(recipe), "utf-8")
    translator = kt.load_run(run)
    card = {"name": "small", "source_language": "en"}
    made = {"keras": run, "ctranslate2": parent / "ct2"}
    kt.export_ctranslate2(translator, made["ctranslate2"], card=card)
    if "saved_model" in ENGINES:
        made["saved_model"] = kt.export_saved_model(
            translator, parent / "served", card=card, inspect=True
        )
    return made


@pytest.fixture(scope="module")
def translators(folders):
    return {engine: kt.load_translator(folder) for engine, folder in folders.items()}


def hypotheses(translator, row):
    lines, options = ROWS[row]
    return translator(lines, **{"n_best": 1} | options)


@pytest.fixture(scope="module")
def answers(translators):
    """{row: the hypotheses of the first engine}."""
    return {row: hypotheses(translators["keras"], row) for row in ROWS}


@pytest.fixture(scope="module")
def expected(answers):
    """{row: the texts of each line, best first}."""
    texts = {row: [[one.text for one in line] for line in found] for row, found in answers.items()}
    assert len({str(each) for each in texts.values()}) > 12, "the rows differ"
    return texts


@pytest.mark.parametrize("engine", ENGINES[1:])
def test_every_engine_gives_the_same_texts_and_scores(translators, answers, engine):
    other = translators[engine]
    names = "text", "pieces", "tokens", "source_tokens", "unfinished", "protected"
    names += "too_long", "dropped_tokens"
    for row, expected in answers.items():
        for ours, theirs in zip(expected, hypotheses(other, row), strict=True):
            for one, two in zip(ours, theirs, strict=True):
                assert two.score == pytest.approx(one.score, abs=1e-4), row
                for name in names:
                    assert getattr(two, name) == getattr(one, name), row
    scored = [each.score(LINES[:2], ["ein", "zwei"]) for each in (translators["keras"], other)]
    for one, two in zip(*scored, strict=True):
        assert two.log_probs == pytest.approx(one.log_probs, abs=1e-4)


@pytest.mark.parametrize("row", REFUSED)
def test_every_engine_refuses_by_the_same_words(translators, row):
    lines, options, message = REFUSED[row]
    said = set()
    for translator in translators.values():
        with pytest.raises(ValueError) as raised:
            translator(lines, **options)
        said.add(str(raised.value))
    assert len(said) == 1 and message in said.pop()


@pytest.mark.parametrize("engine", ENGINES)
def test_attention_is_there_or_refused_by_name(translators, engine):
    translator = translators[engine]
    refused = pytest.raises(ValueError, match="`return_attention` must be False in CTranslate2")
    with refused if engine == "ctranslate2" else contextlib.nullcontext():
        ours, theirs = (
            each("twenty-one", n_best=1, return_attention=True)[0].attention
            for each in (translators["keras"], translator)
        )
        for name in ("encoder", "decoder", "encoder_decoder"):
            assert getattr(theirs, name) == pytest.approx(getattr(ours, name), abs=1e-4)


def words_of(options):
    """Options of `translate`."""
    for name, value in options.items():
        for one in value if isinstance(value, tuple) else [value]:
            yield from (f"--{name.replace('_', '-')}", str(one))


def check_translate(folder, made, rows, expected, monkeypatch):
    """`translate` prints the texts of the rows; with the translator of the folder, made before.

    All rows but those with prefixes, which are no option of `translate`.
    """

    def load(paths, model, dtype, **settings):
        assert paths == [folder]
        return kt.Translator(made.engine, **made.all_settings | settings)

    monkeypatch.setattr("keras_transformer.cli.translators.load_folders", load)
    for row, (lines, options) in rows.items():
        if "target_prefix" in options:
            continue
        stdin = "".join(f"{line}\n" for line in lines).encode()
        ran = succeed("translate", folder, *words_of({"n_best": 1} | options), stdin=stdin)
        numbered = enumerate(expected[row], start=1)
        printed = [f"{number}\t{text}\n" for number, texts in numbered for text in texts]
        assert ran.stdout == "".join(printed), row


@pytest.mark.parametrize("engine", ["keras", *map(long, ENGINES[1:])])
def test_translate_prints_the_same_texts(folders, translators, expected, engine, monkeypatch):
    check_translate(folders[engine], translators[engine], ROWS, expected, monkeypatch)


def served_texts(client, lines, options):
    """The texts of each line, best first, by the protocol of TensorFlow Serving."""
    columns = {name: each if isinstance(each, list) else [each] for name, each in options.items()}
    inputs = {"text": lines, "n_best": [1]} | columns
    body = {"signature_name": "translate_n_best", "inputs": inputs}
    found = client.post("/v1/models/small:predict", json=body).json()["outputs"]
    return [
        [text for text, score in zip(*pair, strict=True) if score is not None]
        for pair in zip(found["translations"], found["scores"], strict=True)
    ]


@contextlib.contextmanager
def served(made, options, in_request=()):
    """A client of a server with the settings of text, and the options that are left for a request.

    Settings of text that may differ by line, `in_request`, are left too.
    """
    of_text = kt.TextSettings.__dataclass_fields__.keys() - {*in_request}
    text = {name: options[name] for name in options.keys() & of_text}
    translator = kt.Translator(made.engine, **made.all_settings | text)
    with client_of(lambda: translator, settings=text) as client:
        yield client, {name: options[name] for name in options.keys() - of_text}


@pytest.mark.parametrize("engine", ["ctranslate2", *map(long, ENGINES[2:])])
def test_the_server_answers_the_same_texts(translators, expected, engine):
    for row, (lines, options) in ROWS.items():
        with served(translators[engine], options) as (client, asked):
            assert served_texts(client, lines, asked) == expected[row], row
            if asked or any(">>" in line for line in lines):
                continue
            answer = client.post("/translate", json={"q": lines, "target": "deu"}).json()
        to_german = {"n_best": 1} | options | {"target_language": "deu"}
        best = [ranks[0].text for ranks in translators["keras"](lines, **to_german)]
        assert answer["translatedText"] == best, row


@pytest.mark.parametrize("engine", ENGINES[1:])
def test_the_server_refuses_by_the_same_words(translators, engine):
    for lines, options, message in REFUSED.values():
        with served(translators[engine], options) as (client, asked):
            inputs = {"text": lines} | {name: [value] for name, value in asked.items()}
            body = {"signature_name": "translate_n_best", "inputs": inputs}
            answer = client.post("/v1/models/small:predict", json=body)
        assert answer.status_code == 400 and message in answer.json()["error"]


@pytest.fixture(scope="module", params=ENGINES[1:])
def killed(request, folders, tmp_path_factory):
    """Name of an engine, and the parent of its folder `killed`, which an export had moved away.

    Test of what a killed export leaves: `test_after_a_kill_at_any_rename_the_folder_is_restored`.
    """
    engine, parent = request.param, tmp_path_factory.mktemp("exports")
    staging = parent / ".killed-abcdefgh"
    shutil.copytree(folders[engine], staging / "old0")
    (staging / "new").mkdir()
    return engine, parent


def engine_of(kind, path):
    engines = {"saved_model": decoding.SavedModelEngine, "ctranslate2": decoding.CTranslate2Engine}
    return engines[kind](path)


def export_another(kind, path):
    """To a folder of the other kind, which is refused before the translator is looked at."""
    export = kt.export_ctranslate2 if kind == "saved_model" else kt.export_saved_model
    with pytest.raises(FileExistsError):
        export(None, path)


# `load_translator` calls the first two.
LOADERS = {
    "engine": engine_of,
    "kind_of": lambda kind, path: kind_of(path),
    "read_card": lambda kind, path: read_card(path, kind),
}


@pytest.mark.parametrize(
    "load",
    [
        *(pytest.param(load, id=name) for name, load in LOADERS.items()),
        pytest.param(export_another, id="another export", marks=pytest.mark.tensorflow_only),
    ],
)
def test_folder_that_a_killed_export_moved_away_is_restored(killed, folders, tmp_path, load):
    kind, parent = killed
    path = shutil.copytree(parent, tmp_path / "exports") / "killed"
    load(kind, path)
    restored, old = (folder / "model_card.json" for folder in (path, folders[kind]))
    assert restored.read_bytes() == old.read_bytes()


@pytest.mark.long
def test_command_says_where_a_folder_is_that_cannot_be_restored(killed, tmp_path, monkeypatch):
    _, parent = killed
    path = shutil.copytree(parent, tmp_path / "exports") / "killed"

    def refuse(*arguments):
        raise OSError(errno.EROFS, "Read-only file system")

    for command in ("translate", "serve", "verify"):
        with monkeypatch.context() as patch:
            patch.setattr("os.rename", refuse)
            ran = cli(command, path, stdin=b"two\n")
        (line,) = ran.stderr.splitlines()
        assert ran.exit_code == 2 and "/old0'" in line and "Read-only file system" in line
    ran = cli("translate", path, stdin=b"two\n")
    assert ran.exit_code == 0 and ran.stdout, ran.stderr
