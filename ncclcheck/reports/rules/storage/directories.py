"""Where the job's files live: room, rights, locks, and whether it is one file system on all nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from shlex import quote

from ncclcheck.probes.facts import Cluster, Lock, Node, Place, Unread, at, known, value_or
from ncclcheck.reports.judgement.findings import (
    Finding,
    State,
    Where,
    admin,
    fail,
    fine,
    not_read,
    note,
    seen,
    warn,
    you,
)
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.nodes.agree import together
from ncclcheck.reports.subjects.nodes.agree.agreement import group
from ncclcheck.reports.subjects.nodes.directories import about, mounted, places
from ncclcheck.reports.text.words.fold import fold_names, size

_MIB, _GIB = 2**20, 2**30  # bytes
_FEW_INODES = 1000  # a checkpoint of 1000 ranks has as many files: chosen


@rule("STO001", "the working directory has free space", worst=State.FAIL, needs=("storage.places",))
def room(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Free bytes and free inodes of the file system in which the job was started.

    ## Why it matters
    Checkpoints, logs and profiles are written there by default. A full one ends the job at its first checkpoint,
    hours after its start, and `df -h` shows room where only the inodes are gone.

    ## Seen as
    out of memory, dies

    ## How we know
    statvfs of the working directory on each node. Less than 16 MiB or no inode is a failure; less than
    `STO001.gib` (1) or 1000 inodes a warning. A directory that may not be written is a note: many jobs write
    elsewhere. Quotas cannot be seen in this way.

    ## Fix
    - **you** remove old checkpoints; start the job in a directory with room; `quota -s` or `lfs quota -h .`.
    - **admin** raise the quota, clean the file system.

    ## Source
    statvfs(3), write(2) (ENOSPC, EDQUOT); PyTorch tutorials, saving and loading a general checkpoint.
    """
    if all(value_or(at(node, "storage.deleted"), "") for node in cluster.nodes):
        raise NothingToJudge("its ground failed: STO007")
    enough = cluster.policy.thresholds.get("STO001.gib", 1.0) * _GIB
    for node in cluster.nodes:
        for place in places(node, "working directory"):
            space = place.room
            if isinstance(space, Unread):
                yield _unread(node, place, space)
                continue
            few = bool(space.inodes) and space.inodes_free < _FEW_INODES
            if space.free < enough or few:
                full = space.free < 16 * _MIB or (few and space.inodes_free == 0)
                yield _too_little(node, place, fail if full else warn, few=few)
            elif not space.writable:
                yield note(Where(node=node.name), f"{space.path} may not be written by this user",
                           why="Checkpoints must go elsewhere.", evidence=about(place))  # fmt: skip


def _unread(node: Node, place: Place, fact: Unread) -> Finding:
    fix = admin("Look at why this file system does not answer.", f"findmnt -T {quote(place.path)}")
    what = f"the {place.name} {place.path} could not be looked at"
    return not_read(Where(node=node.name), place.path, fact, what, fix=[fix])


def _too_little(node: Node, place: Place, level: Callable[..., Finding], *, few: bool) -> Finding:
    space = known(place.room)
    left = f"{space.inodes_free} inodes" if few else size(space.free)
    return level(
        Where(node=node.name),
        f"the working directory {space.path} has {left} left",
        why="The job ends with 'No space left on device' at its first checkpoint.",
        owner="job",
        evidence=about(place),
        fix=[
            you(
                "Make room, or start the job elsewhere.",
                f"du -xsh {quote(space.path)}/* | sort -h | tail",
                "df -i .",
            ),
            admin("Raise the quota or clean the file system."),
        ],
    )


@rule(
    "STO002",
    "the working directory is the same file system on all nodes",
    worst=State.WARN,
    needs=("storage.places",),
    at_least=2,
    between_machines=True,
)
def same_file_system(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The file system under the working directory: network or local, and from which server.

    ## Why it matters
    Where a mount is missing on one node the directory may be there all the same, empty and on the local disk: the
    rank on that node reads an old script, does not find its data, or writes its part of a checkpoint where nobody
    looks. A sharded checkpoint on local disks cannot be resumed on other nodes.

    ## How we know
    /proc/self/mountinfo on each node. A node with another source or type than most is a warning. Local file
    systems on all nodes are a note. Where all nodes looked for each other's files this is skipped: STO006 then
    shows what came of it, whatever the mounts are called.

    ## Fix
    - **you** start the job in a directory of the shared file system; leave the node out until its mount is back.
    - **admin** `mount -a` on the node; let the job system's prolog check the mount.

    ## Source
    proc_pid_mountinfo(5), mount(8), nfs(5); PyTorch documentation, Distributed checkpoint.
    """
    if together.groups(cluster).known >= {node.name for node in cluster.nodes}:
        raise NothingToJudge("the nodes looked for each other's files: STO006")
    kinds: dict[str, str] = {}
    for node in cluster.nodes:
        for place in places(node, "working directory"):
            mount = place.mount
            if isinstance(mount, Unread):
                yield _unread(node, place, mount)
                continue
            kinds[node.name] = mounted(mount)
    grouping = group(kinds)
    evidence = [seen("/proc/self/mountinfo", f"{kind} on {fold_names(names)}") for kind, names in grouping.groups]
    if grouping.agree:
        shared = not kinds or grouping.groups[0][0] != "a local file system"
        what = f"the working directory is on {grouping.groups[0][0]} on all {len(kinds)} nodes" if kinds else ""
        why = "What one rank writes there, ranks of other nodes do not see."
        yield fine(Where(), what, *evidence) if shared else note(Where(), what, why=why, evidence=evidence)
        return
    odd = grouping.odd if grouping.majority is not None else [(names[0], kind) for kind, names in grouping.groups]
    most = f"{len(grouping.groups[0][1])} of {len(kinds)} nodes have {grouping.groups[0][0]}"
    for node_name, kind in odd:
        yield warn(
            Where(node=node_name),
            f"its working directory is on {kind}; {most if grouping.majority is not None else str(grouping)}",
            why="It may be an empty directory under a mount that is missing: other script, no data.",
            owner="node",
            evidence=evidence,
            fix=[
                you("Leave the node out until then.", "#SBATCH --exclude=NODE"),
                admin("Mount what the others have.", "mount -a", "findmnt -T ."),
            ],
        )


@rule("STO003", "files in the working directory can be locked", worst=State.FAIL,
      needs=("storage.flock", "storage.fcntl"))  # fmt: skip
def locks(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    flock and fcntl locks on a small file in the working directory, which is removed again.

    ## Why it matters
    Ranks take turns by locks when they download a model, build an extension, merge results or share a FileStore.
    Lustre mounted without `flock` refuses them (`Function not implemented`), and some libraries then try again
    for ever. On NFS whose lock service is gone, a lock waits without end. Ignored locks damage what two ranks
    write at once.

    ## Seen as
    hangs

    ## How we know
    A child process takes each lock without waiting, and another one tries to take it as well, within four seconds.
    That locks of two nodes exclude each other is not tried.

    ## Fix
    - **you** use a directory of another file system for it (`HF_HOME`, `TORCH_EXTENSIONS_DIR`, the FileStore).
    - **admin** mount Lustre with `flock` (not `localflock`), NFS without `nolock`; start rpc.statd and lockd.

    ## Source
    tox-dev/filelock#67, tox-dev/filelock#6, python-poetry/poetry#8825; flock(2), fcntl_locking(2), nfs(5),
    mount.lustre(8); PyTorch documentation, torch.distributed, shared file-system initialization.
    """
    for node in cluster.nodes:
        for kind in ("flock", "fcntl"):
            lock: Lock = known(at(node, f"storage.{kind}"))
            if lock.outcome != "ok":
                yield _no_lock(node, kind, lock)


_SAID = {
    "hangs": "do not answer",
    "unsupported": "are not supported",
    "ignored": "are ignored: two processes held one at once",
}


def _no_lock(node: Node, kind: str, lock: Lock) -> Finding:
    level = fail if lock.outcome == "hangs" else warn
    mounted = [evidence for place in places(node, "working directory") for evidence in about(place)]
    return level(
        Where(node=node.name),
        f"{kind} locks in the working directory {_SAID[lock.outcome]}",
        why="Ranks that take turns by locks wait for ever, or write to one file at once.",
        owner="site",
        evidence=[seen(kind, f"{lock.outcome} {lock.detail}".strip()), *mounted],
        fix=[
            you("Keep what needs locks on another file system.", "export HF_HOME=/path/with/locks"),
            admin("Turn locks on at the mount.", "mount -o remount,flock /lustre", "systemctl start rpc-statd"),
        ],
    )


@rule("STO007", "the working directory still exists", worst=State.FAIL, gates_job="by any failure")
def still_there(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The directory that the command was started in still exists.

    ## Why it matters
    A shell that stands in a deleted directory shows nothing of it, but os.getcwd() fails there. Python scripts and
    launchers end with FileNotFoundError, and `import torch` with `Intel oneMKL FATAL ERROR: Cannot load
    libtorch_cpu.so`, which looks like a broken installation.

    ## Seen as
    does not start, dies

    ## How we know
    getcwd(2) says ENOENT, and the kernel marks /proc/self/cwd with `(deleted)`.

    ## Fix
    - **you** `cd` to a directory that is there and start again; a directory of the same name that was made anew
      must be entered anew: `cd "$PWD"`.
    - **admin** look at what cleans up job directories while jobs run.

    ## Source
    getcwd(3), proc_pid_cwd(5).
    """
    paths = {node.name: at(node, "storage.deleted") for node in cluster.nodes}
    if all(isinstance(path, Unread) for path in paths.values()):
        raise NothingToJudge("whether it is still there was not read")
    for name, path in paths.items():
        if path and not isinstance(path, Unread):
            yield fail(
                Where(node=name),
                f"the working directory {path} was deleted",
                why="os.getcwd() raises FileNotFoundError: import torch, torchrun and most scripts end at once.",
                owner="job",
                evidence=[seen("/proc/self/cwd", f"{path} (deleted)")],
                fix=[
                    you("Go to a directory that is there, and start again.", "cd ~"),
                    admin(
                        "See what deletes directories of jobs that run, such as a clean-up by cron or an epilog."
                    ),
                ],
            )
