"""Ranks and nodes compared: who is slow, and which link."""
