"""Emulated ranks: which samples each of them reads."""
