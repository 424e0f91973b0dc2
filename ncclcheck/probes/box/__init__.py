"""The black box: what watches a job from beside it and inside its ranks, and what it wrote read again."""
