"""DAT: datasets and loaders."""
