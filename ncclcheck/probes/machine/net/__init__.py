"""The network as this host's kernel sees it: interfaces, addresses, routes, filters, names."""
