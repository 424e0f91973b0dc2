#!/bin/sh
# Two machines with docker, no cluster manager. Run on both, with the node's rank and the first machine's address:
#   ./docker-two-machines.sh 0 10.0.0.1     on the first
#   ./docker-two-machines.sh 1 10.0.0.1     on the second
set -eu
rank=$1
first=$2

# host network: NCCL and gloo meet on addresses of the machines; a bridge network hides them from each other.
# ipc and shm-size: NCCL's shared memory and data loader workers need more than docker's 64 MB.
# memlock: RDMA locks the memory that it sends from.
exec docker run --rm --gpus all --network host --ipc host --shm-size 16g --ulimit memlock=-1 \
    "${IMAGE:-my-training-image}" \
    ncclcheck bench --nodes 2 --node-rank "$rank" --rdzv-endpoint "$first:29500"
