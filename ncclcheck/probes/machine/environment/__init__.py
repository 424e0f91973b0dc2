"""What the job system, shells and files set for a process of this node."""
