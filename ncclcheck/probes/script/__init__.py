"""A training script as text -> facts. Nothing of it is imported or run."""
