"""What looks like a fault in a script and is none, or may be none, is not told as one."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclcheck.probes.facts import Cluster, Measurements
from ncclcheck.probes.script import reading
from ncclcheck.reports.judgement.findings import Finding, State
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules

RULES = [rule for rule in all_rules() if rule.code.startswith("SCR")]
_HEAD = """import argparse, os, sys, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import BatchSampler, DataLoader
from torch.utils.data.distributed import DistributedSampler
"""
_START = """local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
rank = dist.get_rank()
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _found(lines: str, code: str) -> list[Finding]:
    Path("train.py").write_text(_HEAD + lines)
    script = reading.read(["train.py"], [])
    verdicts = judge(Cluster(command="script", measurements=Measurements(script=script)), RULES)
    return [finding for verdict in verdicts if verdict.code == code for finding in verdict.findings]


def _states(lines: str, code: str) -> list[State]:
    return [finding.state for finding in _found(lines, code)]


@pytest.mark.parametrize(
    ("leave", "states"),
    [("raise RuntimeError('no GPU')", []), ("sys.exit(1)", [State.FAIL])],
)
def test_a_rank_that_raises_ends_the_job(leave: str, states: list[State]) -> None:
    """torchrun ends all ranks then; one that leaves in silence keeps them waiting."""
    lines = f"""local_rank = int(os.environ["LOCAL_RANK"])
if local_rank >= torch.cuda.device_count():
    {leave}
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
"""
    assert _states(lines, "SCR002") == []
    assert _states(lines, "SCR003") == states


@pytest.mark.parametrize(
    ("made", "call", "states"),
    [
        ("engine, *_ = deepspeed.initialize(model=net)", "engine.state_dict()", []),
        ("engine, *_ = deepspeed.initialize(model=net)", "engine.save_checkpoint('a')", [State.FAIL]),
        ("engine = FSDP(net)", "engine.state_dict()", [State.FAIL]),
    ],
)
def test_deepspeeds_state_dict_is_each_ranks_own(made: str, call: str, states: list[State]) -> None:
    head = "import deepspeed\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    lines = f"{head}{_START}{made}\nif rank == 0:\n    {call}\n"
    assert _states(lines, "SCR002") == states


_TWO = """train = DistributedSampler(data)
{}
loader = DataLoader(data, batch_sampler=BatchSampler(other, 8, True))
for epoch in range(9):
    train.set_epoch(epoch)
"""


@pytest.mark.parametrize(
    ("other", "states"),
    [
        ("other = DistributedSampler(data, shuffle=False)", [State.NOTE]),
        ("other = torch.utils.data.RandomSampler(data)", [State.WARN]),
        ("other = DistributedSampler(held)", [State.WARN]),
    ],
)
def test_another_sampler_shares_the_data_out(other: str, states: list[State]) -> None:
    assert _states(_START + _TWO.format(other), "SCR024") == states


_SAVED = """net = torch.nn.Linear(2, 2).cuda()
if args.resume:
    net.load_state_dict(torch.load("a.pt", map_location="cpu"))
net = DDP(net)
state = {}
if rank == 0:
    torch.save(state, "a.pt")
"""


@pytest.mark.parametrize(
    ("state", "states"),
    [
        ("net.module.state_dict() if several else net.state_dict()", []),
        ("net.state_dict()", [State.FAIL]),
    ],
)
def test_a_state_that_is_taken_from_inside_under_a_condition(state: str, states: list[State]) -> None:
    assert _states(_START + _SAVED.format(state), "SCR006") == states


@pytest.mark.parametrize(
    ("condition", "states"),
    [("isinstance(net, PreTrainedModel)", [State.NOTE]), ("args.fresh", [State.WARN])],
)
def test_a_branch_for_models_of_another_class(condition: str, states: list[State]) -> None:
    load = 'net.load_state_dict(torch.load("model.pt"))'
    assert _states(f"{_START}net.cuda()\nif {condition}:\n    pass\nelse:\n    {load}\n", "SCR005") == states


_OPTION = """parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", {})
args = parser.parse_args()
{}
"""
_BY_HAND = """def start(number):
    dist.init_process_group("gloo", init_method="tcp://10.0.0.1:29500", rank=number, world_size=4)
start(args.local_rank)
"""


@pytest.mark.parametrize(
    ("option", "states"),
    [('"-l", type=int, default=0', [State.NOTE]), ("type=int, default=0", [State.WARN])],
)
def test_a_rank_that_is_typed_by_hand(option: str, states: list[State]) -> None:
    assert _states(_OPTION.format(option, _BY_HAND), "SCR012") == states


@pytest.mark.parametrize(
    ("default", "then", "why"),
    [
        ("", 'dist.init_process_group("nccl")\ntorch.cuda.set_device(args.local_rank)', "or it raises"),
        ("default=-1", 'dist.init_process_group("nccl")\nhere = torch.device("cuda", args.local_rank)',
         "or it raises"),
        ("default=-1", 'if args.local_rank != -1:\n    dist.init_process_group("nccl")', "each trains alone"),
        ("default=-1", 'dist.init_process_group("nccl")\ntorch.cuda.set_device(args.local_rank)',
         "all use one GPU"),
        ("required=True", 'dist.init_process_group("nccl")\ntorch.cuda.set_device(args.local_rank)',
         "are required"),
        ("default=0", 'dist.init_process_group("nccl")\nhere = torch.device("cuda", args.local_rank)',
         "all use one GPU"),
    ],
)  # fmt: skip
def test_what_comes_of_the_default_is_said(default: str, then: str, why: str) -> None:
    (finding,) = _found(_OPTION.format(f"type=int, {default}", then), "SCR012")
    assert why in finding.why


_TRAINED = """net = DDP(torch.nn.Linear(2, 2).cuda())
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
sampler = DistributedSampler(data)
loader = DataLoader(data, sampler=sampler, num_workers=2)
def work():
    for epoch in range(9):
        sampler.set_epoch(epoch)
        for x in loader:
            net(x).sum().backward()
            optimizer.step()
{}
work()
"""


@pytest.mark.parametrize(
    ("after", "states"),
    [
        ("if rank == 0:\n    if bad > 3:\n        break", [State.WARN]),
        ("if rank == 0:\n    print(epoch)\n    if bad > 3:\n        return", [State.WARN]),
        ("if bad > 3:\n    if rank == 0:\n        print(epoch)\n    break", []),
        ("if rank == 0:\n    if bad > 3:\n        break\nelse:\n    if bad > 3:\n        break", []),
        ("if rank == 0:\n    if args.dry_run:\n        break", []),
        ("if rank == 0:\n    for name in names:\n        if name == last:\n            break", []),
        ("if rank == 0:\n    if bad > 3:\n        raise ValueError", []),
    ],
)
def test_some_ranks_alone_leave_the_loop(after: str, states: list[State]) -> None:
    inner = "\n".join(f"        {line}" for line in after.split("\n"))
    assert _states(_START + _TRAINED.format(inner), "SCR003") == states


@pytest.mark.parametrize(
    ("after", "states"),
    [
        ("if rank == 0:\n    scheduler.step()", [State.WARN]),
        ("if rank == 0:\n    sampler.set_epoch(epoch + 1)", [State.WARN]),
        ("scheduler.step()", []),
        ("if rank == 0:\n    scheduler.step()\nelse:\n    scheduler.step()", []),
    ],
)
def test_what_one_rank_alone_steps(after: str, states: list[State]) -> None:
    inner = "\n".join(f"        {line}" for line in after.split("\n"))
    assert _states(_START + _TRAINED.format(inner), "SCR040") == states


@pytest.mark.parametrize(("default", "states"), [("0", [State.NOTE]), ("4", [])])
def test_an_option_whose_default_is_no_workers(default: str, states: list[State]) -> None:
    option = (
        f'parser = argparse.ArgumentParser()\nparser.add_argument("--num_workers", type=int, default={default})\n'
    )
    lines = f"{option}args = parser.parse_args()\n{_START}net = DDP(net.cuda())\n"
    assert _states(f"{lines}loader = DataLoader(data, num_workers=args.num_workers)\n", "SCR027") == states


_TWICE = 'local_rank = int(os.environ["LOCAL_RANK"])\ndist.init_process_group("nccl")\nrank = dist.get_rank()\n'


@pytest.mark.parametrize(
    ("before", "after", "states"),
    [
        ("if rank != 0:\n    dist.barrier()\n", "if rank == 0:\n    dist.barrier()\n", []),
        ("if rank != 0:\n    dist.barrier()\n", "", [State.WARN]),
    ],
)
def test_barriers_of_two_sides_come_in_pairs(before: str, after: str, states: list[State]) -> None:
    pair = "if rank != 0:\n    dist.barrier()\nprint(1)\nif rank == 0:\n    dist.barrier()\n"
    assert _states(f"{_TWICE}{before}print(2)\n{after}{pair}", "SCR002") == states


@pytest.mark.parametrize(
    ("argument", "states"),
    [("epoch", []), ("0", [State.WARN]), ("seed", [State.WARN])],
)
def test_a_sampler_that_is_told_one_number(argument: str, states: list[State]) -> None:
    lines = f"""{_START}seed = 7
net = DDP(torch.nn.Linear(9, 1).cuda(), device_ids=[local_rank])
sampler = DistributedSampler([1, 2])
for epoch in range(9):
    sampler.set_epoch({argument})
    for sample in DataLoader([1, 2], sampler=sampler):
        net(sample).sum().backward()
"""
    assert _states(lines, "SCR009") == states


@pytest.mark.parametrize(
    ("tensor", "states"),
    [
        ("torch.zeros(1)", [State.WARN]),
        ("torch.zeros(1).cuda()", []),
        ("torch.zeros(1, device='cuda')", []),
        ("torch.zeros(1).to(local_rank)", []),
        ("torch.zeros(1).cuda().cpu()", [State.WARN]),
    ],
)
def test_a_tensor_of_the_cpu_over_nccl(tensor: str, states: list[State]) -> None:
    assert _states(f"{_START}total = {tensor}\ndist.all_reduce(total)\n", "SCR042") == states
    gloo = _START.replace("nccl", "gloo")
    assert _states(f"{gloo}total = {tensor}\ndist.all_reduce(total)\n", "SCR042") == []


@pytest.mark.parametrize(
    ("part", "where", "states"),
    [
        ("net.module[0].parameters()", "", [State.WARN]),
        ("net.parameters()", "", []),  # as a whole: nobody waits for it
        ("torch.nn.Linear(9, 1).parameters()", "", []),
        ("net.module[0].parameters()", "for epoch in range(9):\n    ", []),  # in turns
    ],
)
def test_parameters_that_are_frozen_after_the_wrapper(part: str, where: str, states: list[State]) -> None:
    inner = "    " if where else ""
    lines = f"""{_START}net = DDP(torch.nn.Sequential(torch.nn.Linear(9, 1)).cuda(), device_ids=[local_rank])
{where}for one in {part}:
{inner}    one.requires_grad = False
"""
    assert _states(lines, "SCR043") == states


@pytest.mark.parametrize(
    ("sent", "states"), [("flag = box[0]", []), ("pass", [State.WARN])],
)  # fmt: skip
def test_a_decision_that_is_sent_to_all(sent: str, states: list[State]) -> None:
    lines = f"""{_START}net = DDP(torch.nn.Linear(9, 1).cuda(), device_ids=[local_rank])
for epoch in range(9):
    net(torch.ones(1, 9).cuda()).sum().backward()
    flag = False
    if rank == 0:
        flag = True
    box = [flag]
    dist.broadcast_object_list(box, 0)
    if rank != 0:
        {sent}
    if flag:
        break
"""
    assert _states(lines, "SCR003") == states


def test_what_is_decided_by_a_ranks_own_samples_is_its_own() -> None:
    lines = f"""{_START}net = DDP(torch.nn.Linear(9, 1).cuda(), device_ids=[local_rank])
loader = DataLoader([1, 2], sampler=DistributedSampler([1, 2]))
class Stopper:
    def __init__(self):
        self.bad = 0
        self.best = 9.0
        self.done = False
    def __call__(self, loss):
        if loss < self.best:
            self.best = loss
        else:
            self.bad += 1
            if self.bad > 3:
                self.done = True
stopper = Stopper()
for epoch in range(9):
    total = 0.0
    for sample in loader:
        loss = net(sample).sum()
        loss.backward()
        total += loss.item()
    AGREE
    stopper(total)
    if stopper.done:
        break
"""
    assert _states(lines.replace("AGREE", "pass"), "SCR003") == [State.WARN]
    agreed = "total = torch.tensor(total).cuda()\n    dist.all_reduce(total)"
    assert _states(lines.replace("AGREE", agreed), "SCR003") == []


@pytest.mark.parametrize(
    ("given", "states"), [("work", []), ("inner", [State.FAIL]), ("lambda rank: work(rank)", [State.FAIL])]
)
def test_what_new_processes_cannot_import(given: str, states: list[State]) -> None:
    lines = f"""import torch.multiprocessing as mp
def work(rank):
    dist.init_process_group("gloo", rank=rank, world_size=2, init_method="tcp://127.0.0.1:29500")
def main():
    def inner(rank):
        work(rank)
    mp.spawn({given}, nprocs=2)
if __name__ == "__main__":
    main()
"""
    assert _states(lines, "SCR014") == states


@pytest.mark.parametrize(
    ("port", "states"), [("str(random.randint(20000, 30000))", [State.WARN]), ("args.port", [])]
)
def test_a_port_that_each_rank_draws(port: str, states: list[State]) -> None:
    assert _states(f'import random\nos.environ["MASTER_PORT"] = {port}\n{_START}', "SCR011") == states
