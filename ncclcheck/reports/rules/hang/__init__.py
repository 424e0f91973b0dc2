"""HNG: who holds up a job that runs now."""
