"""The command line: `keras-transformer <command>`.

Thin: each command checks its words, calls the package, and prints. TensorFlow is imported only
inside the commands that need it, so that `--help` answers at once.
"""

import io
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from keras_transformer.console import clear_errors, console, import_tensorflow, with_progress

app = typer.Typer(
    help="Sequence-to-sequence Transformers in Keras: train, translate, evaluate, export.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)

RecipeArgument = Annotated[
    str, typer.Argument(help="A recipe file, or the name of a packaged one.", show_default=False)
]
RunArgument = Annotated[Path, typer.Argument(help="Folder of a trained run.", show_default=False)]
ModelOption = Annotated[
    Path | None, typer.Option(help="Another model file of the run. [default: its model.keras]")
]
DataOption = Annotated[Path, typer.Option(help="Folder that the recipe's files are relative to.")]


def example(*lines):
    """The epilogue of a command's help."""
    return "**Example**\n\n" + "\n\n".join(f"`{line}`" for line in lines)


@app.command(epilog=example("keras-transformer train multi30k_en_de --data ~/multi30k"))
def train(
    recipe: RecipeArgument,
    data: DataOption = Path("."),
    run: Annotated[
        Path | None, typer.Option(help="Folder of the run. [default: runs/<recipe>]")
    ] = None,
    resume: Annotated[
        bool, typer.Option(help="Go on with the run in the folder, or delete it and begin anew.")
    ] = True,
):
    """Train a model by a recipe; go on where an interrupted run stopped, at the exact batch."""
    run = run or Path("runs") / Path(recipe).stem
    with clear_errors():
        from keras_transformer.recipe import Recipe

        parsed = Recipe.load(recipe)
        import_tensorflow()
        from keras_transformer.training.callbacks import NonFiniteLossError
        from keras_transformer.training.keeper import TrainingInterrupted
        from keras_transformer.training.trainer import Trainer, begin_anew

        if not resume:
            begin_anew(run)
        trainer = Trainer(parsed, data, run, say=console.print)
        if trainer.finished:
            console.print(f"{run} is trained already: see {trainer.run.report_file}.")
            return
        try:
            report = trainer.train()
        except TrainingInterrupted as interrupted:
            words = ("keras-transformer", "train", recipe, "--data", data, "--run", run)
            console.print(f"\n{interrupted}\nThe same command goes on from there:")
            console.print(shlex.join(map(str, words)))
            raise typer.Exit(128 + interrupted.signal) from None
        except NonFiniteLossError as error:  # not a mistake in the words: exit code 1
            console.print(f"\nError: {error}")
            raise typer.Exit(1) from None
    if trainer.is_chief:
        for name, value in report.items():
            console.print(f"{name:>20}  {value}")
        console.print(f"Next: keras-transformer evaluate {run} --data {data}")


@app.command(epilog=example("keras-transformer doctor multi30k_en_de --data ~/multi30k"))
def doctor(
    recipe: RecipeArgument,
    data: DataOption = Path("."),
    run: Annotated[
        Path | None, typer.Option(help="Folder of the run to be. [default: runs/<recipe>]")
    ] = None,
    timeout: Annotated[
        float, typer.Option(help="Seconds in which the devices must answer.", min=1)
    ] = 60,
):
    """Check all that a long run needs: devices, data, vocabulary, memory, learning, disk."""
    with clear_errors():
        from keras_transformer.recipe import Recipe

        parsed = Recipe.load(recipe)
        import_tensorflow()
        from keras_transformer.training.doctor import examine

        run = run or Path("runs") / Path(recipe).stem
        findings = examine(parsed, data, run, timeout, say=typer.echo)
    if not all(finding.passed for finding in findings):
        raise typer.Exit(1)


@app.command(epilog=example("keras-transformer average runs/multi30k_en_de --last 5"))
def average(
    run: RunArgument,
    last: Annotated[int, typer.Option(help="How many of the last checkpoints.", min=0)] = 5,
    best: Annotated[int, typer.Option(help="Instead: how many of the best.", min=0)] = 0,
    output: Annotated[
        Path | None, typer.Option(help="Model to write. [default: averaged.keras in the run]")
    ] = None,
):
    """Average the weights of a run's last or best checkpoints into one model."""
    with clear_errors():
        from keras_transformer.run_folder import RunFolder

        output = output or RunFolder.existing(run).averaged_file
        import_tensorflow()
        from keras_transformer.training.averaging import average_run

        for path in average_run(run, output, last=last, best=best):
            console.print(f"averaged {path}")
    print(output)


@app.command(epilog=example("keras-transformer translate runs/multi30k_en_de < english.txt"))
def translate(
    run: RunArgument,
    batch_sentences: Annotated[int, typer.Option(help="Sentences decoded together.", min=1)] = 64,
    model: ModelOption = None,
):
    """Translate lines from standard input to standard output, one for one."""
    with clear_errors():
        from keras_transformer.data.corpus import decode_lines

        lines = list(decode_lines(sys.stdin.buffer, "standard input"))
        translator = load_translator(run, model)
        out = io.TextIOWrapper(sys.stdout.buffer, encoding="utf-8", newline="\n")
        for line in with_progress(translator, lines, batch_sentences):
            # One line for one line, whatever the model makes up.
            out.write(line.replace("\r", " ").replace("\n", " ") + "\n")
        out.flush()
        out.detach()


@app.command(
    epilog=example(
        "keras-transformer evaluate runs/multi30k_en_de --data ~/multi30k --tokenized",
        "keras-transformer evaluate runs/mine --source new.en --reference new.de",
    )
)
def evaluate(
    run: RunArgument,
    data: DataOption = Path("."),
    source: Annotated[
        str | None, typer.Option(help="Lines to translate. [default: the recipe's test split]")
    ] = None,
    reference: Annotated[str | None, typer.Option(help="Their reference translations.")] = None,
    tokenized: Annotated[
        bool, typer.Option("--tokenized", help="BLEU on the tokens between white space.")
    ] = False,
    output: Annotated[Path | None, typer.Option(help="Also write the translations here.")] = None,
    samples: Annotated[int, typer.Option(help="Translations to show.", min=0)] = 5,
    model: ModelOption = None,
):
    """Translate a test set and score it: BLEU and chrF with their signatures, exact match."""
    with clear_errors():
        from keras_transformer import evaluation

        pairs = list(test_pairs(run, data, source, reference))
        sources, references = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        translator = load_translator(run, model)
        translations = with_progress(translator, sources, batch_sentences=64)
        scores = [evaluation.chrf(translations, references)]
        # BLEU counts runs of four words: without any it would be 0, however good the translation.
        if any(len(line.split()) >= 4 for line in references):
            scores.insert(0, evaluation.bleu(translations, references, tokenized=tokenized))
        match = evaluation.exact_match(translations, references)
        if output is not None:
            output.write_text("".join(line + "\n" for line in translations), "utf-8")
        if source is None and model is None:
            from keras_transformer.run_folder import RunFolder

            RunFolder(run).add_to_report(
                exact_match=match, **{score.name: vars(score) for score in scores}
            )
    for index in range(min(samples, len(pairs))):
        print(f"source       {sources[index]}")
        print(f"translation  {translations[index]}")
        print(f"reference    {references[index]}\n")
    for score in scores:
        print(score)
    print(f"exact match {match:.4f} of {len(pairs):,} lines")


@app.command(epilog=example("keras-transformer export runs/multi30k_en_de served/"))
def export(
    run: RunArgument,
    directory: Annotated[Path, typer.Argument(help="Folder to write.", show_default=False)],
    model: ModelOption = None,
):
    """Write a SavedModel that takes raw strings and returns translations."""
    with clear_errors():
        translator = load_translator(run, model)
        from keras_transformer.export.saved_model import export_saved_model

        print(export_saved_model(translator, directory))


@app.command(epilog=example('keras-transformer plot runs/multi30k_en_de --text "a man sleeps ."'))
def plot(
    run: RunArgument,
    data: DataOption = Path("."),
    text: Annotated[
        str | None, typer.Option(help="What to translate. [default: first line of the test split]")
    ] = None,
    model: ModelOption = None,
):
    """Draw attention.png, curves.png and positions.png into the run's folder."""
    with clear_errors():
        if text is None:
            text = next(iter(test_pairs(run, data)))[0]
        translator = load_translator(run, model)
        from keras_transformer import plotting
        from keras_transformer.run_folder import RunFolder

        attention = translator.attention(text)
        source, target = attention.source_tokens, attention.target_tokens
        given, scores = attention.decoder_tokens, attention.scores
        encode_positions = translator.model.encoder.embedding.encode_positions
        figures = {
            "attention": plotting.plot_attention(scores["encoder_decoder"], target, source, text),
            "attention_encoder": plotting.plot_attention(scores["encoder"], source, source, text),
            "attention_decoder": plotting.plot_attention(scores["decoder"], target, given, text),
            "curves": plotting.plot_history(RunFolder(run).history_file),
            "positions": plotting.plot_positional_encoding(encode_positions(list(range(64)))),
        }
        for name, figure in figures.items():
            path = run / f"{name}.png"
            figure.savefig(path, dpi=120)
            print(path)


@app.command(
    epilog=example(
        "keras-transformer vocabulary train.en train.de --size 8000 --output joint.model"
    )
)
def vocabulary(
    files: Annotated[list[str], typer.Argument(help="Text files or globs, plain or .gz.")],
    output: Annotated[Path, typer.Option(help="Tokenizer file to write.")],
    size: Annotated[int, typer.Option(help="Number of tokens.", min=8)] = 8000,
    model_type: Annotated[str, typer.Option(help="bpe or unigram.")] = "bpe",
    normalization: Annotated[str, typer.Option(help="nfkc or identity.")] = "nfkc",
    character_coverage: Annotated[float, typer.Option(help="Rarer characters are bytes.")] = 1.0,
):
    """Learn a subword vocabulary from text; give both sides' files for a joint one."""
    with clear_errors():
        import_tensorflow()
        from keras_transformer.data.tokenizer import Tokenizer

        tokenizer = Tokenizer.train(
            files,
            size,
            output,
            model_type=model_type,
            normalization=normalization,
            character_coverage=character_coverage,
        )
    print(f"{output}: {tokenizer.vocabulary_size:,} tokens")


@app.command(epilog=example("keras-transformer recipe number_names > my.yaml"))
def recipe(
    name: Annotated[str | None, typer.Argument(help="Name of a packaged recipe.")] = None,
):
    """Print a packaged recipe, or the names of all."""
    with clear_errors():
        from keras_transformer.recipe import packaged_recipes, recipe_text

        print("\n".join(packaged_recipes()) if name is None else recipe_text(name).rstrip())


def load_translator(run, model=None):
    """Returns the translator of a run; a wrong path is told before TensorFlow is imported."""
    from keras_transformer.run_folder import RunFolder

    RunFolder.existing(run)
    import_tensorflow()
    from keras_transformer.decoding.translator import load_run

    return load_run(run, model)


def test_pairs(run, data, source=None, reference=None):
    """The sentence pairs to evaluate: those of two files, or of the run's recipe."""
    from keras_transformer.data.corpus import read_parallel
    from keras_transformer.run_folder import RunFolder

    if (source is None) != (reference is None):
        raise ValueError(
            "`--source` and `--reference` go together. "
            f"Received: --source {source}, --reference {reference}"
        )
    if source is not None:
        return read_parallel(source, reference)
    settings = RunFolder.existing(run).recipe().data
    if settings.test is None:
        raise ValueError("The run's recipe has no test split; give `--source` and `--reference`.")
    return settings.pairs("test", data)
