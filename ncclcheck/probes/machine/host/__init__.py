"""The host: processors, memory, limits, control groups, containers, file systems."""
