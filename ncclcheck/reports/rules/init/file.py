"""Rules about file:///PATH: what stands there, who sees it, and whether its locks hold."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from shlex import quote

from ncclcheck.probes.facts import Cluster, FileInit, InitSeen
from ncclcheck.reports.judgement.findings import Finding, Where, admin, fail, fine, seen, warn, you
from ncclcheck.reports.judgement.findings import State as S
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.text.words.fold import fold_names

_JOBS = ("bench", "smoke")
_LOCAL_LOCKS = ("nolock", "local_lock=all", "local_lock=flock", "localflock", "noflock")
_WITHOUT_A_FILE = "init_method='env://'   # under torchrun"
_MINUTE, _HOUR, _DAY = 60, 3600, 86400  # seconds


def _tried(cluster: Cluster) -> list[tuple[InitSeen, FileInit]]:
    """Raises NothingToJudge."""
    tries = [(init, init.file) for init in cluster.measurements.init if init.file is not None]
    if not tries:
        raise NothingToJudge("no file:// is tried")
    return tries


def _age(seconds: float | None) -> str:
    if seconds is None:
        return "an unknown time"
    for unit, word in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")):
        if seconds >= unit:
            return f"{seconds / unit:.0f} {word}"
    return f"{seconds:.0f} s"


@rule(
    "INI004",
    "nothing of an earlier run stands in the file of file://",
    worst=S.FAIL,
    over="",
    commands=_JOBS,
    gates_job="by any failure",
)
def new(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Whether the file of `init_method="file:///PATH"` is there before the job, and what it is.

    ## Why it matters
    torch's FileStore appends to the file and reads all of it: what a run that was killed left there counts as
    reported by this one. Its ranks take addresses of processes that are gone, or find the group full: they
    hang, or end with "Connection refused" far from the cause; a run of as many ranks may also get through by
    luck. A run that ends well removes its file; one that is killed does not.

    ## Seen as
    hangs, does not start, dies

    ## How we know
    lstat(2) on every node, before any rank starts. An empty file is as good as none.

    ## Fix
    - **you** remove the file before each run, or put the job's number into its name.

    ## Source
    torch/csrc/distributed/c10d/FileStore.cpp; PyTorch documentation, "Shared file-system initialization": "if the
    auto-delete happens to be unsuccessful, it is your responsibility to ensure that the file is removed".
    """
    tried = _tried(cluster)
    stale: dict[tuple[str, int | None, str], list[tuple[InitSeen, FileInit]]] = {}
    for view, file in tried:
        if file.kind and not (file.kind == "file" and file.bytes == 0):
            stale.setdefault((file.kind, file.bytes, file.owner), []).append((view, file))
    for (kind, size, owner), of in stale.items():
        first, file = of[0]
        path, age = file.path, _age(file.age_s)
        what = f"{size} bytes of {owner}, written {age} ago" if kind == "file" else f"a {kind}"
        yield fail(
            Where(node=first.node if len(of) == 1 else None),
            f"{path} is there already, seen by {fold_names(init.node for init, _ in of)}: {what}",
            why="Ranks read what an earlier run left in it: they may hang, or connect to processes that are gone.",
            owner="job",
            evidence=[seen("lstat(2)", f"{path}: {kind}, {what}"), seen("the init method", file.url)],
            fix=[
                you(
                    "Remove it when no job uses it any more, or give each job a file of its own.",
                    *([f"rm -- {quote(path)}"] if kind in ("file", "link") else []),
                    f"init_method={f'file://{path}-'!r} + os.environ['SLURM_JOB_ID']   # or another number",
                )
            ],
        )
    if not stale:
        yield fine(Where(), f"{tried[0][1].path} is new")


@rule(
    "INI005",
    "all nodes see one file at file://",
    worst=S.FAIL,
    over="",
    commands=_JOBS,
    gates_job="by any failure",
)
def shared(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Whether the folder of `init_method="file:///PATH"` can be written on every node, and is one folder for all.

    ## Why it matters
    On folders of their own, such as /tmp, each node makes a file that only it sees: all ranks wait for the others
    until the time-out, and nothing says that the files are two.

    ## Seen as
    hangs

    ## How we know
    Every node makes a file beside PATH and looks for those of the others for some seconds.

    ## Fix
    - **you** a path on a file system that all nodes mount; where there is none, tcp:// or env://.

    ## Source
    PyTorch documentation, torch.distributed, "Shared file-system initialization".
    """
    tried = _tried(cluster)
    for view, file in tried:
        if file.problem:
            folder = posixpath.dirname(file.path)
            yield fail(
                Where(node=view.node),
                f"{view.node} can make no file in {folder}: {file.problem}",
                why="Its ranks cannot open the store, and all others wait for them.",
                owner="job",
                evidence=[seen(f"open(2) in {folder} on {view.node}", file.problem)],
                fix=[
                    you(
                        "Take a folder that every node can write, or tcp:// or env://.",
                        f"ls -ld {quote(folder)}   # on {view.node}",
                        _WITHOUT_A_FILE,
                    )
                ],
            )
    made = {init.node for init, file in tried if not file.problem}
    unseen = {init.node: [node for node in file.missing if node in made] for init, file in tried}
    apart = [(init, file) for init, file in tried if init.node in made and unseen[init.node]]
    if apart:
        view, file = apart[0]
        missing = unseen[view.node]
        folder = posixpath.dirname(file.path)
        yield fail(
            Where(node=view.node, peer=missing[0]),
            f"{view.node} does not see in {folder} what {fold_names(missing)} has made there",
            why="Each node makes a file of its own there, and all ranks wait for the others until the time-out.",
            owner="job",
            evidence=[
                seen(f"lstat(2) on {view.node}", f"not there: the files of {', '.join(missing[:4])}"),
                *(seen(f"file system on {each.node}", of.filesystem) for each, of in apart[:4] if of.filesystem),
            ],
            fix=[
                you(
                    "Take a path on a file system that all nodes mount, or tcp:// or env://.",
                    f"findmnt -T {quote(folder)}   # on every node",
                    _WITHOUT_A_FILE,
                )
            ],
        )
    elif not any(file.problem for _, file in tried):
        yield fine(Where(), f"{len(tried)} nodes see one folder")


@rule(
    "INI006",
    "locks hold between nodes where the file of file:// is",
    worst=S.FAIL,
    over="",
    commands=_JOBS,
    gates_job="by any failure",
)
def locks(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Whether flock(2) works on the file system of `init_method="file:///PATH"`, and between nodes.

    ## Why it matters
    FileStore writes under flock(2). Where the call is refused, init_process_group fails; where each node locks for
    itself (NFS with nolock or local_lock, Lustre with localflock), ranks of two nodes may write at once and damage
    what the others read: a hang that comes now and then.

    ## Seen as
    hangs, does not start

    ## How we know
    Every node locks its own file; the node of rank 0 keeps its lock while the others try to take it. One that can
    proves that the locks are local. A FAIL where the call is refused, a WARN where it is local.

    ## Fix
    - **admin** mount with locks that the server keeps (NFS without nolock and local_lock, Lustre with flock).
    - **you** tcp:// or env://, which need no file.

    ## Source
    flock(2); nfs(5), `local_lock`; mount.lustre(8), `flock`; torch/csrc/distributed/c10d/FileStore.cpp.
    """
    tried = _tried(cluster)
    if not any(not file.problem for _, file in tried):
        raise NothingToJudge("no node could make a file there")
    sound = True
    for view, file in tried:
        options = [option for option in file.options if option in _LOCAL_LOCKS]
        all_evidence = [seen("mount options", ", ".join(options))] if options else []
        fix = [
            you("Use tcp:// or env://, which need no file.", _WITHOUT_A_FILE),
            admin(
                "Mount it with locks that hold between nodes.",
                f"findmnt -T {quote(posixpath.dirname(file.path))}   # on {view.node}",
            ),
        ]
        if file.unlocked:
            sound = False
            yield fail(
                Where(node=view.node),
                f"flock is refused below {file.path} ({file.filesystem or 'unknown'}): {file.unlocked}",
                why="FileStore cannot write without a lock: init_process_group fails.",
                owner="site",
                evidence=[seen(f"flock(2) on {view.node}", file.unlocked), *all_evidence],
                fix=fix,
            )
        elif file.lock_is_local:
            sound = False
            yield warn(
                Where(node=view.node),
                f"a lock that the node of rank 0 holds beside {file.path} does not count on {view.node}",
                why="Ranks of two nodes may write to the file at once and damage what the others read.",
                owner="site",
                evidence=[
                    seen(f"flock(2) on {view.node}", "taken, though it is held by the node of rank 0"),
                    *all_evidence,
                ],
                fix=fix,
            )
    if sound:
        yield fine(Where(), "locks hold")
