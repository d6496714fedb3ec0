"""Turn a sharded checkpoint, which is a folder, into an ordinary checkpoint. tools/test.py takes it, and training
without configs/_base_/fsdp.py can resume from it.

    python tools/merge_shards.py work_dirs/NAME_OF_CONFIG/epoch_12.pth epoch_12.pth
"""

import argparse
from pathlib import Path

from mmguard.errors import InputError
from mmguard.outputs import check_output, save_tensors
from mmguard.runs.running import run_tool
from mmguard.runs.sharding import merge_shards


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('source', type=Path, help='folder of the sharded checkpoint')
    parser.add_argument('target', type=Path, help='file to write; it must not exist yet')
    parser.add_argument('--trust-checkpoint', action='store_true', help='run the code in rest.pth, if there is any')
    args = parser.parse_args()
    check_output(args.target)
    if args.target.exists():
        raise InputError(f'{args.target} exists already: remove it, or name another file')
    state = merge_shards(args.source, trusted=args.trust_checkpoint)
    save_tensors(state, args.target)
    print(f'{args.target} has {len(state["state_dict"])} tensors of step {state["meta"]["iter"]}')


if __name__ == '__main__':
    run_tool(main)
