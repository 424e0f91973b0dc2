"""What was seen of the training run."""
