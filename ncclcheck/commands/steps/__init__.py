"""What commands are made of: the gate before COMMAND and its cache, an A/B trial, a box's page."""
