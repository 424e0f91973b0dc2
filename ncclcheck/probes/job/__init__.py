"""Measurements inside a running job, on every rank."""
