"""RDM: RDMA devices."""
