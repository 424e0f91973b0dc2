"""The settings of a node as numbers and words, for rules about how they go together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ncclcheck.probes.facts import Cluster, Node
from ncclcheck.reports.judgement.findings import Evidence, Where, seen
from ncclcheck.reports.judgement.rule import NothingToJudge
from ncclcheck.reports.subjects.nccl.variables import (
    ValueInForce,
    Version,
    assigned,
    effective,
    nccl_version,
    parse_int,
)

_TRUE = {"y", "yes", "t", "true"}


@dataclass(frozen=True)
class Settings:
    """What NCCL and torch see on one node: the environment, then nccl.conf."""

    node: Node
    all: Mapping[str, ValueInForce]

    @property
    def where(self) -> Where:
        """The node, as findings name it."""
        return Where(node=self.node.name)

    @property
    def version(self) -> Version | None:
        """The version of the libnccl that torch would load."""
        return nccl_version(self.node)

    def before(self, *version: int) -> bool:
        """Whether the NCCL version is known and older than this one."""
        return self.version is not None and self.version < version

    def since(self, *version: int) -> bool:
        """Whether the NCCL version is known and not older than this one."""
        return self.version is not None and self.version >= version

    def text(self, name: str) -> str:
        """The value as it is written; empty where it is not set."""
        return self.all[name].value if name in self.all else ""

    def number(self, name: str) -> int | None:
        """The value as NCCL reads a number; None where it is not set or replaced by the default."""
        value = parse_int(self.text(name)).value
        return value if isinstance(value, int) else None

    def is_on(self, name: str) -> bool:
        """Whether a switch is on, as torch reads it too."""
        return self.text(name).lower() in _TRUE or bool(self.number(name))

    def evidence(self, *names: str) -> list[Evidence]:
        """Those of these variables that are set, and where."""
        listed = [(name, self.all[name]) for name in names if name in self.all]
        return [seen(setting.source, assigned(name, setting.value)) for name, setting in listed]


def settings_of(node: Node) -> Settings:
    """The settings in force on a node."""
    return Settings(node, effective(node))


def nodes_with(cluster: Cluster, *names: str) -> list[Settings]:
    """Nodes on which one of these variables is set; NothingToJudge where there is none."""
    nodes = [settings_of(node) for node in cluster.nodes if not effective(node).keys().isdisjoint(names)]
    if not nodes:
        raise NothingToJudge(f"{names[0]} is not set" if len(names) == 1 else f"none of {', '.join(names)} is set")
    return nodes
