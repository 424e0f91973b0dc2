"""Which nodes stand in one working directory, by the files that each made there for the others to find."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property

from ncclcheck.probes.facts import Cluster, Marks, Mount, Unread
from ncclcheck.reports.subjects.nodes.connected import connected
from ncclcheck.reports.subjects.nodes.directories import mounted, working


@dataclass(frozen=True)
class DirectoryGroups:
    """marks: what each node found. together: nodes of one directory, the largest group first.

    known: nodes that looked for a file, or whose file was looked for. missing: (a, b) where a did not find the
    file of b; late: those of one directory, where it was only not seen in time. mounts: what is mounted there,
    where that is known.
    """

    marks: dict[str, Marks]
    unread: dict[str, Unread]
    together: list[list[str]]
    known: set[str]
    missing: set[tuple[str, str]]
    late: list[tuple[str, str]]
    mounts: dict[str, Mount]

    @cached_property
    def main(self) -> list[str]:
        """The group that the others are held against: the largest, else the only one on a network file system."""
        first, *others = self.together
        if not others or len(first) > len(others[0]):
            return first
        drawn = [members for members in self.together if len(members) == len(first)]
        shared = [members for members in drawn if self.on_network(members)]
        return shared[0] if len(shared) == 1 else []

    @property
    def apart(self) -> list[DirectoryGroups]:
        """By nodes that looked for each other's files: in merged results those of one run did, and no others."""
        group_of = {name: index for index, group in enumerate(self.together) for name in group}
        links = {(str(group_of[a]), str(group_of[b])) for a, b in self.missing}
        runs = connected([str(index) for index in range(len(self.together))], links)
        return [replace(self, together=[self.together[int(i)] for i in sorted(run, key=int)]) for run in runs]

    def on_network(self, nodes: Collection[str]) -> bool:
        """Whether it is known of one of them that its directory comes from a server."""
        return any(self.mounts[node].network for node in nodes if node in self.mounts)

    def is_local(self, node: str) -> bool:
        """Whether it is known that no server stands behind its directory."""
        return node in self.mounts and not self.mounts[node].network

    def path(self, node: str) -> str:
        """The directory of a node; empty where it did not tell."""
        return self.marks[node].path if node in self.marks else ""

    def mounted(self, node: str) -> str:
        """What stands behind its directory, in words."""
        return mounted(self.mounts[node]) if node in self.mounts else "a file system that was not seen"


def groups(cluster: Cluster) -> DirectoryGroups:
    """What the nodes of this cluster found; no group where they did not look."""
    names = [node.name for node in cluster.nodes]
    of_node = {reach.node: reach.marks for reach in cluster.measurements.reach if reach.node in names}
    marks = {node: marks for node, marks in of_node.items() if isinstance(marks, Marks)}
    seen = {(a, b) for a, marks in marks.items() for b in marks.seen if b in names}
    missing = {(a, b) for a, marks in marks.items() for b in marks.missing if b in names}
    known = {node for pair in seen | missing for node in pair}
    together = connected([name for name in names if name in known], seen)
    group_of = {name: index for index, group in enumerate(together) for name in group}
    places = {node.name: working(node) for node in cluster.nodes}
    return DirectoryGroups(
        marks=marks,
        unread={node: marks for node, marks in of_node.items() if isinstance(marks, Unread)},
        together=together,
        known=known,
        missing=missing,
        late=sorted((a, b) for a, b in missing if group_of[a] == group_of[b]),
        mounts={name: place.mount for name, place in places.items() if place and isinstance(place.mount, Mount)},
    )
