"""BEN: the job that was measured."""
