"""Speed and size of an imported model of OPUS-MT's size, beside CTranslate2's own conversion of it.

The weights are random and the vocabulary is made up, so every translation has the maximum length.

    python benchmarks/opus.py [--sentences 64] [--tokens 20] [--threads 2]
"""

import argparse
import gc
import io
import json
import os
import pathlib
import tempfile
import time

import numpy as np
from process_memory import memory_status

SIZES = {"dim-emb": 512, "transformer-dim-ffn": 2048, "enc-depth": 6, "dec-depth": 6}
TOKENS = 58_100  # and padding
QUANTIZATIONS = (None, "bfloat16", "int8")


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sentences", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=20, help="of each translation")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--ctranslate2-only", action="store_true")
    parser.add_argument("--quantizations", nargs="*", default=QUANTIZATIONS)
    return parser.parse_args()


def write_model(folder, layers):
    """Writes random weights, a vocabulary and SentencePiece models as Marian's."""
    import sentencepiece

    from keras_transformer.data import number_names

    model = io.BytesIO()
    lines = [line for pair in number_names("train", 2000) for line in pair]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        vocab_size=200,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    for side in ("source", "target"):
        (folder / f"{side}.spm").write_bytes(model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    pieces = [processor.id_to_piece(i) for i in range(3, processor.get_piece_size())]
    pieces = ["</s>", "<unk>", *pieces]
    pieces += [f"\u2581word{number}" for number in range(TOKENS - len(pieces))]
    lines = (f"{json.dumps(p, ensure_ascii=False)}: {i}\n" for i, p in enumerate(pieces))
    (folder / "opus.vocab.yml").write_text("".join(lines), "utf-8")
    np.savez(folder / "opus.npz", **random_arrays(layers))


def random_arrays(layers):
    rng = np.random.default_rng(0)
    width, inner = SIZES["dim-emb"], SIZES["transformer-dim-ffn"]

    def matrix(*shape):
        return rng.standard_normal(shape, "float32") * shape[0] ** -0.5

    arrays = {"Wemb": matrix(TOKENS, width) * (TOKENS / width) ** 0.5}
    arrays["decoder_ff_logit_out_b"] = np.zeros((1, TOKENS), "float32")
    arrays["decoder_ff_logit_out_b"][0, 0] = -1e4  # sentences have the maximum length
    for side, attentions in (("encoder", ["self"]), ("decoder", ["self", "context"])):
        for index in range(1, layers + 1):
            block = f"{side}_l{index}"
            for name in attentions:
                for part in "qkvo":
                    arrays[f"{block}_{name}_W{part}"] = matrix(width, width)
                    arrays[f"{block}_{name}_b{part}"] = np.zeros((1, width), "float32")
            arrays[f"{block}_ffn_W1"] = matrix(width, inner)
            arrays[f"{block}_ffn_W2"] = matrix(inner, width)
            arrays[f"{block}_ffn_b1"] = np.zeros((1, inner), "float32")
            arrays[f"{block}_ffn_b2"] = np.zeros((1, width), "float32")
            for name in (*(f"{name}_Wo" for name in attentions), "ffn_ffn"):
                arrays[f"{block}_{name}_ln_scale"] = np.ones((1, width), "float32")
                arrays[f"{block}_{name}_ln_bias"] = np.zeros((1, width), "float32")
    options = {
        **{"type": "transformer", "dim-vocabs": [TOKENS, TOKENS], "transformer-heads": 8},
        **SIZES | {"enc-depth": layers, "dec-depth": layers},
        **{"transformer-ffn-activation": "swish", "tied-embeddings-all": True},
        **{"transformer-preprocess": "", "transformer-postprocess": "dan"},
        **{"transformer-postprocess-emb": "d", "transformer-decoder-autoreg": "self-attention"},
        **{"transformer-no-projection": False, "transformer-guided-alignment-layer": "last"},
    }
    text = json.dumps(options).encode() + b"\0"
    return arrays | {"special:model.yml": np.frombuffer(text, np.int8)}


def size_of(path):
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return f"{sum(file.stat().st_size for file in files) / 2**20:,.0f} MiB"


def seconds(function, at_least=2):
    """The time of the fastest of a few calls, after one that warms up."""
    function()
    times = []
    for _ in range(at_least):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def main():
    arguments = parse()
    os.environ["TF_NUM_INTRAOP_THREADS"] = str(arguments.threads)
    import ctranslate2

    import keras_transformer as kt

    lines = [source for source, _ in kt.number_names("held_out", arguments.sentences)]
    limits = {"beam_size": 4, "length_ratio": 0.0, "extra_length": arguments.tokens}
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {arguments.threads} threads")
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        write_model(folder, arguments.layers)
        tokenizer_cost(folder, lines)
        start = time.perf_counter()
        translator = kt.import_model(folder, folder / "run", **limits)
        print(f"import: {time.perf_counter() - start:.1f} s, {size_of(folder / 'run')} on disk")

        def report(name, size, translate):
            few, many = lines[:1], lines
            rates = (
                1 / seconds(lambda: translate(few)),
                len(many) / seconds(lambda: translate(many)),
            )
            print(f"{name:32} {size:>10} {rates[0]:8.2f} {rates[1]:8.2f}", flush=True)

        print(f"{'sentences/s at batch':32} {'size':>10} {1:8} {len(lines):8}")
        if not arguments.ctranslate2_only:
            report("ours, float32", size_of(folder / "run" / "model.keras"), translator)
        for quantization in arguments.quantizations:
            kt.export_ctranslate2(translator, folder / f"ours-{quantization}", quantization)
        tokens = translator.source_tokenizer.vocabulary
        rows = translator.source_tokenizer.encode(lines)
        pieces = [[tokens[token_id] for token_id in row] for row in rows]
        del translator
        gc.collect()
        if not arguments.ctranslate2_only:
            bfloat16 = kt.load_run(folder / "run", dtype="bfloat16", **limits)
            report("ours, bfloat16", "", bfloat16)
            del bfloat16
            gc.collect()
        vocabulary = str(folder / "opus.vocab.yml")
        for quantization in arguments.quantizations:
            converter = ctranslate2.converters.MarianConverter(
                str(folder / "opus.npz"), [vocabulary, vocabulary]
            )
            converter.convert(str(folder / f"theirs-{quantization}"), quantization=quantization)
            for name, side in (("our export", "ours"), ("their converter", "theirs")):
                path = folder / f"{side}-{quantization}"
                translate = engine_of(ctranslate2, path, quantization, pieces, arguments)
                report(
                    f"CTranslate2, {name}, {quantization or 'float32'}", size_of(path), translate
                )
                del translate
                gc.collect()


def engine_of(ctranslate2, path, quantization, pieces, arguments):
    supported = ctranslate2.get_supported_compute_types("cpu")
    compute_type = quantization if quantization in supported else "default"
    engine = ctranslate2.Translator(
        str(path), intra_threads=arguments.threads, compute_type=compute_type
    )

    def translate(lines):
        return engine.translate_batch(
            pieces[: len(lines)],
            beam_size=4,
            max_decoding_length=arguments.tokens,
            max_batch_size=64,
        )

    return translate


def tokenizer_cost(folder, lines):
    """Prints memory and time; call it first: later, memory that was freed is used again."""
    from keras_transformer.data import Tokenizer
    from keras_transformer.importing.files import read_vocabulary

    vocabulary = read_vocabulary(folder / "opus.vocab.yml")
    vocabulary["<pad>"] = len(vocabulary)
    small = {piece: number for number, piece in enumerate(["</s>", "<unk>", "<pad>"])}
    Tokenizer.from_marian(folder / "source.spm", small).encode(lines)  # what all of them share
    before = memory_status("VmRSS")
    tokenizers = [Tokenizer.from_marian(folder / "source.spm", vocabulary) for _ in range(4)]
    memory = (memory_status("VmRSS") - before) / 2**20 / len(tokenizers)
    one = seconds(lambda: tokenizers[0].encode(lines[:1]), at_least=20)
    many = seconds(lambda: tokenizers[0].encode(lines))
    print(
        f"tokenizer: {memory:.0f} MiB for {len(vocabulary):,} pieces, "
        f"{one * 1e3:.2f} ms for one line, {many / len(lines) * 1e6:.0f} us a line of {len(lines)}"
    )


if __name__ == "__main__":
    main()
