"""Checks that a run's translations do not depend on the batch, and measures quality by beam.

    python benchmarks/decode_quality.py RUN --source test.en --reference test.de --tokenized
    python benchmarks/decode_quality.py RUN --model M --source S --reference R --only table

`invariance`: greedy search and beam 4 translate the file as it is, each sentence alone, in other
orders and batches, and with up to 40 extra columns of padding. The token ids must be the same.
Where they differ, both hypotheses are scored alone, and the scores may differ only by rounding: a
tie.

`scores`: compares the scores of beam 4 and greedy search. A beam may prune the better hypothesis,
so a few scores are lower. For each of these sentences the program follows the greedy hypothesis
through the search. It must have been pruned at a step where it was not among the candidates that
the search keeps. The totals are summed again from the log-probs that the search received.

`table`: BLEU, chrF, mean score, length and speed for five beams. The length is the number of words
/ the number of reference words. The speed is that of the second call; the first traces the graph.

The exit code is 1 if a check fails.
"""

import argparse
import functools
import itertools
import os
import statistics
import sys
import time
from dataclasses import replace

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from decode_peers.timing import print_row

import keras_transformer as kt
from keras_transformer.cli.progress import sentence_progress as progress
from keras_transformer.data import read_parallel
from keras_transformer.decoding.frozen import FrozenTransformer
from keras_transformer.decoding.model_search import score_model, search_model
from keras_transformer.decoding.scores import penalties_up_to

GREEDY, BEAM = 1, 4
TABLE_BEAMS = (1, 2, 4, 8, 16)
SHUFFLED_BATCHES = (64, 64, 7, 256, 1000)  # sentences per batch, one shuffle for each
PADDED_BATCHES = (16, 64, 250)
MAX_PADDING = 40
MIN_SAME = 0.998  # fraction of the sentences
MAX_LOWER = 0.03  # fraction of the sentences
TIE = 1e-4  # difference of scores


class Trial:
    """A translator and a test set; translations are `Hypothesis` or tuples of token ids."""

    def __init__(self, translator, pairs):
        self.translator = translator
        self.config = translator.model.config
        self.sources, self.references = zip(*pairs, strict=True)
        source_ids = translator.source_tokenizer.encode(list(self.sources), add_end=True)
        self.source_ids = tf.ragged.constant(source_ids, tf.int32)
        tokens = enumerate(translator.target_tokenizer.vocabulary)
        self._ids = {token: token_id for token_id, token in tokens}

    @functools.cache  # noqa: B019 (there is one trial)
    def hypotheses(self, beam_size):
        """Translates the file in its order, in batches of 64."""
        with progress(len(self.sources)) as advance:
            return self.translate(self.sources, beam_size, on_progress=advance)

    def translate(self, lines, beam_size, **options):
        found = self.translator(lines, n_best=1, beam_size=beam_size, **options)
        return [best for (best,) in found]

    def ids(self, hypothesis):
        return tuple(self._ids[token] for token in hypothesis.tokens)

    def score_alone(self, number, token_ids):
        """Scores given token ids with one forward pass of one sentence."""
        source = self.source_ids[number][None]
        log_probs = score_model(self.translator.model, source, tf.constant([token_ids]))
        settings = self.translator.settings
        divisor = penalties_up_to(len(token_ids), settings)[len(token_ids)]
        return float(tf.reduce_sum(log_probs) / divisor)


# === Invariance ===


def invariance(trial):
    """Checks that the token ids do not depend on the batch."""
    passed, total = True, len(trial.sources)
    for beam_size in (GREEDY, BEAM):
        expected = [trial.ids(hypothesis) for hypothesis in trial.hypotheses(beam_size)]
        print(f"\nBeam {beam_size}: sentences of {total} with the same ids as in batches of 64")
        for what, translate in other_ways(trial, beam_size):
            with progress(total) as advance:
                found = translate(advance)
            differ = [number for number in range(total) if found[number] != expected[number]]
            ties = [is_tie(trial, number, expected[number], found[number]) for number in differ]
            same = total - len(differ)
            passed &= verdict(same >= MIN_SAME * total and all(ties), f"{same:5} {what}")
    return passed


def other_ways(trial, beam_size):
    """Yields the name of each variation, and a function that translates to token ids with it."""
    yield "each alone", functools.partial(one_by_one, trial, beam_size)
    for seed, batch in enumerate(SHUFFLED_BATCHES):
        name = f"shuffled, seed {seed}, in batches of {batch}"
        yield name, functools.partial(shuffled, trial, beam_size, seed, batch)
    # Search directly: a translator sorts by length and pads as little as possible.
    decoder = FrozenTransformer(trial.translator.model)
    settings = replace(trial.translator.settings, beam_size=beam_size)

    def search(source):
        return search_model(decoder, source, settings)

    for seed, batch in enumerate(PADDED_BATCHES):
        name = f"unsorted, in batches of {batch}, with 1 to {MAX_PADDING} extra columns"
        yield name, functools.partial(padded, trial, search, seed, batch)


def one_by_one(trial, beam_size, advance):
    alone = (trial.translate([line], beam_size, on_progress=advance) for line in trial.sources)
    return [trial.ids(hypothesis) for (hypothesis,) in alone]


def shuffled(trial, beam_size, seed, batch, advance):
    order = np.random.default_rng(seed).permutation(len(trial.sources))
    lines = [trial.sources[number] for number in order]
    found = trial.translate(lines, beam_size, batch_sentences=batch, on_progress=advance)
    return [trial.ids(found[place]) for place in np.argsort(order)]


def padded(trial, search, seed, batch, advance):
    rng = np.random.default_rng(seed)
    order, pad = rng.permutation(len(trial.sources)), trial.config.pad_token_id
    found = {}
    for numbers in np.split(order, range(batch, len(order), batch)):
        source = tf.gather(trial.source_ids, numbers).to_tensor(pad)
        more = [[0, 0], [0, rng.integers(1, MAX_PADDING + 1)]]
        result = search(tf.pad(source, more, constant_values=pad))
        rows = tf.RaggedTensor.from_tensor(result.token_ids[:, 0], result.lengths[:, 0])
        found |= zip(numbers, map(tuple, rows.to_list()), strict=True)
        advance(len(numbers))
    return found


def is_tie(trial, number, expected, found):
    """Prints the scores of both hypotheses; returns whether they differ only by rounding."""
    one, other = (trial.score_alone(number, token_ids) for token_ids in (expected, found))
    step = next(t for t in itertools.count() if expected[: t + 1] != found[: t + 1])
    tie = abs(one - other) <= TIE
    print(
        f"      sentence {number + 1}, from step {step + 1} on: scores {one:.6f} and {other:.6f}, "
        f"{'a tie' if tie else 'NO TIE'}"
    )
    return tie


# === Scores ===


def scores(trial):
    """Checks that beam 4 scores higher on average, and explains the sentences where it does not."""
    greedy, beam = trial.hypotheses(GREEDY), trial.hypotheses(BEAM)
    pairs = list(zip(greedy, beam, strict=True))
    same = sum(one.tokens == other.tokens for one, other in pairs)
    # The scores of equal hypotheses differ by rounding.
    lower = [
        number
        for number, (one, other) in enumerate(pairs)
        if other.score < one.score and other.tokens != one.tokens
    ]
    higher = len(pairs) - same - len(lower)
    print(f"\nBeam {BEAM} and greedy search on {len(pairs)} sentences: {same} the same,")
    print(f"beam {BEAM}'s score is higher on {higher} others and lower on {len(lower)}")
    means = [statistics.fmean(one.score for one in found) for found in (greedy, beam)]
    what = f"mean score: greedy search {means[0]:.5f}, beam {BEAM} {means[1]:.5f}"
    passed = verdict(means[1] > means[0], what)
    share = len(lower) / len(pairs)
    passed &= verdict(share <= MAX_LOWER, f"lower on {share:.1%}, at most {MAX_LOWER:.0%}")
    return passed & departures(trial, lower)


def departures(trial, numbers):
    """Prints where greedy hypotheses were pruned; returns whether each pruning was right."""
    steps, faults = [], []
    widths = (8, 9, 9, 8, 16, 10, 9)
    header = ("sentence", "greedy", f"beam {BEAM}", "step", "token", "rank, kept", "behind")
    print_row(widths, *header)
    record = recorder(steps)
    for number in numbers:
        greedy, beam = trial.hypotheses(GREEDY)[number], trial.hypotheses(BEAM)[number]
        steps.clear()
        (recorded,) = trial.translate([trial.sources[number]], BEAM, processors=(record,))
        step, rank, kept, behind = departure(trial.ids(greedy), steps, trial.config.end_token_id)
        at = f"{step + 1} of {len(greedy.tokens)}"
        cells = (f"{greedy.score:.5f}", f"{beam.score:.5f}", at, greedy.tokens[step])
        print_row(widths, number + 1, *cells, f"{rank}, {kept}", f"{behind:.4f}")
        lost = behind < -TIE and greedy.score - beam.score > TIE
        if lost or recorded.tokens != beam.tokens:
            faults.append(number + 1)
    if faults:
        what = f"THE SEARCH IS WRONG: sentences {faults}: it lost a candidate that it had to keep,"
        return verdict(False, f"{what} or it finds another hypothesis when it is recorded")
    return verdict(True, "the greedy hypothesis was never among the kept candidates")


def recorder(steps):
    """Returns a processor that changes nothing and records the search of one sentence in `steps`.

    Each step is the active prefixes, int32 `(W, T)`, and the log-probs of their next tokens,
    float32 `(W, V)`.
    """

    def keep(log_probs, token_ids):
        steps.append((token_ids[0].copy(), log_probs[0].copy()))
        return log_probs

    def process(log_probs, token_ids, index):
        seen = tf.numpy_function(keep, [log_probs, token_ids], tf.float32)
        return tf.ensure_shape(seen, log_probs.shape)

    return process


def departure(hypothesis, steps, end_token_id):
    """Follows a hypothesis through a recorded search to the step at which it was pruned.

    Args:
        hypothesis: tuple of token ids.
        steps: from `recorder`.
        end_token_id: int.

    Returns:
        The step, counted from 0; the rank of the hypothesis among all extensions of that step; the
        number of extensions that the search keeps; the total of the last kept extension minus the
        total of the hypothesis (negative: it should have been kept).
    """
    totals = {(): 0.0}
    alive = [{tuple(row): slot for slot, row in enumerate(rows.tolist())} for rows, _ in steps]
    for step, (_, log_probs) in enumerate(steps):
        totals = {
            (*prefix, token_id): totals[prefix] + float(log_prob)
            for prefix, slot in alive[step].items()
            for token_id, log_prob in enumerate(log_probs[slot])
        }
        prefix = hypothesis[: step + 1]
        if step + 1 < len(steps) and prefix in alive[step + 1]:
            continue
        # 2 W extensions compete for the finished pool; W that do not end stay active.
        is_complete = prefix == hypothesis
        kept = len(log_probs) * (2 if is_complete else 1)
        own = totals.pop(prefix)
        others = [n for p, n in totals.items() if is_complete or p[-1] != end_token_id]
        others.sort(reverse=True)
        return step, 1 + sum(total > own for total in others), kept, others[kept - 1] - own
    raise ValueError(f"The recording must include the last step. Received: {len(steps)} steps")


# === Table ===


def table(trial, tokenized):
    """Prints quality and speed by beam, as Markdown; there is nothing to fail."""
    header = ("beam", "BLEU", "chrF", "mean score", "length", "sentences/s", "of beam 1")
    print(f"\n{len(trial.sources)} sentences in batches of 64\n")
    print(f"| {' | '.join(header)} |\n|{' ---: |' * len(header)}")
    rates = []
    for beam_size in TABLE_BEAMS:
        hypotheses = trial.hypotheses(beam_size)  # traces
        began = time.perf_counter()
        texts = trial.translator(trial.sources, beam_size=beam_size)
        rates.append(len(texts) / (time.perf_counter() - began))
        words, wanted = (sum(len(t.split()) for t in side) for side in (texts, trial.references))
        cells = (
            f"{beam_size:4}",
            f"{kt.evaluation.bleu(texts, trial.references, tokenized=tokenized).value:.2f}",
            f"{kt.evaluation.chrf(texts, trial.references).value:.2f}",
            f"{statistics.fmean(hypothesis.score for hypothesis in hypotheses):10.4f}",
            f"{words / wanted:6.3f}",
            f"{rates[-1]:11.0f}",
            f"{rates[-1] / rates[0]:9.2f}",
        )
        print(f"| {' | '.join(cells)} |", flush=True)
    return True


def verdict(passed, what):
    print(f"{'PASS' if passed else 'FAIL'}  {what}", flush=True)
    return passed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", help="folder of a trained run")
    parser.add_argument("--model", help="another model file, such as an average")
    parser.add_argument("--source", required=True, help="file of sentences, plain or gzip")
    parser.add_argument("--reference", required=True, help="file of their translations")
    parser.add_argument("--tokenized", action="store_true", help="the files are tokenised")
    parser.add_argument("--only", choices=("invariance", "scores", "table"))
    parser.add_argument("--sentences", type=int, help="use only the first N sentences")
    arguments = parser.parse_args()
    pairs = read_parallel(arguments.source, arguments.reference)
    translator = kt.load_run(arguments.run, model=arguments.model)
    trial = Trial(translator, itertools.islice(pairs, arguments.sentences))
    parts = {
        "invariance": invariance,
        "scores": scores,
        "table": functools.partial(table, tokenized=arguments.tokenized),
    }
    chosen = [arguments.only] if arguments.only else parts
    passed = [parts[name](trial) for name in chosen]
    sys.exit(not all(passed))


if __name__ == "__main__":
    main()
