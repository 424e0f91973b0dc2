"""What bounds and cleans facts that come from outside."""
