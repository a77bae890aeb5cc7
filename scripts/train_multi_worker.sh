#!/usr/bin/env bash
# Trains in N worker processes on this machine, to try out what otherwise needs N machines:
#   scripts/train_multi_worker.sh 2 number_names --run runs/two_workers
# On several machines, start `keras-transformer train` on each, with TF_CONFIG set or under Slurm's
# srun, `distribution: multi_worker` in the recipe, and the run's folder on a disk that all of them see.
set -euo pipefail

workers=$1
shift
exec "${PYTHON:-python}" -m keras_transformer.runs.workers "$workers" keras-transformer train "$@"
