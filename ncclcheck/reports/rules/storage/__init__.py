"""STO: file systems."""
