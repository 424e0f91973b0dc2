"""NCC001, NCC002: the NCCL library that torch loads."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster, Library, Node, Unread, at, known, value_or
from ncclcheck.reports.judgement.findings import (
    Finding,
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
from ncclcheck.reports.subjects.nodes.agree.agreement import disagreements

_ADDED = ("LD_PRELOAD", "LD_LIBRARY_PATH", "conda", "system")


@rule(
    "NCC001",
    "libnccl is found, and torch loads the intended one",
    worst=State.FAIL,
    needs=("stack.torch_cuda",),
)
def library_is_the_one_meant(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    A torch built for CUDA finds a libnccl that loads, and no other copy stands in front of the one that was
    installed with it.

    ## Why it matters
    Without libnccl `import torch` or the first collective fails. With another version in front of the one that
    torch was built with, symbols are missing (`undefined symbol: ncclCommRegister`), or the nodes run different
    versions without anybody having chosen so.

    ## Seen as
    does not start

    ## How we know
    The dynamic linker itself is asked which libnccl.so.2 it resolves for libtorch_cuda.so, in this environment,
    so LD_LIBRARY_PATH, LD_PRELOAD and the run path count. The library found is asked for its version
    (ncclGetVersion) in a process of its own. torch is not imported.

    ## Fix
    - **you** Install NCCL beside torch, or take the other copy out of LD_LIBRARY_PATH or LD_PRELOAD.
    - **admin** Remove a copy from the system's library directories that nothing needs.

    ## Source
    ld.so(8); NVIDIA/nccl#1267; rapidsai/cugraph#4465; pytorch/pytorch#119072.
    """
    for node in cluster.nodes:
        yield _library(node)


def _library(node: Node) -> Finding:
    loaded = at(node, "nccl.loaded")
    if isinstance(loaded, Unread):
        return _no_library(node, loaded.why) if loaded.kind == "absent" else _not_seen(node, "nccl.loaded", loaded)
    if isinstance(loaded.version, Unread):
        if loaded.version.kind == "absent":
            return _no_library(node, f"{loaded.path}: {loaded.version.why}")
        return _not_seen(node, "nccl.loaded.version", loaded.version)
    if hidden := _hidden_by(node, loaded):
        return _shadowed(node, loaded, hidden)
    text = f"torch loads NCCL {loaded.version}, {loaded.path} ({loaded.origin})"
    return fine(Where(node=node.name), text, seen("ncclGetVersion", loaded.version))


def _not_seen(node: Node, fact: str, unread: Unread) -> Finding:
    return not_read(Where(node=node.name), fact, unread, "which NCCL torch loads could not be seen")


def _no_library(node: Node, why: str) -> Finding:
    cuda = known(at(node, "stack.torch_cuda"))
    return fail(
        Where(node=node.name),
        f"torch for CUDA {cuda} has no NCCL that loads: {why}",
        why="import torch, or the first collective on GPUs, fails with a missing library or symbol.",
        owner="job",
        evidence=[seen("dynamic linker", why), seen("torch", value_or(at(node, "stack.torch"), "unknown"))],
        fix=[
            you(
                "Install the NCCL of this torch again.",
                f"python -m pip install nvidia-nccl-cu{cuda.split('.')[0]}",
            ),
            admin("In an image whose torch uses the system's NCCL, install libnccl2 there."),
        ],
    )


def _hidden_by(node: Node, loaded: Library) -> Library | None:
    """The copy installed with torch, when something else of another version is loaded in its place."""
    if loaded.origin not in _ADDED:
        return None
    installed = [o for o in value_or(at(node, "nccl.others"), []) if o.origin == "pip package"]
    return next((o for o in installed if value_or(o.version, loaded.version) != loaded.version), None)


def _shadowed(node: Node, loaded: Library, hidden: Library) -> Finding:
    return warn(
        Where(node=node.name),
        f"torch loads NCCL {loaded.version} from {loaded.origin}, not the {hidden.version} installed with it",
        why="torch was built and tested with the other one: symbols can be missing, and nodes can differ.",
        owner="job",
        evidence=[seen(f"loaded ({loaded.origin})", loaded.path), seen("installed with torch", hidden.path)],
        fix=[
            you(f"Remove it from the search path, unless it is intended: {loaded.path}", *_out_of_the_way(loaded))
        ],
    )


def _out_of_the_way(loaded: Library) -> list[str]:
    folder = loaded.path.rpartition("/")[0]
    if loaded.origin == "LD_PRELOAD":
        return ["unset LD_PRELOAD"]
    if loaded.origin == "LD_LIBRARY_PATH":
        cut = f"tr : '\\n' | grep -vxF '{folder}' | paste -sd:"
        return [f'export LD_LIBRARY_PATH=$(printf %s "$LD_LIBRARY_PATH" | {cut})']
    return []


@rule(
    "NCC002",
    "the NCCL version is the same on all nodes",
    worst=State.FAIL,
    needs=("nccl.loaded.version",),
    at_least=2,
    gates_job="by any failure",
)
def same_version_everywhere(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Every node's torch loads the same version of NCCL.

    ## Why it matters
    NCCL does not talk to another version of itself. Since 2.23 it says `Mismatched NCCL version detected`; before,
    the job ends with `Message truncated` or a meaningless address family, or hangs while it starts.

    ## Seen as
    hangs, dies

    ## How we know
    Each node's library is asked for its own version (ncclGetVersion). The nodes that differ from most others are
    named; where there is no majority, all are listed.

    ## Fix
    - **you** Use the same image or environment on all nodes, and no local LD_LIBRARY_PATH.
    - **admin** Give all nodes the same image.

    ## Source
    NVIDIA/nccl#1267.
    """
    versions = {node.name: known(at(node, "nccl.loaded.version")) for node in cluster.nodes}
    yield from disagreements(
        versions,
        "NCCL",
        "ncclGetVersion",
        level=fail,
        why="Ranks with different NCCL versions are incompatible: the job fails or hangs early.",
        owner="job",
        fix=[
            you("Use the same image or environment on all nodes; look at what NCC001 says was loaded there."),
            admin("Give all nodes the same image."),
        ],
    )
