"""SCR: what stands in a training script."""
