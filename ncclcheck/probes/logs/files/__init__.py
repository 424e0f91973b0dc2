"""Files, containers' logs and launchers' prefixes -> lines."""
