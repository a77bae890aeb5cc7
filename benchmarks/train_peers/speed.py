"""`speed`: engines in turns with ours, a table for each size of model."""

import contextlib
import itertools
import statistics

from decode_peers.timing import print_row, print_verdict, progress, with_spread

from train_peers import ENGINES
from train_peers.bench import MIB, Bench, available, running
from train_peers.engine import count_tokens

# The fastest of ours over the fastest library: floor and target.
SPEED_GOALS = {"tiny": (1.6, 2.0), "base": (1.3, 1.5)}
MAX_START = 20  # seconds, tiny

WIDTHS = (24, 8, 9, 9, 18, 7, 6, 6, 12)
HEADER = "", "dtype", "tokens/s", "median", "ours over it", "memory", "start", "first", "loss"


class Row:
    """The measurements of one engine; `seconds` has one pass for each round."""

    def __init__(self, engine, dtype, worker):
        self.engine, self.dtype, self.tokens = engine, dtype, worker.tokens
        self.start_seconds = worker.start_seconds
        first = worker.measure()
        self.first_seconds, self.first_loss = first["seconds"], first["loss"]
        self.seconds, self.ratios = [], []

    def add(self, worker):
        """Measures one pass."""
        answer = worker.measure()
        self.seconds.append(answer["seconds"])
        self.loss, self.peak = answer["loss"], answer["peak"]

    def compare(self, reference):
        """Sets `ratios`: the speed of `reference` / that of this engine, in each round."""
        pairs = zip(self.seconds, reference.seconds, strict=True)
        self.ratios = [(a / self.tokens) / (b / reference.tokens) for a, b in pairs]

    @property
    def rate(self):
        """Target tokens per second in the fastest pass."""
        return self.tokens / min(self.seconds)

    def print(self):
        middle = statistics.median(self.seconds)
        print_row(
            WIDTHS,
            self.engine.name,
            self.dtype,
            f"{self.rate:,.0f}",
            f"{self.tokens / middle:,.0f}",
            with_spread(self.ratios),
            f"{self.peak / MIB:,.0f}",
            f"{self.start_seconds:.0f}",
            f"{self.first_seconds / middle:.1f}",
            f"{self.first_loss:.2f} {self.loss:.2f}",
        )


def speed(size, arguments, folder):
    """Prints the table of one size, then whether the goals are reached."""
    bench = Bench(size, arguments, folder)
    engines = available(arguments)
    tokens = count_tokens(bench.batches)
    print(
        f"\n{size}: {len(bench.batches)} batches of at most {bench.slots:,} slots, {tokens:,} real "
        f"target tokens, {bench.rounds} rounds, {arguments.threads} thread(s)"
    )
    print_row(WIDTHS, *HEADER)
    others = [name for name in engines if name != "ours"]
    peers = list(itertools.product(others, bench.dtypes))
    best, rows = None, []
    with progress(len(peers) + 1) as show, contextlib.ExitStack() as stack:
        show(f"{size}, ours")
        ours = measure_ours(bench, stack)
        best, worker = ours[0]
        for name, dtype in peers:
            show(f"{size}, {ENGINES[name].name}, {dtype}")
            try:
                rows.append(measure_peer(bench, ENGINES[name], dtype, best, worker))
            except RuntimeError as error:
                print(f"{ENGINES[name].name}, {dtype}, is left out: {error}")
                continue
            rows[-1].print()
    if best is not None:  # else Ctrl-C came before it
        judge(size, best, rows)


def measure_ours(bench, stack):
    """Measures our dtypes in turns; returns row and worker of the fastest, still running."""
    found = []
    for dtype in bench.dtypes:
        worker = stack.enter_context(running(bench.start(ENGINES["ours"].factory, dtype)))
        found.append((Row(ENGINES["ours"], dtype, worker), worker))
    for number in range(bench.rounds):
        for row, worker in found if number % 2 else reversed(found):
            row.add(worker)
    found.sort(key=lambda pair: min(pair[0].seconds))
    for row, worker in found:
        row.compare(found[0][0])
        row.print()
        if worker is not found[0][1]:
            worker.close()
    return found


def measure_peer(bench, engine, dtype, best, our_worker):
    """Returns the row of an engine, measured in turns with the fastest of ours."""
    environment = engine.environment
    with running(bench.start(engine.factory, dtype, environment)) as worker:
        row = Row(engine, dtype, worker)
        ours = Reference(best.tokens)
        for number in range(bench.rounds):
            order = [(row, worker), (ours, our_worker)]
            for each, its_worker in order if number % 2 else reversed(order):
                each.add(its_worker)
    row.compare(ours)
    return row


class Reference:
    """Passes of ours beside those of another engine."""

    def __init__(self, tokens):
        self.tokens, self.seconds = tokens, []

    def add(self, worker):
        self.seconds.append(worker.measure()["seconds"])


def judge(size, best, rows):
    """Prints whether the goals of a size are reached."""
    libraries = [row for row in rows if row.engine.is_library]
    floor, target = SPEED_GOALS[size]
    for kind in (libraries, [row for row in rows if not row.engine.is_library]):
        if not kind:
            continue
        peer = min(kind, key=lambda row: statistics.median(row.ratios))
        ratio = statistics.median(peer.ratios)
        print(
            f"\n{size}: ours in {best.dtype} over {peer.engine.name} in {peer.dtype}: "
            f"{with_spread(peer.ratios)}"
        )
        print_verdict(ratio >= floor, f"floor {floor}")
        print_verdict(ratio >= target, f"target {target}")
    if libraries:
        least = min(libraries, key=lambda row: row.peak)
        what = f"peak memory {best.peak / MIB:,.0f} MiB; the least of the libraries: "
        what += f"{least.peak / MIB:,.0f} ({least.engine.name}, {least.dtype})"
        print_verdict(best.peak <= least.peak, what)
    if size == "tiny":
        what = f"start to first update {best.start_seconds:.1f} s, at most {MAX_START}"
        print_verdict(best.start_seconds <= MAX_START, what)
