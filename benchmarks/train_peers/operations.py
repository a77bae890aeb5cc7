"""Counts the matrix products of a train step; imports no library."""


def products_of(batch, config):
    """Returns the forward products of a batch.

    Returns:
        dict from `(outer, m, k, n)`, that many `(m, k) @ (k, n)`, to their number in the model.
    """
    source, target, labels = batch
    (rows, s), (_, t) = source.shape, target.shape
    width, inner, heads = (config[name] for name in ("hidden_dim", "intermediate_dim", "num_heads"))
    encoders, decoders = config["num_encoder_layers"], config["num_decoder_layers"]
    counts = {}

    def add(count, outer, m, k, n):
        key = outer, m, k, n
        counts[key] = counts.get(key, 0) + count

    def attend(count, queries, keys):
        add(count, rows * heads, queries, config["key_dim"], keys)
        add(count, rows * heads, queries, keys, config["value_dim"])

    # Query, key, value and output; the decoder's second keys and values come from the source.
    add(4 * encoders + 2 * decoders, 1, rows * s, width, width)
    add(6 * decoders, 1, rows * t, width, width)
    for layers, slots in ((encoders, rows * s), (decoders, rows * t)):
        add(layers, 1, slots, width, inner)
        add(layers, 1, slots, inner, width)
    attend(encoders, s, s)
    attend(decoders, t, t)
    attend(decoders, t, s)
    add(1, 1, int((labels != 0).sum()), width, config["vocabulary_size"])
    return counts


def operations_of(counts):
    """Returns the operations of products and their gradients: 2 for each multiply-add, times 3."""
    return sum(6 * count * outer * m * k * n for (outer, m, k, n), count in counts.items())
