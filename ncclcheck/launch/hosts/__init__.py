"""Hosts and nodes as people and launchers write them."""
