"""The translator of a run, its lines and its long lines, for the commands that translate."""

from keras_transformer.cli.backend import import_backend
from keras_transformer.cli.progress import sentence_progress


def load_translator(runs, model=None, *, dtype=None, **settings):
    """Returns the translator of a list of runs; checks them before it imports the backend."""
    from keras_transformer.runs.folder import RunFolder

    for run in runs:
        RunFolder.existing(run)
    import_backend()
    from keras_transformer.runs.load import load_run

    return load_run(runs if len(runs) > 1 else runs[0], model, dtype=dtype, **settings)


def is_ctranslate2(folder):
    """Whether a folder holds a model of CTranslate2."""
    return (folder / "model.bin").is_file()


def load_engine(runs, model, settings, dtype):
    """Returns the translator of a list of runs, or of one folder of CTranslate2."""
    if (runs[0] / "saved_model.pb").is_file():
        must = "A SavedModel is translated with `keras-transformer serve`, or in Python: give a run"
        raise ValueError(f"{must}, or a folder of CTranslate2. Received: {str(runs[0])!r}")
    if not is_ctranslate2(runs[0]):
        return load_translator(runs, model, dtype=dtype, **settings)
    from keras_transformer.decoding.ctranslate2 import CTranslate2Translator

    for name, value in (("dtype", dtype), ("model", model)):
        if value is not None:
            must = f"`--{name}` needs the folder of a run, not of CTranslate2."
            raise ValueError(f"{must} Received: --{name} {value}, {str(runs[0])!r}")
    if len(runs) > 1:
        must = "Several folders must be those of runs: CTranslate2 has no ensembles."
        raise ValueError(f"{must} Received: {str(runs[0])!r}")
    return CTranslate2Translator(runs[0], **settings)


def with_progress(function, lines, *arguments, **options):
    """Calls a method of a translator, and shows how many of the lines are done."""
    with sentence_progress(len(lines)) as on_progress:
        return function(lines, *arguments, on_progress=on_progress, **options)
