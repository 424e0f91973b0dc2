"""Packet filters between nodes: what they drop, refuse, limit or forget, and how that shows."""
