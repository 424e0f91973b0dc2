"""The run of the tool: what was asked for, how its ranks meet, what nodes reach, and what happened."""
