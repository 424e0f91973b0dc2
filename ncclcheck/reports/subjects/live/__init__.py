"""Jobs that run now."""
