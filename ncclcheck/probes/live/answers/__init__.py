"""What NCCL's RAS answered, as text and as JSON -> facts."""
