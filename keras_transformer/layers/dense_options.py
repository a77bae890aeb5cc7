"""Options that the dense layers inside a layer share: initialisers, regularisers, constraints."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import keras


@dataclass(frozen=True)
class DenseOptions:
    """Arguments of `keras.layers.Dense` that a layer hands on to all its dense layers.

    A name stays a string, because an instance would draw its seed too early.
    """

    use_bias: bool = True
    kernel_initializer: str | Callable | None = "glorot_uniform"
    bias_initializer: str | Callable | None = "zeros"
    kernel_regularizer: str | Callable | None = None
    bias_regularizer: str | Callable | None = None
    activity_regularizer: str | Callable | None = None
    kernel_constraint: str | Callable | None = None
    bias_constraint: str | Callable | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            kind = name.rpartition("_")[2]
            if kind != "bias" and not isinstance(value, str):
                instance = getattr(keras, f"{kind}s").get(value)
                object.__setattr__(self, name, instance)

    @classmethod
    def pop_from(cls, arguments: dict[str, Any], use_bias: bool) -> "DenseOptions":
        """Takes the options out of a constructor's keyword arguments."""
        names = {field.name for field in fields(cls)} & set(arguments)
        return cls(use_bias, **{name: arguments.pop(name) for name in names})

    def of(self, name: str) -> dict[str, Any]:
        """Returns the keyword arguments for the part of this name.

        Keras draws the same numbers each time from one initialiser, so each part gets a clone.
        """
        initializers = {
            field: clone_initializer(value, name)
            for field, value in vars(self).items()
            if field.endswith("initializer")
        }
        return vars(self) | initializers

    def get_config(self) -> dict[str, Any]:
        """Returns the options as JSON."""
        return {k: keras.saving.serialize_keras_object(v) for k, v in vars(self).items()}


@keras.saving.register_keras_serializable(package="keras_transformer")
class ScaledInitializer(keras.initializers.Initializer):
    """Draws the values of another initialiser, times a factor.

    Args:
        initializer: name or instance of the other one.
        gain: float, the factor.
    """

    def __init__(self, initializer: str | Callable, gain: float) -> None:
        self.initializer = keras.initializers.get(initializer)
        self.gain = gain

    def __call__(self, shape: Any, dtype: Any = None) -> Any:
        return self.initializer(shape, dtype=dtype) * self.gain

    def get_config(self) -> dict[str, Any]:
        initializer = keras.initializers.serialize(self.initializer)
        return {"initializer": initializer, "gain": self.gain}


def clone_initializer(initializer: Any, name: str) -> Any:
    """Returns an initialiser that draws other numbers; with a seed, they depend on `name`."""
    if not isinstance(initializer, keras.initializers.Initializer):
        return initializer
    config = initializer.get_config()
    seed = config.get("seed")
    if isinstance(seed, dict):  # of a `SeedGenerator`, which draws other numbers each time
        return initializer
    return type(initializer).from_config(
        config | {"seed": seed_of(seed, name)} if seed is not None else config
    )


def seed_of(seed: int | None, name: str) -> int | None:
    """Returns the seed of the part of this name: equal seeds would draw equal numbers."""
    return None if seed is None else (seed + zlib.crc32(name.encode())) % 2**31
