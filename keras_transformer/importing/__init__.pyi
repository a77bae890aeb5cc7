from .importer import import_model as import_model
