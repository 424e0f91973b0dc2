"""GPU, MEM: GPUs and their memory."""
