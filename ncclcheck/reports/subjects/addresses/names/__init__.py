"""Names of hosts, and where they lead."""
