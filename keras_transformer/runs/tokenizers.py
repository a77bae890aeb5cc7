"""The tokenizers of a run: learned, or taken from another run or from files."""

import itertools

from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.runs.folder import RunFolder


def make_tokenizers(recipe, data_folder, files):
    """Writes the tokenizers that a recipe asks for: another run's, given files, or learned.

    Args:
        recipe: `Recipe`.
        data_folder: path that the recipe's files are relative to.
        files: paths to write, in one folder: of source and target, or of both in one.
    """
    files[0].parent.mkdir(parents=True, exist_ok=True)
    settings = recipe.vocabulary
    init_from = recipe.training.init_from
    if init_from is not None:
        given = RunFolder.existing(init_from).tokenizer_files(settings.joint)
    elif settings.files is not None:
        given = [data_folder / name for name in settings.files]
    else:
        _learn(recipe, data_folder, files)
        return
    for name, file in zip(given, files, strict=True):
        Tokenizer(name).save(file)


def _learn(recipe, data_folder, files):
    settings = recipe.vocabulary
    pairs = recipe.data.pairs("train", data_folder)
    if settings.joint:
        texts = [itertools.chain.from_iterable(pairs)]
    else:
        texts = [(pair[side] for pair in pairs) for side in (0, 1)]
    for text, file in zip(texts, files, strict=True):
        Tokenizer.train(
            text,
            settings.size,
            file,
            model_type=settings.model_type,
            normalization=settings.normalization,
            character_coverage=settings.character_coverage,
        )


def load_tokenizers(files):
    """Returns the tokenizers of source and target, the same one twice if there is one file."""
    tokenizers = [Tokenizer(file) for file in files]
    return tokenizers[0], tokenizers[-1]
