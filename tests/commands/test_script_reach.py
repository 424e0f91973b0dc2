"""What a rank comes to is followed through the ways in which people write calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclcheck.probes.facts import Cluster, Measurements
from ncclcheck.probes.script import reading
from ncclcheck.reports.judgement.findings import State
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules

RULES = [rule for rule in all_rules() if rule.code.startswith("SCR")]
_HEAD = """import functools, os, torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
"""
_START = """local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
rank = dist.get_rank()
data = [1, 2]
"""
_END = "dist.destroy_process_group()\n"


_LOADER = "DataLoader(data, sampler=DistributedSampler(data), **kwargs)\n"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _worst(lines: str, code: str) -> list[State]:
    Path("train.py").write_text(_HEAD + lines)
    script = reading.read(["train.py"], [], 2)
    verdicts = judge(Cluster(command="script", measurements=Measurements(script=script)), RULES)
    return [finding.state for verdict in verdicts if verdict.code == code for finding in verdict.findings]


@pytest.mark.parametrize(
    "lines",
    [
        'kwargs = {"shuffle": True, "batch_size": 4}\n' + _LOADER,
        "kwargs = dict(shuffle=True)\n" + _LOADER,
        'kwargs = {}\nkwargs["shuffle"] = True\n' + _LOADER,
        'kwargs = {}\nkwargs.update({"shuffle": True})\n' + _LOADER,
        "make = functools.partial(DataLoader, shuffle=True)\nmake(data, sampler=DistributedSampler(data))\n",
        "def make(*args, **kwargs):\n    return DataLoader(*args, **kwargs)\n"
        "make(data, shuffle=True, sampler=DistributedSampler(data))\n",
    ],
)
def test_arguments_from_elsewhere(lines: str) -> None:
    assert _worst(_START + lines + _END, "SCR008") == [State.FAIL]
    assert not _worst(_START + lines.replace("True", "False") + _END, "SCR008")


_VALUE = "value = torch.ones(1).cuda()\n"


@pytest.mark.parametrize(
    "lines",
    [
        "class Meter:\n    def __call__(self, t):\n        dist.all_reduce(t)\n"
        "if rank == 0:\n    Meter()(value)\n",
        "class Meter:\n    def __init__(self):\n        self.sum = value\n    def close(self):\n"
        "        dist.all_reduce(self.sum)\nmeters = [Meter()]\nif rank == 0:\n    for one in meters:\n"
        "        one.close()\n",
        "share = dist.all_reduce\nif rank == 0:\n    share(value)\n",
        "share = (lambda t: dist.all_reduce(t)) if rank == 0 else (lambda t: None)\nshare(value)\n",
        "share = functools.partial(dist.all_reduce, op=dist.ReduceOp.SUM)\nif rank == 0:\n    share(value)\n",
        'def share(t):\n    dist.all_reduce(t)\nways = {"sum": share}\n'
        'if rank == 0:\n    ways[os.environ["WAY"]](value)\n',
        "def first(f):\n    def inner(*args, **kwargs):\n        if dist.get_rank() == 0:\n"
        "            return f(*args, **kwargs)\n    return inner\n"
        "@first\ndef share(t):\n    dist.all_reduce(t)\nshare(value)\n",
        "def share(t, save):\n    if save is None or rank != 0:\n        return\n    dist.all_reduce(t)\n"
        'share(value, os.environ.get("SAVE"))\n',
    ],
)
def test_a_collective_that_some_ranks_come_to(lines: str) -> None:
    states = [*_worst(_START + _VALUE + lines + _END, "SCR002"), *_worst(_START + _VALUE + lines + _END, "SCR003")]
    assert states
    assert {*states} <= {State.FAIL, State.WARN}
    sound = (
        lines.replace("rank == 0", "data").replace("rank != 0", "not data").replace("dist.get_rank() == 0", "data")
    )
    assert not _worst(_START + _VALUE + sound + _END, "SCR002")
    assert not _worst(_START + _VALUE + sound + _END, "SCR003")


def test_a_spawn_in_one_branch_and_a_call_in_the_other_start_a_group() -> None:
    lines = (
        'def train(rank, n):\n    dist.init_process_group("nccl", init_method="tcp://localhost:1234", '
        "rank=rank, world_size=n)\n    if rank == 0:\n        dist.barrier()\nif __name__ == '__main__':\n"
        "    n = torch.cuda.device_count()\n    if n > 1:\n        mp.spawn(train, nprocs=n, args=(n,))\n"
        "    else:\n        train(0, n)\n"
    )
    assert _worst(lines, "SCR002") == [State.FAIL]


_TRAINED = """net = DDP(torch.nn.Linear(9, 1).cuda(), device_ids=[local_rank])
for epoch in range({over}):
    net(torch.ones(1, 9).cuda()).sum().backward()
"""


@pytest.mark.parametrize(
    ("resume", "states"),
    [
        ('if rank == 0:\n    first = torch.load("a.pt", map_location="cpu")["epoch"]\n', [State.NOTE]),
        ('first = torch.load("a.pt", map_location=f"cuda:{local_rank}")["epoch"]\n', []),
        ('if os.path.exists("a.pt"):\n    first = torch.load("a.pt", map_location="cpu")["epoch"]\n', []),
    ],
)
def test_a_loop_that_begins_elsewhere_on_one_rank(resume: str, states: list[State]) -> None:
    assert _worst(_START + "first = 0\n" + resume + _TRAINED.format(over="first, 9") + _END, "SCR002") == states


@pytest.mark.parametrize(
    ("given", "states"),
    [("2, 0", [State.WARN]), ("2, rank", []), ("1, 0", []), ("num_replicas=2, rank=1", [State.WARN])],
)
def test_a_sampler_with_one_number_for_all_ranks(given: str, states: list[State]) -> None:
    assert (
        _worst(_START + _TRAINED.format(over="9") + f"DistributedSampler(data, {given})\n" + _END, "SCR007")
        == states
    )


_SAVED = """class Trainer:
    def __init__(self, model):
        self.model = model
        if os.path.exists("a.pt"):
            self.load()
        self.model = DDP(self.model, device_ids=[local_rank])
    def load(self):
        self.model.load_state_dict(torch.load("a.pt", map_location="cpu")["model"])
    def save(self):
        torch.save({"model": self.model.MODULE.state_dict()}, "a.pt")
trainer = Trainer(torch.nn.Linear(9, 1).cuda())
if rank == 0:
    trainer.save()
"""


def test_a_file_that_is_saved_from_the_wrapper_and_loaded_before_it() -> None:
    assert _worst(_START + _SAVED.replace(".MODULE", "") + _END, "SCR006") == [State.FAIL]
    assert not _worst(_START + _SAVED.replace(".MODULE", ".module") + _END, "SCR006")
    later = (
        'torch.save(net.module.state_dict(), "b.pt")\n'
        'net.load_state_dict(torch.load("b.pt", map_location="cpu"))\n'
    )
    assert _worst(_START + _TRAINED.format(over="9") + later + _END, "SCR006") == [State.FAIL]


@pytest.mark.parametrize(
    ("rank", "states"), [('os.environ["LOCAL_RANK"]', [State.WARN]), ('os.environ["RANK"]', [])]
)
def test_a_local_rank_that_is_handed_on_under_another_name(rank: str, states: list[State]) -> None:
    lines = (
        'def setup(number, n):\n    dist.init_process_group("nccl", rank=number, world_size=n)\n'
        f'setup(int({rank}), int(os.environ["WORLD_SIZE"]))\n'
    )
    assert _worst(lines + _END, "SCR026") == states


def test_a_loop_is_named_by_the_file_that_it_is_in() -> None:
    """The loader is gone through in another module than that of the loop over epochs."""
    Path("engine.py").write_text(
        "def one_epoch(model, loader, optimizer):\n    for batch in loader:\n        optimizer.zero_grad()\n"
        "        model(batch).sum().backward()\n        optimizer.step()\n"
    )
    lines = (
        "loader = DataLoader(data, sampler=DistributedSampler(data))\nmodel = DDP(torch.nn.Linear(1, 1))\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\nfor epoch in range(3):\n"
        "    one_epoch(model, loader, optimizer)\n"
    )
    Path("train.py").write_text(_HEAD + "from engine import one_epoch\n" + _START + lines + _END)
    script = reading.read(["train.py"], [], 2)
    verdicts = judge(Cluster(command="script", measurements=Measurements(script=script)), RULES)
    (finding,) = next(verdict for verdict in verdicts if verdict.code == "SCR009").findings
    loop = next(at for at, line in enumerate(Path("train.py").read_text().splitlines(), 1) if "for epoch" in line)
    assert finding.what == f"the sampler is never given the epoch of the loop at train.py:{loop}"


_WRAP = "net = DDP(torch.nn.Linear(1, 1).cuda())\n"
_TRAIN = "for epoch in range(3):\n    for x in loader:\n        net(x).sum().backward()\n"
_RANKS = """import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--rank", type=int, choices={})
args = parser.parse_args()
dist.init_process_group("gloo", init_method="tcp://a:1", rank=args.rank, world_size=3)
"""
_NODES = """import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--nodes", type=int)
parser.add_argument("--node", type=int)
args = parser.parse_args()
gpus = torch.cuda.device_count()
def work(i, args):
    rank = args.node * torch.cuda.device_count() + i
    dist.init_process_group("nccl", init_method="tcp://a:1", rank=rank, world_size=args.nodes{})
mp.spawn(work, args=(args,), nprocs=gpus)
"""
_STEP = "for epoch in range(3):\n    net(torch.ones(1, 1).cuda()).sum().backward()\n"
_LOADS = """def load(data, world_size=1):
    sampler = DistributedSampler(data) if world_size > 1 else None
    return DataLoader(data, shuffle=sampler is None, sampler=sampler)
"""


@pytest.mark.parametrize(
    ("lines", "code", "states"),
    [
        # the default of a parameter decides the branch
        (_START + _WRAP + _LOADS + "loader = load(data)\n" + _TRAIN, "SCR007", [State.WARN]),
        (_START + _WRAP + _LOADS + "loader = load(data, 4)\n" + _TRAIN, "SCR007", []),
        # the number of processes and of ranks
        ("def work(i):\n    dist.init_process_group('nccl', init_method='tcp://a:1', rank=i, world_size=4)\n"
         "if __name__ == '__main__':\n    mp.spawn(work, nprocs=3)\n", "SCR051", [State.FAIL]),
        ("def work(i, n):\n    dist.init_process_group('nccl', init_method='tcp://a:1', rank=i, world_size=n)\n"
         "if __name__ == '__main__':\n    n = torch.cuda.device_count()\n"
         "    mp.spawn(work, args=(n,), nprocs=n)\n", "SCR051", []),
        ("dist.init_process_group('nccl', rank=0, world_size=int(os.environ['WORLD_SIZE']))\n", "SCR051",
         [State.FAIL]),
        ("dist.init_process_group('nccl', rank=0, world_size=1)\n", "SCR051", []),
        ("def work(i, node):\n    rank = node * 8 + i{}\n"
         "    dist.init_process_group('nccl', init_method='tcp://a:1', rank=rank, world_size=args.size)\n"
         "mp.spawn(work, args=(args.node,), nprocs=gpus)\n".format(" + 1"), "SCR051", [State.FAIL]),
        ("def work(i, node):\n    rank = (node - 1) * 8 + i\n"
         "    dist.init_process_group('nccl', init_method='tcp://a:1', rank=rank, world_size=args.size)\n"
         "mp.spawn(work, args=(args.node,), nprocs=gpus)\n", "SCR051", []),
        (_RANKS.format("[1, 2, 3]"), "SCR051", [State.FAIL]), (_RANKS.format("[0, 1, 2]"), "SCR051", []),
        (_NODES.format(""), "SCR051", [State.NOTE]), (_NODES.format(" * gpus"), "SCR051", []),
        ("rank = int(os.environ['NODE_RANK']) * torch.cuda.device_count() + int(os.environ['LOCAL_RANK'])\n"
         "dist.init_process_group('nccl', rank=rank)\n", "SCR051", [State.NOTE]),
        # a layer of the wrapped model, and the optimizer's own attribute
        (_START + _WRAP + "net.module.head = torch.nn.Linear(2, 2)\n", "SCR043", [State.WARN]),
        (_START + _WRAP + "net.module.loss = torch.nn.MSELoss()\n", "SCR043", []),
        (_START + _WRAP + "net.module.drop = torch.nn.Identity()\n", "SCR043", []),
        ("def work(i):\n    net = torch.nn.Linear(2, 2)\n    net.fc = torch.nn.Linear(2, 3)\n"
         "    net = DDP(net.cuda())\nfor i in range(2):\n    work(i)\n", "SCR043", []),
        # only what a library calls Trainer is known to wrap
        (_START + _WRAP + "from transformers import Trainer\nTrainer(net)\n", "SCR043", [State.WARN]),
        (_START + _WRAP + "from mine.train import Trainer\nTrainer(net)\n", "SCR043", []),
        # another group is destroyed
        (_START + "pg = dist.new_group()\ndist.destroy_process_group(pg)\ndist.get_rank()\n", "SCR048", []),
        # a buffer
        (_START + _WRAP + "import io\nwith io.BytesIO() as f:\n    torch.save(net.state_dict(), f)\n", "SCR004",
         []),
        (_START + _WRAP + "with open('a.pt', 'wb') as f:\n    torch.save(net.state_dict(), f)\n", "SCR004",
         [State.WARN]),
        # a state for a last test alone, and one that is trained further
        (_START + _WRAP + _STEP + "if rank == 0:\n    net.load_state_dict(torch.load('a.pt'))\n", "SCR040", []),
        (_START + _WRAP + "if rank == 0:\n    net.load_state_dict(torch.load('a.pt'))\n" + _STEP, "SCR040",
         [State.WARN]),
        # an option that is another one on each rank, and states that are saved from the CPU
        (_START + _WRAP + "quiet = rank == 0\nif quiet:\n    net.load_state_dict(torch.load('a.pt'))\n", "SCR005",
         []),
        (_START + _WRAP + "net.load_state_dict(torch.load('model.pt'))\nif rank == 0:\n"
         "    torch.save({k: v.cpu() for k, v in net.module.state_dict().items()}, 'model.pt')\n", "SCR005",
         [State.NOTE]),
        # two ways in one script, and Lightning's name for the slow one
        (_START + "if one:\n    if torch.cuda.device_count() > 1:\n        net = torch.nn.DataParallel(net)\n"
         "else:\n    " + _WRAP, "SCR015", [State.NOTE]),
        ("from pytorch_lightning import Trainer\nTrainer(strategy='dp')\n", "SCR015", [State.NOTE]),
        ("from pytorch_lightning import Trainer\nTrainer(strategy='ddp')\n", "SCR015", []),
        # groups that each process makes alone
        (_START + "for i in range(2):\n    dist.new_group([2 * i, 2 * i + 1])\n", "SCR042", []),
        (_START + "for i in range(2):\n    if i == mine:\n        dist.new_group([2 * i, 2 * i + 1])\n",
         "SCR042", [State.FAIL]),
        # a state with the wrapper's names, for others
        (_START + _WRAP + "if rank == 0:\n    torch.save(net.state_dict(), 'a.pt')\n", "SCR006", [State.NOTE]),
        (_START + _WRAP + "if rank == 0:\n    torch.save(net.module.state_dict(), 'a.pt')\n", "SCR006", []),
        # read as the library is imported
        ("import transformers\nos.environ['HF_HOME'] = '/data'\n" + _START, "SCR013", [State.WARN]),
        ("os.environ['HF_HOME'] = '/data'\nimport transformers\n" + _START, "SCR013", []),
    ],
)  # fmt: skip
def test_ways_that_are_followed(lines: str, code: str, states: list[State]) -> None:
    assert _worst(lines + _END, code) == states


def test_what_nothing_calls_in_an_imported_file_does_not_count(tmp_path: Path) -> None:
    """The main program of a tool beside the script reads LOCAL_RANK; the script's own does not."""
    (tmp_path / "tool.py").write_text(
        "import os\ndef score(x):\n    return x\ndef main():\n    print(os.environ['LOCAL_RANK'])\n"
        "if __name__ == '__main__':\n    main()\n"
    )
    script = (
        "import argparse, tool\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--local_rank', type=int)\n"
        "def main():\n    args = parser.parse_args()\n    torch.cuda.set_device(args.local_rank)\n"
        "    dist.init_process_group('nccl')\n    tool.score(1)\nmain()\n"
    )
    assert _worst(script, "SCR012") == [State.WARN]
    assert _worst(script.replace("tool.score(1)", "tool.main()"), "SCR012") == []
