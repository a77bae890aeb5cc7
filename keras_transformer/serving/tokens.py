"""Refuses what the model would refuse for its number of tokens, before it waits in the queue."""

import asyncio
import math
from typing import Any

import numpy as np

from keras_transformer.serving.errors import RequestError


async def check_tokens(model: Any, name: str, columns: dict[str, np.ndarray]) -> None:
    """Raises `RequestError` if a line or a prefix has too many tokens.

    It calls `tokenize`, in another thread, but only for what may have too many.

    Args:
        model: `ServedModel`.
        name: str, of a signature that translates `text`.
        columns: dict from names of inputs to arrays.
    """
    search, architecture = (model.card.get(key) or {} for key in ("search", "architecture"))
    options = model.signatures[name].defaults | columns
    most = search.get("max_source_tokens", math.inf)  # with the end token
    # A token has at least a byte, but NFD makes three characters of two bytes.
    longest = 1.5 * max(map(len, options.get("text", ())), default=0)
    is_strict = (search.get("on_too_long"), search.get("split", "lines")) == ("error", "lines")
    is_strict &= longest >= most - 1
    # With two vocabularies, `tokenize` does not split a prefix as the model does.
    is_joint = architecture.get("tie_embeddings") == "all"
    has_prefix = is_joint and any(options.get("target_prefix", ()))
    if "tokenize" not in model.signatures or not (is_strict or has_prefix):
        return

    async def tokens(column):
        inputs = {"text": options[column]}
        return (await asyncio.to_thread(model.call, "tokenize", inputs))["lengths"]

    # The tag of a language is a token.
    lengths = await tokens("text") + (options.get("target_language", b"") != b"")
    if is_strict and (longest := lengths.max() + 1) > most:
        message = f"A line may have at most {most} tokens. Received: {longest}, with the end token."
        raise RequestError(400, f"{message} Send its sentences as lines.")
    if has_prefix:
        longest = search["length_ratio"] * np.minimum(lengths, most - 1) // 1
        longest = np.minimum(longest + search["extra_length"], options.get("max_length", math.inf))
        room = np.maximum(longest, 1) - await tokens("target_prefix")
        if np.any((room < 1) & (lengths > 0)):
            must = "A prefix must be shorter than the maximum length of its translation, in tokens."
            raise RequestError(400, f"{must} Received: {1 - room.min():.0f} too many.")
