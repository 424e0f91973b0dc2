"""What LOG rules share, and the story of a log."""
