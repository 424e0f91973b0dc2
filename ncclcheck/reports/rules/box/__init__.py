"""What a black box shows of a job that died or stalled."""
