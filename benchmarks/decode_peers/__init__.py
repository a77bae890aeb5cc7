"""Who takes part in `benchmarks/decode.py`, one file each.

A peer has a `name` and `decode(sentences, beam_size, length=None)`: lists of token ids in, with
their end token; the best hypothesis of each out, as a list of ids without it. With a `length`,
every hypothesis has exactly so many tokens; without, it ends by itself or at `longest` of its
sentence.
"""

EXTRA_LENGTH = 50


def longest(sentence):
    """The most tokens a translation may have, the end token included: the source's and 50."""
    return len(sentence) - 1 + EXTRA_LENGTH


def until(row, end_token_id):
    """A list of token ids, cut before the first end token."""
    return row[: row.index(end_token_id)] if end_token_id in row else row
