"""The host of a job that runs: control groups, connections, GPUs, counters."""
