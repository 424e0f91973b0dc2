"""HST: the host."""
