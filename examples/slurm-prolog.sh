#!/bin/sh
# A Prolog for slurm.conf: no job starts on a node whose hardware is broken. Slurm drains a node whose prolog fails, and
# puts the job back into the queue.
#   Prolog=/etc/slurm/slurm-prolog.sh
# How many GPUs and HCAs there must be stands in /etc/ncclcheck.toml:
#   [require]
#   gpu = 8
#   hca = 8
set -u
ncclcheck=${NCCLCHECK:-/opt/ncclcheck/bin/ncclcheck}

# --launch local: only this node, although a job's variables are set; no Slurm command may run in a prolog.
# Only hardware: limits and variables are the job's, and root has others.
timeout --kill-after=5 40 \
    "$ncclcheck" env --launch local --nodes 1 --only GPU,RDM,FAB --deadline 30 --output short >&2

# 1 is a check that failed. What could not be judged in time (3, 124), or a tool that is not there, is no broken node.
[ $? -ne 1 ]
