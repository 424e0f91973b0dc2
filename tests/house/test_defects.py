"""A defect of ncclcheck is RUN004 and exit 3: no node is accused of it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ncclcheck
from ncclcheck.base import defects
from ncclcheck.probes.facts import Cluster, Job, Node, RankState, Run, replace
from ncclcheck.probes.job import board
from ncclcheck.reports.culprit import culprits
from ncclcheck.reports.judgement.findings import State, Verdict
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules
from ncclcheck.reports.text.closing import decision
from tests.conftest import ROOT, Command

BOARD = "AttributeError: 'PrefixStore' object has no attribute 'check'"
RESET = "RuntimeError: [../gloo/transport/tcp/pair.cc:525] Connection closed by peer"


def _raised(work: Callable[[], Any]) -> BaseException:
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - any
        work()
    trace = caught.value.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return caught.value.with_traceback(trace)


def _run(source: str, name: str) -> Callable[[], Any]:
    """What runs these lines as if they stood in that file."""
    tree = compile(ast.parse(source), name, "exec")
    return lambda: exec(tree, {})


OURS = str(Path(ncclcheck.__file__).parent)
BY_US = f"{OURS}/probes/pairs.py"
IN_TRAINING = f"{OURS}/probes/training/loop.py"


@pytest.mark.parametrize(
    ("source", "file", "place"),
    [
        ("object().check", BY_US, "probes/pairs.py:1"),
        ("\nlen(1)", BY_US, "probes/pairs.py:2"),
        ("{}['rank']", BY_US, "probes/pairs.py:1"),
        ("raise RuntimeError('planned are 2')", BY_US, ""),
        ("raise OSError('no route')", BY_US, ""),
        ("import no_such_module", BY_US, ""),
        ("object().check", "/home/user/model.py", ""),
        ("object().check", f"{OURS}/probes/training/checks.py", "probes/training/checks.py:1"),
    ],
)
def test_whose_fault_an_exception_is(source: str, file: str, place: str) -> None:
    assert defects.place(_raised(_run(source, file)), users_code=lambda: True) == place


def test_what_the_users_objects_may_raise_in_our_training_is_not_ours() -> None:
    lines = Path(IN_TRAINING).read_text().splitlines()
    number = next(n for n, line in enumerate(lines) if "loss = setting.loss(model, batch)" in line)
    with_a_loss = _run("\n" * number + "object().check", IN_TRAINING)
    assert defects.place(_raised(with_a_loss), users_code=lambda: True) == ""
    assert defects.place(_raised(with_a_loss), users_code=lambda: False) != ""
    hook: dict[str, Any] = {"ours": _run("{}['x']", IN_TRAINING)}
    exec(compile("def hook():\n    ours()", "/home/user/model.py", "exec"), hook)
    assert defects.place(_raised(hook["hook"]), users_code=lambda: True) == "", "a hook of his led there"


def test_the_built_in_training_is_ours_and_a_wrong_argument_is_seen_through_torchs_decorator() -> None:
    assert defects.place(_raised(_run("len(1)", IN_TRAINING)), users_code=lambda: False) != ""
    within: Any = board
    error = _raised(lambda: within.Board.put_own(1, 2, 3))
    assert re.fullmatch(r"probes/job/board\.py:\d+", defects.place(error, users_code=lambda: False))
    source = "import torch.distributed as dist\ndist.all_reduce(no_such_argument=1)"
    assert defects.place(_raised(_run(source, BY_US)), users_code=lambda: False) == "probes/pairs.py:2"


def _judged(*ranks: RankState, **more: Any) -> tuple[dict[str, Verdict], Cluster]:
    run = Run(ranks=[*ranks], started_job=True, **more)
    nodes = [Node(name="a"), Node(name="b")]
    cluster = Cluster(command="bench", nodes=nodes, job=Job(ranks=len(ranks)), run=run)
    rules = [rule for rule in all_rules() if rule.code in ("RUN002", "RUN003", "RUN004")]
    return {verdict.code: verdict for verdict in judge(cluster, rules)}, cluster


LATE = RankState(rank=0, node="a", pid=100, phase="world", last_step="pairs", proc_state="gone", exit=1)
BROKEN = replace(LATE, rank=1, node="b", pid=101, error=BOARD, defect="probes/job/board.py:40")


@pytest.mark.parametrize("phase", ["world", "start"])
def test_no_rank_is_lost_by_a_defect(phase: str) -> None:
    verdicts, cluster = _judged(replace(LATE, error=RESET, phase=phase), replace(BROKEN, phase=phase))
    lost = verdicts["RUN003" if phase == "world" else "RUN002"]
    assert (lost.state, lost.reason) == (State.SKIPPED, "its ground failed: RUN004")
    (finding,) = verdicts["RUN004"].findings
    assert (finding.state, finding.owner, finding.where.node) == (State.UNKNOWN, "tool", None)
    assert "no attribute 'check', in 'pairs'" in finding.what
    assert finding.evidence[0].source == "ncclcheck/probes/job/board.py:40"
    assert finding.evidence[1].value == "1 on b"
    assert culprits(cluster) == []


def test_a_rank_that_was_killed_is_lost_all_the_same() -> None:
    verdicts, cluster = _judged(replace(LATE, exit=-9), BROKEN)
    assert verdicts["RUN003"].state is State.FAIL
    assert verdicts["RUN003"].findings[0].where.node == "a"
    assert [culprit.names for culprit in culprits(cluster)] == [["a/rank 0"]]
    assert verdicts["RUN004"].state is State.UNKNOWN


def test_a_defect_in_a_worker_is_reported_as_ours(ncclcheck: Command, tmp_path: Path) -> None:
    """Rank 1 lacks a method that pairs needs, as with torch 2.1.0 it lacked Store.check."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if 'ncclcheck.node.ranks.worker' in sys.orig_argv and os.environ.get('RANK') == '1':\n"
        "    from ncclcheck.probes.job.board import Board\n"
        "    del Board.put_own\n"
    )
    ran = ncclcheck("bench", "--nodes", "2", "--quick", "-o", "json", PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert ran.code == 3
    verdicts = {verdict.code: verdict for verdict in ran.document.verdicts}
    assert [code for code, verdict in verdicts.items() if verdict.state is State.FAIL] == []
    (finding,) = verdicts["RUN004"].findings
    assert "has no attribute 'put_own'" in finding.what
    assert (finding.owner, finding.where.node) == ("tool", None)
    assert ran.document.culprits == []
    assert decision(ran.document).startswith("Not finished. RUN004 ncclcheck's worker raised AttributeError")


def test_a_defect_in_the_examiner_is_reported_as_ours(ncclcheck: Command, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, types\n"
        "if 'ncclcheck.node.examiner' in sys.orig_argv:\n"
        "    broken = types.ModuleType('ncclcheck.probes.dataloader')\n"
        "    broken.examine = lambda *_: {}['no such key']\n"
        "    sys.modules[broken.__name__] = broken\n"
    )
    (tmp_path / "set.py").write_text("def make():\n    return [1, 2, 3]\n")
    ran = ncclcheck("data", "set:make", "--nodes", "2", "-o", "json", PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert ran.code == 3
    (finding,) = next(verdict for verdict in ran.document.verdicts if verdict.code == "RUN004").findings
    assert finding.what == "the examiner of the dataset ended with status 1: KeyError: 'no such key'"
    assert (finding.owner, finding.where.node) == ("tool", None)
    assert decision(ran.document).startswith("Not finished. RUN004 the examiner of the dataset ended")
