"""A script, followed from its first line as a rank comes to its lines; of values only the kind is known."""
