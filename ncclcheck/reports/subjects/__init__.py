"""What rules of one subject share: NCCL's own choices, links, nodes, logs, data, training."""
