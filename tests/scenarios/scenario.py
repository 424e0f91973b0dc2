"""What a scenario is: a fault, what the report must say of it, and what is held against that."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ncclcheck.node.ranks.slots import Slots
from ncclcheck.reports.judgement.findings import Finding, State
from ncclcheck.reports.judgement.jsondoc import Document
from ncclcheck.reports.text.closing import decision
from tests.lab import Host, Lab, Slurm
from tests.lab.tools import until

ALL = "*"


@dataclass
class Scene:
    """Where a scenario plays: the lab, and what was started on which host. folder: TMPDIR of all of it.

    work: the job's working directory, where the scenario makes it.
    """

    lab: Lab
    slurm_or_none: Slurm | None
    folder: Path
    started: dict[str, subprocess.Popen[str]] = field(default_factory=dict)

    @property
    def work(self) -> Path:
        """Beside the folder."""
        return self.folder.with_name(f"{self.folder.name}-work")

    def start(self, host: str, argv: list[str], env: Mapping[str, str], name: str = "") -> None:
        """Start a command on a host; its exit code and report are kept under the name, else under the host's."""
        there = str(self.work) if self.work.is_dir() else "/"
        self.started[name or host] = self[host].start(argv, env={**env, "TMPDIR": str(self.folder)}, cwd=there)

    def __getitem__(self, name: str) -> Host:
        return self.lab[name]

    @property
    def slurm(self) -> Slurm:
        """The lab's Slurm, where the scenario's launcher asks for one."""
        assert self.slurm_or_none is not None
        return self.slurm_or_none

    def rank_on(self, name: str, steps: int) -> int:
        """The process number of the rank of a host, once it has announced so many steps."""
        ready: list[int] = []

        def there() -> bool:
            pids = set(self[name].pids())
            made = [path for path in self.folder.glob("ncclcheck-*/**/slots") if path.stat().st_size]
            slots = [Slots(str(path), 1).read(0) for path in made]
            ready[:] = [slot.pid for slot in slots if slot.pid in pids and slot.ticks >= steps]
            return bool(ready)

        until(f"the rank of {name} has announced {steps} steps", there, seconds=40)
        return ready[0]

    def running_on(self, name: str, words: str) -> None:
        """Wait until a process whose command line has these words runs on a host."""

        def there() -> bool:
            lines = (Path(f"/proc/{pid}/cmdline") for pid in self[name].pids())
            return any(words in line.read_bytes().decode(errors="replace") for line in lines if line.exists())

        until(f"{words} runs on {name}", there, seconds=40)


@contextmanager
def both(first: AbstractContextManager[object], second: AbstractContextManager[object]) -> Iterator[None]:
    """Two faults at once."""
    with first, second:
        yield


Play = Callable[[Scene], AbstractContextManager[object]]


def nothing(_: Scene) -> AbstractContextManager[object]:
    """No fault."""
    return nullcontext()


@dataclass(frozen=True, kw_only=True)
class Expect:
    """A finding that must be there, in the report of the host `by`.

    node and device: its place; words: in what it says; evidence: in how it knows; remedy: in its mends.
    """

    code: str
    node: str = ""
    device: str = ""
    words: str = ""
    evidence: str = ""
    remedy: str = ""
    state: State = State.FAIL
    by: str = "h1"

    def problem(self, documents: Mapping[str, Document]) -> str:
        """Why it is not met; empty where it is."""
        of_code = findings(documents[self.by], self.code) if self.by in documents else []
        alike = [finding for finding in of_code if finding.state is self.state]
        if not alike:
            states = ", ".join(sorted({finding.state.value for finding in of_code})) or "nothing"
            return f"missed: {self.code} is not {self.state.value} in the report of {self.by}: {states}"
        if any(self._fits(finding) for finding in alike):
            return ""
        wanted = " | ".join(filter(None, [self.node, self.device, self.words, self.evidence, self.remedy]))
        return f"culprit: {self.code} does not name {wanted}: {'; '.join(map(shown, alike))}"

    def met_by(self, documents: Mapping[str, Document]) -> Finding | None:
        """The finding that meets it, if there is one."""
        named = findings(documents[self.by], self.code) if self.by in documents else []
        return next((finding for finding in named if finding.state is self.state and self._fits(finding)), None)

    def _fits(self, finding: Finding) -> bool:
        where = finding.where
        mends = " ".join(" ".join([remedy.text, *remedy.commands]) for remedy in finding.remedies)
        return (
            (not self.node or self.node in (where.node, where.peer))
            and (not self.device or self.device == where.device)
            and self.words in finding.what
            and self.evidence in " ".join(evidence.value for evidence in finding.evidence)
            and self.remedy in mends
        )


def findings(document: Document, code: str) -> list[Finding]:
    """What one rule found."""
    return [finding for verdict in document.verdicts if verdict.code == code for finding in verdict.findings]


def shown(finding: Finding) -> str:
    """A finding in a line of a test's output."""
    return f"[{finding.where}] {finding.what}"


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One fault, and what the report must say of it.

    fault is there from the start; strike comes in the middle of the run. env, arguments: of one host, or of ALL.
    under: the command that starts it on a host.
    launcher "variables": what is set says that this is inside of an allocation, and it is none.
    again: it is started a second time while it runs. refused: the report says why no job was started.
    also: codes of symptoms that may be failed or warned of beside those expected; any other one is a false alarm.
    exits: the exit codes that a node of a join may end with in place of exit_code.
    gone_within: seconds after which nothing of the run is left anywhere.
    first: what the last line of the report of h1 says to fix first.
    cure: whose remedy of the last finding expected is then applied; the next run must be clean.
    """

    name: str
    fault: Play = nothing
    strike: Play = nothing
    launcher: Literal["ssh", "slurm", "srun", "variables", "join"] = "ssh"
    hosts: int = 3
    mgmt: bool = True
    command: tuple[str, ...] = ("env",)
    env: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    arguments: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    under: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    again: bool = False
    refused: bool = False
    expect: tuple[Expect, ...] = ()
    also: tuple[str, ...] = ()
    exit_code: int = 1
    exits: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    seconds: float = 20.0
    gone_within: float = 6.0
    gate: bool = False
    first: str = ""
    cure: Literal["", "you", "admin"] = ""

    @property
    def strikes(self) -> bool:
        """Whether something happens in the middle of the run."""
        return self.strike is not nothing

    @property
    def needs(self) -> tuple[int, bool, bool]:
        """What lab it needs: hosts, mgmt0, Slurm."""
        return self.hosts, self.mgmt, self.launcher in ("slurm", "srun", "variables")


@dataclass(frozen=True)
class Outcome:
    """What a run left: exit codes, documents and stderr by host, the seconds that it took, and what stayed.

    pressure: the share of these seconds in which others wanted the cores too; at 1 it may take twice as long.
    """

    codes: Mapping[str, int]
    documents: Mapping[str, Document]
    errors: Mapping[str, str]
    seconds: float
    left: list[str]
    pressure: float = 0.0
    cured: Outcome | None = None

    def problems(self, scenario: Scenario) -> list[str]:
        """Everything that is not as the scenario expects, each with its kind as its first word."""
        return [
            *filter(None, (expect.problem(self.documents) for expect in scenario.expect)),
            *self._false_alarms(scenario),
            *self._wrong_exits(scenario),
            *(self._started(scenario) if scenario.refused else ()),
            *self._decides_otherwise(scenario),
            *(self._not_cured() if scenario.cure else ()),
            *(f"traceback: {host}: {text[-1500:]}" for host, text in self.errors.items() if "Traceback" in text),
            *([f"late: {self.seconds:.1f} s"] if self.seconds > scenario.seconds * (1 + self.pressure) else []),
            *(f"left: {what}" for what in self.left),
        ]

    def _started(self, scenario: Scenario) -> Iterator[str]:
        codes = {expect.code for expect in scenario.expect}
        for host, document in self.documents.items():
            reason = document.stages[-1].reason or ""
            if document.run.started_job or not codes <= set(reason.replace(",", " ").split()):
                yield f"missed: {host} does not say that it starts no job because of {codes}: {reason!r}"

    def _decides_otherwise(self, scenario: Scenario) -> Iterator[str]:
        words = decision(self.documents["h1"]) if scenario.first and "h1" in self.documents else scenario.first
        if f"{scenario.first} first" not in words and scenario.first:
            yield f"decision: {words!r} does not name {scenario.first} first"

    def _not_cured(self) -> Iterator[str]:
        """What the run after the fix still complains of."""
        if self.cured is None:
            yield "cure: no finding with a fix to try"
            return
        for host, document in self.cured.documents.items():
            verdicts = [v for v in document.verdicts if v.state in (State.FAIL, State.WARN)]
            yield from (f"cure: {host} says {v.code}: {'; '.join(map(shown, v.findings))}" for v in verdicts)
        yield from (f"cure: {host} ended with {code}" for host, code in self.cured.codes.items() if code)

    def _wrong_exits(self, scenario: Scenario) -> Iterator[str]:
        for host, code in self.codes.items():
            expected = scenario.exits.get(host, (scenario.exit_code,))
            if code not in expected:
                wanted = " or ".join(map(str, expected))
                words = f"{self._unfinished(host)} {self.errors[host][-800:]}"
                yield f"exit: {host} ended with {code}, not {wanted}: {words}"

    def _unfinished(self, host: str) -> str:
        """Why the run of a host counts as not finished."""
        verdicts = self.documents[host].verdicts if host in self.documents else []
        run_findings = [finding for v in verdicts if v.code.startswith("RUN") for finding in v.findings]
        return "; ".join(shown(finding) for finding in run_findings if finding.state is State.UNKNOWN)

    def _false_alarms(self, scenario: Scenario) -> Iterator[str]:
        expected = {*(expect.code for expect in scenario.expect), *scenario.also}
        for host, document in self.documents.items():
            for verdict in document.verdicts:
                if verdict.state in (State.FAIL, State.WARN) and verdict.code not in expected:
                    words = "; ".join(map(shown, verdict.findings))
                    yield f"false: {host} says {verdict.code} {verdict.state.value}: {words}"
