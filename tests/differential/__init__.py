"""NCCL's own library as the judge of what this tool predicts: generated cases, asked of both, compared."""
