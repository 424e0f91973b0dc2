"""A process that died of torch's own libraries, which are cut short on its node alone."""

from __future__ import annotations

import re
import signal

from ncclcheck.probes.facts import Cluster, JobEnd, RankState, Unread, at, value_or
from ncclcheck.reports.judgement.findings import seen, you
from ncclcheck.reports.subjects.failures.limits.exhausted import Exhausted
from ncclcheck.reports.text.words.fold import fold_names, size

# A page behind the end of a mapped file raises SIGBUS (mmap(2)); what the loader reads as tables may be anything.
_SIGNALS = (-signal.SIGBUS, -signal.SIGSEGV, -signal.SIGILL)
# Of glibc's loader (dl-load.c), whose first words name the file.
_LOADER = re.compile(
    r"file too short|invalid ELF header|cannot read file data|undefined symbol|failed to map segment"
)
REINSTALL = you(
    "Install it again there.", "python -m pip install --force-reinstall --no-cache-dir --no-deps torch"
)


def of_rank(cluster: Cluster, rank: RankState) -> Exhausted | None:
    """Why a rank was lost."""
    ends = [end.detail for end in cluster.run.ends if end.node == rank.node]
    return _cut(cluster, rank.node, "\n".join([rank.error, *ends]), rank.exit or 0)


def of_end(cluster: Cluster, end: JobEnd) -> Exhausted | None:
    """Why the torchrun of a node ended."""
    return _cut(cluster, end.node, end.detail, end.exit or 0)


def _cut(cluster: Cluster, name: str, text: str, status: int) -> Exhausted | None:
    """Where the same version of torch has smaller libraries here than on all other nodes."""
    if status not in _SIGNALS and not _LOADER.search(text):
        return None
    versions = {node.name: value_or(at(node, "stack.torch"), "") for node in cluster.nodes}
    sizes = {
        node.name: of
        for node in cluster.nodes
        if not isinstance(of := at(node, "stack.torch_libraries"), Unread)
        and versions[node.name] == versions.get(name)
    }
    others = {node: of for node, of in sizes.items() if node != name}
    if name not in sizes or not others or sizes[name] >= min(others.values()):
        return None
    whole = min(others.values())
    return Exhausted(
        f"torch's libraries are cut short there: {size(sizes[name])}, and {size(whole)} on {fold_names(others)}",
        "node",
        (seen("libtorch*.so, libc10*.so", f"{sizes[name]} bytes; {whole} on {fold_names(others)}"),),
        (REINSTALL,),
    )
