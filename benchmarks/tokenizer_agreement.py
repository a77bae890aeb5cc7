"""Plain tokenizers and those of TensorFlow graphs on difficult text: same ids, same texts, speed.

    python benchmarks/tokenizer_agreement.py [--strings N] [--text FILE ...] [--opus-mt FOLDER ...]

Each FILE has lines of text, plain or gzip; each FOLDER `source.spm`, `target.spm` and `vocab.json`
of an OPUS-MT model. The other tokenizers are trained here: three rules of `Tokenizer` by two
algorithms, and models as those of T5, LLaMA and others.
"""

import argparse
import functools
import io
import json
import pathlib
import random
import tempfile
import time

import numpy as np
from decode_peers.timing import print_row, print_verdict

# White space and controls of all kinds, marks that are reordered or composed, Hangul, joiners and
# variants of emoji, bidirectional marks, tags, private use, noncharacters, edges of the planes.
AWKWARD = [
    *(*range(0x21), *range(0x7F, 0xA1), 0xAD, 0x61C, 0x1680, 0x180E, *range(0x2000, 0x2010)),
    *(*range(0x2028, 0x2030), 0x202F, 0x205F, *range(0x2060, 0x2070), 0x3000, 0xFEFF),
    *(0x300, 0x301, 0x308, 0x323, 0x327, 0x338, 0x344, 0x345, 0xF71, 0xF74, 0xF80, 0x3099),
    *(0x1100, 0x1161, 0x11A8, 0xAC00, 0xAC01, 0xD7A3, 0xFB01, 0xFDFA, 0xFF9E, 0x1D15E, 0x1D165),
    *(0x2126, 0x212B, 0x2F800, 0x2047, 0x2581, 0x2585, 0xFE0F, 0x1F1E9, 0x1F1EA, 0x1F3FD, 0x1F468),
    *(0x1F600, 0xE0001, 0xE0020, 0xE007F, 0xE0100, 0xD7FF, 0xE000, 0xF8FF, 0xF0000, 0x10FFFD),
    *(0xFDD0, 0xFDEF, 0xFFF9, 0xFFFC, 0xFFFD, 0xFFFE, 0xFFFF, 0x1FFFE, 0x10FFFF),
]
# Names of tokens, tags, and repeated text, which can be split in several ways.
TEXTS = (
    "<s> </s> <unk> <pad> <0x41> <mask> >>fra<< >>deu<< >> >>> << ▁ ▁▁ ⁇ .... ---- ttt \r\n".split(
        " "
    )
)
LIMITS = 0x80, 0x250, 0x800, 0x3000, 0x10000, 0x20000, 0x110000


def awkward_strings(count, lines, seed=0):
    """Returns random strings; every second one stands inside a line of text."""
    rng = random.Random(seed)

    def part():
        kind = rng.random()
        if kind < 0.25:
            return chr(rng.choice(AWKWARD))
        if kind < 0.45:
            return rng.choice(" etaoinETA.<>0,'")
        if kind < 0.55:
            return chr(rng.randrange(*rng.choice([(0x300, 0x370), (0x1100, 0x1200)])))
        if kind < 0.65:
            return rng.choice([*TEXTS, chr(rng.randrange(0xAC00, 0xD7A4))])
        return chr(rng.randrange(rng.choice(LIMITS)))

    def string(number):
        text = "".join(part() for _ in range(rng.randrange(25)))
        text = text.encode("utf-8", "ignore").decode()  # without surrogates
        line = rng.choice(lines) if number % 2 else ""
        place = rng.randrange(len(line) + 1)
        return line[:place] + text + line[place:]

    return [string(number) for number in range(count)]


def compare(tokenizer, strings, rows=2000, chunk=5000):
    """Returns the strings with other ids in the graph, those with other texts, rows with others.

    `rows` of random ids are decoded too. The last values are the seconds of encoding the strings
    and decoding their ids, without a graph and in one.
    """
    graph, seconds = tokenizer.graph, []

    def timed(function, *given):
        start = time.perf_counter()
        found = function(*given)
        seconds.append(time.perf_counter() - start)
        return found

    def chunked(function, given):
        chunks = (given[start : start + chunk] for start in range(0, len(given), chunk))
        return [each for found in map(function, chunks) for each in found.numpy()]

    def strings_of(given):
        return [text.decode() for text in chunked(graph.detokenize, given)]

    ids = timed(tokenizer.encode, strings)
    texts = timed(tokenizer.decode, ids)
    graph_ids = timed(lambda: [row.tolist() for row in chunked(graph.tokenize, strings)])
    graph_texts = timed(strings_of, graph_ids)
    size = (rows, 12)
    random_ids = np.random.default_rng(0).integers(0, tokenizer.vocabulary_size, size, np.int32)
    pairs = zip(tokenizer.decode(random_ids), strings_of(random_ids), strict=True)
    return (
        [s for s, plain, graphic in zip(strings, ids, graph_ids, strict=True) if plain != graphic],
        [
            s
            for s, plain, graphic in zip(strings, texts, graph_texts, strict=True)
            if plain != graphic
        ],
        [pair for pair in pairs if pair[0] != pair[1]],
        seconds,
    )


def train_sentencepiece(lines, vocabulary_size, **options):
    """Returns a model of about `vocabulary_size` pieces, trained by SentencePiece, as bytes."""
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        vocab_size=vocabulary_size,
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    return model.getvalue()


def own(lines, size, rule, algorithm):
    from keras_transformer import Tokenizer

    with tempfile.TemporaryDirectory() as folder:
        options = {"normalization": rule, "model_type": algorithm}
        return Tokenizer.train_on_lines(lines, size, f"{folder}/own.json", **options)


def foreign(lines, size, **options):
    from keras_transformer.data import Tokenizer

    model = train_sentencepiece(lines, size, pad_id=3, **options)
    return Tokenizer.from_sentencepiece(model)


FOREIGN = {
    "as T5": {"model_type": "unigram"},
    "as LLaMA": {
        "model_type": "bpe",
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "user_defined_symbols": ["<mask>", ">>fra<<"],
    },
    "of characters, spaces behind": {
        "model_type": "char",
        "normalization_rule_name": "nmt_nfkc_cf",
        "add_dummy_prefix": False,
        "treat_whitespace_as_suffix": True,
    },
}


def of_symbols(lines, kind, rule):
    from keras_transformer import Tokenizer

    lines = [*lines, "".join(map(chr, AWKWARD))]
    if kind == "words":
        return Tokenizer.words(lines, normalization=rule)
    symbols = [" a  ", "V;P.T", "</s>", "[a](b)\\^"]
    return Tokenizer.characters([*lines, *symbols], normalization=rule, symbols=symbols)


def makers(lines, size):
    """Returns {name: function that returns a tokenizer}, trained on lines."""
    found = {
        f"{rule} {algorithm}": functools.partial(own, lines, size, rule, algorithm)
        for algorithm in ("bpe", "unigram")
        for rule in ("nfc", "nfkc", "identity")
    }
    for kind in ("characters", "words"):
        for rule in ("identity", "nfc", "nfd"):
            found[f"{kind} {rule}"] = functools.partial(of_symbols, lines, kind, rule)
    for name, options in FOREIGN.items():
        found[name] = functools.partial(foreign, lines, size, **options)
    return found


def of_folder(folder, side):
    from keras_transformer.data import Tokenizer

    vocabulary = json.loads((folder / "vocab.json").read_text("utf-8"))
    return Tokenizer.from_marian(folder / f"{side}.spm", vocabulary)


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strings", type=int, default=100_000)
    parser.add_argument("--text", type=pathlib.Path, nargs="*", default=[])
    parser.add_argument("--opus-mt", type=pathlib.Path, nargs="*", default=[])
    return parser.parse_args()


def main():
    from keras_transformer.data import number_names, read_lines

    arguments = parse()
    lines = [line for pair in number_names("train", 1000) for line in pair]
    real = [line for path in arguments.text for line in read_lines(path)]
    real = random.Random(0).sample(real, min(len(real), arguments.strings // 2))
    strings = real + awkward_strings(arguments.strings - len(real), real or lines)
    print(f"{len(strings):,} strings, {len(real):,} of them lines of text")
    made = makers((real or lines)[:10_000], 1000 if real else 340)
    for folder in arguments.opus_mt:
        for side in ("source", "target"):
            made[f"{folder.name} {side}"] = functools.partial(of_folder, folder, side)
    widths = 32, 6, 6, 6, 10, 10, 10, 10
    print_row(widths, "", "ids", "texts", "rows", "encode", "decode", "tokenize", "detokenize")
    wrong = 0
    for name, make in made.items():
        *different, seconds = compare(make(), strings, rows=20_000)
        speeds = (f"{len(strings) / each:,.0f}/s" for each in seconds)
        print_row(widths, name, *map(len, different), *speeds)
        wrong += sum(map(len, different))
        for each in different:
            print(*map(ascii, each[:3]), sep="\n", end="\n" if each else "")
    print_verdict(not wrong, "the tokenizers of graphs give the ids and texts of the plain ones")


if __name__ == "__main__":
    main()
