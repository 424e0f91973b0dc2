"""Jobs seen from beside them: their processes, NCCL's RAS, and the black box."""
