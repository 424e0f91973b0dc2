"""What the start of a job tells: its machines, and its communicators."""
