"""What a new run begins with: its tokenizers and, from another run, its weights."""

import itertools

from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.models.transformer import load_model
from keras_transformer.run_folder import RunFolder


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


def take_weights(model, run_folder):
    """Gives a model the weights of a run's model, which has to be the same but for dropout.

    Args:
        model: `Transformer`.
        run_folder: path of the other run's folder.

    Raises:
        ValueError: if that is another model; the message names what differs.
    """
    other = load_model(RunFolder.existing(run_folder).model_file)
    mine, theirs = model.config.to_dict(), other.config.to_dict()
    unlike = [n for n in mine if "dropout" not in n and mine[n] != theirs[n]]
    if unlike:
        raise ValueError(
            f"`init_from` must name a run of the same model. Received: {run_folder!r}, where "
            + ", ".join(f"{name} is {theirs[name]}, not {mine[name]}" for name in unlike)
        )
    model.set_weights(other.get_weights())
