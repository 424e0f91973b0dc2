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


def test_layers_within_layers_are_sharded_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Experts of a layer before the layer: torch's fully_shard asks for bottom-up."""
    order: list[object] = []
    monkeypatch.setattr(sharding, "_fully_shard", lambda: lambda part, **_: order.append(part))
    monkeypatch.setattr("torch.distributed.device_mesh.init_device_mesh", lambda *_: None)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    layer = torch.nn.Sequential(torch.nn.ModuleList([torch.nn.Linear(1, 1)]))
    model = torch.nn.Sequential(torch.nn.ModuleList([layer]))
    sharding.fully_sharded(model, torch.device("cpu"))
    assert order == [layer[0][0], layer, model]
