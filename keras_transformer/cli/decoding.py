"""Translations: made, and scored."""

import io
import math
import sys
from pathlib import Path
from typing import Annotated

import typer

from keras_transformer.cli.errors import clear_errors
from keras_transformer.cli.options import (
    AlphaOption,
    BatchSentencesOption,
    BeamSizeOption,
    DtypeOption,
    ExtraLengthOption,
    LengthPenalty,
    LengthPenaltyOption,
    LengthRatioOption,
    MaxSourceTokensOption,
    ModelOption,
    OnTooLong,
    OnTooLongOption,
    RunArgument,
    example,
)
from keras_transformer.cli.translators import load_translator, long_line_reports, one_line, progress
from keras_transformer.console import console

MAX_PICTURES = 20

NBestOption = Annotated[
    int | None,
    typer.Option(help="Print so many for each line, after its number and a tab.", min=1),
]
ScoresOption = Annotated[
    bool, typer.Option("--scores", help="Print the score and a tab before each translation.")
]
AttentionOption = Annotated[
    Path | None,
    typer.Option(
        help="Also draw where the model looked; for several lines out-1.png, out-2.png, ..."
    ),
]

commands = typer.Typer()


@commands.command(
    epilog=example(
        "keras-transformer translate runs/multi30k_en_de < english.txt",
        "keras-transformer translate runs/multi30k_en_de --n-best 4 --scores < english.txt",
        'echo "a man sleeps ." | keras-transformer translate runs/mine --attention out.png',
    )
)
def translate(
    run: RunArgument,
    beam_size: BeamSizeOption = 4,
    n_best: NBestOption = None,
    scores: ScoresOption = False,
    attention: AttentionOption = None,
    length_penalty: LengthPenaltyOption = LengthPenalty.GNMT,
    alpha: AlphaOption = 0.6,
    length_ratio: LengthRatioOption = 1.0,
    extra_length: ExtraLengthOption = 50,
    max_source_tokens: MaxSourceTokensOption = None,
    on_too_long: OnTooLongOption = OnTooLong.SPLIT,
    dtype: DtypeOption = None,
    batch_sentences: BatchSentencesOption = 64,
    model: ModelOption = None,
):
    """Translate lines from standard input to standard output, one for one."""
    with clear_errors():
        from keras_transformer import plotting
        from keras_transformer.data.corpus import decode_lines

        if attention is not None:
            plotting.require_matplotlib()
        lines = list(decode_lines(sys.stdin.buffer, "standard input"))
        pictures = [] if attention is None else picture_files(attention, len(lines))
        translator = load_translator(
            run,
            model,
            beam_size=beam_size,
            length_penalty=length_penalty.setting,
            alpha=alpha,
            length_ratio=length_ratio,
            extra_length=extra_length,
            max_source_tokens=max_source_tokens,
            on_too_long=on_too_long.value,
            dtype=dtype and dtype.value,
        )
        with progress(len(lines)) as on_progress:
            found = translator(
                lines,
                n_best=n_best or 1,
                return_attention=bool(pictures),
                batch_sentences=batch_sentences,
                on_progress=on_progress,
            )
        write_lines(hypothesis_fields(found, n_best is not None, scores))
        for report in long_line_reports(found):
            console.print(report)
        if attention is not None:
            draw_attentions(found, lines, pictures)


@commands.command(
    epilog=example(
        "keras-transformer score runs/multi30k_en_de test.en test.de > scores.tsv",
        "keras-transformer score runs/multi30k_en_de test.en test.de --tokens",
    )
)
def score(
    run: RunArgument,
    source: Annotated[str, typer.Argument(help="Text file.", show_default=False)],
    target: Annotated[str, typer.Argument(help="Its translation.", show_default=False)],
    tokens: Annotated[
        bool,
        typer.Option("--tokens", help="Also each token and, after a space, its log-probability."),
    ] = False,
    length_penalty: LengthPenaltyOption = LengthPenalty.GNMT,
    alpha: AlphaOption = 0.6,
    max_source_tokens: MaxSourceTokensOption = None,
    dtype: DtypeOption = None,
    batch_sentences: BatchSentencesOption = 64,
    model: ModelOption = None,
):
    """Tell how probable given translations are: line by line, and all together.

    A line for each pair: its score as `translate --scores` gives it, its log-probability, its
    number of tokens with the end token, its perplexity, tab-separated. The totals of all pairs go
    to standard error.
    """
    with clear_errors():
        from keras_transformer.data.corpus import read_parallel

        pairs = list(read_parallel(source, target))
        sources, targets = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        translator = load_translator(
            run,
            model,
            length_penalty=length_penalty.setting,
            alpha=alpha,
            max_source_tokens=max_source_tokens,
            dtype=dtype and dtype.value,
        )
        with progress(len(pairs)) as on_progress:
            scored = translator.score(
                sources, targets, batch_sentences=batch_sentences, on_progress=on_progress
            )
        write_lines(score_fields(pair, tokens) for pair in scored)
    count, total = sum(len(pair.tokens) for pair in scored), sum(pair.log_prob for pair in scored)
    mean = total / count if count else math.nan
    console.print(
        f"{len(scored):,} pairs, {count:,} tokens: log-probability {mean:.4f} per token, "
        f"perplexity {math.exp(-mean):.4f}"
    )


def write_lines(rows):
    """Writes lists of fields to standard output: tab-separated, each list one line."""
    out = io.TextIOWrapper(sys.stdout.buffer, encoding="utf-8", newline="\n")
    for fields in rows:
        out.write("\t".join(one_line(field.replace("\t", " ")) for field in fields) + "\n")
    out.flush()
    out.detach()


def hypothesis_fields(found, with_number, with_score):
    """What `translate` prints of the hypotheses of all lines."""
    for number, hypotheses in enumerate(found, start=1):
        for hypothesis in hypotheses:
            score = [f"{hypothesis.score:.4f}"] * with_score
            yield [str(number)] * with_number + score + [hypothesis.text]


def score_fields(pair, with_tokens):
    """What `score` prints of one pair."""
    yield from (f"{pair.score:.4f}", f"{pair.log_prob:.4f}")
    yield from (str(len(pair.tokens)), f"{pair.perplexity:.4f}")
    if with_tokens:
        for token, log_prob in zip(pair.tokens, pair.log_probs, strict=True):
            yield f"{token} {log_prob:.4f}"


def picture_files(path, count):
    """The paths of the pictures of so many lines."""
    if count > MAX_PICTURES:
        raise ValueError(
            f"`--attention` draws at most {MAX_PICTURES} lines, a picture each. "
            f"Received: {count:,} lines"
        )
    if not path.parent.is_dir():
        raise FileNotFoundError(f"There is no folder {str(path.parent)!r} for the pictures.")
    path = path.with_suffix(path.suffix or ".png")
    return [path] if count == 1 else [path.with_stem(f"{path.stem}-{i + 1}") for i in range(count)]


def draw_attentions(found, lines, paths):
    """Draws the encoder-decoder attention of each line's best hypothesis, all layers and heads."""
    from keras_transformer import plotting

    for (best, *_), line, path in zip(found, lines, paths, strict=True):
        if best.tokens:
            tokens = best.tokens, best.source_tokens
            plotting.plot_attention(best.attention, *tokens, title=line).savefig(path, dpi=120)
            console.print(str(path))
