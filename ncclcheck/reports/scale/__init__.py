"""Faults that no pair shows: the whole fails, and which groups of nodes do."""
