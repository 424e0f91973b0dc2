"""What is printed of logs: the story in its order, and the answer on one screen."""
