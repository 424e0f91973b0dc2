"""Whether ranks agree, and whether their gradients are those of one process."""
