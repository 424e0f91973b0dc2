"""The ranks of one node: what starts them, what each runs, and how far each has come."""
