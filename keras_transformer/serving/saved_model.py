"""Loads a SavedModel with `tensorflow` and `tensorflow_text` alone, describes it and calls it."""

from pathlib import Path

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  # registers the tokenizer's operations
from tensorflow.core.protobuf import saved_model_pb2

from keras_transformer import types
from keras_transformer.serving.errors import RequestError, tensorflow_reason
from keras_transformer.serving.model import Model, read_card
from keras_transformer.serving.signature import NUMPY_TYPES, Signature, Spec

# Errors about the inputs. TensorFlow has no narrower ones, as an `Assert` in a graph raises the
# first.
INPUT_ERRORS = (
    tf.errors.InvalidArgumentError,
    tf.errors.OutOfRangeError,
    tf.errors.UnimplementedError,
)


class ServedModel(Model):
    """A loaded SavedModel.

    Args:
        folder: path of the SavedModel.

    Raises:
        FileNotFoundError: if the folder is not a SavedModel.
        ValueError: if it has no signature `serving_default` with an input `text`.
    """

    def __init__(self, folder: types.Path) -> None:
        folder = Path(folder)
        if not tf.saved_model.contains_saved_model(str(folder)):
            missing = f"There is no SavedModel in {str(folder)!r}"
            raise FileNotFoundError(
                f"{missing}: give a folder that `keras-transformer export` wrote."
            )
        self.card = read_card(folder)
        self.name = self.card.get("name") or folder.resolve().name
        tf.get_logger().setLevel("ERROR")  # no warnings that gradients are not available
        # Kept, because a signature does not keep the variables.
        self._loaded = tf.saved_model.load(str(folder))
        self.signatures = _signatures(folder)
        if "text" not in self.signature("serving_default").inputs:
            raise ValueError("The signature `serving_default` must have an input `text`.")

    def call(self, name: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Calls a signature; see `Model`."""
        specs = self.signatures[name].inputs
        tensors = {
            key: tf.constant(array, specs[key].dtype)
            for key, array in (self.signatures[name].defaults | inputs).items()
        }
        try:
            outputs = self._loaded.signatures[name](**tensors)
        except tf.errors.OpError as error:
            status = 400 if isinstance(error, INPUT_ERRORS) else 503
            raise RequestError(status, f"The model failed: {tensorflow_reason(error)}") from error
        return {key: tensor.numpy() for key, tensor in outputs.items()}


def use_threads(workers: int) -> None:
    """Sets how many calls TensorFlow runs at once, each on one core, before it runs anything."""
    # The operations of small models are too short to be shared by several threads.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    # All calls take the threads that start operations from one pool.
    tf.config.threading.set_inter_op_parallelism_threads(workers)


def _signatures(folder):
    """Reads the file, because a loaded signature does not tell the defaults of its inputs."""
    saved = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
    definitions = saved.meta_graphs[0].signature_def
    return {
        name: Signature(
            name,
            inputs=_specs(one.inputs),
            outputs=_specs(one.outputs),
            defaults={key: tf.make_ndarray(value) for key, value in one.defaults.items()},
        )
        for name, one in definitions.items()
        if one.method_name == "tensorflow/serving/predict"
    }


def _specs(tensors):
    specs = {}
    for name, info in tensors.items():
        dtype = tf.as_dtype(info.dtype).name
        if dtype not in NUMPY_TYPES:
            must = f"A tensor of a signature must be one of {sorted(NUMPY_TYPES)}."
            raise ValueError(f"{must} Received: {name!r} of {dtype}")
        specs[name] = Spec(dtype, tuple(dim.size for dim in info.tensor_shape.dim))
    return dict(sorted(specs.items()))
