"""What a box holds, read again: its folder, its lines, its series."""
