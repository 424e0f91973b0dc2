"""FSDP where this torch has it, and a plain word where it does not."""

from __future__ import annotations

import sys

import pytest

torch = pytest.importorskip("torch")

from ncclcheck.probes.training.wraps import sharding  # noqa: E402


def test_a_torch_without_fully_shard_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.1 has neither fully_shard nor a public torch.distributed.device_mesh."""
    for place in ("torch.distributed.fsdp", "torch.distributed._composable.fsdp", "torch.distributed.device_mesh"):
        monkeypatch.setitem(sys.modules, place, None)
    with pytest.raises(sharding.Unsupported, match="has no fully_shard"):
        sharding.fully_sharded(torch.nn.Linear(1, 1), torch.device("cpu"))
