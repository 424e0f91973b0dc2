"""Processes of jobs that run now, seen from outside."""
