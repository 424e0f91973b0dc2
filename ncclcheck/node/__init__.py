"""What runs on a node: the agent that a launcher starts, and the ranks and examiners that it starts."""
