"""What is measured of ours alone: `products`, `epoch` and `memory`."""

import itertools
import statistics

import numpy as np
from decode_peers.timing import print_row, print_verdict, progress, with_spread

from train_peers import ENGINES, KEEPING_MALLOC
from train_peers.bench import DTYPES, MIB, Bench, running
from train_peers.worker import Worker

MAX_FIRST_EPOCH = 1.25  # of the second
# The rate of products in the step / their rate alone.
PRODUCT_GOALS = {
    ("tiny", "bfloat16"): 0.45,
    ("tiny", "float32"): 0.65,
    ("base", "bfloat16"): 0.75,
    ("base", "float32"): 0.80,
}
MEMORY_VOCABULARIES = (8000, 32000)
MEMORY_TOKENS = (1024, 2048, 4096)
# Bytes by which memory per token grows for each class; a float32 logit has 4.
MAX_BYTES_PER_CLASS = 0.5


def products(size, arguments, folder):
    """Prints the rate of matrix products in the step and alone, in turns."""
    bench = Bench(size, arguments, folder)
    widths = (8, 14, 14, 14, 20)
    print(f"\n{size}: GFLOP/s of the matrix products, {arguments.threads} thread(s)")
    print_row(widths, "dtype", "MFLOP/token", "products alone", "whole step", "step / products")
    with progress(len(bench.dtypes)) as show:
        for dtype in bench.dtypes:
            show(f"{size}, {dtype}")
            with (
                running(bench.start(ENGINES["ours"].factory, dtype)) as step,
                running(bench.start("products:Products", dtype, KEEPING_MALLOC)) as alone,
            ):
                seconds = {step: [], alone: []}
                for number in range(-1, bench.rounds):
                    for worker in seconds if number % 2 else reversed(seconds):
                        answer = worker.measure()
                        if number >= 0:
                            seconds[worker].append(answer["seconds"])
                        if worker is alone:
                            operations = answer["operations"]
            pairs = zip(seconds[alone], seconds[step], strict=True)
            ratios = [a / b for a, b in pairs]
            print_row(
                widths,
                dtype,
                f"{operations / step.tokens / 1e6:.1f}",
                *(
                    f"{operations / min(each) / 1e9:.0f}"
                    for each in (seconds[alone], seconds[step])
                ),
                with_spread(ratios),
            )
            floor = PRODUCT_GOALS[size, dtype]
            print_verdict(statistics.median(ratios) >= floor, f"{size}, {dtype}: floor {floor:.0%}")


def epoch(size, arguments, folder):
    """Prints the seconds of the first two epochs of `fit` on the whole corpus."""
    bench = Bench(size, arguments, folder)
    print(f"\n{size}: seconds of the first epochs of the whole corpus, tracing included")
    with progress(len(bench.dtypes)) as show:
        for dtype in bench.dtypes:
            show(f"{size}, {dtype}, two epochs")
            request = {"data": arguments.data, "vocabulary": bench.vocabulary, "slots": bench.slots}
            with running(bench.start("ours_whole:Epochs", dtype, **request)) as worker:
                answer = worker.measure()
            first, second = answer["epochs"]
            print(
                f"{dtype}: {first:.1f} and {second:.1f}, {answer['batches']} batches of "
                f"{answer['shapes']} shapes, {answer['tokens'] / second:,.0f} tokens/s"
            )
            what = f"first / second {first / second:.2f}, at most {MAX_FIRST_EPOCH}"
            print_verdict(first / second <= MAX_FIRST_EPOCH, what)


def memory(size, arguments, folder):
    """Prints the peak memory of a step by vocabulary and tokens, with logits and without.

    A metric that needs logits switches the loss without logits off. Each figure is the peak of a
    step above the memory before it, in a new process.
    """
    del folder
    dtypes = arguments.dtypes or (DTYPES[1:] if arguments.quick else DTYPES)
    settings = list(itertools.product((True, False), MEMORY_VOCABULARIES, dtypes, MEMORY_TOKENS))
    widths = (8, 12, 10, *(9 for _ in MEMORY_TOKENS), 16)
    print(f"\n{size}: peak of a step in MiB by target tokens")
    print_row(widths, "logits", "vocabulary", "dtype", *MEMORY_TOKENS, "KiB per token")
    slopes = {}
    with progress(len(settings)) as show:
        peaks = []
        for is_fused, vocabulary_size, dtype, tokens in settings:
            show(f"{size}, {dtype}, vocabulary {vocabulary_size}, {tokens} tokens")
            peaks.append(peak_of_step(size, arguments, is_fused, vocabulary_size, dtype, tokens))
            if len(peaks) < len(MEMORY_TOKENS):
                continue
            slope = np.polyfit(MEMORY_TOKENS, peaks, 1)[0]
            slopes[is_fused, vocabulary_size, dtype] = slope
            cells = (f"{peak / MIB:.0f}" for peak in peaks)
            logits = "no" if is_fused else "yes"
            print_row(widths, logits, vocabulary_size, dtype, *cells, f"{slope / 1024:.1f}")
            peaks = []
    small, large = MEMORY_VOCABULARIES
    for dtype in dtypes:
        if (True, large, dtype) in slopes:
            grown = slopes[True, large, dtype] - slopes[True, small, dtype]
            per_class = grown / (large - small)
            what = f"{dtype}: {per_class:.2f} bytes per token and class, at most "
            print_verdict(per_class <= MAX_BYTES_PER_CLASS, f"{what}{MAX_BYTES_PER_CLASS}")


def peak_of_step(size, arguments, is_fused, vocabulary_size, dtype, tokens):
    """Returns the peak of a new process, in bytes."""
    request = {
        "factory": "ours_whole:Memory",
        "dtype": dtype,
        "size": size,
        "vocabulary_size": vocabulary_size,
        "is_fused": is_fused,
        "target_tokens": tokens,
    }
    # malloc returns freed blocks of this size to the system at once.
    environment = {"MALLOC_MMAP_THRESHOLD_": "65536"}
    with running(Worker(request, arguments.threads, environment=environment)) as worker:
        return worker.measure()["bytes"]
