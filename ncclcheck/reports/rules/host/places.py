"""Rules about places on the machine: shared memory, temporary files, its own name."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from shlex import quote

from ncclcheck.probes.facts import Cluster, Mount, Node, Space, Unread, at, known, value_or, variables
from ncclcheck.reports.judgement.findings import (
    Finding,
    Remedy,
    State,
    Where,
    admin,
    fail,
    fine,
    not_read,
    seen,
    warn,
    you,
)
from ncclcheck.reports.judgement.rule import rule
from ncclcheck.reports.subjects.addresses import name_service
from ncclcheck.reports.subjects.addresses.names import hosts_file
from ncclcheck.reports.subjects.nccl import lan
from ncclcheck.reports.subjects.nodes.directories import about
from ncclcheck.reports.text.words.fold import size

_MIB, _GIB = 2**20, 2**30  # bytes


@rule("HST003", "/dev/shm is large enough", worst=State.FAIL, needs=("host.shm",))
def shared_memory(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Size and free space of /dev/shm, the file system for shared memory.

    ## Why it matters
    Ranks of one node exchange data there when they cannot reach each other's GPU, and data loader workers hand
    over their batches there. Docker gives a container 64 MB. When it is full NCCL stops with `No space left on
    device` for a file /dev/shm/nccl-*, and a loader worker dies of a bus error.

    ## Seen as
    does not start, out of memory, dies

    ## How we know
    `statvfs("/dev/shm")`. Smaller than `HST003.shm_gib` (1) in size or in free room is a warning; no more than
    64 MiB free where the node has two GPUs or more is a failure, and so is no inode left. NCCL 2.24 and later
    can often do without /dev/shm, data loaders cannot.

    ## Fix
    - **you** `docker run --ipc=host` or `--shm-size=16g`; in Kubernetes an emptyDir with `medium: Memory` at
      /dev/shm; if files of dead jobs fill it, remove them.
    - **admin** `mount -o remount,size=50% /dev/shm`.

    ## Source
    NVIDIA/nccl#342, NVIDIA/nccl#290, pytorch/pytorch#5040; NCCL user guide, troubleshooting; shm_overview(7).
    """
    enough = cluster.policy.thresholds.get("HST003.shm_gib", 1.0) * _GIB
    for node in cluster.nodes:
        shm = known(known(node.host).shm)
        no_inode = bool(shm.inodes) and shm.inodes_free == 0
        if shm.free >= enough and not no_inode:
            continue
        many_gpus = value_or(at(node, "gpus.usable"), 0) >= 2
        level = fail if no_inode or (many_gpus and shm.free <= 64 * _MIB) else warn
        yield level(
            Where(node=node.name),
            f"/dev/shm has {f'no inode left of {shm.inodes}' if no_inode else _room(shm)}",
            why="Ranks and data loader workers share memory there, and die when it is full.",
            owner="job" if shm.size < enough else "node",
            evidence=[seen("statvfs(/dev/shm)", _room(shm))],
            fix=[
                you(
                    "Give the container more of it.", "docker run --ipc=host ...", "docker run --shm-size=16g ..."
                ),
                you("If your dead jobs left files there, remove them.", "ls -l /dev/shm", "rm /dev/shm/nccl-*"),
                admin("Make it larger.", "mount -o remount,size=50% /dev/shm"),
            ],
        )


def _room(space: Space) -> str:
    return f"{size(space.free)} free of {size(space.size)}"


@rule("HST004", "the temporary directory has free space", worst=State.FAIL, needs=("host.tmp",))
def temporary_directory(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Free room in TMPDIR, or in /tmp; whether what TMPDIR names is there and can be written.

    ## Why it matters
    torchrun keeps the logs and error files of its ranks there, the compiler its kernels, and Python the sockets
    of data loader workers. On a full one each of them fails with `No space left on device` or `No usable
    temporary directory found`, and torchrun cannot say why a rank died.

    ## Seen as
    out of memory, dies

    ## How we know
    A TMPDIR that Python passes over, for it is missing or may not be written, is a warning. `statvfs` of the
    directory that is taken: less than 16 MiB is a failure, less than `HST004.tmp_mib` (512) a warning. The same of
    the one that is named, /tmp by default: without an inode or 16 MiB in it Python takes /var/tmp without a word.

    ## Fix
    - **you** remove your own old files, or `export TMPDIR=` a directory with room, on every node.
    - **admin** clean it with systemd-tmpfiles, or in the job system's epilog.

    ## Source
    statvfs(3), environ(7), tempfile of the Python library reference; torchrun (Elastic Launch), --log-dir.
    """
    enough = cluster.policy.thresholds.get("HST004.tmp_mib", 512.0) * _MIB
    for node in cluster.nodes:
        tmp = known(known(node.host).tmp)
        if exhausted := [*_exhausted(node, tmp.path)]:
            yield from exhausted
            continue
        if (named := _unused(node, tmp.path)) is not None:
            yield named
        if tmp.free >= enough or _read_only(node, tmp.path):
            continue
        path = tmp.path or "the temporary directory"
        level = fail if tmp.free < 16 * _MIB else warn
        yield level(
            Where(node=node.name),
            f"{path} has {_room(tmp)}",
            why="torchrun, compilers and data loaders write there; on a full one the job fails or cannot say why.",
            owner="node",
            evidence=[seen(f"statvfs({path})", _room(tmp))],
            fix=[
                you("Point TMPDIR to a directory with room, in the job script.", "export TMPDIR=$HOME/tmp"),
                admin("Clean it.", "systemd-tmpfiles --clean", f"du -xsh {quote(path)}/* | sort -h | tail"),
            ],
        )


def _read_only(node: Node, taken: str) -> bool:
    """Its room is then of no use to anybody: STO004 says what is wrong."""
    return any(
        place.name == "temporary directory"
        and posixpath.normpath(place.path) == posixpath.normpath(taken or "/tmp")
        and isinstance(place.mount, Mount)
        and "ro" in place.mount.options
        for place in value_or(at(node, "storage.places"), [])
    )


def _exhausted(node: Node, taken: str) -> Iterator[Finding]:
    """No inode or no room in the directory that is meant, so that Python takes the next one."""
    for place in value_or(at(node, "storage.places"), []):
        room = place.room
        if place.name != "temporary directory" or isinstance(room, Unread):
            continue
        no_inode, no_room = bool(room.inodes) and room.inodes_free == 0, room.free < 16 * _MIB
        elsewhere = taken and posixpath.normpath(taken) != posixpath.normpath(room.path)
        if not no_inode and not (no_room and elsewhere):
            continue
        path = quote(room.path)
        lacks = (
            f"no inode left of {room.inodes}, so that no file can be made there"
            if no_inode
            else (f"{size(room.free)} left")
        )
        meanwhile = f"; Python takes {taken} without a word, other programs end" if elsewhere else ""
        yield fail(
            Where(node=node.name),
            f"{room.path} has {lacks}{meanwhile}",
            why="torchrun, compilers and data loaders make files there: `No space left on device`, though df -h "
            "may show room.",
            owner="node",
            evidence=about(place),
            fix=[
                you("Point TMPDIR to a directory with room, in the job script.", "export TMPDIR=$HOME/tmp"),
                admin(
                    "See which folder of it has the most files and bytes, and remove what no process uses.",
                    f"du --inodes -xd1 {path} | sort -n | tail -5; du -xd1 {path} | sort -n | tail -5"
                    f"   # on {node.name}",
                    f"systemd-tmpfiles --clean   # on {node.name}",
                ),
            ],
        )


def _unused(node: Node, taken: str) -> Finding | None:
    """TMPDIR that is passed over: Python goes elsewhere without a word, mktemp and compilers end."""
    named = variables(node).get("TMPDIR", "")
    if not taken or not named.startswith("/") or posixpath.normpath(named) == posixpath.normpath(taken):
        return None
    return warn(
        Where(node=node.name),
        f"TMPDIR={named} is missing, or may not be written: Python takes {taken} in its place",
        why="mktemp, compilers and programs that trust TMPDIR end with `No such file or directory`.",
        owner="job",
        evidence=[seen("environment", f"TMPDIR={named}"), seen("the directory that is taken", taken)],
        fix=[
            you("Make it, or take the variable out of that node's environment.",
                f"mkdir -p {quote(named)}  # on {node.name}", f"unset TMPDIR  # on {node.name}"),
        ],
    )  # fmt: skip


def _own_address(node: Node, name: str) -> list[Remedy]:
    """Of the interface that the job would use, where that is known."""
    listed = at(node, "network.interfaces")
    link = None if isinstance(listed, Unread) else lan.link(node, lan.choice_of_nccl(node))
    if link is None or lan.is_loopback(link.address):
        return [
            you(
                "Tell gloo the interface by its name: the one with the address of the job's network.",
                "ip -br addr",
            ),
            admin("Give the name that address in DNS or in /etc/hosts.", f"getent ahosts {quote(name)}"),
        ]
    return [
        you("Tell gloo the interface by its name.", f"export GLOO_SOCKET_IFNAME={quote(link.interface.name)}"),
        admin(
            "Give the name its address; no other name is touched.",
            *hosts_file.asked(node),
            f"{hosts_file.named(name, link.address, [])}   # on {node.name}",
        ),
    ]


@rule("HST005", "the node's own hostname resolves", worst=State.FAIL, gates_job="by any failure")
def own_name(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Whether the name that `hostname` prints resolves on that node.

    ## Why it matters
    gloo finds its own address by this name and falls back to loopback without one, which no other node can
    reach; torchrun hands the name of its first node to all others as MASTER_ADDR. NET005 judges which address
    it is once there are several nodes.

    ## Seen as
    does not start

    ## How we know
    `getaddrinfo` of /proc/sys/kernel/hostname, asked on the node, within five seconds. No address is a warning,
    and so is no answer in this time where a name server that is asked for it, asked directly, is mute: because
    /etc/hosts has no line for the name, or because nsswitch.conf asks the servers first. That is a failure where
    several nodes meet by gloo and no GLOO_SOCKET_IFNAME names the interface.

    ## Fix
    - **you** `export GLOO_SOCKET_IFNAME=` the interface of the job network, on every node; give
      `--rdzv-endpoint` and `--local-addr` as addresses.
    - **admin** a line `ADDRESS NAME` in /etc/hosts, or in the name server.

    ## Source
    aws-samples/aws-do-eks#69, ray-project/ray#42202; hosts(5), getaddrinfo(3).
    """
    for node in cluster.nodes:
        own = at(node, "host.own_name")
        if isinstance(own, Unread):
            yield from _no_answer(cluster, node, own)
            continue
        if own.addresses:
            yield fine(Where(node=node.name), f"{own.name} is {', '.join(own.addresses)}")
            continue
        yield warn(
            Where(node=node.name),
            f"the node's own name {own.name!r} has no address",
            why="gloo falls back to loopback without it, and other nodes cannot use the name as MASTER_ADDR.",
            owner="node",
            evidence=[seen(f"getaddrinfo({own.name})", "no address")],
            fix=[*_own_address(node, own.name)],
        )


def _no_answer(cluster: Cluster, node: Node, fact: Unread) -> Iterator[Finding]:
    """A name server that is asked for its name is mute; else it is not known why no answer comes."""
    mute = name_service.mute(node)
    sources = at(node, "host.own_sources")
    if isinstance(sources, Unread) or not mute:
        if fact.kind != "absent":
            yield not_read(Where(node=node.name), "host.own_name", fact, "its own name could not be resolved",
                           fix=[admin("Look at why this does not answer on that node.",
                                      f"time getent ahosts $(hostname)   # on {node.name}")])  # fmt: skip
        return
    many = len(mute) > 1
    servers = f"name server{'s' * many} {', '.join(mute)}"
    known_after = bool(sources.files) or len(mute) < len(sources.servers)
    by_name = lan.uses_gloo(cluster) and "GLOO_SOCKET_IFNAME" not in variables(node) and len(cluster.nodes) > 1
    what, why = (
        f"the {servers} {'do' if many else 'does'} not answer, and the node asks {'them' if many else 'it'} for "
        f"its own name {sources.name}"
        + (f" before /etc/hosts (nsswitch.conf: {sources.order})" if sources.files else "")
        + ": each lookup waits 5 s and more",
        "gloo looks the name up for every group of ranks that it makes, and torchrun when it starts: all others "
        "wait meanwhile, or give up.",
    ) if known_after else (
        f"the node's own name {sources.name} is not in its /etc/hosts, and the {servers} that it asks instead "
        f"{'do' if many else 'does'} not answer: gloo waits for it, and "
        "then takes loopback, which no other node can reach",
        "The ranks there advertise 127.0.0.1, and those of other nodes connect to themselves, or wait.",
    )  # fmt: skip
    yield (fail if by_name else warn)(
        Where(node=node.name),
        what,
        why=why,
        owner="node",
        evidence=[
            seen(f"getaddrinfo({sources.name})", fact.why),
            seen(f"/etc/hosts for {sources.name}", ", ".join(sources.files) or "nothing"),
            *(seen(f"name server {server}, asked directly", "no answer") for server in mute),
        ],
        fix=[
            *([_files_first(node)] if sources.files else _own_address(node, sources.name)),
            admin(
                "Or name servers that answer.",
                f"grep nameserver /etc/resolv.conf   # on {node.name}",
                *([_without_server(node, mute)] if len(mute) < len(sources.servers) else []),
            ),
        ],
    )


def _files_first(node: Node) -> Remedy:
    return admin(
        "Let /etc/hosts be asked before any name server; undo: the copy of the file.",
        f"{hosts_file.FILES_FIRST}   # on {node.name}",
    )


def _without_server(node: Node, mute: list[str]) -> str:
    """Where others answer: the lines of the mute ones go, and a copy stays."""
    edits = " ".join(
        f"-e '/^nameserver[[:space:]]+{server.replace('.', '[.]')}[[:space:]]*$/d'" for server in mute
    )
    return f"sed -i.before -E {edits} /etc/resolv.conf   # on {node.name}"
