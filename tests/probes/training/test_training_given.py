"""What the training run is given by name: copies, samplers and optimizers of the user's own model and data."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from ncclcheck.probes.dataloader import factory
from ncclcheck.probes.job.context import TrainingPlan
from ncclcheck.probes.training import given

_PROJECT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
RUNS = []
class Net(nn.Linear):
    def __init__(self):
        super().__init__(2, 2)
        self.weight.register_hook(lambda gradient: gradient * 0)
def make_loader():
    return DataLoader(TensorDataset(torch.zeros(8, 2)), batch_size=2, shuffle=True)
def loss(model, batch):
    return model(batch[0]).sum()
"""


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainingPlan:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_project.py").write_text(_PROJECT)
    names = {"model": "Net", "data": "make_loader", "loss": "loss"}
    own: dict[str, Any] = {option: f"own_project.py:{name}" for option, name in names.items()}
    return TrainingPlan(directory=str(tmp_path), **own)


def test_a_copy_keeps_the_hooks_of_parameters(plan: TrainingPlan) -> None:
    first = given.model(plan)
    copied = given.copies(plan, first)()
    assert torch.equal(copied.weight, first.weight)  # type: ignore[arg-type]
    copied(torch.ones(1, 2)).sum().backward()
    assert copied.weight.grad is not None
    assert not copied.weight.grad.any()  # type: ignore[operator]


def test_a_file_is_run_once(plan: TrainingPlan) -> None:
    model, measure = given.model(plan), factory.find(plan.loss, plan.directory)
    assert type(model) is measure.__globals__["Net"]


def test_a_file_that_raises_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "broken_project.py").write_text("A = 1\nraise ValueError('no')\n")
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            factory.find("broken_project.py:A", str(tmp_path))


@pytest.mark.parametrize(
    ("line", "shared"),
    [
        ("", False),
        ("from accelerate import Accelerator", True),
        ("def main():\n    import lightning as L", True),
        ("# import accelerate", False),
    ],
)
def test_a_loader_that_its_framework_shares_out(
    plan: TrainingPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, shared: bool
) -> None:
    monkeypatch.setattr(given, "find", lambda name, _folder: FOUND[name.rpartition(":")[2]])
    monkeypatch.setattr(inspect, "getsource", lambda _module: _PROJECT + line)
    calls: list[str] = []
    monkeypatch.setattr(given, "distributed", lambda *_args, **_more: calls.append("shared"))
    monkeypatch.setattr(given, "resolve", lambda _wanted, _env: _made)
    given.loader(plan, 2)
    assert bool(calls) is shared
    assert tmp_path


def _made() -> factory.FactoryLoader:
    samples = torch.utils.data.TensorDataset(torch.zeros(8, 2))
    return factory.FactoryLoader(samples, False, 8, {"batch_size": 2, "shuffle": True}, "loader")


FOUND = {"Net": nn.Linear, "make_loader": DataLoader, "loss": nn.MSELoss}


def test_sparse_gradients_get_an_optimizer_that_takes_them() -> None:
    net = nn.Embedding(4, 2, sparse=True)
    net(torch.tensor([1])).sum().backward()
    given.optimizer(net, sparse=True).step()
    with pytest.raises(RuntimeError, match="sparse"):
        given.optimizer(net, sparse=False).step()
