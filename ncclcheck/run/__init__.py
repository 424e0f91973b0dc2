"""One run over all nodes: its session, its stages, its jobs, and what was gathered."""
