"""What a run is worth, in numbers and pictures."""

from pathlib import Path
from typing import Annotated

import typer

from keras_transformer.cli.errors import clear_errors
from keras_transformer.cli.options import (
    AlphaOption,
    BeamSizeOption,
    DataOption,
    LengthPenalty,
    LengthPenaltyOption,
    MaxSourceTokensOption,
    ModelOption,
    OnTooLong,
    OnTooLongOption,
    RunArgument,
    check_output,
    example,
)
from keras_transformer.cli.translators import load_translator, one_line, progress
from keras_transformer.console import console

commands = typer.Typer()


@commands.command(
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
    beam_size: BeamSizeOption = 4,
    length_penalty: LengthPenaltyOption = LengthPenalty.GNMT,
    alpha: AlphaOption = 0.6,
    max_source_tokens: MaxSourceTokensOption = None,
    on_too_long: OnTooLongOption = OnTooLong.SPLIT,
    samples: Annotated[int, typer.Option(help="Translations to show.", min=0)] = 5,
    model: ModelOption = None,
):
    """Translate a test set and score it: BLEU and chrF with their signatures, exact match."""
    with clear_errors():
        from keras_transformer.runs.folder import RunFolder

        folder = RunFolder(run)
        is_recorded = source is None and model is None
        if is_recorded:
            folder.report()  # damaged? Not after the work is done.
        if output is not None:
            check_output(output)
        pairs = list(test_pairs(run, data, source, reference))
        if not pairs:
            raise ValueError(f"`--source` must hold a line to translate. Received: {source}")
        sources, references = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        search = {
            "beam_size": beam_size,
            "length_penalty": length_penalty.setting,
            "alpha": alpha,
            "max_source_tokens": max_source_tokens,
            "on_too_long": on_too_long.value,
        }
        translator = load_translator(run, model, **search)
        search["max_source_tokens"] = translator.settings.max_source_tokens
        with progress(len(pairs)) as on_progress:
            translations = translator(sources, on_progress=on_progress)
        scores, match = evaluation_scores(translations, references, tokenized)
        print_samples(sources, translations, references, samples)
        print(*scores, f"exact match {match:.4f} of {len(pairs):,} lines", sep="\n", flush=True)
        if output is not None:
            write_lines(output, translations)
        if is_recorded:
            by_name = {score.name: vars(score) for score in scores}
            record(folder, search=search, exact_match=match, **by_name)


@commands.command(
    epilog=example('keras-transformer plot runs/multi30k_en_de --text "a man sleeps ."')
)
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
        from keras_transformer import plotting
        from keras_transformer.runs.folder import RunFolder

        plotting.require_matplotlib()
        if text is None:
            pairs = test_pairs(run, data, instead="`--text`")
            text = next(line for line, _ in pairs if line.strip())
        translator = load_translator(run, model, on_too_long="truncate")
        attention = translator.attention(text)
        source, target = attention.source_tokens, attention.target_tokens
        given, scores = attention.decoder_tokens, attention.scores
        embedding = translator.model.encoder.embedding
        positions = range(min(64, embedding.max_sequence_length or 64))
        figures = {
            "attention": plotting.plot_attention(scores["encoder_decoder"], target, source, text),
            "attention_encoder": plotting.plot_attention(scores["encoder"], source, source, text),
            "attention_decoder": plotting.plot_attention(scores["decoder"], target, given, text),
            "curves": plotting.plot_history(RunFolder(run).history_file),
            "positions": plotting.plot_positional_encoding(
                embedding.encode_positions(list(positions))
            ),
        }
        for name, figure in figures.items():
            path = run / f"{name}.png"
            figure.savefig(path, dpi=120)
            RunFolder(run).add_made(path.name)
            print(path)


def print_samples(sources, translations, references, count):
    """Prints the first lines of a test set."""
    for index in range(min(count, len(sources))):
        print(f"source       {sources[index]}")
        print(f"translation  {translations[index]}")
        print(f"reference    {references[index]}\n")


def write_lines(path, lines):
    """Writes lines to a file, whole or not at all; also to a device, such as `/dev/null`."""
    from keras_transformer.atomic_file import write_text

    text = "".join(one_line(line) + "\n" for line in lines)
    if path.exists() and not path.is_file():
        path.write_text(text, "utf-8")
    else:
        write_text(path.resolve(), text)


def record(folder, **figures):
    """Adds figures to the report of a run; says so if they are not of its last model."""
    if "updates" not in folder.report():
        console.print(
            "The run is not finished: these are figures of its best epoch so far. In "
            f"{folder.report_file} they move to `earlier` when it goes on."
        )
    folder.add_to_report(**figures)


def evaluation_scores(translations, references, tokenized):
    """BLEU, where it means something, and chrF; the share of lines that are as the reference."""
    from keras_transformer import evaluation

    scores = [evaluation.chrf(translations, references)]
    # BLEU counts runs of four words: without any it would be 0, however good the translation.
    if any(len(line.split()) >= 4 for line in references):
        scores.insert(0, evaluation.bleu(translations, references, tokenized=tokenized))
    return scores, evaluation.exact_match(translations, references)


def test_pairs(run, data, source=None, reference=None, instead="`--source` and `--reference`"):
    """The sentence pairs to evaluate: those of two files, or of the run's recipe.

    `instead` names the options of the command that do without a test split.
    """
    from keras_transformer.data.corpus import read_parallel
    from keras_transformer.runs.folder import RunFolder

    if (source is None) != (reference is None):
        raise ValueError(
            "`--source` and `--reference` go together. "
            f"Received: --source {source}, --reference {reference}"
        )
    if source is not None:
        return read_parallel(source, reference)
    settings = RunFolder.existing(run).recipe().data
    if settings.test is None:
        raise ValueError(f"The run's recipe has no test split; give {instead}.")
    return settings.pairs("test", data)
