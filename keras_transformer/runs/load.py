"""Loads a trained run: as a `Translator`, or as the initial weights of another run."""

from typing import Any

from keras_transformer.decoding.frozen import freeze
from keras_transformer.decoding.translator import Translator
from keras_transformer.models.loading import load_model
from keras_transformer.runs.build import load_tokenizers, tag_sources
from keras_transformer.runs.folder import RunFolder
from keras_transformer.types import Path


def load_run(
    path: Path,
    model: Path | None = None,
    *,
    frozen: bool = True,
    dtype: str | None = None,
    **settings: Any,
) -> Translator:
    """Returns the `Translator` of a trained run.

    Args:
        path: path of the run's folder, as `keras-transformer train` wrote it.
        model: path of another model file, such as an average of the run's checkpoints. Defaults to
            the run's own, `model.keras`.
        frozen: as in `Translator`. Defaults to `True`, because a loaded run is not trained further.
        dtype: as in `Translator`.
        **settings: as in `Translator`, but the defaults are those of `search` in the run's recipe;
            and `max_source_tokens` defaults to its `data.max_length`, and at most the model's
            `max_sequence_length`.

    Raises:
        FileNotFoundError: if there is no trained model.

    Example: `load_run("runs/number_names", beam_size=1)(["twenty-one"])`.
    """
    run = RunFolder.existing(path)
    recipe = run.recipe()
    tokenizers = load_tokenizers(run.tokenizer_files(recipe.vocabulary.joint))
    tokenizers = tag_sources(recipe, tokenizers)
    loaded = load_model(model or run.model_file)
    settings = recipe.search | settings
    if settings.get("max_source_tokens") is None:
        lengths = recipe.data.max_length, loaded.config.max_sequence_length
        settings["max_source_tokens"] = min(filter(None, lengths))
    settings["source_language"] = settings.get("source_language") or recipe.data.languages()[0]
    if frozen or dtype is not None:
        loaded = freeze(loaded, dtype, is_shared=False)  # nobody else has the model
    return Translator(loaded, *tokenizers, **settings)


def take_weights(model, run_folder):
    """Sets the weights of a model to those of a run. Both models may differ in dropout only.

    Args:
        model: `Transformer`.
        run_folder: path of the run's folder.

    Raises:
        ValueError: if the models differ; the message names the fields.
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
