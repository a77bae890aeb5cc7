"""Files beside the graph of a SavedModel, for people and for servers.

- `model_card.json` and `examples.jsonl`: see `model_card.py`.
- `assets.extra/tf_serving_warmup_requests`: requests that TensorFlow Serving runs before it answers
  any, so that the first user does not wait. Needs the package `tensorflow-serving-api`.
- `batching_params.pbtxt`: how TensorFlow Serving joins requests.
"""

import itertools
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tensorflow as tf

from keras_transformer.decoding.translator import Translator
from keras_transformer.export.graph_translator import Options
from keras_transformer.export.model_card import (
    example_lines,
    model_card,
    words_of,
    write_examples,
    write_model_card,
)
from keras_transformer.export.signatures import Signatures

VERSIONED = ("tensorflow", "keras", "tensorflow-text")
WARM_UP_WORDS = (4, 16, 64)
# Joining waits up to 2 ms; rows of options must then be given for each line.
BATCHING = """\
max_batch_size { value: 64 }
batch_timeout_micros { value: 2000 }
max_enqueued_batches { value: 64 }
num_batch_threads { value: 2 }
"""


def write_serving_files(
    folder: Path,
    translator: Translator,
    signatures: Signatures,
    card: dict[str, Any],
    examples: Iterable[str] | None,
) -> None:
    """Writes the files.

    Args:
        folder: that of the SavedModel.
        translator, card, examples: as in `export_saved_model`.
        signatures: its functions.
    """
    described = {name: _described(f) for name, f in signatures.functions.items()}
    card = model_card(translator, VERSIONED, engine="saved_model", signatures=described) | card
    lines = example_lines(translator, examples)
    found = signatures.serve(tf.constant(lines, tf.string))
    texts = [text.decode() for text in found["translation"].numpy()]
    write_model_card(folder, card)
    scores = found["score"].numpy().tolist()
    write_examples(folder, zip(lines, texts, scores, strict=True))
    (folder / "batching_params.pbtxt").write_text(BATCHING, "utf-8")
    options = Options.default(translator.settings, translator.settings.max_hypotheses)._asdict()
    if languages := getattr(translator.source_tokenizer, "languages", []):
        options["target_language"] = tf.constant(languages[:1])
    requests = _warm_up_requests(words_of(translator.source_tokenizer), options)
    _write_warm_up(folder / "assets.extra" / "tf_serving_warmup_requests", card["name"], requests)


def _described(function):
    outputs = function.get_concrete_function().structured_outputs
    inputs = {spec.name: spec for spec in function.input_signature}
    return {
        side: {name: f"{spec.dtype.name} {spec.shape}" for name, spec in specs.items()}
        for side, specs in {"inputs": inputs, "outputs": outputs}.items()
    }


def _warm_up_requests(words, options):
    """Yields names of signatures and their inputs, for lines of several lengths."""
    for length in WARM_UP_WORDS:
        line = tf.constant([" ".join(itertools.islice(itertools.cycle(words), length))])
        yield "serving_default", {"text": line}
        yield "translate_n_best", {"text": line, **options}
        yield "score", {"source": line, "target": line}
        yield "align", {"text": line, "target": line}


def _write_warm_up(file, model, requests):
    """Writes requests, given as names of signatures and inputs, with TensorFlow Serving's messages.

    Without their package, it writes nothing and says so.
    """
    try:
        from tensorflow_serving.apis.prediction_log_pb2 import PredictionLog
    except ImportError:
        warnings.warn(
            "No warm-up requests for TensorFlow Serving: install `tensorflow-serving-api`.",
            stacklevel=4,  # the call of `export_saved_model`
        )
        return
    file.parent.mkdir()
    with tf.io.TFRecordWriter(str(file)) as writer:
        for signature, inputs in requests:
            log = PredictionLog()
            request = log.predict_log.request
            request.model_spec.name = model
            request.model_spec.signature_name = signature
            for name, tensor in inputs.items():
                request.inputs[name].CopyFrom(tf.make_tensor_proto(tensor))
            writer.write(log.SerializeToString())
