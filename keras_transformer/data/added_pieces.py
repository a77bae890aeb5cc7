"""Further pieces for texts in one language, behind those of a SentencePiece model.

A SentencePiece model is a message of `protobuf`: further pieces behind its bytes are the last ones
of its list, and its first bytes are still the model without them.
"""

import math
from collections.abc import Iterable, Sequence

from keras_transformer.data.pieces import SPACE_SYMBOL, SentencePieces
from keras_transformer.data.sentencepiece_parts import read_model
from keras_transformer.data.sentencepiece_proto import BPE, NORMAL, ModelProto
from keras_transformer.data.sentencepiece_training import train_sentencepiece
from keras_transformer.data.training_lines import training_lines

MAX_LINES = 2_000_000
# So many pieces are learned for each new one: the model has some of them, and cannot make others.
LEARNED = 4
FIRST_TOKENS = 4 + 256  # of a model that is trained: special tokens and bytes


def with_pieces(pieces: SentencePieces, code: str, added: Sequence[str]) -> SentencePieces:
    """Returns the pieces of a model with further ones for texts in a language.

    Args:
        pieces: `SentencePieces`.
        code: that of the language.
        added: texts of the further pieces, the first ones are merged first.
    """
    model = pieces.model_bytes
    rules = pieces.rules | {"added_language": code, "old_bytes": len(model)}
    return SentencePieces(model + _tail(model, added), pieces.kind, **rules, tag=pieces.tag)


def learn_pieces(
    pieces: SentencePieces, lines: Iterable[str], number: int, known: Iterable[str]
) -> list[str]:
    """Returns pieces of a text that a model lacks: characters, at most half of them, then others.

    All are reached: the text of each is split into this piece alone, once the model has all.

    Args:
        pieces: those of the model. Its algorithm learns the further ones.
        lines: lines of text.
        number: int, the maximum number of pieces.
        known: tokens that no piece may be.

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
    return _reached(model, reached[:number])  # without the others, some may not be reached


def split_pieces(pieces: SentencePieces, texts: Sequence[str]) -> list[list[int]]:
    """Returns the numbers of a model's pieces that the texts of other pieces are split into."""
    return _load(_bare(pieces.model_bytes)).encode([*texts])


def _reached(model, added):
    """Returns the further pieces that a model with all of them splits no further."""
    while added:
        processor = _load(_bare(model + _tail(model, added)))
        rows = processor.encode(added, out_type=str)
        reached = [piece for piece, row in zip(added, rows, strict=True) if row == [piece]]
        if len(reached) == len(added):
            break
        added = reached
    return added


def _tail(model, added):
    """Returns further pieces as the bytes behind a model; old merges go before theirs."""
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
