"""Loads a trained run: as a `Translator`, or as the initial weights of another run."""

import itertools
import os
import re
from collections.abc import Sequence
from typing import Any

from keras_transformer.decoding.ensemble import Ensemble
from keras_transformer.decoding.forks import require_own_process
from keras_transformer.decoding.frozen import freeze
from keras_transformer.decoding.translator import Translator
from keras_transformer.models.loading import load_model
from keras_transformer.runs.build import load_tokenizers, most_source_tokens, tag_sources
from keras_transformer.runs.fine_tuning import set_weights
from keras_transformer.runs.folder import RunFolder
from keras_transformer.types import Path


def load_run(
    path: Path | Sequence[Path],
    model: Path | None = None,
    *,
    frozen: bool = True,
    dtype: str | None = None,
    **settings: Any,
) -> Translator:
    """Returns the `Translator` of a trained run.

    Args:
        path: path of the run's folder, as `keras-transformer train` wrote it; or a list of them,
            whose models translate as one `Ensemble`, with the settings of the first.
        model: path of another model file, such as an average of the run's checkpoints. Defaults to
            the run's own, `model.keras`.
        frozen: as in `Translator`, but without a copy: on JAX and PyTorch, the translator changes
            if its own `model` is trained. Defaults to `True`, because a loaded run is not trained
            further.
        dtype: as in `Translator`.
        **settings: settings of `Translator`. They default to `search` in the run's recipe;
            `max_source_tokens` to the recipe's `data.max_length` or, if that is smaller, to the
            tokens of a line that the model has learned positions for.

    Raises:
        FileNotFoundError: if there is no trained model.
        ValueError: if several runs have different vocabularies, or `model` is given with several.
        RuntimeError: in a process that was forked from one that has made or used a translator.

    Example: `load_run("runs/number_names", beam_size=1)(["twenty-one"])`.
    """
    require_own_process(starts=False)
    paths = [path] if isinstance(path, str | os.PathLike) else list(path)
    if model is not None and len(paths) > 1:
        raise ValueError(f"`model` must be left out with several runs. Received: model={model!r}")
    runs = [RunFolder.existing(path) for path in paths]
    tokenizers = [_tokenizers(run) for run in runs]
    _require_one_vocabulary(paths, tokenizers)
    is_frozen = frozen or dtype is not None
    models = [load_model(model or run.model_file, compile=not is_frozen) for run in runs]
    loaded: Any = models[0] if len(models) == 1 else Ensemble(models)
    recipe = runs[0].recipe()
    settings = recipe.search | settings
    if settings.get("max_source_tokens") is None:
        settings["max_source_tokens"] = most_source_tokens(recipe, loaded.config, tokenizers[0])
    if is_frozen:
        loaded = freeze(loaded, dtype, is_shared=False)  # only this translator uses the models
    return Translator(loaded, *tokenizers[0], **settings)


def _require_one_vocabulary(paths, tokenizers):
    """Raises a `ValueError` that names the first token in which a run differs from the first run.

    Args:
        paths: paths of the runs.
        tokenizers: for each run, its tokenizers of source and target.
    """
    for path, sides in zip(paths, tokenizers, strict=True):
        for side, first, other in zip(("source", "target"), tokenizers[0], sides, strict=True):
            pairs = itertools.zip_longest(first.vocabulary, other.vocabulary)
            for number, (first_token, token) in enumerate(pairs):
                if token == first_token:
                    continue
                first_text, text = (
                    "missing" if t is None else repr(t) for t in (first_token, token)
                )
                raise ValueError(
                    "The runs of an ensemble must have the same vocabularies, token by token. "
                    f"Received: token {number} of the {side} is {text} in {str(path)!r}, "
                    f"and {first_text} in {str(paths[0])!r}. Train the runs with one vocabulary: "
                    "`files` of `vocabulary`."
                )


def _tokenizers(run):
    recipe = run.recipe()
    tokenizers = load_tokenizers(run.tokenizer_files(recipe.vocabulary.joint))
    return tag_sources(recipe, tokenizers)


def take_weights(model, run_folder):
    """Sets the weights of a model to those of a run.

    The models may differ in dropout. `model` may have fewer layers: it takes evenly spaced ones of
    the run (Shleifer and Rush, 2020, https://arxiv.org/abs/2010.13002).

    Args:
        model: `Transformer`.
        run_folder: path of the run's folder.

    Raises:
        ValueError: if the models differ otherwise; the message names the fields.
    """
    other = load_model(RunFolder.existing(run_folder).model_file, compile=False)
    mine, theirs = model.config.to_dict(), other.config.to_dict()
    differences = [n for n in mine if "dropout" not in n and mine[n] != theirs[n]]
    for name in ("num_encoder_layers", "num_decoder_layers"):
        if mine[name] < theirs[name]:
            differences.remove(name)
    if differences:
        raise ValueError(
            "`init_from` must name a run of the same model, or one with more layers. Received: "
            f"{run_folder!r}, where "
            + ", ".join(f"{name} is {theirs[name]}, not {mine[name]}" for name in differences)
        )
    weights = {weight.path: weight for weight in other.weights}

    def block_of_other(match):
        """Returns the path of the run's block for a block of `model`: 0 for 0, last for last."""
        stack, index = match.groups()
        last = mine[f"num_{stack}_layers"] - 1
        last_of_other = theirs[f"num_{stack}_layers"] - 1
        return f"{stack}/block_{int(index) * last_of_other // max(last, 1)}/"

    def weight_of_other(path):
        return weights[re.sub(r"^(\w+)/block_(\d+)/", block_of_other, path)]

    set_weights(model, weight_of_other)
