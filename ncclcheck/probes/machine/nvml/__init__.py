"""NVML in a process of its own, which runs without our path: only the standard library and pynvml are at hand."""
