"""A server over an exported SavedModel: it knows nothing of the package that wrote the folder."""
