"""Some steps in a row of the given code, watched: what stops being finite, what grows, what torch warns of."""
