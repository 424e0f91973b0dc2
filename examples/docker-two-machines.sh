#!/bin/sh
# Two machines with docker, no cluster manager. Run on both, with the node's rank and the first machine's address:
#   ./docker-two-machines.sh 0 10.0.0.1     on the first
#   ./docker-two-machines.sh 1 10.0.0.1     on the second
# With a command behind them (on both) it is started if the machines are ready:
#   ./docker-two-machines.sh 0 10.0.0.1 torchrun --nnodes 2 --node-rank 0 --master-addr 10.0.0.1 train.py
set -eu
rank=$1
first=$2
shift 2

if [ $# -gt 0 ]; then
    set -- ncclcheck preflight --nodes 2 --node-rank "$rank" --rdzv-endpoint "$first:29500" -- "$@"
else
    set -- ncclcheck bench --nodes 2 --node-rank "$rank" --rdzv-endpoint "$first:29500"
fi

# host network: NCCL and gloo meet on addresses of the machines; a bridge network hides them from each other.
# ipc and shm-size: NCCL's shared memory and data loader workers need more than docker's 64 MB.
# memlock: RDMA locks the memory that it sends from.
exec docker run --rm --gpus all --network host --ipc host --shm-size 16g --ulimit memlock=-1 \
    "${IMAGE:-my-training-image}" "$@"
