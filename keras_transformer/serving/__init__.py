"""A server over an exported folder: it knows nothing of the package that wrote the folder."""
