"""TOR: torch's settings."""
