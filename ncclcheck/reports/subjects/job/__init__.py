"""What a job used and measured."""
