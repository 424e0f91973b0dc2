"""What jobs measured."""
