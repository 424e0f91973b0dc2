"""Links between nodes: which fail or lose packets, and what the facts of both ends say of it."""
