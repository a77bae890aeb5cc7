"""Adds pieces for texts in one language to a SentencePiece model.

The model is a message of `protobuf`: bytes behind it add pieces to the end of its list, and without
these bytes it is the old model.
"""

import math
from collections.abc import Iterable, Sequence

from keras_transformer.data.pieces import SPACE_SYMBOL, SentencePieces
from keras_transformer.data.sentencepiece_parts import read_model
from keras_transformer.data.sentencepiece_proto import BPE, NORMAL, ModelProto
from keras_transformer.data.sentencepiece_training import train_sentencepiece
from keras_transformer.data.training_lines import training_lines

MAX_LINES = 2_000_000
# Pieces that are learned for each that is wanted: the model has some, and cannot reach others.
LEARNED = 4
FIRST_TOKENS = 4 + 256  # of a model that is trained: special tokens and bytes


def with_pieces(pieces: SentencePieces, code: str, added: Sequence[str]) -> SentencePieces:
    """Returns the pieces of a model with new ones for texts in a language.

    Args:
        pieces: `SentencePieces`.
        code: that of the language.
        added: texts of the new pieces; the first have the highest scores.
    """
    model = pieces.model_bytes
    rules = pieces.rules | {"added_language": code, "old_bytes": len(model)}
    return SentencePieces(model + _tail(model, added), pieces.kind, **rules, tag=pieces.tag)


def learn_pieces(
    pieces: SentencePieces, lines: Iterable[str], number: int, known: Iterable[str]
) -> list[str]:
    """Learns pieces that a model lacks from text: first characters, at most half of them.

    The model can reach each of them: with all of them added, it splits the text of a piece into
    this piece alone.

    Args:
        pieces: those of the model, whose algorithm learns the new ones.
        lines: lines of text.
        number: int, the maximum number of pieces.
        known: tokens that must not be returned.

    Raises:
        TypeError, ValueError: if `lines` are no strings, or there is no text.
    """
    model = pieces.model_bytes
    normalize = _load(model).normalize
    text = list(training_lines(lines, lambda line: _spaced(normalize(line))))
    size = FIRST_TOKENS + len({*"".join(text)}) + LEARNED * number
    kind = "bpe" if _is_bpe(model) else "unigram"
    options = {"model_type": kind, "character_coverage": 1.0}
    learned = read_model(train_sentencepiece(text, size, "nfc", MAX_LINES, **options))[1].pieces
    known = {*known, *pieces.names()}
    new = [p.piece for p in learned if p.type == NORMAL and p.piece not in known]
    characters = [piece for piece in new if len(piece) == 1][: math.ceil(number / 2)]
    reached = _reached(model, characters + [piece for piece in new if len(piece) > 1])
    # A piece may be reached by way of one that is not among the first, so ask again.
    return _reached(model, reached[:number])


def split_pieces(pieces: SentencePieces, texts: Sequence[str]) -> list[list[int]]:
    """Splits texts with a model; returns the numbers of the pieces of each."""
    return _load(_bare(pieces.model_bytes)).encode([*texts])


def _reached(model, added):
    """Returns the new pieces that a model with all of them splits no further."""
    while added:
        processor = _load(_bare(model + _tail(model, added)))
        rows = processor.encode(added, out_type=str)
        reached = [piece for piece, row in zip(added, rows, strict=True) if row == [piece]]
        if len(reached) == len(added):
            break
        added = reached
    return added


def _tail(model, added):
    """Returns the bytes that add pieces to a model, with scores below all old ones."""
    scores = [piece.score for piece in read_model(model)[1].pieces if piece.type == NORMAL]
    lowest, step = min(scores) - 1, 1 if _is_bpe(model) else 1 / len(added)
    tail = ModelProto()
    for rank, piece in enumerate(added):
        tail.pieces.add(piece=piece, score=lowest - rank * step)
    return tail.SerializeToString()


def _bare(model):
    """Returns a model that splits text as it is, without a space in front."""
    proto = read_model(model)[1]
    bare = ModelProto(pieces=proto.pieces, trainer_spec=proto.trainer_spec)
    bare.normalizer_spec.name = "identity"
    bare.normalizer_spec.add_dummy_prefix = False
    bare.normalizer_spec.remove_extra_whitespaces = False
    return bare.SerializeToString()


def _is_bpe(model):
    return read_model(model)[1].trainer_spec.model_type == BPE


def _load(model):
    import sentencepiece

    return sentencepiece.SentencePieceProcessor(model_proto=model, num_threads=1)


def _spaced(normalized):
    """Returns normalised text with plain spaces."""
    return normalized.replace(SPACE_SYMBOL, " ").strip()
