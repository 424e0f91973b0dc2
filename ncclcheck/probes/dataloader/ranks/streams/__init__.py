"""Streams, which have no index: read to their end, and beside each other."""
