"""VER: versions."""
