"""The libraries that `benchmarks/decode.py` compares, one file each.

A peer has a `name` and `decode(sentences, beam_size, length=None)`. It takes lists of token ids
with their end token, and returns the best hypothesis of each as a list of ids without it. With a
`length`, every hypothesis has exactly that many tokens; without, it ends by itself or at the
`longest` of its sentence.
"""

EXTRA_LENGTH = 50


def longest(sentence):
    """Returns the maximum length of a translation, end token included: the source's plus 50."""
    return len(sentence) - 1 + EXTRA_LENGTH


def until(row, end_token_id):
    """Cuts a list of token ids before the first end token."""
    return row[: row.index(end_token_id)] if end_token_id in row else row
