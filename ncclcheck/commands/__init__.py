"""One module a command: what it runs, in which order, and what it makes of the outcome."""
