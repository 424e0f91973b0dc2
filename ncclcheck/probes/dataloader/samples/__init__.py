"""Samples: read, fingerprinted, compared in structure."""
