#!/usr/bin/env bash
# Everything that is checked: style, all tests on TensorFlow, layers and model on the other backends.
set -euo pipefail
cd "$(dirname "$0")/.."

bash scripts/make_venv.sh dev
python=.venv/bin/python

$python -m ruff check .
$python -m ruff format --check .

KERAS_BACKEND=tensorflow $python -m pytest --numprocesses 2 --dist loadfile

for backend in jax torch; do
    if $python -c "import $backend" 2>/dev/null; then
        echo "Layers and model on $backend:"
        KERAS_BACKEND=$backend $python -m pytest --numprocesses 2 --dist loadfile \
            tests/layers tests/models tests/training tests/test_backends.py
    else
        echo "$backend is not installed: its tests did not run."
    fi
done
