"""Workers that disturb each other: shared handles, buffers, files."""
