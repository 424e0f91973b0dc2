"""The parts of the text report."""
