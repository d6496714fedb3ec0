#!/usr/bin/env bash
# slurm_train.sh PARTITION JOB_NAME CONFIG WORK_DIR [arguments of train.py]
# GPUS (default 8), GPUS_PER_NODE (8), CPUS_PER_TASK (5) and SRUN_ARGS in the environment.
set -e
[ $# -ge 4 ] || { echo "usage: $0 PARTITION JOB_NAME CONFIG WORK_DIR [arguments of train.py]" >&2; exit 2; }
GPUS_PER_NODE=${GPUS_PER_NODE:-8}
exec srun -p "$1" --job-name="$2" --gres=gpu:"$GPUS_PER_NODE" --ntasks="${GPUS:-8}" \
    --ntasks-per-node="$GPUS_PER_NODE" --cpus-per-task="${CPUS_PER_TASK:-5}" --kill-on-bad-exit=1 ${SRUN_ARGS:-} \
    python -u "$(dirname "$0")/train.py" "$3" --work-dir "$4" --launcher slurm "${@:5}"
