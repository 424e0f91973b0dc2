"""Stories: recorded clusters with what happened on them and what the rules must say, tests/snapshots/*.json."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from ncclcheck.probes.facts import Baseline, Cluster, Job, Measurements, Node, Policy, Run
from ncclcheck.reports.judgement.jsondoc import Document
from ncclcheck.results import finish
from ncclcheck.run.plan.options import Options

FOLDER = Path(__file__).resolve().parents[1] / "snapshots"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))


class Told(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file. expect: code -> state, or "not STATE". names: who must be named where a rule fails or warns,
    any of the nodes where nothing is written.
    """

    about: str
    source: str
    expect: dict[str, str]
    names: list[str] = []
    command: str = "env"
    job: Job = Job()
    run: Run = Run()
    measurements: Measurements = Measurements()
    policy: Policy = Policy()
    nodes: list[Node]
    baseline: Baseline | None = None

    @property
    def cluster(self) -> Cluster:
        """What the rules are given."""
        return Cluster(
            command=self.command,
            nodes=self.nodes,
            job=self.job,
            run=self.run,
            measurements=self.measurements,
            policy=self.policy,
            baseline=self.baseline,
        )

    @property
    def document(self) -> Document:
        """The whole result, as if it had just been measured."""
        signal = 2 if self.run.stopped_by == "signal" else None
        story = finish.Story(started="2026-01-01T00:00:00+00:00", seconds=1.0, signal=signal)
        options = Options(command=self.command, policy=self.policy, baseline=self.baseline)
        return finish.make(self.cluster, options, story)


@cache
def load(name: str) -> Told:
    """Read one story, once a process. A key that no type has would be dropped without a word, so it is refused."""
    written = json.loads((FOLDER / f"{name}.json").read_text())
    story = msgspec.convert(written, Told)
    lost = list(_lost(written, json.loads(msgspec.json.encode(story)), name))  # as lists, not as tuples
    assert not lost, f"these are no facts: {lost}"
    return story


@cache
def document(name: str) -> Document:
    """Judged once for all that is asked of it, in whatever file."""
    return load(name).document


def _lost(written: Any, kept: Any, place: str) -> list[str]:
    """The places at which something written is not kept as it stands."""
    if isinstance(written, dict) and isinstance(kept, dict):
        return [lost for key, value in written.items() for lost in _lost(value, kept.get(key), f"{place}.{key}")]
    if isinstance(written, list) and isinstance(kept, (list, tuple)) and len(written) == len(kept):
        pairs = enumerate(zip(written, kept, strict=True))
        return [lost for index, pair in pairs for lost in _lost(*pair, f"{place}[{index}]")]
    return [] if written == kept else [place]
