"""NCCL's own lines -> what each process says of itself."""
