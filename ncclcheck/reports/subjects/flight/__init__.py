"""Flight Recorder dumps of all ranks side by side: who waits for whom."""
