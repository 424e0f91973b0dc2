#!/bin/sh
# A HealthCheckProgram for slurm.conf; Slurm ends it after 60 seconds, so it ends itself before.
#   HealthCheckProgram=/etc/slurm/slurm-health-check.sh
#   HealthCheckInterval=600
#   HealthCheckNodeState=IDLE
# How many GPUs and HCAs there must be stands in /etc/ncclcheck.toml, as in slurm-prolog.sh.
set -u
ncclcheck=${NCCLCHECK:-/opt/ncclcheck/bin/ncclcheck}
node=${SLURMD_NODENAME:-$(hostname -s)}

# What is drained already keeps its reason.
case $(timeout 5 sinfo -h -n "$node" -o %T) in drain*) exit 0 ;; esac

said=$(timeout --kill-after=5 40 \
    "$ncclcheck" env --launch local --nodes 1 --only GPU,RDM,FAB --deadline 30 --output short)

# 1 is a check that failed. What could not be judged in time (3, 124), or a tool that is not there, is no broken node.
[ $? -eq 1 ] || exit 0
codes=$(printf '%s\n' "$said" | awk '$1 == "FAIL" { print $2 }' | sort -u | paste -s -d , -)
timeout 5 scontrol update NodeName="$node" State=DRAIN Reason="ncclcheck $codes"
