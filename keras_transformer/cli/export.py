"""Command that writes a run's translator as a SavedModel or a CTranslate2 model: `export`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from keras_transformer.cli import options
from keras_transformer.cli.backend import backend_name, require_tensorflow
from keras_transformer.cli.end_bias import TEXT, EndBias, EndBiasOption
from keras_transformer.cli.translators import load_runs
from keras_transformer.console import console
from keras_transformer.data.language_codes import LANGUAGES, find_language
from keras_transformer.decoding.search_settings import SearchSettings
from keras_transformer.decoding.text_settings import TextSettings, divided
from keras_transformer.texts import lines_of, shown

commands = typer.Typer()

Format = Annotated[
    Literal["saved_model", "ctranslate2"],
    typer.Option(
        help="saved_model: from strings to strings in one graph of TensorFlow. ctranslate2: for an "
        "engine in C++, which has some of the search settings."
    ),
]
Quantization = Annotated[
    Literal["int8", "int16", "float16", "bfloat16"] | None,
    typer.Option(help="ctranslate2 only: the type of the weights. [default: float32]"),
]
Examples = Annotated[
    Path | None,
    typer.Option(help="File of lines that `verify` will translate. [default: some words]"),
]
Inspect = Annotated[
    bool,
    typer.Option(
        "--inspect",
        help="saved_model only: add the signatures of attention scores and of the search tree.",
    ),
]


@commands.command()
@options.search_options()
@options.expand("text", TEXT)
def export(
    runs: options.RunArguments,
    directory: Annotated[Path, typer.Argument(help="Folder to write.", show_default=False)],
    format: Format = "saved_model",
    quantization: Quantization = None,
    *,
    settings: dict[str, Any],
    examples: Examples = None,
    inspect: Inspect = False,
    model: options.Model = None,
    end_bias: EndBiasOption = None,
    text: dict[str, Any],
) -> None:
    """Write a folder that translates without this package.

    Example:

        keras-transformer export runs/multi30k_en_de served/
        keras-transformer export runs/multi30k_en_de ct2/ --format ctranslate2 --quantization int8
        keras-transformer export runs/multi30k_en_de served/ --data ~/multi30k --end-bias auto
    """
    is_saved_model = format == "saved_model"
    from keras_transformer.data.corpus import read_lines

    # For the card; a model of several languages has them as settings too.
    codes = {name: settings.pop(name, None) for name in LANGUAGES}
    check_options(is_saved_model, quantization, inspect, settings)
    lines = None if examples is None else list(read_lines(examples))
    asked_bias = EndBias.read(end_bias, runs[0], text)
    translator = with_languages(load_runs(runs, model, **settings), codes)
    card = model_card(runs[0], codes)
    tags = translator.languages
    # A model with tags has several target languages, which the card lists.
    sides = ("source",) if tags else ("source", "target")
    if missing := [side for side in sides if card[f"{side}_language"] is None]:
        unknown = f"the {' and the '.join(missing)} language, so model_card.json has none"
        cure = " ".join(f"--{side}-language CODE" for side in missing)
        console.print(f"The names of the training files do not tell {unknown}. To name it: {cure}")
    search = exported_settings(translator, is_saved_model)
    translator, card["end_bias"] = asked_bias.applied(translator, search)
    if model is not None or len(runs) > 1 or card["end_bias"]:
        card["bleu"] = None  # the report is of another model
    if is_saved_model:
        from keras_transformer.export.saved_model import export_saved_model

        written = export_saved_model(
            translator, directory, card=card, examples=lines, inspect=inspect
        )
    else:
        from keras_transformer.export.ctranslate2 import export_ctranslate2

        print_differences(translator.all_settings, search)
        written = export_ctranslate2(translator, directory, quantization, card=card, examples=lines)
        compare_examples(translator, written)
    print(written)


def check_options(is_saved_model, quantization, inspect, settings):
    """Raises an error if the format or its backend does not support an option or a setting."""
    if quantization and is_saved_model:
        must = "`--quantization` needs `--format ctranslate2`."
        raise ValueError(f"{must} Received: --quantization {quantization}")
    if inspect and not is_saved_model:
        raise ValueError("`--inspect` needs `--format saved_model`.")
    if is_saved_model:
        require_tensorflow()
        if (backend := backend_name()) != "tensorflow":
            must = "`--format saved_model` must run with KERAS_BACKEND=tensorflow."
            raise ValueError(f"{must} Received: the backend {backend}")
        return
    from keras_transformer.decoding.ctranslate2 import CTranslate2Engine
    from keras_transformer.decoding.engine import require_held

    search, text = divided(settings)
    # Their classes check the values and convert them, such as lists to tuples.
    values = asdict(SearchSettings(**search)) | asdict(TextSettings(**text))
    require_held(CTranslate2Engine, {name: values[name] for name in settings})


def with_languages(translator, codes):
    """Returns a translator whose settings have the languages that the user has given.

    A model of one target language has no such settings, and the translator is returned as it is.

    Args:
        translator: `Translator`.
        codes: as in `model_card`.

    Raises:
        ValueError: if the model does not have a language.
    """
    ids, target = translator.source_tokenizer.language_ids, codes["target_language"]
    asked = {}
    if ids:
        # In the model's own codes, as the menu of the server's page has them.
        asked = {name: find_language(code, name, ids) for name, code in codes.items() if code}
    elif translator.languages and target:
        translator([], target_language=target)  # raises if the model has no tag for it
        asked = {"target_language": target}
    if not asked:
        return translator
    from keras_transformer.decoding.translator import Translator

    return Translator(translator.engine, **translator.all_settings | asked)


def exported_settings(translator, is_saved_model):
    """Returns the settings that the exported model searches by."""
    if is_saved_model:
        return translator.all_settings
    from keras_transformer.export.ctranslate2 import held_settings

    return held_settings(translator)


def print_differences(settings, held):
    """Prints the search settings of CTranslate2 that differ from those of the translator."""
    values = {name: held[name] for name in options.SEARCH_FIELDS}
    other = {name: value for name, value in values.items() if value != settings[name]}
    if other:
        shown = ", ".join(f"{name}={value!r}" for name, value in other.items())
        console.print(f"CTranslate2 searches by other rules than the run: {shown}")


def compare_examples(translator, folder):
    """Prints how many examples CTranslate2 translates otherwise than the run.

    If there are some, it also prints how many differ with a beam of 1, and with equal rules.
    """
    from keras_transformer.runs.translators import load_translator

    path = folder / "examples.jsonl"
    if not path.exists():  # the tokenizers have no files, so `export` wrote no examples
        return
    lines = [json.loads(row)["text"] for row in lines_of(path)]
    engine = load_translator(folder)

    def texts_of(translate, **settings):
        return [best.text for best, *_ in translate(lines, n_best=1, **settings)]

    def differences(run_texts, texts):
        return [row for row in zip(lines, run_texts, texts, strict=True) if row[1] != row[2]]

    texts = texts_of(engine)
    if not (rows := differences(texts_of(translator), texts)):
        console.print(f"CTranslate2 translates all {len(lines):,} examples as the run does.")
        return
    line, run_text, text = map(shown, rows[0])
    greedy = differences(texts_of(translator, beam_size=1), texts_of(engine, beam_size=1))
    rules = {name: getattr(engine.settings, name) for name in ("length_penalty", "stopping")}
    same_rules = differences(texts_of(translator, **rules), texts)
    console.print(
        f"CTranslate2 translates {len(rows):,} of {len(lines):,} examples otherwise than the run, "
        f"such as {line}: {text}, not {run_text}. With `--beam-size 1` for both, {len(greedy):,} "
        f"differ; with CTranslate2's rules for both (`search` of the card), {len(same_rules):,}."
    )


def model_card(run, codes):
    """Returns the entries of `model_card.json` that the run's folder knows.

    Args:
        run: path of the run.
        codes: dict of `LANGUAGES`, the codes that the user has given.
    """
    from keras_transformer.runs.folder import RunFolder

    folder = RunFolder(run)
    source, target = folder.recipe().data.languages()
    origin = folder.origin()
    bleu = folder.report().get("BLEU")
    return {
        "name": folder.path.resolve().name,
        "source_language": codes["source_language"] or source,
        "target_language": codes["target_language"] or target,
        "bleu": bleu and {"score": bleu["value"], "signature": bleu["signature"]},
        **({} if origin is None else {"origin": origin, "license": origin["license"]}),
    }
