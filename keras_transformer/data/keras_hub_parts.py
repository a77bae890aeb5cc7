"""The tokenizers of KerasHub as the parts of a `Tokenizer`.

Import this module only if KerasHub is installed.
"""

import functools
from typing import Any

import tensorflow as tf

from keras_transformer.data.function_pieces import FunctionPieces
from keras_transformer.data.pieces import SPACE_SYMBOL
from keras_transformer.data.sentencepiece_parts import ids_of, sentencepiece_parts, tokens_of
from keras_transformer.data.vocabulary import Vocabulary


def keras_hub_parts(
    tokenizer: Any, pad_token: str, start_token: str, end_token: str
) -> tuple[Any, Vocabulary]:
    """Returns the parts of a tokenizer of KerasHub; see `Tokenizer.from_keras_hub`."""
    kind = _kind_of(tokenizer)
    special = {"pad_token": pad_token, "start_token": start_token, "end_token": end_token}
    is_sentencepiece = kind == "SentencePieceTokenizer"
    ids = ids_of(tokenizer.get_vocabulary() if is_sentencepiece else tokenizer.vocabulary)
    for name, token in special.items():
        if token not in ids:
            raise ValueError(
                f"`{name}` must be a token of the vocabulary. Received: {name}={token!r}"
            )
    special_ids = [ids[token] for token in special.values()]
    if is_sentencepiece:
        # Not KerasHub's own tokenizer: `keras.utils.set_random_seed` would break it.
        return sentencepiece_parts(tokenizer.proto, [*special_ids, None], ids)
    tokens = _spelled(tokenizer, tokens_of(ids, special_ids))
    for token in special.values():
        tokens[ids[token]] = token
    pad, start, end = special_ids
    return layer_pieces(tokenizer), Vocabulary(tokens, pad, start, end, unk_token_id=None)


def layer_pieces(layer: Any) -> FunctionPieces:
    """Returns the pieces of a layer. Its methods run in graphs: eagerly they return lists."""
    text = tf.TensorSpec([None], tf.string)
    token_ids = tf.RaggedTensorSpec([None, None], tf.int32)
    return FunctionPieces(
        tf.function(layer.tokenize, [text], autograph=False),
        tf.function(layer.detokenize, [token_ids], autograph=False),
        layer,
        functools.partial(layer_pieces, layer),
    )


def _spelled(layer, tokens):
    """Returns the tokens of a WordPiece or byte-pair layer as SentencePiece spells them."""
    if hasattr(layer, "suffix_indicator"):
        suffix = layer.suffix_indicator
        return [t[len(suffix) :] if t.startswith(suffix) else SPACE_SYMBOL + t for t in tokens]
    ids = tf.RaggedTensor.from_tensor(tf.range(len(tokens))[:, None])
    contents = tf.function(layer.detokenize, autograph=False)(ids).numpy()
    return [_spelled_bytes(content) for content in contents]


def _spelled_bytes(content):
    try:
        return content.decode().replace(" ", SPACE_SYMBOL)
    except UnicodeDecodeError:
        return f"<0x{content[0]:02X}>" if len(content) == 1 else content.decode(errors="replace")


def _kind_of(tokenizer):
    """Returns the name of the KerasHub class that a tokenizer is an instance of.

    Raises if it is none of the three that can be used, pads its output, or returns strings.
    """
    import keras_hub

    kinds = "WordPieceTokenizer", "BytePairTokenizer", "SentencePieceTokenizer"
    classes = {kind: getattr(keras_hub.tokenizers, kind) for kind in kinds}
    kind = next((kind for kind in kinds if isinstance(tokenizer, classes[kind])), None)
    if kind is None:
        raise TypeError(
            "`tokenizer` must be a WordPiece, byte-pair or SentencePiece tokenizer of KerasHub. "
            f"Received: {tokenizer!r}"
        )
    length, dtype = tokenizer.sequence_length, tokenizer.compute_dtype
    if length is not None or not dtype.startswith("int"):
        raise ValueError(
            "`tokenizer` must return token ids without padding. Received: a tokenizer with "
            f"sequence_length={length}, dtype={dtype!r}"
        )
    return kind
