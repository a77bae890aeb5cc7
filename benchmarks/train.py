"""Measures the speed and the memory of training, ours and other libraries', in one run.

    python benchmarks/train.py --data MULTI30K --opennmt-python onmt/bin/python
    python benchmarks/train.py --data MULTI30K --quick --opennmt-python onmt/bin/python
    python benchmarks/train.py products epoch --data MULTI30K
    python benchmarks/train.py memory

`speed` (the default): a table for each size of model. `products`: the rate of matrix products in
the whole step / the rate of the same products alone. `epoch`: the first epoch of `fit` / the
second. `memory`: the peak memory of a step by tokens and vocabulary. `--quick`: fewer batches and
rounds; the base model and the memory in bfloat16 only.

`speed` compares engines. All get the same batches of Multi30k, a fixed random sample, with a joint
vocabulary of 8,000 pieces, and the same sizes, dropout 0.1 at the same places, label smoothing 0.1,
tied embeddings, Adam, and `--threads` cores. Each is a process of its own, and computes while the
others wait. A pass makes one update with each batch. The engines of ours are measured in turns, and
then each of the others in turns with the fastest of ours, in alternating order: memory has no room
for all at once. The columns:

- tokens/s: real target tokens per second, padding not counted, of the fastest pass and of the
  median; the first pass does not count;
- ours over it: the seconds of the engine / those of our fastest dtype in the same round: the
  median, in brackets the minimum and the maximum;
- memory: the peak of the whole process in MiB;
- start: seconds from the start of the process to the end of the first update, imports included;
- first: seconds of the first pass / those of the median;
- loss: per token in the first pass and in the last: all should fall from about ln 8,000 = 9.0.

Each library has its best setting. `train_peers/` has the settings, and why:

- ours: `fit` with the default step. Our model with Keras's step: what remains is the model.
- KerasHub with our batches, and with the padding of its example, 32 tokens, under XLA.
- PyTorch's `nn.Transformer`, eager and with `torch.compile`.
- OpenNMT-tf in its own environment: see `train_peers/opennmt_model.py`.

Nothing else may run: with a third process, PyTorch's threads wait for each other, and it takes
several times as long.

It needs `keras-hub` and `torch`. A missing library is left out, with a message. Linux only.
"""

import argparse
import os
import pathlib
import tempfile

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["CUDA_VISIBLE_DEVICES"] = ""  # compare CPUs only
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from train_peers import ENGINES, alone
from train_peers.bench import DTYPES, SIZES, VOCABULARY_SIZE
from train_peers.corpus import make_tokenizer
from train_peers.speed import speed

MEASURES = {
    function.__name__: function for function in (speed, alone.products, alone.epoch, alone.memory)
}
# Above this load average, other processes compete for the cores.
BUSY = 0.5
DEFAULT_SIZES = {"epoch": ("tiny",), "memory": ("tiny",)}


def use_cores(threads):
    """Pins this process, and those it starts, to this number of cores."""
    cores = sorted(os.sched_getaffinity(0))[-threads:]
    if len(cores) < threads:
        raise SystemExit(f"There are {len(cores)} cores here. Received: --threads {threads}")
    os.sched_setaffinity(0, cores)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "measures", nargs="*", metavar="measure", help=f"of: {', '.join(MEASURES)}; default: speed"
    )
    parser.add_argument("--data", help="folder of Multi30k, with the files of its recipe")
    parser.add_argument("--quick", action="store_true", help="fewer batches and rounds")
    parser.add_argument(
        "--engines", nargs="+", choices=ENGINES, help="in turns with ours; default: all available"
    )
    parser.add_argument("--opennmt-python", help="the python of OpenNMT-tf's own environment")
    parser.add_argument("--sizes", nargs="+", choices=SIZES)
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES)
    parser.add_argument("--batches", type=int, help="batches of a pass")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    chosen = arguments.measures or ["speed"]
    if unknown := set(chosen) - set(MEASURES):
        parser.error(f"There is no measure {', '.join(unknown)}: see --help.")
    needs_data = chosen != ["memory"]
    if needs_data and not arguments.data:
        parser.error("Give the folder of Multi30k, --data.")
    use_cores(arguments.threads)
    if os.getloadavg()[0] > BUSY:
        print(f"Other processes slow this down: load average {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if needs_data:
            make_tokenizer(arguments.data, VOCABULARY_SIZE, str(folder / "vocabulary.json"))
        for measure in chosen:
            for size in arguments.sizes or DEFAULT_SIZES.get(measure, SIZES):
                MEASURES[measure](size, arguments, folder)


if __name__ == "__main__":
    main()
