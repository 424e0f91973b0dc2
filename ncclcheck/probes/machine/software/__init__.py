"""Installed software: NCCL and its plugins, torch, Python, the driver."""
