"""What srun says on stderr: which node could not be started, which task ended, and whether the step is lost."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ncclcheck.base.errors import UsageError
from ncclcheck.launch.hosts import nodelist

_FAILED = (
    re.compile(r"srun: error: Task launch for \S+ failed on node (?P<nodes>\S+): .*"),
    re.compile(r"srun: error: Node failure on (?P<nodes>\S+)"),
    re.compile(r"srun: error: Nodes? (?P<nodes>\S+) (?:is|are) still not ready.*"),
    re.compile(r"srun: error: Unable to resolve \"(?P<nodes>[^\"\s]+)\".*"),
)
_TASK = re.compile(r"srun: (?:error: )?(?P<nodes>[^\s:]+): tasks? [\d,\[\]-]+: .+")
_NOT_CREATED = re.compile(
    r"srun: error: Unable to create (?:job )?step|srun: error: .*Invalid node name"
    r"|srun: error: .*(?:Requested nodes are busy|[Rr]equested node configuration is not available)"
)


def failed_nodes(line: str) -> Iterator[str]:
    """Nodes on which srun says that it could not start, or that are lost."""
    for form in _FAILED:
        if match := form.match(line):
            yield from _names(match["nodes"])


def ended_tasks(line: str) -> Iterator[str]:
    """Nodes whose task has ended otherwise than well."""
    if match := _TASK.match(line):
        yield from _names(match["nodes"])


def not_created(text: str) -> bool:
    """Whether Slurm refused the step as a whole, naming no node."""
    return _NOT_CREATED.search(text) is not None


def about(name: str, line: str, words: str) -> str:
    """What was said of the end of one node's task: our own words from there, else what no other node said."""
    lines = [other for other in words.splitlines() if other != line]
    mine = [line for line in lines if line.startswith(f"ncclcheck: {name}: ")]
    rest = [line for line in lines if not line.startswith("ncclcheck: ") and not _TASK.match(line)]
    return "\n".join([*(mine or rest), line])


def _names(text: str) -> tuple[str, ...]:
    try:
        return nodelist.expand(text, "srun")
    except UsageError:
        return ()
