"""Layers that can take the place of self-attention, the models made of them, and measurements.

Table 1 of the paper compares such layers. Each has the arguments and the calls of
`MultiHeadAttention`, so that blocks, model, training and search stay as they are.
"""
