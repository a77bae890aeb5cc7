"""Commands before a run: `recipe`, `split`, `vocabulary` and `prepare`."""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from keras_transformer.cli import options
from keras_transformer.cli.backend import import_backend
from keras_transformer.cli.progress import sentence_progress
from keras_transformer.console import console
from keras_transformer.data.training_lines import LEAST_COVERAGE

commands = typer.Typer()


@commands.command()
def recipe(
    name: Annotated[str | None, typer.Argument(help="Name of a packaged recipe.")] = None,
    schema: Annotated[
        bool,
        typer.Option("--schema", help="Print the JSON schema that lets editors complete recipes."),
    ] = False,
) -> None:
    """Print a packaged recipe; without a name, list the packaged recipes.

    Example:

        keras-transformer recipe number_names > my.yaml
        keras-transformer recipe --schema > recipe.schema.json
    """
    from keras_transformer.runs.recipe import packaged_recipes, recipe_text

    if schema:
        from keras_transformer.runs.recipe_schema import recipe_schema

        print(json.dumps(recipe_schema(), indent=2, ensure_ascii=False))
    else:
        print("\n".join(packaged_recipes()) if name is None else recipe_text(name).rstrip())


@commands.command()
def vocabulary(
    files: Annotated[list[str], typer.Argument(help="Text files or globs; may be compressed.")],
    output: Annotated[Path, typer.Option(help="Tokenizer file to write.")],
    size: Annotated[int, typer.Option(help="Number of tokens.", min=261)] = 8000,
    model_type: Annotated[str, typer.Option(help="bpe or unigram.")] = "bpe",
    normalization: Annotated[str, typer.Option(help="nfc, nfkc or identity.")] = "nfc",
    character_coverage: Annotated[
        float,
        typer.Option(
            help="Fraction of the characters that get a token; the others are bytes.",
            min=LEAST_COVERAGE,
            max=1,
        ),
    ] = 1.0,
    tags: Annotated[
        list[str] | None,
        typer.Option("--tag", help="Tag of a corpus, such as <news>. May be given several times."),
    ] = None,
    protected_symbols: Annotated[
        int,
        typer.Option(help="Number of symbols that replace protected text, 0 or at least 2.", min=0),
    ] = 0,
) -> None:
    """Learn a subword vocabulary from text; for a joint one, give the files of both sides.

    Example:

        keras-transformer vocabulary train.en train.de --size 8000 --output joint.model
    """
    from keras_transformer.data.corpus import read_lines
    from keras_transformer.data.report import Sample, text_changes
    from keras_transformer.data.tokenizer import Tokenizer
    from keras_transformer.runs.recipe import TAG

    for tag in tags or ():
        if not TAG.fullmatch(tag):
            must = "a name in angle brackets, such as <news>"
            raise ValueError(f"`--tag` must be {must}. Received: {tag!r}")
    lines = Sample(read_lines(files))  # a pipe can be read only once
    tokenizer = Tokenizer.train_on_lines(
        lines,
        size,
        output,
        model_type=model_type,
        normalization=normalization,
        character_coverage=character_coverage,
        tags=tags or (),
        protected_symbols=protected_symbols,
    )
    for warning in text_changes(", ".join(files), tokenizer, lines.items).warnings:
        console.print(f"Warning: {warning}")
    print(f"{output}: {tokenizer.vocabulary_size:,} tokens")


# Options of `split` for files that hold both sides: {name: (type with help, default)}.
READING: dict[str, tuple[Any, Any]] = {
    name: (Annotated[kind | None, typer.Option(help=text)], None)
    for name, kind, text in (
        ("columns", tuple[str, str], "The columns of source and target: names, or numbers from 1."),
        ("languages", tuple[str, str], "Languages of source and target in TMX, or column names."),
        ("delimiter", str, "The character between two columns of CSV. [default: ,]"),
        ("accelerator", str, "The mark of a key in labels of .po and .mo: &, _ or ~."),
    )
}


@commands.command()
@options.expand("reading", READING)
def split(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Files of source and target; or one or several with both sides: .tsv, .csv, "
            ".jsonl, .parquet, .po, .mo, .tmx. May be compressed.",
            show_default=False,
        ),
    ],
    *,
    reading: dict[str, Any],
    output: Annotated[Path, typer.Option(help="Folder to write the files to.")] = Path("."),
    validation: Annotated[int, typer.Option(help="Pairs for validation.", min=0)] = 1000,
    test: Annotated[int, typer.Option(help="Pairs for the test.", min=0)] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of the random split.")] = 0,
) -> None:
    """Split a corpus into train, val and test; no sentence of val and test is in train.

    Example:

        keras-transformer split corpus.en corpus.de --output data --test 1000
        keras-transformer split po/*.po --output data
    """
    from keras_transformer.data.corpora import read_notes
    from keras_transformer.data.readers import READERS, ReadLog
    from keras_transformer.data.split import split_files
    from keras_transformer.texts import suffix_of

    has_both = len(files) != 2 or any(suffix_of(file) in READERS for file in files)
    sides: tuple[Any, Any] = (files, None) if has_both else (files[0], files[1])
    if columns := reading.get("columns"):
        reading["columns"] = [int(name) if name.isdigit() else name for name in columns]
    log = ReadLog()
    sizes = split_files(
        *sides, output, validation=validation, test=test, seed=seed, log=log, **reading
    )
    for note in read_notes(**vars(log)):
        console.print(note)
    width = max(len(str(path)) for path in sizes)
    for path, number in sizes.items():
        print(f"{path!s:<{width}}  {number:>9,} lines")


@commands.command()
def prepare(
    recipe: options.RecipeArgument,
    data: options.Data = Path("."),
    run: options.Run = None,
    changes: options.Changes = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read the pairs, and build nothing.")
    ] = False,
    lists: Annotated[bool, typer.Option("--list", help="List the stores in the folder.")] = False,
    remove: Annotated[str | None, typer.Option(help="Delete a store that `--list` names.")] = None,
) -> None:
    """Tokenise the training pairs of a recipe ahead of training, on all cores, into a token store.

    Example:

        keras-transformer prepare wmt_base --data ~/wmt
        keras-transformer prepare wmt_base --data ~/wmt --list
    """
    from keras_transformer.data.report import sample_notes
    from keras_transformer.data.token_store import expected_size, list_stores, token_rows
    from keras_transformer.runs.folder import RunFolder
    from keras_transformer.runs.recipe import Recipe

    parsed = Recipe.load(recipe, changes or ())
    folder = RunFolder(options.run_folder(run, recipe))
    folder.check()
    import_backend()
    from keras_transformer.runs.build import (
        find_tokenizers,
        pairs_of,
        splitting_languages,
        store_of,
    )

    store = store_of(parsed, data, folder)
    stores = dict(list_stores(store))
    if remove is not None:
        if remove not in stores:
            raise ValueError(f"`--remove` must name a store in {store}. Received: {remove}")
        shutil.rmtree(store / remove)
        return
    if lists:
        for name, text in stores.items():
            print(f"{name}  {text}")
        return
    with tempfile.TemporaryDirectory() as scratch:
        tokenizers = find_tokenizers(parsed, data, folder, scratch)
    pairs = pairs_of(parsed, data, tokenizers, "train")
    console.print("Counting the pairs ...")
    number, size = expected_size(pairs, tokenizers)
    print(f"{number:,} pairs: a store of about {size / 1e6:,.1f} MB in {store}", flush=True)
    if not dry_run:
        with sentence_progress(number) as advance:
            languages = splitting_languages(parsed, tokenizers, pairs)
            token_rows(pairs, tokenizers, store, advance, languages)
    for note in (*sample_notes(tokenizers), *pairs.notes()):
        print(note)
