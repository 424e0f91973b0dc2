"""What a script says of its job is not typed again; what was typed counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclcheck.probes.script import reading
from ncclcheck.run.plan import preflight_plan, script_plan
from ncclcheck.run.plan.preflight_plan import PreflightOptions
from ncclcheck.run.plan.starts import JobStart

SCRIPT = """
import datetime
import os

import torch.distributed as dist
from torch.utils.data import DataLoader


def make_dataset(rows=16):
    return list(range(rows))


def main():
    os.environ["NCCL_IB_TIMEOUT"] = "23"
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=2))
    DataLoader(make_dataset(), num_workers=3)


if __name__ == "__main__":
    main()
"""
SPAWNED = """
import torch.distributed as dist
import torch.multiprocessing as mp


def work(rank):
    dist.init_process_group("nccl", init_method="tcp://node1:29500", rank=rank, world_size=4)


if __name__ == "__main__":
    mp.spawn(work, nprocs=4)
"""


def _filled(text: str, folder: Path, wanted: PreflightOptions | None = None) -> tuple[PreflightOptions, list[str]]:
    (folder / "train.py").write_text(text)
    return script_plan.filled(wanted or PreflightOptions(), reading.read(["train.py"], []))


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_script_says_what_is_examined_and_how(tmp_path: Path) -> None:
    options, lines = _filled(SCRIPT, tmp_path)
    assert (options.data, options.workers, options.backend) == ("train.py:make_dataset", 3, "gloo")
    assert (options.factory_limit, options.settings) == (120.0, {"NCCL_IB_TIMEOUT": "23"})
    assert len(lines) == 5
    data = preflight_plan.data(options)
    assert (data.factory, data.workers, data.factory_limit) == ("train.py:make_dataset", 3, 120.0)
    assert preflight_plan.smoke(options).backend == "gloo"


def test_how_it_starts_is_how_jobs_are_started(tmp_path: Path) -> None:
    options, _ = _filled(SPAWNED, tmp_path)
    assert options.begin == JobStart(start="spawn", init="tcp", url="tcp://node1:29500")
    assert options.nproc_per_node == 4
    assert preflight_plan.bench(options).begin == preflight_plan.smoke(options).begin == options.begin


def test_what_was_typed_counts(tmp_path: Path) -> None:
    typed = PreflightOptions(data="mine:data", backend="nccl")
    options, _ = _filled(SCRIPT, tmp_path, typed)
    assert (options.data, options.backend) == ("mine:data", "nccl")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("rows=16", "rows"),
        ("if __name__", "main()\nif __name__"),
        ("return list(range(rows))", "return list(range(rows)), None"),
        ("make_dataset", "make_val_dataset"),
    ],
)
def test_a_factory_that_cannot_be_called_alone_is_not_taken(old: str, new: str, tmp_path: Path) -> None:
    options, _ = _filled(SCRIPT.replace(old, new), tmp_path)
    assert options.data == ""


def test_what_follows_is_a_command_or_the_scripts_arguments() -> None:
    assert script_plan.arguments("train.py", ("--lr", "1")) == (("--lr", "1"), ())
    command = ("srun", "python", "train.py", "--lr", "1")
    assert script_plan.arguments("train.py", command) == (("--lr", "1"), command)
    assert script_plan.arguments("train.py", ("./job.sh",)) == ((), ("./job.sh",))
