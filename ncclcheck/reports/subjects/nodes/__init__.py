"""Nodes compared with each other, and what they have."""
