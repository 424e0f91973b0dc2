"""Facts of logs and of Flight Recorder dumps."""
