"""One file a launcher: how agents come to run on nodes."""
