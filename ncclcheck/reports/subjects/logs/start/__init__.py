"""What processes tell of their job: its machines, its communicators, and who left it first."""
