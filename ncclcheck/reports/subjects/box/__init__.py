"""What boxes hold of one job: who was first, and what followed."""
