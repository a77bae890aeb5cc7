#!/usr/bin/env bash
# Trains in N worker processes on this machine, to test multi-worker training without N machines:
#   scripts/train_multi_worker.sh 2 number_names --run runs/two_workers
# On several machines, start `keras-transformer train` on each: with TF_CONFIG, or with Slurm's srun and
# `distribution: multi_worker` in the recipe. The run folder must be on a disk that all machines share.
set -euo pipefail

workers=$1
shift
exec "${PYTHON:-python}" -m keras_transformer.runs.workers "$workers" keras-transformer train "$@"
