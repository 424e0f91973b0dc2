"""PCIe functions, RDMA devices, and the tree that they hang in."""
