"""User code in child processes: started, watched, and ended in time."""
