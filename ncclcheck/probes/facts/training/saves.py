"""Checkpoints: written, reloaded, resumed from; and what a large model's would take."""

from __future__ import annotations

from msgspec import Struct, field

from ncclcheck.probes.facts.guard.bounds import Amount, Count, Whole
from ncclcheck.probes.facts.training.checks import DifferingTensor


class RankProblem(Struct, frozen=True, kw_only=True):
    """What went wrong on one rank."""

    rank: Count
    node: str
    problem: str


class Reloaded(Struct, frozen=True, kw_only=True):
    """A wrapped model's checkpoint, written by rank 0 under a temporary name, read by all ranks into a bare one.

    write_s: on rank 0, with fsync; read_s: of the slowest rank. prefixed: its keys began with `module.`.
    differ: tensors that have other bits after it; problems: ranks that could not read it, `failed` how many.
    """

    path: str
    bytes: Whole = 0
    write_s: Amount = 0.0
    read_s: Amount = 0.0
    prefixed: bool = False
    tensors: Count = 0
    differ: list[DifferingTensor] = field(default_factory=list)
    problems: list[RankProblem] = field(default_factory=list)
    failed: Count = 0


class Merged(Struct, frozen=True, kw_only=True):
    """Result files of all ranks, merged by rank 0; and one file that all ranks append to under a lock.

    missing: ranks of which no file was there, count: how many; lines: that each rank wrote; short: ranks whose
    file has fewer. appended, expected: lines of the shared file; damaged: of these, mixed with others.
    """

    folder: str
    ranks: Count
    lines: Count
    missing: list[Count] = field(default_factory=list)
    count: Count = 0
    short: list[Count] = field(default_factory=list)
    appended: Count = 0
    expected: Count = 0
    damaged: Count = 0
    locks: str = ""


class InterruptedRuns(Struct, frozen=True, kw_only=True):
    """The run without an interruption, and the one that is about to lose a rank. digest: of the parameters and
    buffers after `steps`; killed: the rank that gets SIGKILL after `after` steps; kept: steps in the checkpoint.
    """

    digest: str
    steps: Count
    kept: Count
    after: Count
    killed: Count
    node: str


class Resumed(Struct, frozen=True, kw_only=True):
    """The run that went on from the checkpoint, in new processes on a new store. problem: why it could not."""

    digest: str = ""
    steps: Count = 0
    seconds: Amount = 0.0
    problem: str = ""


class ShardedSave(Struct, frozen=True, kw_only=True):
    """A model in pieces, saved in two ways. bytes: of its parameters, all pieces together.

    gather_s: until rank 0 had all of them in host memory; write_s: until it had written them; shards_s: until each
    rank had written its own piece. parameters: of the model that the user asked about, 0: none; timeout_s: of the
    process group there, which the other ranks wait in meanwhile.
    """

    folder: str
    bytes: Whole
    ranks: Count
    gather_s: Amount
    write_s: Amount
    shards_s: Amount
    timeout_s: Amount = 600.0
    parameters: Amount = 0.0
    problems: list[RankProblem] = field(default_factory=list)


class Unsaved(Struct, frozen=True, kw_only=True):
    """A part that was not looked at, and why. part: reload, merge, resume, sharded.

    missed: it was wanted and there was no time or no place for it, so that nobody knows; else it does not apply.
    """

    part: str
    why: str
    missed: bool = False


class Saves(Struct, frozen=True, kw_only=True):
    """One aspect a field; None: not looked at, for the reason in `unseen`."""

    reloaded: Reloaded | None = None
    merged: Merged | None = None
    interrupted: InterruptedRuns | None = None
    resumed: Resumed | None = None
    sharded: ShardedSave | None = None
    unseen: list[Unsaved] = field(default_factory=list)
