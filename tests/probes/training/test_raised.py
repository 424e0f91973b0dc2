"""Exceptions of the user's own code: where they were raised, on which rank first, and what is said of them."""

from __future__ import annotations

import importlib.util
import runpy
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from ncclcheck.base import raised
from ncclcheck.probes.dataloader.factory import FactoryError
from ncclcheck.probes.facts import Cluster, Job, Measurements, Node, RankState, Run
from ncclcheck.probes.facts.training import Smoke
from ncclcheck.probes.job.context import TrainingPlan
from ncclcheck.probes.training import given
from ncclcheck.probes.training.wraps import lightning
from ncclcheck.reports.culprit import culprits
from ncclcheck.reports.judgement.findings import State, Verdict
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules
from ncclcheck.reports.text import details
from ncclcheck.results import finish
from ncclcheck.run.plan.options import Options

_PROJECT = """
class Images:
    def __len__(self):
        return 100
    def __getitem__(self, index):
        return self.opened(index)
    def opened(self, index):
        if index == 77:
            raise OSError("image file is truncated")
        return index
class NeedArgs:
    def __init__(self, cfg):
        pass
def waits(event, again=True):
    waits(event, False) if again else event.wait(20)
import torch
class OnGpu(torch.nn.Module):
    def forward(self, x):
        return x.cuda().sum()
"""
PEER = (
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:47. "
    "This is usually a consequence.\nGLHF!"
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.chdir(tmp_path)
    (path := tmp_path / "train.py").write_text(_PROJECT)
    spec = importlib.util.spec_from_file_location("train", path)
    assert spec
    assert spec.loader
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    return module


@pytest.mark.parametrize("workers", [0, 1])
def test_the_line_and_the_index_of_the_sample(project: ModuleType, workers: int) -> None:
    """A worker hands over its traceback as text, in which no index stands."""
    with pytest.raises(OSError, match="truncated") as failed:
        list(DataLoader(project.Images(), batch_size=4, num_workers=workers))
    assert raised.place(failed.value) == "train.py:9 in opened" + ("" if workers else ", index 77")


def test_a_call_that_lacks_arguments_is_of_no_line(project: ModuleType) -> None:
    plan = TrainingPlan(model="train.py:NeedArgs", directory=str(Path(str(project.__file__)).parent))
    with pytest.raises(TypeError, match="cfg") as failed:
        given.model(plan)
    assert failed.tb
    failed.value.with_traceback(failed.tb.tb_next)  # without the frame of this test
    assert raised.place(failed.value) == ""
    assert raised.by_call(failed.value)


def test_where_the_main_thread_stands(project: ModuleType) -> None:
    event, stacks = threading.Event(), list[list[str]]()

    def look() -> None:
        stacks.append(raised.standing())
        event.set()

    timer = threading.Timer(0.2, look)
    timer.start()
    project.waits(event)
    timer.join()
    assert [frame for frame in stacks[0] if frame.startswith("train.py")] == ["train.py:15 in waits"]


def test_a_module_of_torch_that_is_imported_is_no_collective(tmp_path: Path) -> None:
    """Importing may wait long for a disk, and no rank waits for this one meanwhile."""
    folder = tmp_path / "torch" / "distributed"
    folder.mkdir(parents=True)
    (folder / "later.py").write_text("def register():\n    look()\n\n\nregister()\n")
    stacks = list[list[str]]()
    runpy.run_path(str(folder / "later.py"), {"look": lambda: stacks.append(raised.standing())})
    assert not [name for name in stacks[0] if name in ("register", "<module>")]


def ranks(*changes: dict[str, Any], step: str = "training: steps") -> list[RankState]:
    return [
        RankState(
            rank=number, node=f"sim{number}", pid=9 + number, phase="world", last_step=step, exit=1, **change
        )
        for number, change in enumerate(changes)
    ]


def verdict(code: str, *changes: dict[str, Any], command: Any = "smoke", **run: Any) -> Verdict:
    step = run.pop("step", "training: steps")
    cluster = Cluster(
        command=command,
        nodes=[Node(name=f"sim{number}") for number in range(len(changes))],
        job=Job(ranks=len(changes)),
        run=Run(ranks=ranks(*changes, step=step), started_job=True, **run),
        measurements=Measurements(smoke=Smoke()),
    )
    return judge(cluster, [rule for rule in all_rules() if rule.code == code])[0]


BAD = {"error": "OSError: image file is truncated", "users": True, "at": "train.py:9 in opened, index 77"}


def test_the_rank_that_raised_first_is_named_and_not_the_one_that_lost_its_peer() -> None:
    (finding,) = verdict("TRN026", {"error": PEER, "users": True, "at": "train.py:3 in forward"}, BAD).findings
    assert finding.state is State.FAIL
    assert finding.where.rank == 1
    assert finding.what == "rank 1 raised OSError: image file is truncated, at train.py:9 in opened, index 77"
    assert "dataset[77]" in finding.remedies[0].text
    assert verdict("RUN003", {"error": PEER}, BAD).reason == "its ground failed: TRN026"


def test_without_a_line_of_the_users_the_other_rank_is_named_too() -> None:
    (finding,) = verdict("RUN003", {"error": PEER}, {"error": "RuntimeError: no space"}).findings
    assert finding.where.rank == 1


TORCH = (
    "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. This "
    "error indicates that your module has parameters that were not used.\n In addition, you can set the "
    "environment variable TORCH_DISTRIBUTED_DEBUG to either INFO or DETAIL"
)


GUARDED = """
def save(m):
    if dist.get_rank() == 0:
        for one in m:
            gather(one)
    else:
        wait()
    barrier()

def early(m):
    if rank != 0:
        return
    gather(m)

def by_step(m):
    if step % 2:
        gather(m)

if rank == 0:
    def defined():
        gather()
"""


@pytest.mark.parametrize(
    ("line", "condition"),
    [
        (5, "if dist.get_rank() == 0"),
        (7, "if not (dist.get_rank() == 0)"),
        (8, ""),
        (13, "if not (rank != 0)"),
        (17, ""),
        (21, ""),
    ],
)
def test_the_condition_on_the_rank_that_a_line_is_under(tmp_path: Path, line: int, condition: str) -> None:
    (tmp_path / "train.py").write_text(GUARDED)
    assert raised.condition(str(tmp_path / "train.py"), line) == condition


def test_a_rank_hands_over_the_traceback_from_the_users_first_line_on(project: ModuleType) -> None:
    with pytest.raises(OSError, match="truncated") as failed:
        list(DataLoader(project.Images(), batch_size=4))
    trace = raised.trace(failed.value)
    assert "train.py" in trace.splitlines()[1] or "test_raised.py" in trace.splitlines()[1]
    assert trace.endswith("OSError: image file is truncated")


def test_the_traceback_is_shown_by_v() -> None:
    cluster = Cluster(
        command="smoke",
        nodes=[Node(name="sim0")],
        run=Run(ranks=ranks({**BAD, "trace": "Traceback\n  line 9, in opened"}), started_job=True),
    )
    story = finish.Story(started="2026-01-01T00:00:00+00:00", seconds=1.0)
    text = details.text(finish.make(cluster, Options(command="smoke"), story))
    assert "rank 0 raised" in text
    assert "line 9, in opened" in text


def test_the_first_sentence_of_an_exception_is_reported() -> None:
    (finding,) = verdict("RUN003", {"error": TORCH}, {"error": PEER}).findings
    assert "finished reduction in the prior iteration before starting a new one, in" in finding.what
    assert "TORCH_DISTRIBUTED_DEBUG" not in finding.what


@pytest.mark.parametrize(
    ("step", "error", "state", "words"),
    [
        (
            "training: make the model",
            "TypeError: NeedArgs.__init__() missing 1 required positional argument: 'cfg'",
            State.FAIL,
            "--model-kwargs '{\"cfg\": ...}'",
        ),
        (
            "training: make the data",
            "TypeError: make() missing 2 required positional arguments: 'root' and 'split'",
            State.FAIL,
            '--data-kwargs \'{"root": ..., "split": ...}\'',
        ),
        ("training: steps", "AssertionError: Torch not compiled with CUDA enabled", State.FAIL, "asks for CUDA"),
        (
            "training: steps",
            "RuntimeError: Lit is not attached to a `Trainer`.",
            State.UNKNOWN,
            "asks for no Trainer",
        ),
        (
            "training: steps",
            "OutOfRange: label 10 of sample 17: the scores have 10 classes, 0 to 9, and the labels of the batch "
            "go from 1 to 10",
            State.FAIL,
            "labels - 1",
        ),
        (
            "training: steps",
            "OutOfRange: label -1 in row 3 of the batch: the scores have 4 classes, 0 to 3, and the labels of the "
            "batch go from -1 to 3",
            State.FAIL,
            "ignore_index=-1",
        ),
        (
            "training: steps",
            "OutOfRange: number 50260: the embedding has 50257 rows, 0 to 50256, and the numbers of the batch go "
            "from 11 to 50260",
            State.FAIL,
            "torch.nn.Embedding(50261, width)",
        ),
        ("training: steps", "ValueError: Tried to step 11 times", State.FAIL, "steps_per_epoch=len(loader)"),
        (
            "training: steps",
            "RuntimeError: Expected to mark a variable ready only once. It was marked ready twice.",
            State.FAIL,
            "use_reentrant=False",
        ),
    ],
)
def test_what_to_do_goes_by_what_was_raised(step: str, error: str, state: State, words: str) -> None:
    at = "" if "missing" in error else "train.py:5 in forward"
    (finding,) = verdict("TRN026", *[{"error": error, "users": True, "at": at}] * 2, step=step).findings
    assert finding.state is state
    assert "all ranks raised" in finding.what
    assert at in finding.what
    assert words in " ".join([finding.remedies[0].text, *finding.remedies[0].commands])


@pytest.mark.parametrize(
    ("error", "what", "fix"),
    [
        ("FactoryError: the loader gave None for a batch", "do not fit: the loader gave None", "def collate_fn"),
        ("FactoryError: not of plain tensors: name a loss(model, batch)", "do not fit: not of", "def loss(model"),
        ("FactoryError: a.py cannot be imported: No module named 'x.y'", "the given file: a.py", "pip install x"),
    ],
)
def test_what_does_not_fit_is_not_called_an_exception(error: str, what: str, fix: str) -> None:
    (finding,) = verdict("TRN026", *[{"error": error, "users": True}] * 2, step="training: x").findings
    assert what in finding.what
    assert "raised" not in finding.what
    assert fix in " ".join(finding.remedies[0].commands)


def test_the_culprit_is_the_rank_that_raised_first() -> None:
    nodes = [Node(name="sim0"), Node(name="sim1")]
    cluster = Cluster(command="smoke", nodes=nodes, job=Job(ranks=2), run=Run(ranks=ranks({"error": PEER}, BAD)))
    (culprit,) = culprits(cluster)
    assert (culprit.names, culprit.explains) == (["sim1/rank 1"], ["TRN026"])
    assert "OSError: image file is truncated, at train.py:9 in opened, index 77" in culprit.why


def test_ranks_that_stand_still_say_where_they_part() -> None:
    """One is in a collective that the other never enters."""
    still = {"since_s": 60.0, "exit": None}
    changes = [
        {**still, "stack": ["barrier", "train.py:100 in forward"]},
        {**still, "stack": ["all_reduce", "train.py:20 in loss"]},
    ]
    cluster = Cluster(
        command="smoke",
        nodes=[Node(name="sim0"), Node(name="sim1")],
        job=Job(ranks=2),
        run=Run(
            ranks=[
                RankState(rank=n, node=f"sim{n}", phase="world", last_step="training: steps", **change)  # type: ignore[arg-type]
                for n, change in enumerate(changes)
            ],
            started_job=True,
            stopped_by="deadline",
        ),
    )
    (finding,) = judge(cluster, [rule for rule in all_rules() if rule.code == "RUN003"])[0].findings
    assert finding.state is State.UNKNOWN
    assert "rank 0 in barrier from train.py:100 in forward; rank 1 in all_reduce from train.py:20" in finding.what
    assert "--sizes" not in finding.remedies[-1].text
    assert "same collectives in the same order" in finding.remedies[-1].text


class _Skips(torch.nn.Module):
    def training_step(self, _batch: Any, _number: int) -> None:
        """Lightning takes None for a batch that is to be skipped."""


def test_a_training_step_without_a_loss_is_the_users() -> None:
    with pytest.raises(FactoryError, match="training_step returned None") as failed:
        lightning.plain(_Skips())(torch.zeros(2, 4))
    assert raised.by_call(failed.value)
    alone = {"error": f"FactoryError: {failed.value}", "users": True}
    (finding,) = verdict("TRN026", alone, {"error": PEER}).findings
    assert finding.what.startswith("model, data and loss do not fit: training_step returned None")
    assert finding.remedies[0].commands[0].startswith("return 0.0 * sum(p.sum() for p in self.parameters()")
    with pytest.raises(FactoryError, match="the loss of a batch is None") as failed:
        given.as_loss(None)
    assert raised.by_call(failed.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="here .cuda() works")
def test_a_model_that_asks_for_cuda_where_there_is_none_is_told_by_its_line(project: ModuleType) -> None:
    with pytest.raises((AssertionError, RuntimeError)) as failed:
        project.OnGpu()(torch.zeros(2, 4))
    at = raised.place(failed.value)
    assert at.startswith("train.py:19 in forward")
    error = f"{type(failed.value).__name__}: {failed.value}"
    (finding,) = verdict("TRN026", {"error": error, "users": True, "at": at}, {"error": PEER}).findings
    assert "train.py:19 in forward" in finding.what
    assert "self.parameters()" in finding.remedies[0].commands[0]
