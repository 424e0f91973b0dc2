"""LOG: logs and Flight Recorder dumps."""
