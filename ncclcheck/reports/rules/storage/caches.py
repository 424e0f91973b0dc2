"""Caches and temporary directories: they can be written, and what is compiled there can be run."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from shlex import quote

from ncclcheck.probes.facts import Cluster, Mount, Node, Place, Room, Unread, at
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, Where, admin, note, warn, you
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.nodes.directories import about, places
from ncclcheck.reports.text.words.fold import size

_MIB = 2**20  # bytes
_CACHES = ("cache", "torch cache", "model cache", "CUDA cache")
_EXECUTES = ("temporary directory", "cache")


@rule("STO004", "cache and temporary directories are writable", worst=State.WARN, needs=("storage.places",))
def caches(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The directories that libraries fill by themselves: XDG_CACHE_HOME or ~/.cache, TORCH_HOME, HF_HOME and
    CUDA_CACHE_PATH; and that of temporary files, TMPDIR or /tmp. HST004 is about its room.

    ## Why it matters
    In a container with a user that has no home they would be made in `/`: the job ends with `Permission denied:
    '/.cache'` when it loads its model or compiles its first kernel. In some libraries it is only slow: every rank
    compiles again. Flight Recorder dumps go there too. Where TMPDIR may not be written or is not there, some
    programs take /tmp without a word and others end: `No usable temporary directory found`.

    ## Seen as
    slow, dies, setting without effect

    ## How we know
    access(2) and statvfs(3) of the directory, or of the nearest one above that exists, on each node. Less than
    64 MiB or no inode counts as not writable. A user without a home (it is not there, or it is `/`) is a note,
    unless a variable names the directory: many jobs fill none.

    ## Fix
    - **you** point them to a directory with room that this user may write:
      `export HOME=/tmp/$USER XDG_CACHE_HOME=/tmp/$USER/.cache HF_HOME=...`.

    ## Source
    huggingface/transformers#13472, opendatahub-io/ilab-on-ocp#26, huggingface/huggingface_hub#2797; PyTorch
    documentation, torch.hub; XDG base directory specification.
    """
    for node in cluster.nodes:
        yield from _no_temporary(node)
        for place in places(node, *_CACHES):
            if isinstance(place.room, Unread):
                continue
            lacks = "may not be written by this user" if not place.room.writable else ""
            lacks = lacks or (f"has {size(place.room.free)} left" if place.room.free < 64 * _MIB else "")
            lacks = lacks or ("has no inode left" if place.room.inodes and not place.room.inodes_free else "")
            if lacks:
                level = note if _without_home(place) else warn
                yield level(
                    Where(node=node.name),
                    f"the {place.name} {place.path} {lacks}"
                    + (", for this user has no home there" if level is note else ""),
                    why="Loading a model or compiling a kernel ends with an error, or is repeated by every rank.",
                    owner="job",
                    evidence=about(place),
                    fix=[
                        you(
                            "Point it to a directory that can be written.",
                            "export XDG_CACHE_HOME=/tmp/$USER/.cache",
                        )
                    ],
                )


def _no_temporary(node: Node) -> Iterator[Finding]:
    """TMPDIR that is not there, or in which this user may make no file."""
    missing = at(node, "host.tmp")
    for place in places(node, "temporary directory"):
        gone = isinstance(missing, Unread) and missing.kind == "absent"
        if isinstance(place.room, Unread) or (place.room.writable and not gone):
            continue
        read_only = isinstance(place.mount, Mount) and "ro" in place.mount.options
        lacks = (
            "is not there" if gone else "is mounted read-only" if read_only else "may not be written by this user"
        )
        yield warn(
            Where(node=node.name),
            f"temporary files: {place.path} ({place.told_by}) {'is not there' if gone else lacks}",
            why="torchrun, compilers and data loaders make files there: they end, or take another place silently.",
            owner="job",
            evidence=about(place),
            fix=[
                _writable_one(place),
                admin("See why in the kernel log (errors=remount-ro), and make it writable.",
                      f"mount -o remount,rw {quote(place.mount.point)}")
                if read_only and isinstance(place.mount, Mount)
                else admin("Make it as it is on the other nodes.", f"mkdir -p -m 1777 {quote(place.path)}",
                           f"mount -o remount,rw {quote(place.path)}"),
            ],
        )  # fmt: skip


def _writable_one(place: Place) -> Remedy:
    """Never the folder that is the problem, or one of its mount."""
    if posixpath.normpath(place.path) == "/tmp" or (
        isinstance(place.mount, Mount) and place.mount.point == "/tmp"
    ):
        return you("Name one that can be written, on every node.", "mkdir -p $HOME/tmp && export TMPDIR=$HOME/tmp")
    return you("Name one that can be written, on every node.", "export TMPDIR=/tmp")


def _without_home(place: Place) -> bool:
    """Service accounts and users of containers have none, and jobs that fill no cache run there all day."""
    if place.told_by != "HOME" or not isinstance(place.room, Room):
        return False
    home = place.path.removesuffix("/.cache")
    return not home.strip("/") or place.room.path not in (place.path, home)


@rule("STO005", "compiled code can be executed where it is stored", worst=State.WARN, needs=("storage.places",))
def executable(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The mount option noexec under the temporary directory and the cache.

    ## Why it matters
    torch.compile, Triton and extensions that are built at run time write shared libraries there and load them.
    With noexec that ends with `failed to map segment from shared object`, at the first compiled step. Hardened
    images mount /tmp in this way, and so does Docker's `--tmpfs` by default.

    ## Seen as
    dies

    ## How we know
    /proc/self/mountinfo.

    ## Fix
    - **you** `export TMPDIR=`, `TORCHINDUCTOR_CACHE_DIR=` and `TRITON_CACHE_DIR=` a directory without noexec; with
      Docker `--tmpfs /tmp:exec`.
    - **admin** `mount -o remount,exec /tmp`.

    ## Source
    pytorch/pytorch#91005, pytorch/pytorch#123054; mount(8), noexec.
    """
    judged = [(node, place) for node in cluster.nodes for place in places(node, *_EXECUTES)]
    if not judged:
        raise NothingToJudge("no such directory is known")
    for node, place in judged:
        if isinstance(place.mount, Mount) and "noexec" in place.mount.options:
            yield warn(
                Where(node=node.name),
                f"nothing may be run from the {place.name} {place.path}: {place.mount.point} is mounted noexec",
                why="torch.compile and Triton load there what they have compiled, and fail.",
                owner="job",
                evidence=about(place),
                fix=[
                    you("Take another directory.", f"export TMPDIR={_elsewhere(place)}",
                        f"export TORCHINDUCTOR_CACHE_DIR={_elsewhere(place)}/inductor"),
                    admin("Allow it.", f"mount -o remount,exec {quote(place.mount.point)}"),
                ],
            )  # fmt: skip


def _elsewhere(place: Place) -> str:
    return "$HOME/tmp" if place.name == "temporary directory" else "/tmp/$USER"
