"""The command `distil`: a teacher translates text, as a training corpus for a student."""

import itertools
import json
import math
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from keras_transformer.atomic_file import atomic_path, write_text
from keras_transformer.cli import options, stream, translators
from keras_transformer.cli.journal import Journal
from keras_transformer.cli.progress import sentence_progress
from keras_transformer.data.language_codes import LANGUAGES, find_language
from keras_transformer.decoding.text_settings import WHOLE_LINES
from keras_transformer.settings import read_yaml, yaml_text
from keras_transformer.texts import count_lines, lines_of, read_chunks

# Characters that a file of lines would not keep: ends of lines, and the byte order mark.
NO_TEXT = frozenset("\r\n\ufeff")

OutputOption = Annotated[
    Path,
    typer.Option(
        help="NAME of the files to write: NAME.en and NAME.de, the pairs (their endings are the "
        "recipe's languages); NAME.yaml, the new recipe; NAME.jsonl, all translations."
    ),
]
TextOption = Annotated[
    list[str] | None,
    typer.Option(help="Also translate the lines of this file. May be given several times."),
]
CorpusOption = Annotated[bool, typer.Option(help="Translate the training text of the recipe.")]
ReverseOption = Annotated[
    bool,
    typer.Option(
        "--reverse",
        help="Back-translation: the teachers translate the target language of the recipe, and "
        "their translations are the source.",
    ),
]
NBestOption = Annotated[int, typer.Option(help="Translations of each line.", min=1)]
MinProbabilityOption = Annotated[
    float,
    typer.Option(
        help="Leave out a translation if the geometric mean of the probabilities of its tokens is "
        "below this.",
        min=0,
        max=1,
    ),
]
MaxRatioOption = Annotated[
    float,
    typer.Option(
        help="Leave out a pair if one side has more than this many times the characters of the "
        "other.",
        min=1,
    ),
]

commands = typer.Typer()


@commands.command()
@options.search_options(*options.OF_WHOLE_LINES)
def distil(
    recipe: options.RecipeArgument,
    teachers: options.TranslatorArguments,
    output: OutputOption,
    data: options.Data = Path("."),
    text: TextOption = None,
    corpus: CorpusOption = True,
    reverse: ReverseOption = False,
    n_best: NBestOption = 1,
    min_probability: MinProbabilityOption = 0.0,
    max_length_ratio: MaxRatioOption = 5.0,
    *,
    settings: dict[str, Any],
) -> None:
    """Translate the training text of a recipe by a teacher, as a corpus for a student.

    Pairs that a student should not learn are left out, and counted. NAME.yaml is the recipe with
    the pairs as one more corpus. The teachers are runs, or one exported folder. After a kill, the
    same command goes on. If only --min-probability or --max-length-ratio differ, it chooses the
    pairs anew and translates nothing.

    Example:

        keras-transformer distil my.yaml runs/teacher --output distilled
        keras-transformer distil my.yaml runs/de_en --reverse --no-corpus --text new.de --output bt
    """
    from keras_transformer.data.corpus import read_lines
    from keras_transformer.runs.recipe import Recipe

    parsed = Recipe.load(recipe)
    if not (corpus or text):
        raise ValueError("`--no-corpus` needs `--text`. Received: no text to translate")
    files = output_files(output, parsed.data.languages())
    pairs = parsed.data.pairs("train", data) if corpus else ()
    to_translate = (target if reverse else source for source, target in pairs)
    lines = itertools.chain(to_translate, read_lines(text) if text else ())
    # `kept_pairs` leaves out lines that were cut off.
    translator = translators.load_folders(teachers, **settings | WHOLE_LINES)
    corpora = parsed.data.mappings("train")
    languages = languages_of_pairs(corpora, translator, reverse, is_translated=corpus)
    translations_file = with_ending(output, "jsonl")
    translate_lines(translator, teachers, lines, n_best, translations_file)
    distilled = kept_pairs(translations_file, reverse, min_probability, max_length_ratio)
    number = write_pairs(distilled, files[:2])
    write_text(files[2], student_recipe(recipe, corpora, languages, data, files))
    names = " and ".join(map(str, files[:2]))
    report = [*distilled.notes(), f"{number:,} pairs in {names}, one more corpus in {files[2]}"]
    print(*report, sep="\n")


def with_ending(path, ending):
    """Returns a path with one more ending."""
    return path.with_name(f"{path.name}.{ending}")


def output_files(output, languages):
    """Returns the paths of the source, the target and the recipe.

    Raises a `FileExistsError` if one exists that `distil` did not write.
    """
    options.check_output(output)
    source, target = languages
    sides = languages if source and target and source != target else ("source", "target")
    files = [with_ending(output, ending) for ending in (*sides, "yaml")]
    existing = [str(path) for path in files if path.exists()]
    if existing and not with_ending(output, "jsonl.json").exists():
        must = "`--output` must be a new name, or that of an earlier call of `distil`."
        received = f"{', '.join(existing)}, which another program wrote"
        raise FileExistsError(f"{must} Received: {received}")
    return files


def languages_of_pairs(corpora, translator, is_reverse, is_translated):
    """Returns the codes of source and target of the new pairs; `None` if no corpus names its own.

    A teacher without tokens of languages does not say between which ones it translates: the codes
    are then those that all corpora have, or `None`.

    Args:
        corpora: list of mappings, those of the recipe's training split.
        translator: the teacher.
        is_reverse: whether the teacher translates targets.
        is_translated: whether the corpora are translated.

    Raises:
        ValueError: if a corpus that is translated is of other languages.
    """
    # A corpus of weight 0 is not read.
    read = [corpus for corpus in corpora if corpus.get("weight", 1)]
    named = [[*corpus["languages"]] for corpus in read if corpus.get("languages")]
    if not named:
        return None
    language_ids = translator.source_tokenizer.language_ids
    if not language_ids:
        return named[0] if named.count(named[0]) == len(named) else None

    def known(languages):
        """Returns the teacher's own codes."""
        return [code and find_language(code, "languages", language_ids) for code in languages]

    settings = vars(translator.text_settings)
    expected = known([settings[name] for name in LANGUAGES])[:: -1 if is_reverse else 1]
    for languages in named if is_translated else ():
        if known(languages) != expected:
            raise ValueError(
                "`distil` translates in one direction, so all corpora of the recipe must be of its "
                f"languages. Received: languages={languages!r}, not {expected!r}. Choose it by "
                "--source-language, --target-language and --reverse, and give a recipe with the "
                "corpora of this direction"
            )
    return expected


def translate_lines(translator, teachers, lines, n_best, path):
    """Appends a `row_of` each line to a file; after a kill, the same call continues the file."""
    call: dict[str, Any] = {"n_best": n_best}
    translator([], **call)  # a wrong option is an error before the work begins
    with stream.ends_at_once(), tempfile.TemporaryFile(dir=path.parent) as source:
        source.writelines(stream.as_lines([line]).encode() for line in lines)
        source.seek(0)
        total = count_lines(source)
        settings = stream.journal_settings(translator, teachers, None, call)
        journal_file = Journal(path, settings).opened(source)
        with journal_file as journal, sentence_progress(total, journal.lines) as progress:
            call["on_progress"] = progress
            chunks = read_chunks(source, journal.lines + 1)
            results = stream.translate_chunks(translator, chunks, "the text", call)
            for chunk, sources, answers in results:
                journal.append(stream.as_lines(map(row_of, sources, answers)), chunk)


def row_of(source, hypotheses):
    """Returns a line of JSON: a source, and `[text, probability, is whole]` of its translations."""
    candidates = [
        (hypothesis.text, probability_of(hypothesis), is_whole(hypothesis))
        for hypothesis in hypotheses
    ]
    return json.dumps([source, candidates], ensure_ascii=False)


def probability_of(hypothesis):
    """Returns the geometric mean of the tokens' probabilities, to 4 digits; 0 if there are none."""
    count = len(hypothesis.tokens)
    return round(math.exp(hypothesis.log_prob / count), 4) if count else 0.0


def is_whole(hypothesis):
    """Whether a hypothesis is a whole translation of the whole line."""
    return not (hypothesis.pieces > 1 or hypothesis.dropped_tokens or hypothesis.unfinished)


def kept_pairs(path, is_reverse, min_probability, max_length_ratio):
    """Returns the pairs of a file of translations that a student should learn, as `Corpora`."""
    from keras_transformer.data.cleaning import CleaningSettings
    from keras_transformer.data.corpora import Corpora, Corpus
    from keras_transformer.data.corpus import FileStream

    def read(path, log):
        for source, targets in map(json.loads, lines_of(path)):
            for text, probability, is_complete in targets:
                faults = {
                    "empty": not (source.strip() and text.strip()),
                    "cut": not is_complete,
                    "line break": not NO_TEXT.isdisjoint(source + text),
                    "improbable": probability < min_probability,
                }
                pair = (text, source) if is_reverse else (source, text)
                if reasons := [name for name, is_fault in faults.items() if is_fault]:
                    log.skip(reasons[0], *pair)
                else:
                    yield pair

    cleaning = CleaningSettings(identical=True, max_character_ratio=max_length_ratio)
    return Corpora([Corpus(str(path), FileStream(read, [str(path)]))], cleaning)


def write_pairs(pairs, paths):
    """Writes the sides of pairs to two files, atomically; returns the number of pairs."""
    number = 0
    with ExitStack() as stack:
        partial = [stack.enter_context(atomic_path(path)) for path in paths]
        files = [stack.enter_context(open(path, "wb")) for path in partial]
        for pair in pairs:
            number += 1
            for file, text in zip(files, pair, strict=True):
                file.write(f"{text}\n".encode())
    return number


def student_recipe(name, corpora, languages, data, files):
    """Returns the text of a recipe, with the pairs as one more corpus of its training split."""
    from keras_transformer.runs.recipe import recipe_text

    source, target = (os.path.relpath(path.resolve(), data.resolve()) for path in files[:2])
    values = read_yaml(recipe_text(name))
    corpus = {"source": source, "target": target}
    if languages:
        corpus["languages"] = languages
    values["data"]["train"] = [*corpora, corpus]
    return yaml_text(values)
