"""From raw text to batches for `fit`, in the order of the data: corpus, tokenizer, pipeline."""
