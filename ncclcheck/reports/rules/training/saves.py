"""TRN: what a training run writes, reads again, and goes on from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from shlex import quote

from ncclcheck.probes.facts import Cluster
from ncclcheck.probes.facts.training.checks import DifferingTensor
from ncclcheck.probes.facts.training.saves import InterruptedRuns, Merged, Reloaded, Saves
from ncclcheck.reports.judgement.findings import (
    Finding,
    Remedy,
    State,
    Where,
    admin,
    fail,
    fine,
    seen,
    unknown,
    warn,
    you,
)
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.training import trained
from ncclcheck.reports.text.words.fold import size

_JOBS = ("smoke",)
_KEYS = re.compile(r"(?:Missing|Unexpected) key\(s\) in state_dict: .{1,200}?(?=\.(?:\s|$)|$)")


def _saves(cluster: Cluster) -> Saves:
    """What was told of the saves. Raises NothingToJudge."""
    smoke = cluster.measurements.smoke
    if smoke is None or smoke.saves is None:
        raise NothingToJudge("nothing was saved")
    return smoke.saves


def _not_looked_at(saves: Saves, part: str) -> Finding:
    """What was wanted and missed is unknown. Raises NothingToJudge for what does not apply here."""
    entry = next((unsaved for unsaved in saves.unseen if unsaved.part == part), None)
    if entry is None or not entry.missed:
        raise NothingToJudge(entry.why if entry else "it was not reached")
    command = "ncclcheck smoke --time-budget 60 --checkpoint-dir DIR"
    return trained.missed(entry.why, you("Give it more time, or a place.", command))


@rule("TRN013", "a checkpoint reloads bit-identically on every rank", worst=State.FAIL, commands=_JOBS)
def reloads(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Rank 0 saves the wrapped model under a temporary name, flushes it to the disk and renames it; every rank
    reads the file into a bare model and compares all parameters and buffers with those that were saved.

    ## Why it matters
    A checkpoint that some ranks cannot read, or read differently, shows when it is needed: after a crash, with
    all nodes waiting. A file that is written in place is half a file when the node dies while it is written.

    ## Seen as
    wrong results, dies

    ## How we know
    Hashes over the bits of every tensor: the model that was read against rank 0's, which was saved. The running
    statistics of BatchNorm that other ranks had are theirs and are not compared. A buffer that no state_dict has
    and that training changes is a warning. Names that begin with `module.` (DDP puts it there)
    are read without it. A folder that not all ranks see is known by rank 0's mark, awaited for 3 s.

    ## Fix
    - **you** put checkpoints on a file system that all nodes see, `--checkpoint-dir DIR`; or save on one rank of
      each node.
    - **you** `torch.load(path, map_location="cpu", weights_only=True)`, and strip `module.` from the names, or
      save `model.module.state_dict()`.
    - **admin** check the mount on the named node: STO rules say which differ.

    ## Source
    PyTorch, Getting Started with Distributed Data Parallel, Save and Load Checkpoints; rename(2), fsync(2).
    """
    saves = _saves(cluster)
    if (reloaded := saves.reloaded) is None:
        yield _not_looked_at(saves, "reload")
        return
    if reloaded.problems:
        yield _unreadable(reloaded)
    yield from map(_changed, reloaded.differ[:3])
    if not reloaded.problems and not reloaded.differ:
        text = (
            f"{size(reloaded.bytes)} written in {reloaded.write_s:.2f} s, read by all in {reloaded.read_s:.2f} s"
        )
        yield fine(Where(), text, seen("checkpoint", text))


def _changed(tensor: DifferingTensor) -> Finding:
    who = trained.ranks(tensor.ranks, tensor.count)
    evidence = [seen("hash before and after", f"differs on {who}")]
    if tensor.unsaved:
        return warn(
            Where(),
            f"{tensor.name} is in no state_dict, and training changes it: a reloaded model has another value",
            why="A run resumed from this checkpoint differs from the run that was saved.",
            owner="job",
            evidence=evidence,
            fix=[
                you(
                    "Let state_dict have it, unless it can be computed anew.",
                    f"self.register_buffer({tensor.name.rpartition('.')[2]!r}, value)  # not persistent=False",
                )
            ],
        )
    return fail(
        Where(rank=tensor.ranks[0] if tensor.ranks else None),
        f"{tensor.name} has other bits after the checkpoint was read, on {who}",
        why="A run resumed from this checkpoint differs from the run that was saved.",
        owner="job",
        evidence=evidence,
        fix=[you("See what the model's own state_dict() or load_state_dict() makes of it.")],
    )


def _unreadable(reloaded: Reloaded) -> Finding:
    first = reloaded.problems[0]
    more = f" (and {reloaded.failed - 1} more ranks)" if reloaded.failed > 1 else ""
    if (keys := _KEYS.search(first.problem)) is not None:
        return fail(
            Where(node=first.node, rank=first.rank),
            f"a new model does not take the checkpoint of the trained one: {keys[0]}",
            why="A run resumed from this checkpoint fails while loading it.",
            owner="job",
            evidence=[seen("load_state_dict", first.problem)],
            fix=[
                you(
                    "Make every layer and buffer in __init__: a new model lacks what the first forward pass "
                    "makes, and neither DDP nor the optimizer knows it."
                )
            ],
        )
    return fail(
        Where(node=first.node, rank=first.rank),
        f"rank {first.rank}{more} cannot read the checkpoint: {first.problem}",
        why="After a crash these ranks could not go on, and the others would wait for them.",
        owner="job",
        evidence=[seen("rank's own words", first.problem)],
        fix=[
            you("Give a folder that all nodes see.", "ncclcheck smoke --checkpoint-dir /shared/folder"),
            admin(
                "See whether the file system is mounted there.",
                f"findmnt -T {quote(reloaded.path.rpartition('/')[0] or '/')}",
            ),
        ],
    )


@rule("TRN014", "every rank's result files exist and are complete", worst=State.FAIL, commands=_JOBS)
def merged(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Each rank writes a result file of its own, which rank 0 merges; and all ranks append to one file, each time
    under an exclusive lock.

    ## Why it matters
    Validation results that are gathered through files are wrong without a word where a rank's file is missing,
    was overwritten by another rank, or lies on another node's disk.

    ## Seen as
    wrong results, setting without effect

    ## How we know
    Rank 0 counts files and lines, and tries to read each line. Locks are flock(2), which NFS carries from Linux
    2.6.12 on and Lustre with the mount option `flock` only; a lock that cannot be had within 5 s is reported.

    ## Fix
    - **you** put the rank into the file's name: `f"results-{rank}.jsonl"`, write it under a temporary name, and
      let rank 0 merge after a barrier.
    - **admin** Lustre: mount with `-o flock`; NFS: a running lock service.

    ## Source
    flock(2), NFS details; mount.lustre(8), flock.
    """
    saves = _saves(cluster)
    if (merge := saves.merged) is None:
        yield _not_looked_at(saves, "merge")
        return
    if merge.count:
        yield _missing(cluster, merge)
    if merge.locks:
        yield unknown(Where(), f"whether one file can be shared under a lock: {merge.locks}", why=_WHY_LOCKS)
    elif merge.damaged or merge.appended != merge.expected or merge.short:
        counts = f"{merge.appended} of {merge.expected} lines, {merge.damaged} of them damaged"
        yield fail(
            Where(device=merge.folder),
            f"lines that ranks appended under a lock were lost or mixed: {counts}",
            why=_WHY_LOCKS,
            owner="site",
            evidence=[seen("lines in the shared file", counts)],
            fix=[
                you("Give each rank a file of its own."),
                admin("Mount it with working locks.", "mount -o flock"),
            ],
        )
    elif not merge.count:
        counts = f"{merge.ranks} files of {merge.lines} lines merged, {merge.appended} lines in one shared file"
        yield fine(Where(), counts, seen("result files", counts))


_WHY_LOCKS = "Results, logs and caches that several ranks write to one file would be damaged."


def _missing(cluster: Cluster, merge: Merged) -> Finding:
    ranks = ", ".join(str(rank) for rank in merge.missing)
    missing = f"no file of ranks {ranks}" + (" and more" if merge.count > len(merge.missing) else "")
    return fail(
        trained.place(cluster, merge.missing[0]),
        f"{merge.count} of {merge.ranks} result files are missing: {missing}",
        why="Metrics computed from the merged file would lack the samples of these ranks.",
        owner="job",
        evidence=[seen(f"files in {merge.folder}", missing)],
        fix=[
            you("Put the rank into the name of the file.", 'open(f"results-{rank}.jsonl", "w")'),
            you("Put it on a file system that all nodes see.", "ncclcheck smoke --checkpoint-dir /shared/folder"),
        ],
    )


@rule(
    "TRN015",
    "a run resumed after losing a rank reaches the same parameters",
    worst=State.FAIL,
    ground=("TRN034",),
    commands=_JOBS,
)
def resumes(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The same training twice: once to its end, and once with a checkpoint half way, after which the last rank gets
    SIGKILL. New processes on a new store load the checkpoint and train to the end.

    ## Why it matters
    Jobs on many nodes die every few days. A checkpoint that leaves out the optimizer's state, the random
    generators or the place in the data changes what is learned, and no error says so.

    ## Seen as
    wrong results, dies, setting without effect

    ## How we know
    A hash over the bits of all parameters and buffers at the end of both runs. The checkpoint has model,
    optimizer and the generators of each rank; the data go on at the next batch. Equal bits are expected of one
    kind of GPU with deterministic kernels, which the built-in models have.

    ## Fix
    - **you** save `optimizer.state_dict()`, `torch.get_rng_state()` of each rank and the number of the step;
      skip the batches that were read.
    - **you** a model of your own: search for state outside of state_dict, and for kernels that are not
      deterministic (`torch.use_deterministic_algorithms(True)` names them).

    ## Source
    PyTorch, Reproducibility; huggingface/accelerate#4233, pytorch/pytorch#36650 (resuming on the same samples).
    """
    saves = _saves(cluster)
    if (before := saves.interrupted) is None:
        yield _not_looked_at(saves, "resume")
        return
    where, after = Where(node=before.node, rank=before.killed), saves.resumed
    history = f"rank {before.killed} was killed after {before.after} steps, the checkpoint has {before.kept}"
    if after is None:
        yield unknown(
            where, f"whether the run can go on: {history}; the second job did not finish", why=_WHY_RESUME
        )
    elif after.problem:
        yield _stuck(where, history, after.problem)
    elif after.digest != before.digest:
        yield _another(cluster, where, history, before, after.digest)
    else:
        same = f"{history}; resumed in {after.seconds:.1f} s, same bits after {after.steps} steps"
        yield fine(where, same, seen("hash of all parameters", f"{after.digest} in both runs"))


_WHY_RESUME = "After a crash the run would begin anew, or learn something else."


def _stuck(where: Where, history: str, problem: str) -> Finding:
    return fail(
        where,
        f"the run could not go on from its checkpoint: {problem}",
        why=_WHY_RESUME,
        owner="job",
        evidence=[seen("the second job", f"{history}; {problem}")],
        fix=[you("Give a folder that all nodes see.", "ncclcheck smoke --checkpoint-dir /shared/folder")],
    )


def _another(cluster: Cluster, where: Where, history: str, before: InterruptedRuns, digest: str) -> Finding:
    """The user's own model may have other kernels, and the data generators of their own; ours have not."""
    return (fail if trained.builtin(cluster) else warn)(
        where,
        f"the run that was resumed ended with other parameters; {history}",
        why=_WHY_RESUME,
        owner="job",
        evidence=[seen("hash of all parameters", f"uninterrupted {before.digest}, resumed {digest}")],
        fix=_what_was_omitted(cluster),
    )


def _what_was_omitted(cluster: Cluster) -> list[Remedy]:
    """By the names of attributes that the model trains with, where some were seen to."""
    smoke = cluster.measurements.smoke
    beside = smoke.checks.beside if smoke and smoke.checks else None
    if names := [kept.name for kept in (beside.kept if beside else []) if kept.of == "model"]:
        attributes = ", ".join(names[:3])
        return [you(f"Register {attributes} as buffers, which state_dict holds; plain attributes are not in it.")]
    return [
        you("Save what state_dict omits too: counters, generators of the dataset, its place in the data."),
        you(
            "If there is none, see which kernels are not deterministic.",
            "torch.use_deterministic_algorithms(True)",
        ),
    ]
