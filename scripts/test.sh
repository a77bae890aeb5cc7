#!/usr/bin/env bash
# Installs what the tests need, then checks style, types and all tests: on TensorFlow, then what
# another backend can change on JAX and PyTorch. `test.sh --long` also runs the tests marked `long`,
# and more tests of layers, models and training on JAX and PyTorch.
set -euo pipefail
cd "$(dirname "$0")/.."

extras=dev
[[ " $* " != *" --long "* ]] || extras+=,ray
# The browser of tests/serving/test_page.py, while pip installs the rest.
if ! command -v chromedriver >/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get update --quiet --quiet &&
        apt-get install --quiet --quiet --yes --no-install-recommends chromium chromium-driver ||
        echo "apt-get could not install Chromium."
fi & browser=$!
bash scripts/make_venv.sh "$extras"
python=.venv/bin/python
# The CPU build; as a requirement of the package it would bring gigabytes of CUDA.
$python -m pip install --quiet --disable-pip-version-check --no-compile torch==2.13.0
wait "$browser"

$python -m ruff check .
$python -m ruff format --check .
$python -m mypy & types=$!  # on one core, beside the first tests

log=$(mktemp)
trap 'rm "$log"' EXIT
# `worksteal`: a worker that is done takes tests from the other, so that neither waits at the end.
run_tests() { $python -m pytest -r fEs --numprocesses 2 --dist worksteal "$@" | tee --append "$log"; }

# In two halves: TensorFlow keeps the memory of compiled graphs until its process ends.
first=(tests/data tests/decoding tests/export tests/serving)
KERAS_BACKEND=tensorflow run_tests "$@" "${first[@]}"
KERAS_BACKEND=tensorflow run_tests "$@" "${first[@]/#/--ignore=}" tests
# What a backend can change. Each layer trains and is saved; logits are the paper's; the loss and the
# update are Keras's; the search is that in plain Python. Other code is the same on every backend.
contract=(
    tests/layers/test_contract.py "tests/models/test_paper.py::test_logits_equal_the_paper[untied]"
    tests/training/test_{token_loss,linear_cross_entropy}.py
)
# The details: masks, half precision, cached steps, LoRA, int8, the fused loss, arguments of `fit`.
training=(tests/training/test_{token_loss,linear_cross_entropy,fused_step,keras_contract,model_state}.py)
[[ " $* " != *" --long "* ]] || contract=(
    tests/layers tests/models/test_{paper,decode_step,transformer,output_bias}.py "${training[@]}"
)
contract+=(tests/decoding/test_{search,processors,sampling,search_model}.py)
# Of strings, what the model does besides the search; the rest is Python on every backend.
translator=(score_is_that_of_the_full_pass translate_train_translate)
translator+=(attention_is_that_of_the_decoding_steps)
translator=("${translator[@]/#/tests/decoding/test_translator.py::test_}")
contract+=("${translator[@]}")
contract+=(tests/cli/test_backend.py tests/runs/test_{event_log,user_callbacks}.py tests/test_backends.py)
# Small operations of PyTorch wait for one another when two processes have two threads each.
export OMP_NUM_THREADS=1
echo "Layers, models, training and search on jax:"
# JAX compiles each shape: of the cases marked `long`, it gets those of the update.
KERAS_BACKEND=jax run_tests "${contract[@]}"
[[ " $* " != *" --long "* ]] || KERAS_BACKEND=jax run_tests --long -m long "${training[@]}" "${translator[@]}"
echo "Layers, models, training and search on torch:"
KERAS_BACKEND=torch run_tests "$@" "${contract[@]}"
wait "$types"
echo "All passed. Not run, and why: $(grep --only-matching '^SKIPPED.*' "$log" || echo nothing)"
