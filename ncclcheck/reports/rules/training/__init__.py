"""TRN: the training run."""
