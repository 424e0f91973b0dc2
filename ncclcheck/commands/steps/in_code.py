"""`ncclcheck.preflight()` at the top of a training script: in a child process, never in the script's own group."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ncclcheck.base.exits import Exit
from ncclcheck.launch.agents import agent_environment
from ncclcheck.node import rundir
from ncclcheck.probes.machine import process
from ncclcheck.reports.judgement.jsondoc import Document

_MARGIN_S = 60.0  # for the child beyond its deadline, to report and to clean up: chosen
# for the ranks of other nodes to reach this line: imports and containers start minutes apart; chosen
_WAIT_S = 600.0
_MOST_TEXT = 20_000  # characters: chosen, a whole report


@dataclass(frozen=True)
class StepResult:
    """How it went. document: on the rank that writes the report (the first of node 0), None elsewhere.

    text: what the child said on stderr.
    """

    exit_code: int
    document: Document | None
    text: str

    @property
    def ready(self) -> bool:
        """Whether the job may start here; all ranks have the same answer."""
        return self.exit_code == Exit.READY


class NotReady(RuntimeError):
    """The cluster is not fit for the job; `result` says why."""

    def __init__(self, result: StepResult) -> None:
        ending = (
            result.document.state if result.document else result.text.strip().splitlines()[-1:] or "see rank 0"
        )
        super().__init__(f"ncclcheck preflight ended with {result.exit_code}: {ending}")
        self.result = result


def preflight(level: str = "quick", *arguments: str, deadline: float = 300.0, check: bool = True) -> StepResult:
    """Run `ncclcheck preflight` in a child process, on all nodes of this job; call it on every rank.

    level: quick, standard or full. arguments: more of its options, as on the command line (`--data`, `--strict`).
    deadline: seconds for the report once all ranks are there. With `check`, what is not ready raises NotReady.

    It may be called before or after `init_process_group`: the child has a store of its own, and this process's
    group and store are not touched. Alone, without torchrun, Slurm or pods, it judges this machine.
    """
    folder = rundir.create()
    try:
        saved = Path(folder, "result.json")
        alone = () if _in_a_job() else ("--nodes", "1")
        argv = [
            *(sys.executable, "-m", "ncclcheck", "preflight", "--level", level, "--deadline", f"{deadline:g}"),
            *("--save", str(saved), "-o", "short", *alone, *arguments),
        ]
        code, text = _run(argv, deadline + _WAIT_S + _MARGIN_S, Path(folder, "said.txt"))
        document = msgspec.json.decode(saved.read_bytes(), type=Document) if saved.exists() else None
    finally:
        rundir.remove(folder)
    result = StepResult(code, document, text)
    if check and not result.ready:
        raise NotReady(result)
    return result


def _in_a_job() -> bool:
    return any(name in os.environ for name in ("RANK", "SLURM_STEP_ID", "SLURM_JOB_NODELIST", "MASTER_ADDR"))


def _run(argv: list[str], seconds: float, path: Path) -> tuple[int, str]:
    """Exit code and text; a child that stays is killed with all that it started."""
    with open(path, "wb") as out:
        child = process.start(argv, env=agent_environment(os.environ), out=out, err=subprocess.STDOUT)
    try:
        code = child.wait(seconds)
    except subprocess.TimeoutExpired:
        code = int(Exit.INCOMPLETE)
    finally:
        process.kill_tree(child.pid)
    return code, path.read_text(encoding="utf-8", errors="backslashreplace")[-_MOST_TEXT:]
