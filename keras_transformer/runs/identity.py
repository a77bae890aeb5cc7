"""What must be the same when a training is resumed: the pairs, and how they are batched."""

import pathlib
from collections.abc import Mapping
from typing import Any

from keras_transformer.data.pipeline import BatchStream

OLD_VALIDATION = (
    "An earlier version of keras_transformer started this run. It left long validation pairs out "
    "of `val_loss`: do not compare values from before and after this resume. It is not known "
    "whether the validation data changed."
)


def identity_of(stream: BatchStream, validation: BatchStream | None) -> dict[str, Any]:
    """Returns the hashes of the pairs and the arguments of the batches, as JSON.

    Args:
        stream: the training batches.
        validation: the validation batches. Optional.
    """
    return {
        "data": stream.fingerprint,
        "validation": None if validation is None else validation.fingerprint,
        "batches": stream.settings,
    }


def check_identity(
    identity: Mapping[str, Any],
    saved: Mapping[str, Any],
    path: pathlib.Path | str,
    has_recipe: bool,
) -> None:
    """Raises a `ValueError` if pairs or batches are not those of a checkpoint.

    Args:
        identity: from `identity_of`.
        saved: metadata of the checkpoint. Earlier versions did not store all of it.
        path: file of the checkpoint, for the message.
        has_recipe: whether the run has a recipe. Without one, a `fit` may or may not have had
            validation data.
    """
    advice = "start again with `--no-resume`" if has_recipe else "choose another folder"
    for name, split in (("data", "training"), ("validation", "validation")):
        values = saved.get(name, identity[name]), identity[name]
        is_optional = name == "validation" and not has_recipe and None in values
        if values[0] != values[1] and not is_optional:
            raise ValueError(
                f"The {split} pairs differ from those of {path}. Use the same data, or {advice}."
            )
    before, now = saved.get("batches", identity["batches"]), identity["batches"]
    if before != now:
        # Arguments of noise are left out if they are not used.
        changed = [name for name in now | before if now.get(name) != before.get(name)]
        received = [f"{name}={now.get(name)}, not {before.get(name)}" for name in changed]
        raise ValueError(
            f"The batches must be those of {path}. Received: {', '.join(received)}. Use the same "
            f"arguments of `make_dataset`, or {advice}."
        )
