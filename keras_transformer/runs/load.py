"""A trained run as a translator, or as the start of another run."""

from keras_transformer.decoding.translator import Translator
from keras_transformer.models.transformer import load_model
from keras_transformer.runs.folder import RunFolder
from keras_transformer.runs.tokenizers import load_tokenizers


def load_run(path, model=None, *, frozen=True, dtype=None, **settings):
    """Returns the `Translator` of a trained run.

    Args:
        path: path of the run's folder, as `keras-transformer train` made it.
        model: path of another model file, such as an average of the run's checkpoints. Defaults to
            the run's own, `model.keras`.
        frozen: bool. Defaults to `True`, since a run that is loaded learns no more.
        dtype, **settings: as in `Translator`; but `max_source_tokens` defaults to the
            `data.max_length` of the run's recipe, as far as learned positions reach.

    Returns:
        `Translator`.

    Raises:
        FileNotFoundError: if there is no trained model.

    Example: `load_run("runs/number_names", beam_size=1)(["twenty-one"])`.
    """
    run = RunFolder.existing(path)
    recipe = run.recipe()
    tokenizers = load_tokenizers(run.tokenizer_files(recipe.vocabulary.joint))
    model = load_model(model or run.model_file)
    if settings.get("max_source_tokens") is None:
        lengths = recipe.data.max_length, model.config.max_sequence_length
        settings["max_source_tokens"] = min(filter(None, lengths))
    return Translator(model, *tokenizers, frozen=frozen, dtype=dtype, **settings)


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
