"""The encoder, the decoder, and the sequence-to-sequence model made of them."""
