"""Facts of one machine."""
