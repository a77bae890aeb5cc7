"""Measures the peak memory of importing a made-up model with the sizes of NLLB-200 600M.

    python benchmarks/import_memory.py [--backends tensorflow jax] [--dtypes float16 bfloat16]
        [--precisions float32 bfloat16]

Each row is the whole command `keras-transformer import hub FOLDER RUN --precision PRECISION`, in a
process of its own, from two safetensors files of a dtype with an index. The peak is that of
`RssAnon`, which leaves mapped files out, in MiB, read every 5 ms; "libraries" is what importing
them takes, with Keras and its backend. The ratio is the peak divided by the weights in the
precision. Random weights. Linux only; it needs 8 GB of disk.
"""

import argparse
import itertools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

import numpy as np
from decode_peers.timing import print_row

SIZES = {
    **{"d_model": 1024, "encoder_layers": 12, "decoder_layers": 12, "vocab_size": 256_206},
    **{"encoder_ffn_dim": 4096, "decoder_ffn_dim": 4096},
    **{"encoder_attention_heads": 16, "decoder_attention_heads": 16},
}
PIECES = 256_000
MIB = 2**20
WIDTHS = 12, 10, 10, 10, 10, 10, 8, 8
IMPORT = [sys.executable, "-m", "keras_transformer", "import", "hub"]
LIBRARIES = [sys.executable, "-c", "import keras_transformer.importing.importer"]


def shapes():
    """Returns the shapes of the arrays by their names on the Hub."""
    width, inner = SIZES["d_model"], SIZES["encoder_ffn_dim"]
    shapes = {"model.shared.weight": (SIZES["vocab_size"], width)}
    for side, attentions in (("encoder", ["self"]), ("decoder", ["self", "encoder"])):
        layers = [f"model.{side}.layers.{n}" for n in range(SIZES[f"{side}_layers"])]
        norms = [f"model.{side}.layer_norm"]
        for layer in layers:
            for kind in attentions:
                for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    shapes[f"{layer}.{kind}_attn.{name}.weight"] = width, width
                    shapes[f"{layer}.{kind}_attn.{name}.bias"] = (width,)
                norms.append(f"{layer}.{kind}_attn_layer_norm")
            norms.append(f"{layer}.final_layer_norm")
            shapes |= {f"{layer}.fc1.weight": (inner, width), f"{layer}.fc1.bias": (inner,)}
            shapes |= {f"{layer}.fc2.weight": (width, inner), f"{layer}.fc2.bias": (width,)}
        shapes |= {f"{norm}.{part}": (width,) for norm in norms for part in ("weight", "bias")}
    return shapes


def write_safetensors(path, shapes, dtype, rng):
    """Writes random arrays, one after the other."""
    header, offset = {}, 0
    for name, shape in shapes.items():
        size = 2 * int(np.prod(shape))
        kind = {"float16": "F16", "bfloat16": "BF16"}[dtype]
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    content = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(content).to_bytes(8, "little") + content)
        for shape in shapes.values():
            for block in np.array_split(np.empty(int(np.prod(shape)), "?"), 16):
                numbers = 0.02 * rng.standard_normal(len(block), "float32")
                # bfloat16 is the upper half of float32.
                is_half = dtype == "float16"
                bits = numbers.astype("<f2") if is_half else numbers.view("<u4") >> 16
                file.write(bits.astype(bits.dtype if is_half else "<u2").tobytes())


def write_model(folder, dtype):
    """Writes the model and its tokenizer; returns the number of weights."""
    from keras_transformer.data.sentencepiece_proto import BPE, ModelProto

    proto = ModelProto()
    names = ["<unk>", "<s>", "</s>", *(f"▁{number:x}" for number in range(PIECES - 3))]
    kinds = [2, 3, 3, *[1] * (PIECES - 3)]  # unknown, control, normal
    for number, (name, kind) in enumerate(zip(names, kinds, strict=True)):
        proto.pieces.add(piece=name, score=-float(number), type=kind)
    proto.normalizer_spec.name = "identity"
    proto.trainer_spec.model_type = BPE
    proto.trainer_spec.unk_id, proto.trainer_spec.bos_id, proto.trainer_spec.eos_id = 0, 1, 2
    (folder / "sentencepiece.bpe.model").write_bytes(proto.SerializeToString())
    config = {"model_type": "m2m_100", "_name_or_path": "nllb", **SIZES}
    (folder / "config.json").write_text(json.dumps(config))
    arrays, rng = shapes(), np.random.default_rng(0)
    names = [*arrays]
    halves = names[: len(names) // 2], names[len(names) // 2 :]
    index = {}
    for number, part in enumerate(halves, 1):
        file = f"model-{number:05}-of-00002.safetensors"
        write_safetensors(folder / file, {name: arrays[name] for name in part}, dtype, rng)
        index |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return sum(int(np.prod(shape)) for shape in arrays.values())


def peak_memory(command, environment):
    """Runs a command; returns the peak of its `RssAnon` in bytes, and its seconds."""
    start, peak = time.perf_counter(), 0
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        while process.poll() is None:
            status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
            if match := re.search(r"RssAnon:\s+(\d+) kB", status):  # none once it has ended
                peak = max(peak, 1024 * int(match[1]))
            time.sleep(0.005)
        output.seek(0)
        if process.returncode:
            raise SystemExit(output.read())
    return peak, time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--backends", nargs="+", default=["tensorflow", "jax"])
    stored, computed = ["float16", "bfloat16"], ["float32", "bfloat16"]
    parser.add_argument("--dtypes", nargs="+", choices=stored, default=stored)
    parser.add_argument("--precisions", nargs="+", choices=computed, default=computed)
    arguments = parser.parse_args()
    titles = "dtype", "precision", "weights", "libraries", "peak", "ratio", "seconds"
    print_row(WIDTHS, "", *titles)
    for dtype in arguments.dtypes:
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary) / "nllb"
            folder.mkdir()
            count = write_model(folder, dtype)
            for backend, precision in itertools.product(arguments.backends, arguments.precisions):
                environment = os.environ | {"KERAS_BACKEND": backend}
                libraries, _ = peak_memory(LIBRARIES, environment)
                run = folder.parent / "run"
                command = [*IMPORT, folder, run, "--precision", precision]
                peak, seconds = peak_memory(command, environment)
                shutil.rmtree(run)
                weights = count * {"float32": 4, "bfloat16": 2}[precision]
                sizes = (f"{number / MIB:.0f}" for number in (weights, libraries, peak))
                ratio = f"{peak / weights:.2f}"
                print_row(WIDTHS, backend, dtype, precision, *sizes, ratio, f"{seconds:.0f}")


if __name__ == "__main__":
    main()
