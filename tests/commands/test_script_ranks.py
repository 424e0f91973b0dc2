"""What each of four ranks does: conditions, GPUs, seeds and collectives are told apart by what they are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclcheck.probes.facts import Cluster, Measurements
from ncclcheck.probes.facts.script import Script
from ncclcheck.probes.script import reading
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules

RULES = [rule for rule in all_rules() if rule.code.startswith("SCR")]
_HEAD = """import os, random, torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
"""
_LOCAL = """local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
"""
_GROUP = """dist.init_process_group("nccl")
rank = dist.get_rank()
"""
_TRAIN = """model = DDP(torch.nn.Linear(1, 1).cuda(), device_ids=[local_rank])
loader = DataLoader(data, sampler=DistributedSampler(data))
for epoch in range(3):
    loader.sampler.set_epoch(epoch)
    for x in loader:
        {step}
dist.destroy_process_group()
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _read(lines: str) -> Script:
    Path("train.py").write_text(_HEAD + lines)
    return reading.read(["train.py"], [])


def _texts(lines: str, code: str) -> list[str]:
    verdicts = judge(Cluster(command="script", measurements=Measurements(script=_read(lines))), RULES)
    return [finding.what for verdict in verdicts if verdict.code == code for finding in verdict.findings]


@pytest.mark.parametrize(
    ("given", "ranks"),
    [
        ("rank", ("0", "1", "2", "3")),
        ("local_rank", ("0", "1", "0", "1")),
        ("rank + 1", ("1", "2", "3", "4")),
        ("-rank", ("0", "-1", "-2", "-3")),
        ("rank % torch.cuda.device_count()", ("0", "1", "0", "1")),
        ("f'cuda:{rank}'", ("'cuda:0'", "'cuda:1'", "'cuda:2'", "'cuda:3'")),
        ("'cuda:' + os.environ['LOCAL_RANK']", ("'cuda:0'", "'cuda:1'", "'cuda:0'", "'cuda:1'")),
        ("'cuda:%d' % rank", ("'cuda:0'", "'cuda:1'", "'cuda:2'", "'cuda:3'")),
        ("'cuda:{}'.format(rank)", ("'cuda:0'", "'cuda:1'", "'cuda:2'", "'cuda:3'")),
        ("torch.device('cuda', rank)", ("'cuda:0'", "'cuda:1'", "'cuda:2'", "'cuda:3'")),
        ("5 if rank == 0 else rank", ("5", "1", "2", "3")),
        ("rank == 0", ("True", "False", "False", "False")),
        ("rank == 0 or rank == 3", ("True", "False", "False", "True")),
        ("not rank", ("True", "False", "False", "False")),
        ("rank in (0, 1)", ("True", "True", "False", "False")),
        ("rank + dist.get_world_size()", None),  # how many there are is not known
        ("rank // 8", None),  # nor how many a node has
        ("rank == 7", None),  # one that four ranks have not
        ("'x' * 10**9", None),
        ("'%999999999d' % rank", None),
    ],
)
def test_a_value_is_known_on_each_rank(given: str, ranks: tuple[str, ...] | None) -> None:
    """As four ranks on two nodes have it; what depends on the size of the job is not known."""
    script = _read(f"{_LOCAL}{_GROUP}torch.manual_seed({given})\n")
    seed = next(call for call in script.trace if call.name == "torch.manual_seed")
    assert seed.each.get("0") == ranks


@pytest.mark.parametrize(
    ("condition", "holds", "kind"),
    [
        ("rank == 0", (0,), "rank"),
        ("rank", (1, 2, 3), "rank"),
        ("local_rank == 0", (0, 2), "rank"),
        ("local_rank not in [-1, 0]", (1, 3), "rank"),
        ("rank == 0 and ready", (0,), "rank"),
        ("rank <= 100", (), "group"),
        ("rank < 8", (), "rank"),  # a job may have more
        ("rank >= 0", (), "group"),
    ],
)
def test_the_ranks_on_which_a_condition_holds(condition: str, holds: tuple[int, ...], kind: str) -> None:
    """A bound that no rank is meant to reach asks for nothing; one of eight may tell ranks apart."""
    script = _read(f"{_LOCAL}{_GROUP}if {condition}:\n    dist.barrier()\n")
    guard = next(call for call in script.trace if call.name.endswith("barrier")).guards[-1]
    assert (guard.holds, guard.kind) == (holds, kind)


_CURRENT = "model = FSDP(net, device_id=torch.cuda.current_device())\n"
_ORDER = f"{_LOCAL}{_GROUP}data = [1]\nrandom.seed({{}})\nrandom.shuffle(data)\ns = DistributedSampler(data[1:])\n"
_BARRIERS = "if rank == 0:\n    {}\nif rank != 0:\n    {}\n"


@pytest.mark.parametrize(
    ("lines", "faulty"),
    [
        (_BARRIERS.format("dist.barrier()", "dist.barrier()"), False),
        (_BARRIERS.format("dist.barrier()\n    dist.barrier()", "dist.barrier()"), True),
        (
            "if rank > 0:\n    dist.barrier()\nelse:\n    print(1)\n" + _BARRIERS.format(*["dist.barrier()"] * 2),
            True,
        ),
        ("if rank > 0:\n    dist.barrier()\nelse:\n    dist.barrier()\n", False),
        ("if local_rank not in [-1, 0]:\n    dist.barrier()\nif local_rank == 0:\n    dist.barrier()\n", False),
        ("if rank == 0:\n    dcp.save(state, checkpoint_id='x')\n", True),
        ("dcp.save(state, checkpoint_id='x')\n", False),
    ],
)
def test_collectives_are_counted_rank_by_rank(lines: str, faulty: bool) -> None:
    """Whatever the conditions' words are: each rank enters as many as the others."""
    assert bool(_texts(f"{_LOCAL}{_GROUP}{lines}dist.destroy_process_group()\n", "SCR002")) is faulty


@pytest.mark.parametrize(
    ("lines", "code", "part"),
    [
        (_GROUP + "device = f'cuda:{rank}'\ntorch.cuda.set_device(device)\n", "SCR010", "in the whole job"),
        (f"{_LOCAL}{_GROUP}{_CURRENT}", "SCR010", ""),
        (f"{_GROUP}{_CURRENT}", "SCR010", "is GPU 0 on every rank"),
        (f"{_GROUP}dist.all_gather_object(x, 1)\n{_LOCAL}", "SCR022", "before the process takes its GPU"),
        (f"{_LOCAL}{_GROUP}dist.all_gather_object(x, 1)\n", "SCR022", ""),
        (_ORDER.format("rank"), "SCR025", "from a seed of its own"),
        (_ORDER.format("1"), "SCR025", ""),
    ],
)
def test_what_ranks_take_is_compared(lines: str, code: str, part: str) -> None:
    """GPUs, seeds and orders; nothing is found where part is empty."""
    texts = _texts(f"{lines}{_TRAIN.format(step='model(x).sum().backward()')}", code)
    assert any(part in text for text in texts) if part else texts == []


_STEP = "model(x).sum().backward()"
_SOUND = f"{_LOCAL}{_GROUP}{_TRAIN.format(step=_STEP)}"
_SUM = "for i in range(steps):\n            with model.no_sync():\n                model(x).sum().backward()"


@pytest.mark.parametrize(
    ("old", "new", "code", "part"),
    [
        ("", "", "SCR009", ""),
        ("    loader.sampler.set_epoch(epoch)\n", "", "SCR009", "never given the epoch"),
        ("for epoch in range(3):\n    loader.sampler.set_epoch(epoch)\n",
         "loader.sampler.set_epoch(0)\nfor epoch in range(3):\n", "SCR009", "never given the epoch"),
        ("", "", "SCR041", ""),
        (_STEP, _SUM.replace("            with", "            if i < steps:\n             with"), "SCR041",
         "no_sync is used in every step"),
        (_STEP, _SUM.replace("            with", "            if i < steps - 1:\n             with"), "SCR041",
         ""),
        ("", "", "SCR027", "no workers"),
        ("data, sampler", "data, num_workers=os.cpu_count(), sampler", "SCR027", "as many workers"),
        ("data, sampler", "data, num_workers=os.cpu_count() // 8, pin_memory=True, sampler", "SCR027", ""),
        ("data, sampler", "data, num_workers=2, sampler", "SCR027", "not in pinned memory"),
        ("data, sampler=DistributedSampler(data))\n",
         "data, num_workers=2, pin_memory=True, sampler=DistributedSampler(data))\n", "SCR027", ""),
    ],
)  # fmt: skip
def test_a_training_and_its_faults(old: str, new: str, code: str, part: str) -> None:
    """One training, and what is changed in it; nothing is found where part is empty."""
    lines = _SOUND.replace(old, new) if old else _SOUND
    texts = _texts(lines, code)
    assert any(part in text for text in texts) if part else texts == []


@pytest.mark.parametrize(("more", "faulty"), [("", True), ("dist.all_reduce(model.weight.grad)", False)])
def test_a_model_that_nothing_averages(more: str, faulty: bool) -> None:
    """Samples are shared out, and each rank trains a model of its own; whatever is exchanged may be gradients."""
    head = "\n".join(line for line in _HEAD.split("\n") if "FSDP" not in line and "DDP" not in line)
    model = _TRAIN.replace(
        "DDP(torch.nn.Linear(1, 1).cuda(), device_ids=[local_rank])", "torch.nn.Linear(1, 1).cuda()"
    )
    Path("train.py").write_text(f"{head}{_LOCAL}{_GROUP}{model.format(step=_STEP)}{more}\n")
    script = reading.read(["train.py"], [])
    verdicts = judge(Cluster(command="script", measurements=Measurements(script=script)), RULES)
    texts = [finding.what for verdict in verdicts if verdict.code == "SCR041" for finding in verdict.findings]
    assert any("nothing averages" in text for text in texts) is faulty


@pytest.mark.parametrize(
    ("handler", "faulty"),
    [
        ("except RuntimeError:\n            continue", True),
        ("except RuntimeError:\n            print(1)", True),
        ("except RuntimeError:\n            raise", False),
        ("except KeyboardInterrupt:\n            print(1)", False),
    ],
)
def test_a_rank_that_goes_on_after_an_error(handler: str, faulty: bool) -> None:
    """The others are in the middle of the backward pass; a rank that raises ends the job."""
    step = f"try:\n            model(x).sum().backward()\n        {handler}"
    assert bool(_texts(f"{_LOCAL}{_GROUP}{_TRAIN.format(step=step)}", "SCR003")) is faulty
