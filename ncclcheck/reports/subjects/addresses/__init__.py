"""Names and addresses: who has which, and whom it misleads."""
