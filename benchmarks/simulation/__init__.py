"""A fabric with planted faults, of which the truth is known: what `next_round` and `culprits` make of it."""
