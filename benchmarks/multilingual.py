"""Imported models of M2M-100 and NLLB-200 beside `transformers`, SentencePiece and CTranslate2.

The models have random weights and pairs of almost equal embeddings; their tokenizers are a
SentencePiece BPE of 2,000 pieces. DATA has the folders `tatoeba_en_es` and `sigmorphon_2020_g2p`.
Exits with 1 if a result misses its bar.

    python benchmarks/multilingual.py --data DATA [--lines 1000] [--kinds nllb m2m]
"""

import argparse
import collections
import gzip
import itertools
import json
import os
import pathlib
import random
import sys
import tempfile
from typing import Any

import numpy as np
from decode_peers.timing import print_verdict
from stamp import stamp
from tokenizer_agreement import awkward_strings, train_sentencepiece

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
CODES = {
    "nllb": ("eng_Latn", "spa_Latn", "deu_Latn", "rus_Cyrl", "zho_Hans", "zul_Latn"),
    "m2m": ("en", "es", "de", "ru", "zh", "zu"),
}
CLASSES = {"nllb": "NllbTokenizer", "m2m": "M2M100Tokenizer"}
SPECIAL = "<s>", "<pad>", "</s>", "<unk>"
PAD, END, UNKNOWN = 1, 2, 3
PIECES = 2000
CLOSE = 1e-4  # of logits and scores
ROUNDING = 1e-6  # of a sum of log-probs in float64
MOST_TOKENS = 20  # of a translation
# No length penalty, because `transformers` and CTranslate2 count the language as a token.
SEARCH: dict[str, Any] = {"length_penalty": None, "max_length": MOST_TOKENS}
SEARCH |= {"extra_length": MOST_TOKENS}
# How many beams must end before the search does: ours, and `early_stopping` of `transformers`. That
# program lets a hypothesis end only among the best of a step, as our "first_beams" does; so ours
# finds better ones by "exhaustive".
STOPPING = {"first_beams": True, "exhaustive": False}
NO_PENALTY = 1e-30  # CTranslate2 stops earlier with 0
# What is put before, behind and into sentences: emoji, spaces, full width, typed tokens.
ODD = ["\U0001f600", "\U0001f468\u200d\U0001f469", "\u00a0", "\u200b", "\uff21\uff22\uff11"]
ODD += ["\u3000", " ", "\u2581", *SPECIAL, "<mask>", "eng_Latn", "__en__"]


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--lines", type=int, default=1000, help="to translate")
    parser.add_argument("--kinds", nargs="*", default=[*CODES], choices=[*CODES])
    return parser.parse_args()


def read_tatoeba(data, split):
    """Returns pairs of an English and a Spanish sentence."""
    text = gzip.decompress((data / "tatoeba_en_es" / f"{split}.tsv.gz").read_bytes()).decode()
    return [tuple(line.split("\t")) for line in text.splitlines()]


def published_languages(kind):
    """Returns the tokens of the languages by their codes, from the lists of `transformers`."""
    from transformers.models import m2m_100, nllb

    if kind == "nllb":
        return {code: code for code in nllb.tokenization_nllb.FAIRSEQ_LANGUAGE_CODES}
    codes = m2m_100.tokenization_m2m_100.FAIRSEQ_LANGUAGE_CODES["m2m100"]
    return {code: f"__{code}__" for code in codes}


def make_model(folder, kind, content, **options):
    """Writes a model as it is published; returns that of `transformers`."""
    from tests.importing import multilingual_models

    model, _ = multilingual_models.make_model(folder, kind, content=content, **options)
    source, target, *_ = CODES[kind]
    write_tokenizer_config(
        folder,
        tokenizer_class=CLASSES[kind],
        src_lang=source,
        tgt_lang=target,
        additional_special_tokens=[*published_languages(kind).values()],
    )
    return model


def write_tokenizer_config(folder, **settings):
    path = folder / "tokenizer_config.json"
    before = json.loads(path.read_text("utf-8")) if path.exists() else {}
    path.write_text(json.dumps(before | settings), "utf-8")


def padded(rows):
    longest = max(map(len, rows))
    return np.array([[*row, *[PAD] * (longest - len(row))] for row in rows], "int32")


# === Logits ===


def compare_logits(theirs, translator, pairs, codes):
    """Compares the logits of 200 pairs of all languages, of 1 to 300 tokens, in padded batches."""
    import torch

    rng = random.Random(0)
    tokenizer = translator.source_tokenizer
    streams = [itertools.chain(*tokenizer.encode(texts)) for texts in zip(*pairs, strict=True)]
    languages = [tokenizer.language_ids[code] for code in codes]

    def text_of(side):
        return itertools.islice(streams[side], rng.choice([1, 300, rng.randint(1, 300)]))

    largest, count = 0.0, 0
    for start in range(0, 200, 10):
        between = [(languages[n % 6], languages[(n + 1) % 6]) for n in range(start, start + 10)]
        sources = padded([[source, *text_of(0), END] for source, _ in between])
        targets = padded([[END, target, *text_of(1)] for _, target in between])
        with torch.no_grad():
            expected = theirs(
                input_ids=torch.tensor(sources),
                attention_mask=torch.tensor((sources != PAD).astype("int64")),
                decoder_input_ids=torch.tensor(targets),
            ).logits.numpy()
        inputs = {"encoder_token_ids": sources, "decoder_token_ids": targets}
        is_read = targets != PAD
        largest = max(largest, np.abs(translator.model(inputs) - expected)[is_read].max())
        count += is_read.sum()
    print(f"{count:,} rows of logits of 200 pairs differ by at most {largest:.2g}")
    return largest <= CLOSE


# === Translations ===


def groups_of(lines, targets):
    """Returns pairs of a target language and its part of the lines."""
    return [(code, lines[number :: len(targets)]) for number, code in enumerate(targets)]


def compare_generated(theirs, translator, lines, codes, beam_size, stopping):
    """Compares token ids with those of `generate`; where they differ, its model scores both.

    Returns the number of equal lines, and of those that ours scores lower.
    """
    from keras_transformer.decoding.search_settings import SearchSettings
    from tests.importing.multilingual_models import generated

    tokenizer, (source, *targets) = translator.source_tokenizer, codes
    ids = tokenizer.language_ids
    settings = SearchSettings(beam_size=beam_size, stopping=stopping, **SEARCH)
    options = {"num_beams": beam_size, "early_stopping": STOPPING[stopping]}
    gains, translations, size = [], [], 50
    for code, part in groups_of(lines, targets):
        for start in range(0, len(part), size):
            rows = tokenizer.encode(part[start : start + size])
            rows = [[ids[source], *row, END] for row in rows]
            expected = generated(theirs, rows, ids[code], **options)
            language_ids = np.full((len(rows), 1), ids[code], "int32")
            result = translator.engine.search(padded(rows), None, settings, 1, language_ids)
            for row, wanted, (ours,) in zip(rows, expected, result.token_ids, strict=True):
                ours = [token_id for token_id in ours.tolist() if token_id != PAD]
                translations.append(tuple(ours))
                if ours != wanted:
                    scores = [score(theirs, row, ids[code], target) for target in (ours, wanted)]
                    gains.append(scores[0] - scores[1])
    equal = len(lines) - len(gains)
    print(
        f"beam {beam_size}, {stopping}: {equal:,} of {len(lines):,} lines have the token ids of "
        f"`generate`; {len(set(translations)):,} distinct translations, "
        f"{sum(translation[-1] == END for translation in translations):,} with an end"
    )
    worse = sum(gain < -ROUNDING for gain in gains)
    if gains:
        print(
            f"  the model of `transformers` in float64 scores {worse} of the others lower: "
            f"log-prob of ours - that of theirs is {min(gains):.2g} to {max(gains):.2g}"
        )
    return equal, worse


def score(theirs, source, language, target):
    """Returns the sum of the log-probs of given tokens, by a teacher-forced pass in float64."""
    import torch

    read = [END, language, *target[:-1]]
    with torch.no_grad():
        output = theirs.double()(
            input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([read])
        )
    theirs.float()
    log_probs = torch.log_softmax(output.logits[0, 1:], -1)
    return float(log_probs[range(len(target)), target].sum())


# === Tokenizers ===


def lines_of_text(data, count=8000):
    """Returns sentences, words of 15 languages, and text that tokenizers read wrong."""
    pairs = [pair for split in ("test", "val") for pair in read_tatoeba(data, split)]
    sentences = [*itertools.chain(*pairs)]
    files = sorted((data / "sigmorphon_2020_g2p" / "test").glob("*.tsv"))
    rows = [row for path in files for row in path.read_text("utf-8").splitlines()[:240]]
    words = [row.partition("\t")[0] for row in rows]
    odd = [
        text
        for part, sentence in zip(ODD * 14, sentences, strict=False)
        for text in (f"{part}{sentence}", f"{sentence}{part}", sentence.replace(" ", part))
    ]
    odd += awkward_strings(200, sentences)
    sentences = sentences[: count - len(words) - len(odd)]
    print(
        f"{len(sentences):,} sentences, {len(words):,} words of {len(files)} languages, "
        f"{len(odd)} odd lines"
    )
    return [*sentences, *words, *odd]


def compare_ids(folder, kind, translator, processor, lines):
    """Compares ids with those of SentencePiece, and of languages with the published lists."""
    if kind == "nllb":
        first = processor.get_piece_size() + 1
        expected = [[i + 1 if i else UNKNOWN for i in row] for row in processor.encode(lines)]
    else:
        table = json.loads((folder / "vocab.json").read_text("utf-8"))
        first = len(table)
        rows = processor.encode(lines, out_type=str)
        expected = [[table.get(piece, UNKNOWN) for piece in row] for row in rows]
    tokenizer = translator.source_tokenizer
    equal = sum(a == b for a, b in zip(tokenizer.encode(lines), expected, strict=True))
    tokens = published_languages(kind)
    ids = {code: first + number for number, code in enumerate(tokens)}
    is_published = tokenizer.language_ids == ids
    print(
        f"{equal:,} of {len(lines):,} lines have the ids of SentencePiece; the languages have "
        f"{'' if is_published else 'NOT '}the published ids"
    )
    print_differences(folder, {tokens[code]: i for code, i in ids.items()}, lines, expected)
    return equal == len(lines) and is_published


def print_differences(folder, language_ids, lines, expected):
    """Prints what the tokenizer of `transformers` reads otherwise, by kind."""
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(folder)
    moved = collections.Counter(
        theirs.convert_tokens_to_ids(token) - i for token, i in language_ids.items()
    )
    if moved.keys() != {0}:
        print(f"  {type(theirs).__name__}, from a list of languages: ids off by {dict(moved)}")
        state_ids(folder, language_ids)
        theirs = AutoTokenizer.from_pretrained(folder)
    special = {*SPECIAL, "<mask>", *language_ids}
    space = theirs.convert_tokens_to_ids("\u2581")
    kinds: dict[str, list[str]] = collections.defaultdict(list)
    for line, row in zip(lines, expected, strict=True):
        ids = theirs(line, add_special_tokens=False)["input_ids"]
        if ids == row:
            continue
        if any(token in line for token in special):
            kinds["a typed token is read as that token"].append(line)
        elif ids == [*row, space]:
            kinds["white space at the end is one more piece"].append(line)
        elif UNKNOWN in row:
            kinds["other runs of unknown characters"].append(line)
        else:
            kinds["other"].append(line)
    print(f"  {type(theirs).__name__} reads {sum(map(len, kinds.values()))} lines otherwise")
    for name, of_kind in kinds.items():
        print(f"  {len(of_kind):6}: {name}, such as {ascii(of_kind[0])}")


def state_ids(folder, language_ids):
    """Writes the published ids into the settings, which `transformers` obeys."""
    mask = {"<mask>": max(language_ids.values()) + 1}
    ids = {token: i for i, token in enumerate(SPECIAL)} | language_ids | mask
    flags = dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word"), False)
    stated = {str(i): {"content": token, "special": True} | flags for token, i in ids.items()}
    write_tokenizer_config(folder, added_tokens_decoder=stated)


# === CTranslate2 ===


def compare_conversions(folder, kind, translator, processor, lines):
    """Compares our export with CTranslate2's conversion of the same folder.

    The settings of the folder's tokenizer must state the published ids, see `state_ids`.
    """
    import ctranslate2

    import keras_transformer as kt

    tokenizer, (source, *targets) = translator.source_tokenizer, CODES[kind]
    # The converter suppresses no token.
    plain = kt.Translator(translator.engine, **translator.all_settings | {"suppressed_tokens": ()})
    ours = kt.load_translator(kt.export_ctranslate2(plain, folder / "ours"))
    converter = ctranslate2.converters.TransformersConverter(str(folder))
    path = converter.convert(str(folder / "theirs"))
    vocabulary = json.loads((folder / "theirs" / "shared_vocabulary.json").read_text("utf-8"))
    tokens, ids = published_languages(kind), tokenizer.language_ids
    wrong = [code for code, token in tokens.items() if vocabulary[ids[code]] != token]
    print(f"CTranslate2 {ctranslate2.__version__}: its vocabulary has {len(wrong)} languages wrong")
    theirs, search = ctranslate2.Translator(path), SEARCH | {"beam_size": 4, "split": "lines"}
    pieces = {processor.id_to_piece(i) for i in range(3, processor.get_piece_size())}
    gaps, sums, of_different = [], [], []  # differences of scores
    for code, part in groups_of(lines, targets):
        answers = ours(part, n_best=1, source_language=source, target_language=code, **search)
        rows = [[vocabulary[i] for i in row] for row in tokenizer.encode(part)]
        results = theirs.translate_batch(
            [[tokens[source], *row, "</s>"] for row in rows],
            [[tokens[code]]] * len(rows),
            beam_size=4,
            num_hypotheses=4,
            length_penalty=NO_PENALTY,
            max_decoding_length=MOST_TOKENS + 1,
            return_scores=True,
        )
        for (best,), result in zip(answers, results, strict=True):
            text = processor.decode_pieces([p for p in result.hypotheses[0] if p in pieces])
            sums.append(abs(best.score - result.scores[0]))
            gaps.append(sums[-1] / len(best.tokens))
            if best.text != text:
                of_different.append(sums[-1])
    print(
        f"{len(lines) - len(of_different):,} of {len(lines):,} strings are those of its own "
        f"conversion; the means of log-probs differ by at most {max(gaps):.2g}, their sums by "
        f"{max(sums):.2g}, in the lines of other strings by {max([0.0, *of_different]):.2g}"
    )
    are_ties = max([0.0, *of_different]) <= CLOSE
    return not wrong and are_ties and max(gaps) <= CLOSE


def compare(kind, content, data, lines, text, folder):
    """Prints all comparisons of a family; returns whether all bars are met."""
    import sentencepiece

    import keras_transformer as kt

    processor = sentencepiece.SentencePieceProcessor(model_proto=content)
    codes, passed = CODES[kind], True
    languages = {"source_language": codes[0], "target_language": codes[1]}

    def report(is_met, what):
        nonlocal passed
        passed &= bool(is_met)
        print_verdict(is_met, f"{kind}: {what}")

    calm = folder / f"{kind}-calm"
    theirs = make_model(calm, kind, content, gain=0.3)
    pairs = read_tatoeba(data, "train")[:6000]
    translator = kt.import_model(calm)
    report(compare_logits(theirs, translator, pairs, codes), "logits differ by at most 1e-4")
    theirs = make_model(folder / kind, kind, content, seed=2, end_bias=16.0)
    translator = kt.import_model(folder / kind, print_fn=str, **languages)
    equal, _ = compare_generated(theirs, translator, lines, codes, 1, "exhaustive")
    report(equal == len(lines), "greedy search has the ids of `generate`")
    equal, worse = compare_generated(theirs, translator, lines, codes, 4, "first_beams")
    is_met = equal >= 0.99 * len(lines) and not worse
    report(is_met, "so has a beam of 4, in 99% of the lines; no other is worse")
    _, worse = compare_generated(theirs, translator, lines, codes, 4, "exhaustive")
    report(not worse, "the other rule of stopping finds none that is worse")
    is_met = compare_ids(folder / kind, kind, translator, processor, text)
    report(is_met, "all ids are SentencePiece's and the published ones")
    is_met = compare_conversions(folder / kind, kind, translator, processor, lines)
    report(is_met, "CTranslate2 has the same strings, but for near ties, and scores")
    return passed


def main():
    arguments = parse()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import transformers

    transformers.logging.set_verbosity_error()
    print(json.dumps(stamp()), f"transformers {transformers.__version__}")
    texts = itertools.chain(*read_tatoeba(arguments.data, "train"))
    content = train_sentencepiece(texts, PIECES, model_type="bpe", character_coverage=1.0)
    lines = [english for english, _ in read_tatoeba(arguments.data, "test")][: arguments.lines]
    text = lines_of_text(arguments.data)
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        passed = [
            compare(kind, content, arguments.data, lines, text, folder) for kind in arguments.kinds
        ]
    sys.exit(not all(passed))


if __name__ == "__main__":
    main()
