"""Commands that translate or score text: `translate` and `score`."""

import contextlib
import math
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from keras_transformer import evaluation
from keras_transformer.cli import options, stream, translators
from keras_transformer.cli.journal import Journal
from keras_transformer.cli.progress import sentence_progress
from keras_transformer.console import console
from keras_transformer.texts import count_lines, open_bytes, read_chunks

NBestOption = Annotated[
    int | None,
    typer.Option(help="Translations per line. The line's number and a tab precede each.", min=1),
]
ScoresOption = Annotated[
    bool, typer.Option("--scores", help="Print the score and a tab before each translation.")
]
MbrOption = Annotated[
    int | None,
    typer.Option(
        help="Choose from the best N translations of each line by minimum Bayes risk: the one that "
        "is most similar to all of them. --beam-size is N, unless it is given.",
        metavar="N",
        min=1,
    ),
]
UtilityOption = Annotated[
    Literal["chrf", "bleu"], typer.Option(help="How --mbr compares two translations.")
]
InputOption = Annotated[
    Path | None, typer.Option(help="File; may be compressed. [default: standard input]")
]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        help="File to write. Until all lines are translated, it is named FILE.partial; after a "
        "kill, the same command goes on. [default: standard output, as lines are translated]"
    ),
]
TokensOption = Annotated[
    bool, typer.Option("--tokens", help="Also print each token, a space and its log-probability.")
]

commands = typer.Typer()


@commands.command()
@options.search_options()
def translate(
    runs: options.TranslatorArguments,
    input: InputOption = None,
    output: OutputOption = None,
    *,
    settings: dict[str, Any],
    n_best: NBestOption = None,
    scores: ScoresOption = False,
    mbr: MbrOption = None,
    mbr_utility: UtilityOption = "chrf",
    dtype: options.Dtype = None,
    batch_sentences: options.BatchSentences = 256,
    model: options.Model = None,
) -> None:
    """Translate standard input to standard output, or a file to a file, line by line.

    It reads, translates and writes some thousand lines at a time. From a pipe to standard output,
    it translates the lines that have arrived. It also takes an exported folder in place of a run;
    with CTranslate2 it uses all cores.

    Example:

        keras-transformer translate runs/multi30k_en_de < english.txt
        keras-transformer translate runs/mine --input english.txt.gz --output german.txt
        keras-transformer translate runs/multi30k_en_de --n-best 4 --scores < english.txt
        keras-transformer translate runs/multi30k_en_de --mbr 20 < english.txt
        keras-transformer translate runs/first runs/second runs/third < english.txt
    """
    from keras_transformer.decoding.reports import long_line_reports

    if mbr is not None and (n_best or 1) > mbr:
        raise ValueError(f"`--n-best` must be at most `--mbr`. Received: {n_best}, {mbr}")
    if output is not None:
        options.check_output(output)
    settings = {"beam_size": mbr} | settings if mbr else settings
    input_context = open_bytes(input) if input else contextlib.nullcontext(sys.stdin.buffer)
    with stream.ends_at_once(), input_context as source:
        total = count_lines(source)
        call: dict[str, Any] = {"n_best": mbr or n_best or 1, "batch_sentences": batch_sentences}
        translator = translators.load_folders(runs, model, dtype=dtype, **settings)
        translator([], **call)  # a wrong option is an error before a line arrives
        output_context: AbstractContextManager[stream.Output | Journal]
        if output is None or stream.is_device(output):
            output_context = stream.open_output(output)
        else:
            form = {"dtype": dtype, "n_best": n_best, "scores": scores, "mbr": [mbr, mbr_utility]}
            # A killed command goes on only if all of these are the same.
            journal_settings = stream.journal_settings(translator, runs, model, call | form)
            partial = output.resolve().with_name(f"{output.resolve().name}.partial")
            output_context = Journal(partial, journal_settings).opened(source, moves_to=output)
        has_bar = output is not None or not sys.stdout.isatty()
        with output_context as writer, sentence_progress(total, writer.lines, has_bar) as progress:
            call["on_progress"] = progress
            is_pipe = total is None and output is None
            chunks = read_chunks(source, writer.lines + 1, is_pipe)
            name = str(input or "standard input")
            results = stream.translate_chunks(translator, chunks, name, call, ahead=not is_pipe)
            for chunk, _, answers in results:
                if mbr is not None:
                    answers = [by_mbr(ranks, mbr_utility)[: n_best or 1] for ranks in answers]
                table = hypothesis_rows(answers, n_best is not None, scores, chunk.first)
                writer.append(stream.as_lines(rows(table)), chunk)
                for report in long_line_reports(answers, chunk.first):
                    console.print(report)


@commands.command()
@options.search_options(*options.OF_SCORES)
def score(
    run: options.RunArgument,
    source: Annotated[str, typer.Argument(help="File of source lines.", show_default=False)],
    target: Annotated[str, typer.Argument(help="File of translations.", show_default=False)],
    tokens: TokensOption = False,
    *,
    settings: dict[str, Any],
    dtype: options.Dtype = None,
    batch_sentences: options.BatchSentences = 256,
    model: options.Model = None,
) -> None:
    """Print how probable given translations are, for each line and in total.

    Each pair is one line of four tab-separated values: the score (as in `translate --scores`), the
    log-probability, the number of tokens including the end token, and the perplexity. The totals of
    all pairs go to standard error.

    Example:

        keras-transformer score runs/multi30k_en_de test.en test.de > scores.tsv
        keras-transformer score runs/multi30k_en_de test.en test.de --tokens
    """
    from keras_transformer.data.corpus import read_parallel
    from keras_transformer.decoding.hypothesis import perplexity_of

    pairs = list(read_parallel(source, target, allow_empty=True))
    sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
    translator = translators.load_runs([run], model, dtype=dtype, **settings)
    scored = translators.with_progress(
        translator.score, sources, targets, batch_sentences=batch_sentences
    )
    stream.write_lines(rows(score_row(pair, tokens) for pair in scored))
    count, total = sum(len(pair.tokens) for pair in scored), sum(pair.log_prob for pair in scored)
    mean = total / count if count else math.nan
    console.print(
        f"{len(scored):,} pairs, {count:,} tokens: log-probability {mean:.4f} per token, "
        f"perplexity {perplexity_of(total, count):.4f}"
    )


def rows(table):
    """Yields each iterable of fields as tab-separated text; a single field keeps its tabs."""
    for fields in map(list, table):
        columns = fields if len(fields) == 1 else [field.replace("\t", " ") for field in fields]
        yield "\t".join(columns)


def hypothesis_rows(answers, with_number, with_score, first):
    """Yields the fields that `translate` prints of each hypothesis; numbers lines from `first`."""
    for number, hypotheses in enumerate(answers, first):
        for hypothesis in hypotheses:
            fields = [str(number)] if with_number else []
            fields += [f"{hypothesis.score:.4f}"] if with_score else []
            yield [*fields, hypothesis.text]


def by_mbr(ranks, utility):
    """Returns the hypotheses of a line in the order of `mbr_order`."""
    order = evaluation.mbr_order([hypothesis.text for hypothesis in ranks], utility)
    return [ranks[index] for index in order]


def score_row(pair, with_tokens):
    """Yields the fields that `score` prints of one pair."""
    yield from (f"{pair.score:.4f}", f"{pair.log_prob:.4f}")
    yield from (str(len(pair.tokens)), f"{pair.perplexity:.4f}")
    if with_tokens:
        for token, log_prob in zip(pair.tokens, pair.log_probs, strict=True):
            yield f"{token} {log_prob:.4f}"
