#!/usr/bin/env bash
# Installs what the tests need, then checks style, types and all tests: on TensorFlow, then what
# another backend can change on JAX and PyTorch.
#   scripts/test.sh                       the short tests
#   scripts/test.sh --long                then those marked `long`, more random examples of some
#                                         files, and more of layers, models and training on JAX
#                                         and PyTorch: the quickest files first
#   scripts/test.sh --long --minutes 55   begins no further long test after 55 minutes, and names
#                                         the files that it left out
set -euo pipefail
cd "$(dirname "$0")/.."

long=
until=()
while [ $# -gt 0 ]; do
    case $1 in
        --long) long=1 ;;
        --minutes) until=(--until "$(($(date +%s) + 60 * $2))"); shift ;;
        *) echo "test.sh takes --long and --minutes N. Received: $1"; exit 2 ;;
    esac
    shift
done
# Many containers set it. Each of some 400 processes would compile all that it imports.
unset PYTHONDONTWRITEBYTECODE

# The browser of tests/serving/test_page.py, while pip installs the rest.
if ! command -v chromedriver >/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get update --quiet --quiet &&
        apt-get install --quiet --quiet --yes --no-install-recommends chromium chromium-driver ||
        echo "apt-get could not install Chromium."
fi & browser=$!
bash scripts/make_venv.sh "dev${long:+,ray}"
python=.venv/bin/python
# The CPU build; as a requirement of the package it would bring gigabytes of CUDA.
$python -m pip install --quiet --disable-pip-version-check --no-compile torch==2.13.0
wait "$browser"

$python -m ruff check .
$python -m ruff format --check .
$python -m mypy & types=$!  # on one core, beside the first tests

log=$(mktemp)
trap 'rm "$log"' EXIT
# on BACKEND ARGUMENTS: `worksteal`: a worker that is done takes tests from the other, so that
# neither waits at the end.
on() {
    KERAS_BACKEND=$1 $python -m pytest -r fEs --numprocesses 2 --dist worksteal "${@:2}" |
        tee --append "$log"
}
# The long tests of files in the order given; the tests of a file run in one process.
long_on() {
    on "$1" --long "${until[@]}" --dist loadfile --no-loadscope-reorder "${@:2}"
}

# In two halves: TensorFlow keeps the memory of compiled graphs until its process ends.
first=(tests/data tests/decoding tests/export tests/serving)
on tensorflow "${first[@]}"
on tensorflow "${first[@]/#/--ignore=}" tests
wait "$types"

# Small operations of PyTorch wait for one another when two processes have two threads each.
export OMP_NUM_THREADS=1
# What a backend can change. Layers take what Keras passes them; logits are the paper's; the loss and the
# update are Keras's; the search is that in plain Python. Other code is the same on every backend.
contract=(tests/layers/test_contract.py)
contract+=(tests/training/test_{update,token_loss,linear_cross_entropy,flat_values,interrupt}.py)
contract+=(tests/training/test_{losses,metrics}.py)
search=(tests/decoding/test_{search,processors,sampling,search_model,traced_search}.py)
# Of strings, what the model does besides the search; the rest is Python on every backend.
translator=(score_is_that_of_the_full_pass translate_train_translate)
translator+=(attention_is_that_of_the_decoding_steps)
translator=("${translator[@]/#/tests/decoding/test_translator.py::test_}")
others=(tests/cli/test_backend.py tests/runs/test_{event_log,user_callbacks}.py)
others+=(tests/test_{backends,program_cache}.py)
for backend in jax torch; do
    echo "Layers, models, training and search on $backend:"
    on $backend "${contract[@]}" "tests/models/test_paper.py::test_logits_equal_the_paper[untied]" \
        "${search[@]}" "${translator[@]}" "${others[@]}"
done

if [ -n "$long" ]; then
    # Masks, half precision, cached steps, LoRA, int8, the fused loss, arguments of `fit`; and that a
    # line takes the same path to every engine.
    details=(tests/layers tests/models/test_{paper,decode_step,transformer,output_bias}.py)
    details+=(tests/training/test_{fused_step,keras_contract,model_state}.py)
    details+=(tests/test_one_path.py --ignore=tests/layers/test_contract.py)
    # Batches of few shapes for `fit`, and a bias that a compiled search must not keep.
    details+=(tests/data/test_feeder.py tests/decoding/test_end_bias.py)
    update=(tests/training/test_{update,token_loss,linear_cross_entropy,flat_values,interrupt}.py)
    update+=(tests/training/test_{fused_step,keras_contract,model_state}.py)
    update+=(tests/data/test_feeder.py)
    # Not marked `long`, but with `--long` they try more random examples and strings.
    examples=(tests/decoding/test_search.py tests/test_settings.py)
    examples+=(tests/data/test_{graph_tokenizer,tokenizer,pipeline,shapes}.py)
    # Minutes each, the slowest last: examples of the docs, killed runs, all commands on JAX and
    # PyTorch, notebooks, new environments.
    slowest=(tests/test_docs.py tests/runs/test_kept_fit.py tests/test_backends.py)
    slowest+=(tests/runs/test_kill_resume.py tests/test_notebooks.py tests/test_packaging.py)
    echo "Long tests:"
    long_on tensorflow -m long tests "${slowest[@]/#/--ignore=}"
    long_on tensorflow -m "not long" "${examples[@]}"
    # JAX compiles each shape: of the cases marked `long`, it gets those of the update, and those
    # that are short elsewhere.
    long_on jax -m "not long" "${details[@]}"
    long_on jax -m long "${update[@]}" "${translator[@]}" tests/layers/test_contract.py
    long_on jax -m slow_on_jax "${search[@]}" "${others[@]}" \
        tests/layers tests/models/test_{decode_step,transformer}.py tests/decoding/test_end_bias.py
    long_on torch "${details[@]}"
    long_on torch -m long "${contract[@]}" "${search[@]}" "${translator[@]}" "${others[@]}"
    long_on tensorflow -m long "${slowest[@]}"
fi
echo "All passed. Not run, and why: $(grep --only-matching '^SKIPPED.*' "$log" || echo nothing)"
