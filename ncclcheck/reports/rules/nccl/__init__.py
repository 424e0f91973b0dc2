"""NCC: NCCL's library and settings."""
