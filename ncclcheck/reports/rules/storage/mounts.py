"""STO060 to STO062: network file systems answer, disks are writable, and all NVMe controllers live."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from shlex import quote

from ncclcheck.probes.facts import Cluster, FileSystemAnswer, Mount, Node, Nvme, at, known
from ncclcheck.reports.judgement.findings import Finding, State, Where, admin, fine, note, seen, warn, you
from ncclcheck.reports.judgement.rule import rule
from ncclcheck.reports.rules.host.failing import last_line, of_kernel
from ncclcheck.reports.subjects.nodes.agree.agreement import group
from ncclcheck.reports.text.words.fold import fold_names, many

_GIVEN_UP = ("emergency_ro", "shutdown")


@rule("STO060", "network file systems respond", worst=State.WARN, needs=("health.answers",))
def stale(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Every network file system that is mounted answers when its root is asked for.

    ## Why it matters
    A rank that opens a file on a mount whose server is gone waits in the kernel, without an error and without a
    trace in its log, and the others wait for it in NCCL. A handle that went stale (ESTALE), or a FUSE daemon that
    died (ENOTCONN), ends the job at its first file.

    ## Seen as
    dies

    ## How we know
    stat(2) of each mount of NFS, Lustre, GPFS, BeeGFS, CephFS, FUSE and the like in /proc/self/mountinfo, by a
    child that is killed after four seconds; nothing else touches them. What autofs has not mounted yet is not
    touched. To be refused is an answer too.

    ## Fix
    - **admin** bring the server or the daemon back; `umount -f -l POINT` and mount it again.
    - **you** leave the node out until then, if your job reads from there.

    ## Source
    facebookresearch/gcm (check_storage), leptonai/gpud (nfs); erikmagkekse/btrfs-nfs-csi#97 (a stale mount holds
    up whoever asks whether it is one); nfs(5), stat(2).
    """
    for node in cluster.nodes:
        answers: list[FileSystemAnswer] = known(at(node, "health.answers"))
        bad = [reply for reply in answers if reply.late or reply.error]
        for answer in bad:
            yield _silent(node, answer)
        if answers and not bad:
            yield fine(Where(node=node.name), f"{many(len(answers), 'network file system')} answered")


def _silent(node: Node, answer: FileSystemAnswer) -> Finding:
    what = "gave no answer in 4 s" if answer.late else f"cannot be used: {answer.error}"
    return warn(
        Where(node=node.name),
        f"{answer.name} ({answer.kind} from {answer.source}) {what}",
        why="A rank that opens a file there waits in the kernel for ever, or ends.",
        owner="node",
        evidence=[seen(f"stat {answer.name}", "no answer" if answer.late else answer.error)],
        fix=[
            admin("Bring the server back, or unmount it and mount it again.", f"umount -f -l {quote(answer.name)}",
                  f"mount {quote(answer.name)}"),
            you("If the job reads from there, leave the node out.", f"#SBATCH --exclude={node.name}"),
        ],
    )  # fmt: skip


@rule("STO061", "no file system was remounted read-only by the kernel", worst=State.WARN, needs=("health.disks",))
def given_up(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    No file system of a local disk that was mounted for writing has become read-only.

    ## Why it matters
    After an error of its disk ext4 goes read-only, and xfs shuts itself down. The node looks well, `df` shows
    room, and the job ends at its first write there: `Read-only file system`, or `Input/output error`.

    ## Seen as
    dies

    ## How we know
    /proc/self/mountinfo: the mount says rw and the file system below says ro, emergency_ro or shutdown; or the
    kernel log says that it remounted one or shut it down. What was mounted read-only on purpose is not judged;
    but where most of three or more nodes have a mount point for writing, the one that has it read-only is
    reported, for a disk that failed at boot is mounted so by hand or by its boot options.

    ## Fix
    - **admin** look for the disk's errors, unmount, `fsck`, and mount it again; replace the disk.
    - **you** leave the node out until then.

    ## Source
    leptonai/gpud (disk, kmsg), Azure/azurehpc-health-checks; ext4(5), errors=remount-ro; proc_pid_mountinfo(5).
    """
    writable = Counter(
        place.point for node in cluster.nodes for place in known(at(node, "health.disks")) if _is_rw(place)
    )
    for node in cluster.nodes:
        mounts: list[Mount] = known(at(node, "health.disks"))
        bad = [mount for mount in mounts if _is_given_up(mount)]
        for mount in mounts:
            if not _is_rw(mount) and writable[mount.point] * 2 > len(cluster.nodes) > 2:
                yield _unlike_others(node, mount, writable[mount.point], len(cluster.nodes))
        events = of_kernel(node, "file system given up")
        for mount in bad:
            yield _read_only(node, mount)
        if events and not bad:
            yield warn(
                Where(node=node.name),
                "the kernel gave a file system up, and mounted it read-only or shut it down",
                why="What is written there fails.",
                owner="node",
                evidence=[last_line(event) for event in events],
                fix=[
                    admin(
                        "See which one it was, and what its disk says.", "dmesg | grep -i -e 'I/O error' -e ext4"
                    )
                ],
            )
        elif mounts and not bad:
            yield fine(Where(node=node.name), f"{many(len(mounts), 'file system')} of disks as they were mounted")


def _is_given_up(mount: Mount) -> bool:
    """The options of the mount come before those of the file system below it."""
    below = mount.options[1:]
    return mount.options[:1] == ["rw"] and ("ro" in below or any(word in below for word in _GIVEN_UP))


def _is_rw(mount: Mount) -> bool:
    return mount.options[:1] == ["rw"]


def _unlike_others(node: Node, mount: Mount, writable: int, nodes: int) -> Finding:
    return warn(
        Where(node=node.name, device=mount.source),
        f"{mount.point} is mounted read-only; {writable} of {nodes} nodes have it for writing",
        why="What the job writes there ends it on this node alone.",
        owner="node",
        evidence=[seen("/proc/self/mountinfo", f"{mount.source} {mount.kind} {','.join(mount.options)}"[:200])],
        fix=[
            admin("See what the disk says before it is mounted for writing again; undo: remount,ro.",
                  f"dmesg | grep -e {quote(mount.source.rpartition('/')[2])}",
                  f"mount -o remount,rw {quote(mount.point)}"),
            you("Leave the node out until then.", f"#SBATCH --exclude={node.name}"),
        ],
    )  # fmt: skip


def _read_only(node: Node, mount: Mount) -> Finding:
    return warn(
        Where(node=node.name, device=mount.source),
        f"{mount.point} was mounted for writing and is read-only now",
        why="The kernel does this after an error of the disk. The first write there ends the job.",
        owner="node",
        evidence=[seen("/proc/self/mountinfo", f"{mount.source} {mount.kind} {','.join(mount.options)}"[:200])],
        fix=[
            admin("See what the disk says, then unmount, check and mount it again.",
                  f"dmesg | grep -e {quote(mount.source.rpartition('/')[2])}", f"fsck -n {quote(mount.source)}"),
            you("Leave the node out until then.", f"#SBATCH --exclude={node.name}"),
        ],
    )  # fmt: skip


@rule("STO062", "every NVMe controller works, and all nodes have the same number", worst=State.WARN,
      needs=("health.nvmes",))  # fmt: skip
def nvmes(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Every NVMe controller on PCIe is live, and nodes of one kind have the same number of each model.

    ## Why it matters
    A controller that is dead or resets all the time takes the local cache of data sets, checkpoints or images with
    it. Where it is missing altogether a RAID of the others starts degraded or not at all, and that node's data
    loaders read over the network.

    ## How we know
    state and model in /sys/class/nvme. Another state than live is a warning; another number than on most nodes
    with these models, or errors of disks in the kernel log, a note. Disks over a network are not counted.

    ## Fix
    - **admin** `nvme list`, `nvme smart-log`, the kernel log; reseat or replace it.

    ## Source
    Azure/azurehpc-health-checks (check_nvme_count), leptonai/gpud (disk); the
    kernel's drivers/nvme/host/core.c (states).
    """
    models: dict[str, str] = {}
    for node in cluster.nodes:
        disks: list[Nvme] = known(at(node, "health.nvmes"))
        models[node.name] = _models(disks)
        bad = [disk for disk in disks if isinstance(disk.state, str) and disk.state != "live"]
        for disk in bad:
            yield _not_live(node, disk)
        for event in of_kernel(node, "disk error"):
            yield note(
                Where(node=node.name), "the kernel reports errors of a disk", owner="node",
                why="A disk that fails slows down or ends what reads from it.", evidence=[last_line(event)],
                fix=[admin("See what the disk says of itself.", "smartctl -H -A /dev/nvme0", "nvme list")],
            )  # fmt: skip
        if disks and not bad:
            yield fine(Where(node=node.name), f"{many(len(disks), 'NVMe controller')}, all live")
    grouping = group({name: own for name, own in models.items() if own})
    if grouping.majority is not None and len(grouping.groups[0][1]) * 3 >= len(models) * 2:
        for name, controllers in grouping.odd:
            yield note(
                Where(node=name),
                f"its NVMe controllers are {controllers}; {len(grouping.groups[0][1])} of {len(models)} nodes "
                f"have {grouping.majority}",
                why="One may be missing, and with it a local cache.",
                owner="node",
                evidence=[
                    seen("/sys/class/nvme", f"{kind} on {fold_names(names)}") for kind, names in grouping.groups
                ],
                fix=[admin("See whether one is missing.", "nvme list", "lspci -d ::0108")],
            )


def _models(disks: list[Nvme]) -> str:
    names = [disk.model if isinstance(disk.model, str) else "of an unknown model" for disk in disks]
    return ", ".join(f"{names.count(name)} {name}" for name in sorted(set(names)))


def _not_live(node: Node, disk: Nvme) -> Finding:
    return warn(
        Where(node=node.name, device=disk.name),
        f"the NVMe controller is {disk.state}, not live",
        why="What is stored there cannot be read, and who tries waits or gets an error.",
        owner="node",
        evidence=[seen(f"/sys/class/nvme/{disk.name}/state", disk.state)],
        fix=[
            admin("See why, then reset or replace it.", f"dmesg | grep -e {quote(disk.name)}", "nvme list"),
            you("Where the job keeps data there, leave the node out.", f"#SBATCH --exclude={node.name}"),
        ],
    )
