"""NET: interfaces, addresses, connections."""
