from .importer import import_marian as import_marian
