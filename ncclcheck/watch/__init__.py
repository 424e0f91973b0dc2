"""A user's job in a black box: its folder, its environment, its output, its signals."""
