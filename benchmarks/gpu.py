"""Measures exactness and speed on one device, a GPU or the CPU, without TensorFlow.

    python benchmarks/gpu.py
    python benchmarks/gpu.py --smallest

It needs JAX, PyTorch and this checkout with its core requirements. Each part runs in a process of
its own; a part that fails is reported, and the others go on.

- Exactness: 40 updates of Adam, float32 in full precision (no TF32), with deterministic operations.
  The weights are compared with those that JAX computes on the CPU of this machine from the same
  initial weights, and with those of a second run, bit by bit. Dropout is off.
- Training: real target tokens per second of `fit`, at the default precision (TF32 where the backend
  uses it), mixed bfloat16, with dropout; and of PyTorch's `nn.Transformer` under `torch.compile`
  with the same batches. The share of the peak is the operations of the matrix products of the
  model, forward and backward (`train_peers/operations.py`), divided by the time and by the rate of
  one large bfloat16 product on this device, or by `--peak`. Softmax, normalisation, dropout and
  optimizer count as nothing.
- Search: sentences per second of `decoding.search_model`, weights in bfloat16, 32 tokens each,
  ids to ids, and the seconds of the first search, which compiles.

`--smallest` has the least sizes: it shows on any machine, in minutes, that all parts run.
"""

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

BACKENDS = {"jax": "JAX", "torch": "PyTorch"}
SIZES = ("tiny", "base", "big")
SEARCH_BATCHES, SEARCH_LENGTH, BEAMS = (1, 8, 64, 256), 32, (1, 4)
UPDATES, PASSES = 40, 3
TOLERANCE = 1e-4
# As on the page on installing: the same bits in every run, float32 products in full precision.
EXACT = {
    "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_deterministic_ops=true",
    "JAX_DEFAULT_MATMUL_PRECISION": "highest",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "NVIDIA_TF32_OVERRIDE": "0",
}
ON_CPU = {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}


# === In the parent ===


def run_part(name, backend, request, environment=None):
    """Runs a part in a new process; returns its answer, or `None`, with a message, if it fails."""
    # Without the programs of an earlier process: compiling is measured too.
    variables = {"KERAS_BACKEND": backend, "JAX_ENABLE_COMPILATION_CACHE": "0"}
    variables |= environment or {}
    command = [sys.executable, __file__, "--part", name, json.dumps(request)]
    ran = subprocess.run(command, stdout=-1, stderr=-1, text=True, env=os.environ | variables)
    if ran.returncode == 0:
        return json.loads(ran.stdout.splitlines()[-1])
    print(f"{name} on {backend} failed:\n{ran.stderr[-2000:]}", flush=True)
    return None


def exactness(folder):
    """Prints the differences of the weights; returns whether all are small."""
    reference = {"initial": f"{folder}/initial.npz", "trained": f"{folder}/cpu.npz"}
    if run_part("train", "jax", reference, EXACT | ON_CPU) is None:
        return False
    import numpy as np

    expected, passed = np.load(reference["trained"]), True
    for backend, name in BACKENDS.items():
        runs = []
        for number in range(2):
            request = reference | {"trained": f"{folder}/{backend}{number}.npz"}
            answer = run_part("train", backend, request, EXACT)
            if answer is None:
                return False
            runs.append(np.load(request["trained"]))
        # Softmax ignores the bias of the keys: Adam turns the rounding of its gradient into steps.
        compared = [key for key in expected if not key.endswith("key/bias")]
        difference = max(np.abs(runs[0][key] - expected[key]).max() for key in compared)
        is_same = all(np.array_equal(runs[0][key], runs[1][key]) for key in expected)
        passed &= bool(difference <= TOLERANCE)
        print(
            f"{name} on {answer['device']}: weights after {UPDATES} updates within "
            f"{difference:.1e} of the CPU's; a second run gives "
            f"{'the same' if is_same else 'OTHER'} bits",
            flush=True,
        )
    return passed


def training(folder, sizes, peak, smallest):
    """Prints tokens per second and the share of the peak, by size of the model."""
    for size in sizes:
        request = write_batches(folder, size, smallest)
        for label, part, backend in (
            ("ours on JAX", "fit", "jax"),
            ("ours on PyTorch", "fit", "torch"),
            ("nn.Transformer, torch.compile", "compiled_torch", "torch"),
        ):
            found = run_part(part, backend, request)
            if found is None:
                continue
            rate = request["operations"] / found["seconds"]
            cells = f"{request['tokens'] / found['seconds']:,.0f}", f"{rate / peak:.1%}"
            print(f"{size:>6}  {label:<30}  {cells[0]:>12}  {cells[1]:>7}", flush=True)


def searches(sizes, smallest):
    """Prints sentences per second, by size of the model, beam and batch."""
    batches, length = ((2,), 4) if smallest else (SEARCH_BATCHES, SEARCH_LENGTH)
    for size in sizes:
        request = {"size": size, "batches": batches, "length": length, "smallest": smallest}
        for backend, name in BACKENDS.items():
            for beam, batch, first, seconds in run_part("search", backend, request) or ():
                print(
                    f"{size:>6}  {name:<8}  beam {beam}  batch {batch:>3}  "
                    f"{batch / seconds:>9,.1f} sentences/s  {seconds * 1e3:>8,.1f} ms  "
                    f"first {first:.1f} s",
                    flush=True,
                )


def write_batches(folder, size, smallest):
    """Writes the batches of a size; returns the request of the parts that train on them."""
    import dataclasses

    import numpy as np
    from train_peers.engine import save_batches
    from train_peers.operations import operations_of, products_of

    config = config_of(size, smallest)
    rows, length, count = (2, 8, 2) if smallest else (256, 64, 20)
    rng = np.random.default_rng(0)
    batches = []
    for _ in range(count):
        source, labels = rng.integers(4, config.vocabulary_size, (2, rows, length), "int32")
        target = np.concatenate([np.ones((rows, 1), "int32"), labels[:, :-1]], axis=1)
        batches.append((source, target, labels))
    path = os.path.join(folder, f"{size}.npz")
    save_batches(path, batches)
    fields = dataclasses.asdict(config)
    return {
        "batches": path,
        "config": fields,
        "dtype": "bfloat16",
        "tokens": count * rows * length,
        "operations": sum(operations_of(products_of(batch, fields)) for batch in batches),
    }


def config_of(size, smallest):
    from keras_transformer import TransformerConfig

    least = {"num_layers": 1, "hidden_dim": 32, "intermediate_dim": 64, "num_heads": 2}
    vocabulary_size, sizes = (100, least) if smallest else (32_000, {})
    return getattr(TransformerConfig, size)(vocabulary_size, **sizes)


# === In the processes of the parts ===


def train(request):
    """Trains in float32 without dropout, from the initial weights of a file, and saves weights."""
    import keras
    import numpy as np

    import keras_transformer as kt

    if keras.config.backend() == "torch":
        import torch

        torch.use_deterministic_algorithms(True)
        torch.set_float32_matmul_precision("highest")
    keras.utils.set_random_seed(0)
    sizes = {"hidden_dim": 64, "intermediate_dim": 128, "num_heads": 4}
    model = kt.Transformer(  # relu would turn rounding errors into updates of any size
        vocabulary_size=100, num_layers=1, dropout=0.0, activation="gelu", **sizes
    )
    if os.path.exists(request["initial"]):
        with np.load(request["initial"]) as initial:
            model.set_weights([initial[weight.path] for weight in model.weights])
    else:
        save_weights(model, request["initial"])
    optimizer = kt.paper_optimizer(model.config, warmup_steps=20, scale=0.05, epsilon=1e-6)
    model.compile(optimizer, kt.SmoothedCrossEntropy())
    rng = np.random.default_rng(0)
    lengths = rng.integers(2, 21, (16 * UPDATES, 1))
    source, labels = rng.integers(4, 100, (2, len(lengths), 20)) * (np.arange(20) < lengths)
    target = np.pad(labels[:, :-1], ((0, 0), (1, 0)), constant_values=1)
    inputs = {"encoder_token_ids": source, "decoder_token_ids": target}
    model.fit(inputs, labels, batch_size=16, shuffle=False, verbose=0)
    save_weights(model, request["trained"])
    return {"device": device_name()}


def save_weights(model, path):
    import numpy as np
    from keras import ops

    np.savez(path, **{weight.path: ops.convert_to_numpy(weight) for weight in model.weights})


def fit(request):
    """Returns the seconds of one pass of `fit`, the median of some."""
    import keras
    import numpy as np
    from train_peers.engine import load_batches

    import keras_transformer as kt

    keras.utils.set_random_seed(0)
    model = kt.Transformer(kt.TransformerConfig(**request["config"]), dtype="mixed_bfloat16")
    model.compile(kt.paper_optimizer(model.config), kt.SmoothedCrossEntropy())
    batches = load_batches(request["batches"])
    source, target, labels = (np.concatenate(side) for side in zip(*batches, strict=True))
    inputs = {"encoder_token_ids": source, "decoder_token_ids": target}
    options = {"batch_size": len(batches[0][0]), "shuffle": False, "verbose": 0}

    def one_pass():
        model.fit(inputs, labels, **options)

    return {"seconds": median_seconds(one_pass)}


def compiled_torch(request):
    """Returns the seconds of one pass of PyTorch's own Transformer, compiled."""
    from train_peers.torch_model import TorchCompiled

    engine = TorchCompiled(request)
    return {"seconds": median_seconds(engine.train_pass)}


def search(request):
    """Returns beam, batch, seconds of the first search and median of the next ones."""
    import keras
    import numpy as np
    from decode_peers.ours import Ours

    import keras_transformer as kt

    keras.utils.set_random_seed(0)
    config, length = config_of(request["size"], request["smallest"]), request["length"]
    ours = Ours(kt.Transformer(config), "bfloat16")
    rng, found = np.random.default_rng(0), []
    for beam_size in BEAMS:
        for batch in request["batches"]:
            sentences = rng.integers(4, config.vocabulary_size, (batch, length)).tolist()
            began = time.perf_counter()
            ours.decode(sentences, beam_size, length)
            first = time.perf_counter() - began
            seconds = median_seconds(functools.partial(ours.decode, sentences, beam_size, length))
            found.append((beam_size, batch, first, seconds))
    return found


def product(request):
    """Returns the operations per second of one large product, `(n, n) @ (n, n)`, in bfloat16."""
    import jax

    x = jax.random.normal(jax.random.key(0), (request["n"],) * 2, "bfloat16")
    multiply = jax.jit(lambda a, b: a @ b)
    seconds = median_seconds(lambda: multiply(x, x).block_until_ready())
    return {"rate": 2 * request["n"] ** 3 / seconds, "device": device_name(), **versions()}


def median_seconds(work):
    """Returns the median of some calls, after one that is not counted."""
    measured = []
    for _ in range(1 + PASSES):
        began = time.perf_counter()
        work()
        measured.append(time.perf_counter() - began)
    return statistics.median(measured[1:])


def device_name():
    import keras

    if keras.config.backend() == "jax":
        import jax

        return jax.devices()[0].device_kind
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def versions():
    import importlib.metadata

    return {name: importlib.metadata.version(name) for name in ("jax", "torch", "keras")}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=SIZES)
    parser.add_argument("--peak", type=float, help="of the device, in 10^12 operations per second")
    parser.add_argument("--smallest", action="store_true", help="the least sizes, for any machine")
    parser.add_argument("--part", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        name, request = arguments.part
        parts = {part.__name__: part for part in (train, fit, compiled_torch, search, product)}
        print(json.dumps(parts[name](json.loads(request))))
        return
    smallest = arguments.smallest
    sizes = arguments.sizes[:1] if smallest else arguments.sizes
    measured = run_part("product", "jax", {"n": 256 if smallest else 8192})
    if measured is None:
        raise SystemExit("JAX does not run here.")
    peak = (arguments.peak or measured["rate"] / 1e12) * 1e12
    print(", ".join(f"{name} {value}" for name, value in measured.items() if name != "rate"))
    print("\nExactness: float32 in full precision (TF32 off), deterministic operations")
    with tempfile.TemporaryDirectory() as folder:
        passed = exactness(folder)
        print("\nTraining: mixed bfloat16, default precision; target tokens/s, share of the peak")
        print(f"peak: {peak / 1e12:.3g} x 10^12 operations/s")
        training(folder, sizes, peak, smallest)
    print("\nSearch: bfloat16")
    searches(sizes, smallest)
    sys.exit(not passed)


if __name__ == "__main__":
    main()
