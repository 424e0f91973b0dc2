"""Lines by their own words: exceptions, signs, and what no rule knows."""
