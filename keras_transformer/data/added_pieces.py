"""Adds pieces for texts in one language to a SentencePiece model.

The model is a Protocol Buffers message: bytes appended to it append pieces to its list. Without
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
# Learn this many pieces for each wanted one: the model has some already and never produces others.
LEARNED_PER_PIECE = 4
OTHER_TOKENS = 4 + 256  # special tokens and bytes, which every trained model has


def with_pieces(pieces: SentencePieces, code: str, added: Sequence[str]) -> SentencePieces:
    """Returns the pieces of a model, with new ones that only texts in one language use.

    Args:
        pieces: pieces of the model.
        code: code of the language.
        added: texts of the new pieces; the first have the highest scores.

    Raises:
        ValueError: if the model already has pieces that only texts in one language use.
    """
    if pieces.added_language is not None:
        raise ValueError(
            "`pieces` can be added for one language only. Received: pieces for "
            f"{code!r}, to a tokenizer with those for {pieces.added_language!r}. Add the language "
            "without `pieces`"
        )
    model = pieces.model_bytes
    rules = pieces.rules | {"added_language": code, "old_bytes": len(model)}
    return SentencePieces(model + _tail(model, added), pieces.kind, **rules, tag=pieces.tag)


def learn_pieces(
    pieces: SentencePieces, lines: Iterable[str], number: int, known: Iterable[str]
) -> list[str]:
    """Learns from text the pieces that a model lacks.

    Single characters come first; they are at most half of `number`, rounded up. The model reaches
    every returned piece: with all of them added, it splits the text of a piece into this piece
    alone.

    Args:
        pieces: pieces of the model, whose algorithm, BPE or unigram, learns the new ones.
        lines: lines of text.
        number: int, the maximum number of pieces.
        known: tokens that must not be returned.

    Returns:
        The texts of the pieces, which may be none.

    Raises:
        TypeError, ValueError: if `lines` are no strings, or there is no text.
    """
    model = pieces.model_bytes
    normalize = _load(model).normalize
    normalized = list(training_lines(lines, lambda line: _spaced(normalize(line))))
    num_characters = len({*"".join(normalized)})
    trained = train_sentencepiece(
        normalized,
        OTHER_TOKENS + num_characters + LEARNED_PER_PIECE * number,
        "nfc",
        MAX_LINES,
        model_type="bpe" if _is_bpe(model) else "unigram",
        character_coverage=1.0,
    )
    learned = [piece.piece for piece in read_model(trained)[1].pieces if piece.type == NORMAL]
    excluded = {*known, *pieces.names()}
    candidates = [piece for piece in learned if piece not in excluded]
    characters = [piece for piece in candidates if len(piece) == 1][: math.ceil(number / 2)]
    longer = [piece for piece in candidates if len(piece) > 1]
    reached = _reached(model, characters + longer)[:number]
    # The cut may have removed a piece that another one is merged from, so check again.
    return _reached(model, reached)


def split_pieces(pieces: SentencePieces, texts: Sequence[str]) -> list[list[int]]:
    """Returns the numbers of the pieces of each text, split without normalisation."""
    return _load(_bare(pieces.model_bytes)).encode([*texts])


def _reached(model, added):
    """Leaves out added pieces until a model with the remaining ones keeps each of them whole."""
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
    # BPE's scores are ranks, 1 apart. Unigram's are log-probs, so the new ones stay within 1.
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
