#!/usr/bin/env bash
# Checks style, types and all tests: on TensorFlow, then those of layers, models and training on the
# other backends that are installed. `test.sh --long` also runs the tests marked `long`.
set -euo pipefail
cd "$(dirname "$0")/.."

bash scripts/make_venv.sh dev
python=.venv/bin/python

$python -m ruff check .
$python -m ruff format --check .
$python -m mypy

# `worksteal`: a worker that is done takes tests from the other, so that neither waits at the end.
run_tests() { $python -m pytest --numprocesses 2 --dist worksteal "$@"; }

# In two halves: TensorFlow keeps the memory of compiled graphs until its process ends.
first=(tests/data tests/decoding tests/export tests/serving)
KERAS_BACKEND=tensorflow run_tests "$@" "${first[@]}"
KERAS_BACKEND=tensorflow run_tests "$@" "${first[@]/#/--ignore=}" tests

if ! command -v chromedriver >/dev/null; then
    echo "Chromium is not installed: the test of the server's page did not run. Install it:" \
        "apt-get install chromium chromium-driver"
fi

for backend in jax torch; do
    if $python -c "import $backend" 2>/dev/null; then
        echo "Layers, models and training on $backend:"
        KERAS_BACKEND=$backend run_tests "$@" \
            tests/layers tests/models tests/training tests/test_backends.py
    else
        echo "$backend is not installed: its tests did not run."
    fi
done
