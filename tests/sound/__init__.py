"""Fact documents of sound production machines, made from public sources, and single faults put into them."""
