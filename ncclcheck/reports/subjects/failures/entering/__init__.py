"""Nodes that could not be entered: by ssh, by srun, by a join; why, and what fixes it."""
