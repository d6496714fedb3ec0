#!/usr/bin/env bash
# dist_test.sh CONFIG CHECKPOINT PROCESSES [arguments of test.py]
# For several machines: NNODES, NODE_RANK, MASTER_ADDR and PORT in the environment.
set -e
[ $# -ge 3 ] || { echo "usage: $0 CONFIG CHECKPOINT PROCESSES [arguments of test.py]" >&2; exit 2; }
exec python -m torch.distributed.run --nnodes="${NNODES:-1}" --node_rank="${NODE_RANK:-0}" \
    --master_addr="${MASTER_ADDR:-127.0.0.1}" --master_port="${PORT:-29500}" --nproc_per_node="$3" \
    "$(dirname "$0")/test.py" "$1" "$2" --launcher pytorch "${@:4}"
