#!/usr/bin/env bash
# dist_train.sh CONFIG PROCESSES [arguments of train.py]
# For several machines: NNODES, NODE_RANK, MASTER_ADDR and PORT in the environment.
set -e
[ $# -ge 2 ] || { echo "usage: $0 CONFIG PROCESSES [arguments of train.py]" >&2; exit 2; }
exec python -m torch.distributed.run --nnodes="${NNODES:-1}" --node_rank="${NODE_RANK:-0}" \
    --master_addr="${MASTER_ADDR:-127.0.0.1}" --master_port="${PORT:-29500}" --nproc_per_node="$2" \
    "$(dirname "$0")/train.py" "$1" --launcher pytorch "${@:3}"
