"""From logits to translations: search, and strings in, strings out."""
