"""What a launcher needs of the other side: how an agent begins there, and why it did not."""
