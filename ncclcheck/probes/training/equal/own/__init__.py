"""The user's own step and its state, and the collectives that his model calls."""
