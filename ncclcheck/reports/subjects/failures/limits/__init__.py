"""What a node ran out of, or is held back by: quotas, limits, and who else uses it."""
