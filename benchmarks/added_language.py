"""What does a language that is added at import change? Nothing of the translations of before.

A random model of NLLB-200's kind, whose embeddings are almost equal in pairs, is imported without
and with a new language and its pieces. Old lines must keep their ids, their translations, token by
token, and their scores; text in the new language must use the new pieces and decode to itself.
Exits with an error if anything differs.

    python benchmarks/added_language.py --text train.tsv.gz --new-text train.de.gz

Needs `transformers` and `torch`, which make the model. `--text` has English and Spanish in the
first two columns, or any two languages; `--new-text` has a line of a third one in each line.
"""

import argparse
import json
import pathlib
import sys
import tempfile

import keras
import tokenizer_agreement

import keras_transformer as kt
from keras_transformer.data.corpus import read_lines
from keras_transformer.importing.languages import NLLB_200

NEW, LIKE, SOURCE, TARGET = "tyv_Cyrl", "kir_Cyrl", "eng_Latn", "spa_Latn"
PIECES, END_BIAS, NEAR_TIE = 2000, 12.0, 1e-4
# JAX adds the probabilities of a larger vocabulary in another order.
MOST_DIFFERENCE = 1e-5 if keras.config.backend() == "jax" else 1e-6
SIZES = {
    **{"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "max_position_embeddings": 512},
    **{"encoder_ffn_dim": 96, "decoder_ffn_dim": 96},
    **{"encoder_attention_heads": 4, "decoder_attention_heads": 4},
}


def make(folder, lines):
    """Writes a random model and its tokenizer as the Hub has them."""
    import torch
    from transformers import M2M100Config, M2M100ForConditionalGeneration

    train = tokenizer_agreement.train_sentencepiece
    content = train(lines, PIECES, character_coverage=1.0, model_type="bpe")
    folder.mkdir()
    (folder / "sentencepiece.bpe.model").write_bytes(content)
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"additional_special_tokens": NLLB_200})
    )
    count = kt.Tokenizer.from_sentencepiece(content, pad_token_id=PIECES).vocabulary_size - 1
    size = 1 + count + len(NLLB_200) + 1
    model = M2M100ForConditionalGeneration(M2M100Config(vocab_size=size, **SIZES))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            scale, shift = (0.3, 0.0) if weight.ndim == 2 else (0.1, float("norm.weight" in name))
            weight.copy_(scale * noise + shift)
        embeddings, half = model.model.shared.weight, (size - 4) // 2
        embeddings[4 + half : 4 + 2 * half] = embeddings[4 : 4 + half] * (1 + NEAR_TIE)
        embeddings[1] = 0.0
        # The end is near the mean of what the decoder gives, so that translations end.
        embeddings[2] = END_BIAS * model.model.decoder.layer_norm.bias
    model.save_pretrained(folder)


def compare_translations(old, new, lines):
    """Prints a row for greedy search and beam 4; returns what is wrong."""
    wrong = []
    for beam_size in (1, 4):
        before, after = (
            each(lines, n_best=min(2, beam_size), beam_size=beam_size) for each in (old, new)
        )
        firsts = [(a[0], b[0]) for a, b in zip(before, after, strict=True)]
        ids = sum(a.tokens == b.tokens for a, b in firsts)
        texts = sum(a.text == b.text for a, b in firsts)
        difference = max(abs(a.score - b.score) for a, b in firsts)
        ties = sum(len(h) > 1 and h[0].score - h[1].score < NEAR_TIE for h in before)
        kinds = len({tuple(a.tokens) for a, _ in firsts})
        ended = sum(not a.unfinished for a, _ in firsts)
        of_beam = f", {ties:,} with a near tie" if beam_size > 1 else ""
        print(
            f"beam {beam_size}: {len(lines):,} lines, {kinds:,} different translations, {ended:,} "
            f"with an end{of_beam}: {ids:,} same ids, {texts:,} same strings, scores "
            f"differ by at most {difference:.1e}"
        )
        if min(ids, texts) < len(lines) or difference > MOST_DIFFERENCE:
            wrong.append(f"beam {beam_size}")
    return wrong


def compare_ids(old, new, lines, new_lines):
    """Prints how old and new text is split; returns what is wrong."""
    same = sum(a == b for a, b in zip(old.encode(lines), new.encode(lines), strict=True))
    print(f"ids of {len(lines):,} old lines: {same:,} are the same")
    of_language = new.for_language(new.language_ids[NEW])
    rows, before = of_language.encode(new_lines), old.encode(new_lines)
    used = {i for row in rows for i in row if i >= old.vocabulary_size}
    tokens, tokens_before = (sum(map(len, each)) for each in (rows, before))
    back = sum(a == b for a, b in zip(of_language.decode(rows), new_lines, strict=True))
    back_before = sum(a == b for a, b in zip(old.decode(before), new_lines, strict=True))
    print(
        f"{len(new_lines):,} new lines: {tokens:,} tokens, {tokens_before:,} before; "
        f"{len(used):,} of {new.vocabulary_size - old.vocabulary_size - 1:,} pieces in use; "
        f"{back:,} decode to themselves, {back_before:,} before"
    )
    return ["old ids"] * (same < len(lines)) + ["new text"] * (back < len(new_lines))


def main(options):
    pairs = list(kt.read_parallel(options.text))
    new_lines = [" ".join(line.split()) for line in read_lines(options.new_text)]
    count = options.lines
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        (folder / "new.txt").write_text("\n".join(new_lines[:-count]) + "\n", "utf-8")
        make(folder / "nllb", [text for pair in pairs[: 20 * count] for text in pair])
        settings = {"source_language": SOURCE, "target_language": TARGET, "max_length": 40}
        settings |= {"split": "lines", "print_fn": str}
        old = kt.import_model(folder / "nllb", **settings)
        language = {"add_language": NEW, "like": LIKE, "add_pieces": folder / "new.txt"}
        new = kt.import_model(folder / "nllb", **settings, **language)
        wrong = compare_translations(old, new, [source for source, _ in pairs[-count:]])
        both = [text for pair in pairs[-count:] for text in pair]
        tokenizers = old.source_tokenizer, new.source_tokenizer
        # Normalising changes some; a character that the text to learn from lacks is unknown.
        known = {*"".join(both), *"".join(new_lines[:-count])}
        kept = [
            line
            for line in new_lines[-count:]
            if line == _normalized(old, line) and known.issuperset(line)
        ]
        wrong += compare_ids(*tokenizers, both, kept)
    sys.exit(f"Different: {', '.join(wrong)}" if wrong else 0)


def _normalized(translator, line):
    import sentencepiece

    model = translator.source_tokenizer.model_bytes
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return processor.normalize(line).replace("▁", " ").strip()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--text", required=True, help="TSV of pairs of the model's languages")
    parser.add_argument("--new-text", required=True, help="lines of another language")
    parser.add_argument("--lines", type=int, default=1000, help="lines to translate")
    main(parser.parse_args())
