"""Nodes compared with each other: the odd one out, and what all should have alike."""
