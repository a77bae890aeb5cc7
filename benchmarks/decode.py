"""Measures the speed and the memory of decoding, ours and other libraries', in one run.

    python benchmarks/decode.py --opennmt-python onmt/bin/python
    python benchmarks/decode.py --quick --opennmt-python onmt/bin/python
    python benchmarks/decode.py free --run RUN --source SOURCE --reference REFERENCE
    python benchmarks/decode.py equal --run RUN --source SOURCE
    python benchmarks/decode.py backends
    python benchmarks/decode.py growth
    python benchmarks/decode.py memory

`forced` (the default): every hypothesis has exactly 16, 32 or 64 tokens, so all libraries run the
same number of steps. `--quick`: only the settings that have a floor, at length 32. `free`: a
trained model translates a file, and hypotheses end by themselves. `equal`: whether a trained
model gives the same hypotheses in CTranslate2 with the same stop rule and the same scores.
`backends`: milliseconds and sentences per second of our search on TensorFlow (by XLA up to 8
sentences, and in the graph), JAX and PyTorch, and of CTranslate2, at length 32.
`growth`: the time per token by length. `memory`: the peak memory of the search, in a new process
for each setting, and a linear fit of the peaks.

All libraries get the same sentences of token ids, the same model sizes and vocabulary, and
`--threads` cores. The time of each includes the conversion of token ids to its own form and back.
A measurement is one decode, or as many as take 0.2 seconds. The libraries are measured in turns,
forwards and backwards. A ratio is the library's seconds / our seconds, so above 1 we are faster:
the median of the rounds, in brackets the minimum and the maximum.

Differences between the libraries:

- JAX and PyTorch have processes of their own; their times include the pipe.
- CTranslate2 has our weights. Its time includes the look-up of token strings. Free-running, it
  scores by n ** alpha, stops at `beam_size` finished hypotheses, and has one maximum length for the
  batch. `free --stopping first_beams` measures our search with its stop rule too. `equal` gives
  both the same rule, penalty and maximum length, and allows an empty hypothesis.
- OpenNMT-tf has its own random weights, so it is not in `free`. Its time includes the look-up of
  token strings and the pipe to its process. Forcing the length costs nothing extra in OpenNMT-tf,
  KerasHub and ours, and almost nothing in CTranslate2.
- KerasHub has our model and no cache: see `decode_peers/keras_hub_samplers.py`. Settings where one
  decode would take minutes are left out; `free` has it if `--peers` names it.

It needs `ctranslate2` and `keras-hub`. OpenNMT-tf needs its own environment, see
`decode_peers/opennmt_tf.py`. A missing library is left out, with a message. Linux only.
"""

import argparse
import contextlib
import importlib.util
import itertools
import multiprocessing
import os
import pathlib
import statistics
from typing import NamedTuple

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["CUDA_VISIBLE_DEVICES"] = ""  # compare CPUs only
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from decode_peers.timing import (
    in_turns,
    print_row,
    print_verdict,
    progress,
    rate,
    ratios,
    with_spread,
)
from process_memory import memory_status

VOCABULARY_SIZE = 8000
BEAMS = (1, 4)
# Free-running: sentences of a batch, the fastest of 64, 128 and 256 for each library.
OURS_FREE_BATCH, PEERS_FREE_BATCH = 256, 64
BACKENDS_LENGTH = 32
MOST_COMPILED = 8  # sentences that our search in TensorFlow is compiled for
GROWTH_LENGTHS = (16, 32, 64, 128, 256)
GROWTH_LIMIT = 2.5
MEMORY_BEAMS = (2, 4, 8)
MEMORY_LENGTHS = (64, 128, 256)
# Maximum error of the linear fit, relative to the peak.
MEMORY_LIMIT = 0.1
EQUAL_ALPHAS = (1.0, 0.6)
EQUAL_MAX_LENGTH = 256
TIE = 1e-4  # difference of scores

# value of --peers -> name in the tables
PEERS = {
    "float32": "ours float32",
    "bfloat16": "ours bfloat16",
    "ct2": "CTranslate2 float32",
    "ct2-int8": "CTranslate2 int8",
    "opennmt": "OpenNMT-tf",
    "kerashub": "KerasHub",
    "graph": "ours float32, graph",
    "jax": "ours on JAX",
    "torch": "ours on PyTorch",
}
OURS, OURS_BFLOAT16, CT2, CT2_INT8, OPENNMT, KERASHUB, GRAPH, JAX, TORCH = PEERS.values()
OURS_FIRST_BEAMS = "ours float32, first_beams"
OF_BACKENDS = ("graph", "jax", "torch", "ct2")  # the peers of `backends`
OF_FORCED = [option for option in PEERS if option not in ("graph", "jax", "torch")]


class Setting(NamedTuple):
    size: str
    beam_size: int
    batch: int
    length: int


class Goal(NamedTuple):
    """In these settings, `ours` must be `floor` times as fast as `peer`, and should be `target`."""

    size: str
    batch: int
    beam_sizes: tuple
    ours: str
    peer: str
    floor: float
    target: float | None = None

    def covers(self, setting):
        same = (self.size, self.batch) == (setting.size, setting.batch)
        return same and setting.beam_size in self.beam_sizes


GOALS = (
    Goal("tiny", 1, (1,), OURS, CT2, floor=0.9, target=1.2),
    Goal("tiny", 1, (4,), OURS, CT2, floor=0.75, target=1.0),
    Goal("tiny", 8, (1, 4), OURS, CT2, floor=0.9),
    Goal("tiny", 64, (1, 4), OURS, CT2, floor=1.0, target=1.1),
    Goal("base", 64, (1, 4), OURS_BFLOAT16, CT2, floor=1.7),
    Goal("tiny", 64, (4,), OURS, OPENNMT, floor=2.0, target=2.5),
    Goal("tiny", 64, (4,), OURS, KERASHUB, floor=8.0),
)


# === The peers ===


@contextlib.contextmanager
def make_peers(model, names, arguments):
    """Yields the available peers by name; ours in float32 is always one of them."""
    from decode_peers.ours import Ours

    peers, threads = [Ours(model)], arguments.threads
    if OURS_FIRST_BEAMS in names:
        peers.append(Ours(model, stopping="first_beams"))
    if OURS_BFLOAT16 in names:
        peers.append(Ours(model, "bfloat16"))
    if {CT2, CT2_INT8} & names and is_installed("ctranslate2"):
        from decode_peers.ctranslate2_engine import CTranslate2

        types = [name.split()[1] for name in (CT2, CT2_INT8) if name in names]
        peers += [CTranslate2(model, compute_type, threads) for compute_type in types]
    if KERASHUB in names and is_installed("keras_hub"):
        from decode_peers.keras_hub_samplers import KerasHub

        peers.append(KerasHub(model))
    if GRAPH in names:
        peers.append(Ours(model, compiled=False))
    with contextlib.ExitStack() as stack:
        for package in ("jax", "torch"):
            if PEERS[package] in names and is_installed(package):
                from decode_peers.backend import Backend

                peers.append(Backend(model, package, threads))
                stack.callback(peers[-1].close)
        if OPENNMT in names and arguments.opennmt_python:
            from decode_peers.opennmt_tf import OpenNMT

            peers.append(OpenNMT(arguments.opennmt_python, model.config, threads))
            stack.callback(peers[-1].close)
        elif OPENNMT in names:
            print("OpenNMT-tf is left out: see --opennmt-python and decode_peers/opennmt_tf.py")
        yield {peer.name: peer for peer in peers}


def is_installed(package):
    found = importlib.util.find_spec(package) is not None
    if not found:
        print(f"{package} is left out: it is not installed")
    return found


def use_threads(threads):
    """Pins this process, and those it starts, to this number of cores."""
    cores = sorted(os.sched_getaffinity(0))[-threads:]
    if len(cores) < threads:
        raise SystemExit(f"There are {len(cores)} cores here. Received: --threads {threads}")
    os.sched_setaffinity(0, cores)
    os.environ["OMP_NUM_THREADS"] = str(threads)
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)


def new_model(size):
    import keras

    import keras_transformer as kt

    keras.utils.set_random_seed(0)
    return kt.Transformer(getattr(kt.TransformerConfig, size)(VOCABULARY_SIZE))


def random_sentences(number):
    """Sentences of 8 to 20 tokens and the end token 2, sorted by length as `Translator` does."""
    import numpy as np

    rng = np.random.default_rng(number)
    lengths = sorted(rng.integers(8, 21, number))
    return [[*rng.integers(4, VOCABULARY_SIZE - 1, length).tolist(), 2] for length in lengths]


# === Forced lengths ===


def forced(arguments):
    """Prints a table for each model size, then whether the goals are reached."""
    settings = list(forced_settings(arguments))
    measured = {}
    with progress(len(settings)) as show:
        for size, group in itertools.groupby(settings, lambda setting: setting.size):
            measure_size(size, list(group), arguments, measured, show)
    for goal in GOALS:
        judge(goal, measured)


def forced_settings(arguments):
    beams = arguments.beams or BEAMS
    lengths = arguments.lengths or ((32,) if arguments.quick else (16, 32, 64))
    for values in itertools.product(arguments.sizes, beams, arguments.batches, lengths):
        setting = Setting(*values)
        if not arguments.quick or any(goal.covers(setting) for goal in GOALS):
            yield setting


def names_of(setting, arguments):
    """The peers to measure: with `--quick`, only those of the goals."""
    names = {PEERS[option] for option in arguments.peers or OF_FORCED}
    if arguments.quick:
        names &= {name for g in GOALS if g.covers(setting) for name in (g.ours, g.peer)}
    return names | {OURS}


def measure_size(size, settings, arguments, measured, show):
    """Prints the table of one size, and adds it to `measured`."""
    names = set().union(*(names_of(setting, arguments) for setting in settings))
    print(f"\n{size}, {arguments.threads} thread(s): tokens/s, and our speed over the peer's")
    with make_peers(new_model(size), names, arguments) as peers:
        widths = [4, 5, 6, len(OURS)] + [26] * (len(peers) - 1)
        print_row(widths, "beam", "batch", "length", *peers)
        for setting in settings:
            _, beam_size, batch, length = setting
            show(f"{size}, beam {beam_size}, batch {batch}, length {length}")
            chosen = names_of(setting, arguments)
            if KERASHUB in peers and peers[KERASHUB].takes_minutes(batch, beam_size, length):
                chosen -= {KERASHUB}
            seconds = in_turns(
                {
                    name: forced_decode(peers[name], random_sentences(batch), beam_size, length)
                    for name in peers
                    if name in chosen
                },
                arguments.rounds,
            )
            measured[setting] = seconds
            cells = (rate(batch * length, seconds, name, OURS) for name in peers)
            print_row(widths, beam_size, batch, length, *cells)


def forced_decode(peer, sentences, beam_size, length):
    def decode():
        lengths = [len(row) for row in peer.decode(sentences, beam_size, length)]
        if lengths != [length] * len(sentences):
            raise RuntimeError(f"{peer.name} must give {length} tokens each. Received: {lengths}")

    return decode


def judge(goal, measured):
    """Prints whether all settings of a goal reach it."""
    reached = {
        setting: ratios(seconds, goal.peer, goal.ours)
        for setting, seconds in measured.items()
        if goal.covers(setting) and {goal.ours, goal.peer} <= set(seconds)
    }
    what = f"{goal.size}, batch {goal.batch}: {goal.ours} over {goal.peer}"
    if not reached:
        print(f"\n{what}: not measured")
        return
    medians = {setting: statistics.median(values) for setting, values in reached.items()}
    worst = min(medians, key=medians.get)
    print(
        f"\n{what}: {medians[worst]:.2f} to {max(medians.values()):.2f} in {len(medians)} settings;"
        f" the least, beam {worst.beam_size} and length {worst.length}: "
        f"{with_spread(reached[worst])}"
    )
    print_verdict(medians[worst] >= goal.floor, f"floor {goal.floor}")
    if goal.target is not None:
        print_verdict(medians[worst] >= goal.target, f"target {goal.target}")


# === Free-running ===


def free(arguments):
    """Translates a file: sentences per second, BLEU, and the fraction equal to our float32."""
    import keras_transformer as kt
    from keras_transformer.data import read_lines

    translator, sentences, order = trained(arguments)
    beams = arguments.beams or BEAMS
    references = list(read_lines(arguments.reference)) if arguments.reference else None
    names = {PEERS[o] for o in arguments.peers or ("bfloat16", "ct2", "ct2-int8")} - {OPENNMT}
    names |= {OURS_FIRST_BEAMS} & {f"{OURS}, {rule}" for rule in arguments.stopping}
    widths = (4, 25, 30, 11, 6)
    sizes = f"{OURS_FREE_BATCH} (others: {PEERS_FREE_BATCH})"
    print(f"{len(order)} sentences in batches of {sizes}, {arguments.threads} thread(s)\n")
    print_row(widths, "beam", "", "sentences/s, ours over it", "same as us", "BLEU")
    with (
        progress(len(beams)) as show,
        make_peers(translator.model, names, arguments) as peers,
    ):
        for beam_size in beams:
            show(f"beam {beam_size}")
            rows = {}
            works = {name: free_decode(peers[name], sentences, beam_size, rows) for name in peers}
            seconds = in_turns(works, arguments.rounds)
            for name in peers:
                same = sum(a == b for a, b in zip(rows[name], rows[OURS], strict=True))
                score = "-"
                if references:
                    texts = translator.target_tokenizer.decode(rows[name])
                    wanted = [references[i] for i in order]
                    score = kt.evaluation.bleu(texts, wanted, tokenized=arguments.tokenized).value
                    score = f"{score:.2f}"
                speed = rate(len(order), seconds, name, OURS)
                print_row(widths, beam_size, name, speed, f"{same / len(order):.1%}", score)


def trained(arguments):
    """Returns the translator of --run, the sentences of --source by length, and their lines."""
    if not (arguments.run and arguments.source):
        raise SystemExit("Give a trained run, --run, and a file to translate, --source.")
    import keras_transformer as kt
    from keras_transformer.data import read_lines

    translator = kt.load_run(arguments.run, model=arguments.model)
    lines = list(read_lines(arguments.source))
    sentences = translator.source_tokenizer.encode(lines, add_end=True)
    order = sorted(range(len(lines)), key=lambda index: len(sentences[index]))
    return translator, [sentences[index] for index in order], order


def batched(sentences, size):
    return [sentences[start : start + size] for start in range(0, len(sentences), size)]


def free_decode(peer, sentences, beam_size, rows):
    """Returns a function that decodes the sentences, in batches, into `rows[peer.name]`."""
    is_ours = peer.name in (OURS, OURS_FIRST_BEAMS, OURS_BFLOAT16)
    batches = batched(sentences, OURS_FREE_BATCH if is_ours else PEERS_FREE_BATCH)

    def decode():
        decoded = [peer.decode(batch, beam_size) for batch in batches]
        rows[peer.name] = list(itertools.chain.from_iterable(decoded))

    return decode


# === Equality ===


def equal(arguments):
    """Compares our hypotheses with those of CTranslate2, which has the same weights and rules."""
    from decode_peers.ctranslate2_engine import CTranslate2
    from decode_peers.ours import Ours

    translator, sentences, order = trained(arguments)
    engine = CTranslate2(translator.model, "float32", arguments.threads)
    rules = {"stopping": "first_beams", "length_penalty": "mean"}
    for alpha, beam_size in itertools.product(EQUAL_ALPHAS, arguments.beams or BEAMS):
        ours = Ours(translator.model, alpha=alpha, **rules)
        found, theirs = [], []
        for batch in batched(sentences, PEERS_FREE_BATCH):
            found += ours.scored(batch, beam_size, EQUAL_MAX_LENGTH)
            theirs += engine.scored(batch, beam_size, EQUAL_MAX_LENGTH, alpha)
        print(f"\nBeam {beam_size}, alpha {alpha}")
        compare(order, found, theirs)


def compare(order, found, theirs):
    """Prints the hypotheses that differ, with both scores, and returns whether all are ties."""
    ties, unequal, rounding = 0, 0, 0.0
    for number, (token_ids, score), (others, other_score) in sorted(
        zip(order, found, theirs, strict=True)
    ):
        difference = abs(score - other_score)
        if token_ids == others:
            rounding = max(rounding, difference)
            continue
        pairs = itertools.zip_longest(token_ids, others)
        step = next(step for step, (one, other) in enumerate(pairs) if one != other)
        is_tie = difference <= TIE
        ties, unequal = ties + is_tie, unequal + 1
        print(
            f"sentence {number + 1}, from token {step + 1} of {len(token_ids)} and {len(others)} "
            f"on: scores {score:.6f} and {other_score:.6f}, {'a tie' if is_tie else 'NO TIE'}"
        )
    same = len(order) - unequal
    what = f"{same} of {len(order)} hypotheses equal, {ties} of the others ties"
    what += f"; the scores of equal ones differ by at most {rounding:.1e}"
    print_verdict(ties == unequal, what)
    return ties == unequal


# === Backends ===


def backends(arguments):
    """Prints milliseconds and sentences per second by backend, and the speed of TensorFlow."""
    names = {GRAPH, *(PEERS[option] for option in arguments.peers or OF_BACKENDS)}
    widths = (4, 5, 20, 10, 12, 18)
    sizes, batches, beams = arguments.sizes, arguments.batches, arguments.beams or BEAMS
    for size in sizes:
        print(f"\n{size}, {BACKENDS_LENGTH} tokens, {arguments.threads} thread(s)")
        print_row(widths, "beam", "batch", "", "ms", "sentences/s", "its speed / ours")
        with (
            progress(len(batches) * len(beams)) as show,
            make_peers(new_model(size), names, arguments) as peers,
        ):
            for beam_size, batch in itertools.product(beams, batches):
                show(f"{size}, beam {beam_size}, batch {batch}")
                sentences = random_sentences(batch)
                works = {
                    name: forced_decode(peer, sentences, beam_size, BACKENDS_LENGTH)
                    for name, peer in peers.items()
                    if name != OURS or batch <= MOST_COMPILED
                }
                seconds = in_turns(works, arguments.rounds)
                ours = OURS if OURS in works else GRAPH
                for name in works:
                    each = statistics.median(seconds[name])
                    speed = with_spread(ratios(seconds, ours, name))
                    cells = f"{each * 1e3:,.1f}", f"{batch / each:,.1f}", speed
                    print_row(widths, beam_size, batch, name, *cells)


# === Growth and memory ===


def growth(arguments):
    """Measures the time per token by length: greedy, batch 64, tiny."""
    lengths = arguments.lengths or GROWTH_LENGTHS
    sentences = random_sentences(64)
    seconds = {}
    with progress(1) as show, make_peers(new_model("tiny"), {CT2}, arguments) as peers:
        show("all lengths in turns")
        works = {
            (name, length): forced_decode(peer, sentences, 1, length)
            for name, peer in peers.items()
            for length in lengths
        }
        seconds = in_turns(works, arguments.rounds)
    first, last = min(lengths), max(lengths)
    for name in dict.fromkeys(name for name, _ in seconds):
        print(f"\n{name}, tiny, greedy, batch 64, {arguments.threads} thread(s)")
        print_row((6, 15, 20), "length", "µs per token", f"growth from {first}")
        for length in lengths:
            each = statistics.median(seconds[name, length]) / (64 * length)
            grown = ratios(seconds, (name, length), (name, first))
            grown = [ratio * first / length for ratio in grown]
            print_row((6, 15, 20), length, f"{each * 1e6:.1f}", with_spread(grown))
        if name == OURS:
            passed = statistics.median(grown) <= GROWTH_LIMIT
            print_verdict(passed, f"from {first} to {last} at most {GROWTH_LIMIT} x")


def memory(arguments):
    """Measures the peak memory of the search by batch, beam and length, and fits a line.

    The fit uses the peaks without oneDNN, which count only live tensors. By default TensorFlow
    uses oneDNN, which also keeps a memory pool and kernels per shape: the last column.
    """
    import numpy as np

    # malloc returns freed blocks of this size to the system at once.
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"
    beams, lengths = arguments.beams or MEMORY_BEAMS, arguments.lengths or MEMORY_LENGTHS
    settings = list(itertools.product(arguments.batches, beams, lengths))
    peaks = []
    with progress(len(settings)) as show:
        for setting in settings:
            show("batch {}, beam {}, length {}".format(*setting))
            peaks.append([peak_of_process(setting, arguments.threads, onednn) for onednn in "01"])
    if len(peaks) < 4:
        raise SystemExit(f"The fit needs at least 4 settings. Received: {len(peaks)}")
    settings, (peaks, pools) = settings[: len(peaks)], np.array(peaks).T
    batch, beam, length = np.array(settings).T
    terms = np.stack([np.ones_like(batch), batch * beam, batch * beam * length], axis=1)
    # Divide by the peaks to minimise the relative error.
    (constant, hypothesis, token), *_ = np.linalg.lstsq(
        terms / peaks[:, None], np.ones_like(peaks), rcond=None
    )
    line = terms @ (constant, hypothesis, token)
    widths = (5, 4, 6, 9, 9, 12)
    print("tiny: peak of the search in MiB\n")
    print_row(widths, "batch", "beam", "length", "peak", "line", "with oneDNN")
    for setting, *numbers in zip(settings, peaks, line, pools, strict=True):
        print_row(widths, *setting, *(f"{number / 2**20:.1f}" for number in numbers))
    print(
        f"\npeak = {constant / 2**20:.1f} MiB + batch x beam x ({hypothesis / 2**10:.1f} KiB + "
        f"length x {token / 2**10:.2f} KiB)"
    )
    off = np.abs(line / peaks - 1).max()
    print_verdict(off <= MEMORY_LIMIT, f"linear: the error of the fit is at most {off:.0%}")


def peak_of_process(setting, threads, onednn):
    """Returns `peak_of_search` of a new process, with or without oneDNN."""
    os.environ["TF_ENABLE_ONEDNN_OPTS"] = onednn
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(peak_of_search, (*setting, threads))


def peak_of_search(batch, beam_size, length, threads):
    """Returns the peak memory of a decode, in bytes above the memory before it."""
    use_threads(threads)
    from decode_peers.ours import Ours

    ours = Ours(new_model("tiny"))
    ours.decode(random_sentences(1), beam_size, 2)  # traces
    sentences = random_sentences(batch)
    before = memory_status("VmRSS")
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    ours.decode(sentences, beam_size, length)
    return memory_status("VmHWM") - before


def main():
    functions = forced, free, equal, backends, growth, memory
    measures = {function.__name__: function for function in functions}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("measure", nargs="?", choices=measures, default="forced")
    parser.add_argument("--quick", action="store_true", help="forced: only settings with a floor")
    parser.add_argument("--peers", nargs="+", choices=PEERS, help="default: see the measure")
    parser.add_argument("--opennmt-python", help="the python of OpenNMT-tf's own environment")
    parser.add_argument("--sizes", nargs="+", choices=("tiny", "base"), default=("tiny", "base"))
    parser.add_argument("--beams", nargs="+", type=int)
    parser.add_argument("--batches", nargs="+", type=int, default=(1, 8, 64))
    parser.add_argument("--lengths", nargs="+", type=int)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--run", help="free, equal: folder of a trained run")
    parser.add_argument("--model", help="free, equal: another model file, such as an average")
    parser.add_argument("--source", help="free, equal: file of sentences")
    rules, help_text = ("exhaustive", "first_beams"), "free: stop rules of our search in float32"
    parser.add_argument("--stopping", nargs="+", choices=rules, default=rules, help=help_text)
    parser.add_argument("--reference", help="free: file of their translations, for BLEU")
    parser.add_argument("--tokenized", action="store_true", help="free: the files are tokenised")
    arguments = parser.parse_args()
    use_threads(arguments.threads)
    measures[arguments.measure](arguments)


if __name__ == "__main__":
    main()
