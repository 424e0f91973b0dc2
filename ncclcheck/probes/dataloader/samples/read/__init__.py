"""Samples read in child processes."""
