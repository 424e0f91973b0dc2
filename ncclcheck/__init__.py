"""Cluster diagnostics and NCCL health checks: probes -> facts -> rules -> report."""

__version__ = "0.1.0"
