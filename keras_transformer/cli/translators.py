"""Loads the translator of runs or of an exported folder, for the commands that translate."""

from keras_transformer.cli.backend import SAVED_MODEL, import_backend, import_quietly
from keras_transformer.cli.progress import sentence_progress


def load_runs(runs, model=None, *, dtype=None, **settings):
    """Returns the translator of a list of runs; checks them before it imports the backend."""
    from keras_transformer.runs.folder import RunFolder

    for run in runs:
        RunFolder.existing(run)
    import_backend()
    from keras_transformer.runs.load import load_run

    return load_run(runs if len(runs) > 1 else runs[0], model, dtype=dtype, **settings)


def load_folders(folders, model=None, *, dtype=None, **settings):
    """Returns the translator of a list of runs, or of one exported folder."""
    from keras_transformer.runs.translators import kind_of

    if kind_of(folders[0]) == "run":
        return load_runs(folders, model, dtype=dtype, **settings)
    return load_exported(folders, model=model, dtype=dtype, **settings)


def load_exported(folders, **options):
    """Returns the translator of one exported folder; its imports print nothing.

    Args:
        folders: list with the path of the folder.
        **options: arguments of `keras_transformer.load_translator`.
    """
    from keras_transformer.runs.translators import kind_of, load_translator

    if kind_of(folders[0]) == "saved_model":
        import_quietly(*SAVED_MODEL)
        from keras_transformer.decoding.saved_model import use_one_rewrite

        use_one_rewrite()
    return load_translator(folders, **options)


def with_progress(function, lines, *arguments, **options):
    """Calls a method of a translator, and shows how many of the lines are done."""
    with sentence_progress(len(lines)) as on_progress:
        return function(lines, *arguments, on_progress=on_progress, **options)
