"""FAB: PCIe, NUMA and the kernel between devices."""
