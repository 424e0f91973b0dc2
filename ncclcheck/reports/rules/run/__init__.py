"""RUN: the tool's own run."""
