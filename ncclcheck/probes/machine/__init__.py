"""Probes of a machine: files, system calls and drivers -> the facts of one node."""
