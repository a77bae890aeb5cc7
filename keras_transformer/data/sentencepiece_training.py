"""Trains SentencePiece models: prepared lines of text -> bytes of a model."""

import io
import os
import re
import tempfile

from keras_transformer.data.pieces import SPACE_SYMBOL
from keras_transformer.data.sentencepiece_proto import ModelProto

PAD_TOKEN_ID, START_TOKEN_ID, END_TOKEN_ID, UNK_TOKEN_ID = range(4)
SEED = 0
LONGEST_LINE = 1 << 20  # bytes; SentencePiece skips longer lines in training


def train_sentencepiece(lines, vocabulary_size, normalization, max_lines, **options):
    """Trains a SentencePiece model with byte fallback.

    Args:
        lines: iterable of normalised strings that UTF-8 can encode.
        vocabulary_size: number of tokens; fewer if the text yields fewer.
        normalization: the rule by which the lines were normalised, as in `Tokenizer.train`.
        max_lines: if there are more lines, trains on a uniform sample of this many, and writes into
            the model that it did.
        **options: options of `SentencePieceTrainer.train`.

    Returns:
        bytes, as in a model file.

    Raises:
        ValueError: if `vocabulary_size` has no room for the characters of the text.
    """
    import sentencepiece

    # If `lines` raises an exception, SentencePiece raises another one instead: a RuntimeError, or
    # in version 0.2.0 a SystemError. Keep the original exception, to raise it below.
    failures, num_lines = [], 0

    def guarded_lines():
        nonlocal num_lines
        try:
            for line in lines:
                num_lines += 1
                yield line
        except BaseException as error:
            failures.append(error)
            raise

    sentencepiece.set_random_generator_seed(SEED)  # for the sample of lines
    model = io.BytesIO()
    try:
        with tempfile.TemporaryDirectory() as folder:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=guarded_lines(),
                model_writer=model,
                vocab_size=vocabulary_size,
                hard_vocab_limit=False,
                byte_fallback=True,
                pad_id=PAD_TOKEN_ID,
                bos_id=START_TOKEN_ID,
                eos_id=END_TOKEN_ID,
                unk_id=UNK_TOKEN_ID,
                max_sentence_length=LONGEST_LINE,
                input_sentence_size=max_lines,
                minloglevel=2,
                **_normalizer_options(normalization, folder),
                **options,
            )
    except (RuntimeError, SystemError) as error:
        if failures:
            raise failures[0] from None
        sizes = re.search(r"required_chars\. (\d+) vs (\d+)", str(error))
        if sizes is None:
            raise
        raise ValueError(
            f"`vocabulary_size` must be at least {sizes[2]} for this text: 4 special tokens, "
            "256 bytes and the characters that `character_coverage` asks for. "
            f"Received: vocabulary_size={vocabulary_size}"
        ) from None
    proto = ModelProto.FromString(model.getvalue())
    if num_lines > max_lines:
        sample = f"a random sample of {max_lines:,} of {num_lines:,} lines, seed {SEED}"
        proto.trainer_spec.input.append(sample)
    proto.normalizer_spec.name = normalization
    proto.normalizer_spec.ClearField("normalization_rule_tsv")  # a path of this machine
    return proto.SerializeToString()


def _normalizer_options(normalization, folder):
    """Returns the options for SentencePiece's own normalisation; the lines are normalised already.

    For "nfkc" the rule is the same, so that other SentencePiece tools normalise the same way. For
    the other rules, which SentencePiece does not have, a table of one row (code point, tab, code
    point) is written into `folder`: with an empty table, SentencePiece prints to stderr each time
    the model is loaded.
    """
    if normalization == "nfkc":
        return {"normalization_rule_name": "nfkc"}
    table = os.path.join(folder, "identity.tsv")
    with open(table, "w", encoding="ascii") as file:
        file.write(f"{ord(SPACE_SYMBOL):X}\t{ord(' '):X}\n")
    keeps_spaces = normalization == "identity"
    return {
        "normalization_rule_tsv": table,
        "remove_extra_whitespaces": not keeps_spaces,
        "add_dummy_prefix": not keeps_spaces,
    }
