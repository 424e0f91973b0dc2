"""Checkpoints: written, read back, resumed from."""
