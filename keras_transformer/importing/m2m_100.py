"""Reads M2M-100 and NLLB-200 in the form of the Hugging Face Hub. Both are `m2m_100` there.

A source is the token of its language, the text and the end token; the decoder starts with the end
token and the token of the translation's language.
"""

import operator
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
    tokens = {token_id: token for token, token_id in ids.items()}
    if replaced := [token for token, token_id in ids.items() if tokens[token_id] != token]:
        token, token_id = replaced[0], ids[replaced[0]]
        raise ValueError(
            f"{folder}: each token must have an id of its own. Received: {token!r} and "
            f"{tokens[token_id]!r} with the id {token_id}. See `added_tokens_decoder` in "
            "tokenizer_config.json."
        )
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
    pieces = [*SPECIAL_PIECES, *[piece.piece for piece in proto.pieces][3:]]
    pattern = r"([a-z]{3}_[A-Z][a-z]{3})"
    codes = _language_ids(folder, pattern, len(pieces), languages.NLLB_200)
    added = codes | {MASK: _stated_ids(folder).get(MASK, max(codes.values()) + 1)}
    ids = {piece: token_id for token_id, piece in enumerate(pieces)} | added
    if len(ids) < len(pieces) + len(added):
        raise ValueError(f"{folder / MODEL_FILE}: a piece must not be spelled like a language.")
    return ids, codes


def _m2m_100_ids(folder, proto):
    """As `_nllb_ids`, by the table `vocab.json`; also returns lines on pieces that it lacks."""
    path = files.file_of(folder, "vocab.json")
    ids = files.read_mapping(path)
    is_valid = all(type(i) is int for i in ids.values())
    if not is_valid or sorted(ids.values()) != list(range(len(ids))):
        raise ValueError(f"{path} must map each piece to its id, and the ids must be 0, 1, 2, ...")
    codes = _language_ids(folder, r"__([a-z]{2,3})__", len(ids), languages.M2M_100)
    lost = [p.piece for p in proto.pieces if p.type == NORMAL and p.piece not in ids]
    notes = []
    if lost:
        notes.append(
            f"{len(lost):,} pieces of {MODEL_FILE} are not in {path.name}, and become unknown, "
            f"such as {', '.join(lost[:3])}"
        )
    return ids | {f"__{code}__": token_id for code, token_id in codes.items()}, codes, notes


def _language_ids(folder, pattern, first_id, published):
    """Returns `{code: id}` of the languages, in the order of their ids.

    Since version 4.34, `transformers` writes the ids. Versions before list the languages in the
    order of their ids, in different places.

    Args:
        folder: path of the folder.
        pattern: regular expression of a token, whose group is the code.
        first_id: the id of the first language, if the files state no ids.
        published: the codes, if the files list none.
    """
    stated_ids = _stated_ids(folder)
    if stated := {code: stated_ids[token] for code, token in _codes(pattern, stated_ids).items()}:
        return stated
    codes = _listed_languages(folder, pattern) or published
    return {code: first_id + index for index, code in enumerate(codes)}


def _stated_ids(folder):
    """Returns `{token: id}` of the tokens whose ids the files state, in the order of the ids."""
    entries = files.read_optional(folder, "tokenizer_config.json").get("added_tokens_decoder") or {}
    ids = {_text(token): int(token_id) for token_id, token in entries.items()}
    return dict(sorted(ids.items(), key=operator.itemgetter(1)))


def _listed_languages(folder, pattern):
    """Returns the codes of the languages that the files list; `[]` if they list none."""
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        entries = files.read_optional(folder, name)
        for key in ("additional_special_tokens", "extra_special_tokens"):
            tokens = entries.get(key) or []
            texts = map(_text, tokens.values() if isinstance(tokens, dict) else tokens)
            if codes := [*_codes(pattern, texts)]:
                return codes
    return []


def _codes(pattern, tokens):
    """Returns `{code: token}` of the tokens of languages."""
    return {match[1]: token for token in tokens if (match := re.fullmatch(pattern, token))}


def _text(token):
    """Returns the text of a token, which files of `transformers` hold alone or with options."""
    return token["content"] if isinstance(token, dict) else str(token)


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
