"""What every fix on a node says beside itself: whom it touches, where a variable is set, how it is undone."""
