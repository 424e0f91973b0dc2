"""What rules share about a training script."""
