"""Reads M2M-100 and NLLB-200 in the form of the Hugging Face Hub. Both are `m2m_100` there.

A source is the token of its language, the text and the end token; the decoder starts with the end
token and the token of the translation's language.
"""

import re
from pathlib import Path

from keras_transformer.data.pieces import SENTENCEPIECE, SentencePieces
from keras_transformer.data.sentencepiece_parts import read_model, tokens_of
from keras_transformer.data.sentencepiece_proto import NORMAL, UNIGRAM
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.data.vocabulary import Vocabulary
from keras_transformer.importing import files, hub, languages
from keras_transformer.importing.family import Family, Options
from keras_transformer.importing.marian import ACTIVATIONS

MODEL_FILE = "sentencepiece.bpe.model"
SPECIAL_PIECES = "<s>", "<pad>", "</s>", "<unk>"
MASK = "<mask>"
OPTIONS: Options = {
    "scale_embedding": (True, [True]),
    "activation_function": ("relu", list(ACTIVATIONS)),
    "tie_word_embeddings": (True, [True]),
    "pad_token_id": (1, [1]),
    "eos_token_id": (2, [2]),
    "decoder_start_token_id": (2, [2]),
}


def read_tokenizers(folder, settings):
    """As `Family.read_tokenizers`."""
    tokenizer, notes = read_tokenizer(folder, settings.get("vocab_size"))
    return [tokenizer], notes


def read_tokenizer(folder: Path, vocabulary_size: int) -> tuple[Tokenizer, list[str]]:
    """Returns the tokenizer of a folder, and lines to print.

    Args:
        folder: path of the folder.
        vocabulary_size: number of ids of the model, which may be more than there are tokens.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if a file is damaged or does not fit the others.
    """
    content, proto = read_model(files.file_of(folder, MODEL_FILE))
    if files.has_file(folder, "vocab.json"):
        ids, codes, notes = _m2m_100_ids(folder, proto)
    else:
        ids, codes = _nllb_ids(folder, proto)
        notes = []
    special_ids = {piece: ids[piece] for piece in SPECIAL_PIECES}
    if [*special_ids.values()] != [0, 1, 2, 3]:
        raise ValueError(
            f"{folder}: {', '.join(SPECIAL_PIECES)} must have the ids 0, 1, 2 and 3. Received: "
            f"{special_ids}"
        )
    if type(vocabulary_size) is not int or vocabulary_size <= max(ids.values()):
        raise ValueError(
            f"{folder}: `vocab_size` must be more than the largest id of the tokenizer, "
            f"{max(ids.values())}. Received: {vocabulary_size}. Files of another model?"
        )
    pieces = SentencePieces(
        content,
        SENTENCEPIECE,
        has_other_pieces=False,
        dropped_pieces=[piece for piece in ("<s>", "<unk>", MASK) if piece in ids],
        sorts_ties=proto.trainer_spec.model_type == UNIGRAM,
    )
    vocabulary = Vocabulary(
        tokens_of(ids, ids.values(), vocabulary_size),
        pad_token_id=1,
        start_token_id=2,
        end_token_id=2,
        unk_token_id=3,
        language_ids=codes,
    )
    return Tokenizer(pieces, vocabulary), notes


def _nllb_ids(folder, proto):
    """Returns `{token: id}`, and `{code: id}` of the languages.

    The ids of pieces are those of SentencePiece plus 1: its first three pieces are special tokens,
    and the model has four of these.
    """
    pieces = [piece.piece for piece in proto.pieces][3:]
    codes = _stated_languages(folder, r"([a-z]{3}_[A-Z][a-z]{3})") or languages.NLLB_200
    tokens = [*SPECIAL_PIECES, *pieces, *codes, MASK]
    ids = {token: token_id for token_id, token in enumerate(tokens)}
    if len(ids) < len(tokens):
        raise ValueError(f"{folder / MODEL_FILE}: a piece must not be spelled like a language.")
    return ids, {code: ids[code] for code in codes}


def _m2m_100_ids(folder, proto):
    """As `_nllb_ids`, by the table `vocab.json`; also returns lines on pieces that it lacks."""
    path = files.file_of(folder, "vocab.json")
    ids = files.read_mapping(path)
    is_valid = all(type(i) is int for i in ids.values())
    if not is_valid or sorted(ids.values()) != list(range(len(ids))):
        raise ValueError(f"{path} must map each piece to its id, and the ids must be 0, 1, 2, ...")
    codes = _stated_languages(folder, r"__([a-z]{2,3})__") or languages.M2M_100
    language_ids = {code: len(ids) + index for index, code in enumerate(codes)}
    lost = [p.piece for p in proto.pieces if p.type == NORMAL and p.piece not in ids]
    notes = []
    if lost:
        notes.append(
            f"{len(lost):,} pieces of {MODEL_FILE} are not in {path.name}, and become unknown, "
            f"such as {', '.join(lost[:3])}"
        )
    return ids | {f"__{code}__": i for code, i in language_ids.items()}, language_ids, notes


def _stated_languages(folder, pattern):
    """Returns the codes that the files of the tokenizer list, in the order of their ids.

    `[]` if they list none. Versions of `transformers` list them in different places.

    Args:
        folder: path of the folder.
        pattern: regular expression of a token, whose group is the code.
    """
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        entries = files.read_optional(folder, name)
        tokens_by_id = entries.get("added_tokens_decoder") or {}
        added_tokens = [tokens_by_id[key] for key in sorted(tokens_by_id, key=int)]
        for tokens in (
            entries.get("additional_special_tokens"),
            entries.get("extra_special_tokens"),
            added_tokens,
        ):
            texts = tokens.values() if isinstance(tokens, dict) else tokens or []
            texts = [t["content"] if isinstance(t, dict) else str(t) for t in texts]
            if codes := [match[1] for text in texts if (match := re.fullmatch(pattern, text))]:
                return codes
    return []


M2M_100 = Family(
    options=OPTIONS,
    equal=hub.EQUAL_SIDES,
    read_tokenizers=read_tokenizers,
    fields={
        "normalize_first": True,
        "positions": "tensor2tensor",
        "first_position": 2,  # the row of the table after that of padding
        "layer_norm_epsilon": 1e-5,
    },
    search={"split": "sentences"},  # these models leave out some sentences of a line
    requested=("forced_bos_token_id",),  # the target language
    licenses={"nllb": "cc-by-nc-4.0", "m2m100": "mit"},
)
