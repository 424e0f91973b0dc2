"""The user's code as it is written: his class, and who calls set_epoch."""
