#!/usr/bin/env bash
# Trains on the embedded corpus (English to German number names), evaluates, plots, exports, and translates
# with the SavedModel in a process that does not import this package.
set -euo pipefail
cd "$(dirname "$0")/.."

# Many containers set it. Each process would compile all that it imports.
unset PYTHONDONTWRITEBYTECODE
bash scripts/make_venv.sh tensorflow,viz
run=runs/quickstart
rm -rf "$run"
.venv/bin/keras-transformer train number_names --run "$run"
.venv/bin/keras-transformer evaluate "$run" --samples 5
.venv/bin/keras-transformer plot "$run" --text "seven hundred and twenty-one"
.venv/bin/keras-transformer export "$run" "$run/saved_model"

echo "Translated by a process that imports only tensorflow and tensorflow_text:"
.venv/bin/python -P - "$run/saved_model" 2> "$run/serve.log" <<'PY' || { cat "$run/serve.log"; exit 1; }
import sys

import tensorflow as tf
import tensorflow_text  # noqa: F401 (registers the tokenizer's operations)

served = tf.saved_model.load(sys.argv[1])
text = ["forty-two", "nine hundred and ninety-nine thousand, nine hundred and ninety-nine"]
answer = served.signatures["serving_default"](text=tf.constant(text))
for line, translation in zip(text, answer["translation"].numpy()):
    print(f"  {line} -> {translation.decode()}")
if "keras_transformer" in sys.modules:
    sys.exit("The serving process must not import keras_transformer, but did.")
PY
