"""A server over an exported folder. It imports neither Keras nor a backend itself."""
