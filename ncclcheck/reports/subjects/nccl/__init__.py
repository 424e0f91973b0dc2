"""What NCCL chooses by itself: interfaces, HCAs, protocols; and the variables that change it."""
