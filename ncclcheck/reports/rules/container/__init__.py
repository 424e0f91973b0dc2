"""CON: containers."""
