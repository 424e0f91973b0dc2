"""A cluster and its verdicts as rules of settings look at them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from ncclcheck.probes.facts import Cluster, Gpu, Node, NvLinks, Transport, Unread, at, value_or
from ncclcheck.reports.judgement.findings import Finding, State, Verdict
from ncclcheck.reports.judgement.rule import NothingToJudge
from ncclcheck.reports.output.settings_forms import quoted
from ncclcheck.reports.subjects.nccl import carrying, lan, profiles, wiring
from ncclcheck.reports.subjects.nccl.hca import HcaChoice, UsedPort
from ncclcheck.reports.subjects.nccl.settings import Settings, settings_of
from ncclcheck.reports.subjects.nccl.variables import Version, as_version, assigned, effective
from ncclcheck.reports.subjects.nodes.cards import peers
from ncclcheck.reports.text.words.fold import fold_names


@dataclass(frozen=True)
class SetVariable:
    """A variable that is set on one node."""

    on: Settings
    name: str

    @property
    def text(self) -> str:
        """As it is written."""
        return self.on.text(self.name)

    @property
    def number(self) -> int | None:
        """As NCCL reads a number."""
        return self.on.number(self.name)


When = Callable[[SetVariable], bool]


class Site:
    """Everything that a rule asks."""

    def __init__(self, cluster: Cluster, verdicts: Sequence[Verdict]) -> None:
        self.cluster = cluster
        self.nodes = cluster.nodes
        self.settings = [settings_of(node) for node in cluster.nodes]
        self._verdicts = {verdict.code: verdict for verdict in verdicts}

    def findings(self, *codes: str) -> list[Finding]:
        """What fails or warns by these codes."""
        judged = (self._verdicts[code] for code in codes if code in self._verdicts)
        return [finding for v in judged for finding in v.findings if finding.state in (State.FAIL, State.WARN)]

    def evidence_of(self, *codes: str, seen_in: str = "") -> list[str]:
        """The same as evidence: each code with what it says first, from this source where one is given."""
        texts: dict[str, str] = {}
        for code in codes:
            for finding in self.findings(code):
                if not seen_in or any(evidence.source == seen_in for evidence in finding.evidence):
                    texts.setdefault(
                        code, f"{code}: {finding.where}{'  ' if str(finding.where) else ''}{finding.what}"
                    )
        return [*texts.values()]

    @property
    def simulated(self) -> bool:
        """Whether nodes stand for machines that are not there."""
        return self.cluster.job.simulated or any(node.simulated for node in self.nodes)

    @property
    def several(self) -> bool:
        """Whether the job needs a way from one machine to another."""
        return max(self.cluster.job.nodes_asked, len(self.nodes)) > 1 and not self.simulated

    @cached_property
    def uses_gloo(self) -> bool:
        """Whether the job's backend is gloo."""
        return lan.uses_gloo(self.cluster)

    @cached_property
    def uses_nccl(self) -> bool:
        """Whether NCCL is there on every node and the job uses it, on real machines."""
        if self.simulated or self.uses_gloo or not self.nodes:
            return False
        try:
            able = wiring.with_gpus(self.cluster)
        except NothingToJudge:
            return False
        return len(able) == len(self.nodes) and all(setting.version is not None for setting in self.settings)

    def runs_nccl(self, low: Version, high: Version) -> bool:
        """Whether the version of every node is known and within these."""
        versions = [setting.version for setting in self.settings]
        return bool(versions) and all(version is not None and low <= version <= high for version in versions)

    def runs_torch(self, low: Version, high: Version = (99, 0, 0)) -> bool:
        """The same for torch, without its last part."""
        versions = [as_version(at(node, "stack.torch")) for node in self.nodes]
        return bool(versions) and all(version is not None and low <= version < high for version in versions)

    def is_set(self, *names: str) -> bool:
        """Whether one of these is set on any node."""
        return any(not setting.all.keys().isdisjoint(names) for setting in self.settings)

    def values_of(self, name: str, when: When | None = None) -> list[str]:
        """The values of a variable that `when` objects to, with where they stand and on which nodes."""
        groups: dict[str, list[str]] = {}
        for settings in self.settings:
            if name in settings.all and (when is None or when(SetVariable(settings, name))):
                setting = settings.all[name]
                groups.setdefault(f"{assigned(name, setting.value)} ({setting.source})", []).append(
                    settings.node.name
                )
        return [text + self.on(names) for text, names in groups.items()]

    def on(self, names: Sequence[str]) -> str:
        """Which nodes, in words; nothing where there is one only."""
        if len(self.nodes) == 1:
            return ""
        return f" on all {len(names)} nodes" if len(names) == len(self.nodes) else f" on {fold_names(names)}"

    def sources(self, name: str) -> list[str]:
        """Where a variable stands: environment, or files with their line."""
        return list(dict.fromkeys(setting.all[name].source for setting in self.settings if name in setting.all))

    def value(self, name: str) -> str | None:
        """Its value where all nodes have the same one."""
        values = {effective(node)[name].value if name in effective(node) else None for node in self.nodes}
        return values.pop() if len(values) == 1 else None

    def undo(self, name: str) -> str:
        """A line of shell script that brings back what was; a comment where a file had it, or nodes differed."""
        sources, value = self.sources(name), self.value(name)
        if not sources:
            return f"unset {name}"
        if value is None or sources != ["environment"]:
            return "# " + " ".join("; ".join(self.values_of(name)).split())
        return f"export {name}={quoted(value)}"

    # What the nodes have. An unread fact calls for nothing.

    def hcas(self, node: Node) -> HcaChoice:
        """What NCCL's InfiniBand transport takes on a node."""
        return wiring.choice(node)

    def ports(self) -> list[tuple[Node, UsedPort]]:
        """Every port that would carry data on any node; none where a node has none."""
        choices = [(node, carrying.choice(node).used) for node in self.nodes]
        return (
            [(node, port) for node, used in choices for port in used] if all(used for _, used in choices) else []
        )

    def has_no_hca(self) -> bool:
        """Whether it is known that no node has an RDMA device."""
        listed = [at(node, "rdma.hcas") for node in self.nodes]
        return bool(listed) and all(
            devices == [] or (isinstance(devices, Unread) and devices.kind == "absent") for devices in listed
        )

    def gpus(self) -> list[Gpu]:
        """The GPUs of the job on all nodes; none where they were not read on some node."""
        cards = [value_or(at(node, "gpus.cards"), []) for node in self.nodes]
        return [card for of_node in cards for card in of_node] if all(cards) else []

    def models(self) -> set[str]:
        """Their models."""
        return {value_or(card.model, "") for card in self.gpus()}

    def products(self) -> str:
        """Vendors, products and asset tags of the machines, by DMI."""
        return profiles.products(self.nodes)

    def has_nvlink(self) -> bool:
        """Whether every GPU has NVLinks that are up."""
        links = [card.nvlinks for card in self.gpus()]
        return bool(links) and all(isinstance(link, NvLinks) and link.links > len(link.down) for link in links)

    def is_pcie_only(self) -> bool:
        """Whether it is known that no GPU has a working NVLink."""
        links = [card.nvlinks for card in self.gpus()]
        dead = [(isinstance(link, Unread) and link.kind == "absent") or _none_up(link) for link in links]
        return bool(links) and all(dead)

    def peers_work(self) -> bool:
        """Whether NVML says of every pair of GPUs of a node that one may read the other's memory."""
        answers = [peer.p2p for node in self.nodes for some in peers(node).values() for peer in some]
        return bool(self.gpus() and answers) and all(answer == "ok" for answer in answers)

    def plugins(self) -> list[str]:
        """The plugins of NCCL that were found, on all nodes together."""
        return sorted({path for node in self.nodes for path in value_or(at(node, "nccl.plugins"), [])})

    @property
    def logs(self) -> list[Transport]:
        """What NCCL's own log said of each rank."""
        return [transport for transport in self.cluster.measurements.transport if transport.source == "log"]

    def networks(self) -> set[str]:
        """The networks that NCCL said it uses."""
        return {log.network for log in self.logs if isinstance(log.network, str)}

    def kinds(self, peers: str) -> set[str]:
        """The kinds of connections within nodes (intra), or between them (inter), by NCCL's log."""
        listed = [log.connections for log in self.logs if not isinstance(log.connections, Unread)]
        return {
            connection.kind for connections in listed for connection in connections if connection.peers == peers
        }


def _none_up(links: NvLinks | Unread) -> bool:
    return isinstance(links, NvLinks) and links.links <= len(links.down)
