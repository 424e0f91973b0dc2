"""What was seen of the user's dataset."""
