"""Rule about the names of the peers, as each node resolves them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from shlex import quote

from ncclcheck.probes.facts import Cluster, Resolution, Unread, value_or
from ncclcheck.reports.judgement.findings import (
    Finding,
    Remedy,
    State,
    Where,
    admin,
    fine,
    seen,
    unknown,
    warn,
    you,
)
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.addresses import behind_nat, name_service
from ncclcheck.reports.subjects.addresses.names import hosts_file
from ncclcheck.reports.subjects.links.reached import Pair, Reached, required
from ncclcheck.reports.subjects.nccl import lan
from ncclcheck.reports.text.words.fold import fold_names

_MOST_LINES = 8  # of /etc/hosts in one fix; whoever lacks more names needs DNS


@rule(
    "NET013",
    "every hostname resolves on every node to an address of that host",
    worst=State.WARN,
    needs=("network.interfaces",),
    at_least=2,
    between_machines=True,
)
def peer_names(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    What the name of each node resolves to on the other nodes.

    ## Why it matters
    torchrun hands out the host name of whichever agent starts first as MASTER_ADDR. A node that cannot resolve
    it waits with `client socket has timed out`; one that resolves it to another machine connects there, and is
    refused or waits. Names that work on one node say nothing of the others.

    ## Seen as
    hangs, does not start

    ## How we know
    getaddrinfo(3) of the launcher's name for each peer, on each node, compared with the addresses that the peer
    itself has. A warning, for a job that is given addresses (`--rdzv-endpoint`, `--local-addr`) needs no names.

    ## Fix
    - **you** give addresses instead of names: `--rdzv-endpoint ADDRESS:PORT` and, on each node,
      `--local-addr OWN_ADDRESS`.
    - **admin** all nodes with their real addresses in DNS, or in /etc/hosts of every node.

    ## Source
    pytorch/pytorch#79388, pytorch/pytorch#76367; getaddrinfo(3), hosts(5), nsswitch.conf(5).
    """
    reached = required(cluster)
    asked = {pair: peer.resolved for pair, peer in reached.seen.items()}
    answers = {pair: answer for pair, answer in asked.items() if not isinstance(answer, Unread)}
    late = {pair for pair, answer in asked.items() if isinstance(answer, Unread) and answer.kind == "timed_out"}
    own = _addresses(cluster, reached)
    away = {
        hidden.node for hidden in behind_nat.hidden(cluster)
    }  # NET003 says that nobody reaches their addresses
    told_already = {node.name for node in cluster.nodes if name_service.mute(node)}  # HST005 says why
    nowhere = {pair for pair, answer in answers.items() if not answer.addresses}
    elsewhere = {
        pair
        for pair, answer in answers.items()
        if answer.addresses and not own[pair[1]] & set(answer.addresses) and pair[1] not in away
    }
    elsewhere -= _lost_their_address(cluster, {pair: answers[pair].addresses for pair in elsewhere})
    if not answers and not late:
        raise NothingToJudge("no names were given")
    report = _MisledNames(reached, answers)
    yield from report.missing(nowhere)
    yield from report.wrong(elsewhere)
    yield from _late({pair for pair in late if pair[0] not in told_already})
    if not nowhere | elsewhere | late:
        yield fine(Where(), f"the names of {len({b for _, b in answers})} nodes resolve to them")


def _addresses(cluster: Cluster, reached: Reached) -> dict[str, set[str]]:
    """All addresses of each node that lead to it: of its interfaces but loopback, and the one that was tried."""
    own: dict[str, set[str]] = {}
    for node in cluster.nodes:
        listed = [
            address.address for interface in lan.interfaces(node) for address in value_or(interface.addresses, [])
        ]
        own[node.name] = {address for address in listed if not lan.is_loopback(address)}
    for (_, b), peer in reached.seen.items():
        own[b].add(peer.address)
    return own


def _lost_their_address(cluster: Cluster, answers: Mapping[Pair, list[str]]) -> set[Pair]:
    """Names that are right: they lead to the asker's network, in which the peer has no address now (NET003)."""
    networks = {link.node: link.network for link in lan.links(cluster)}
    listed = {
        node.name: [address.address for each in lan.interfaces(node) for address in value_or(each.addresses, [])]
        for node in cluster.nodes
    }
    return {
        (a, b)
        for (a, b), addresses in answers.items()
        if a in networks and _some_in(addresses, networks[a]) and not _some_in(listed.get(b, []), networks[a])
    }


def _some_in(addresses: list[str], network: lan.IPNetwork) -> bool:
    return any(ip_address(address.partition("%")[0]) in network for address in addresses)


@dataclass(frozen=True)
class _MisledNames:
    """Findings by the node whose name is wrong, where several nodes agree; else by the node that asks."""

    reached: Reached
    answers: Mapping[Pair, Resolution]

    def missing(self, pairs: set[Pair]) -> Iterator[Finding]:
        """Names that resolve to nothing."""
        yield from (self._finding(*group, "does not resolve") for group in _sorted_out(pairs, set(self.answers)))

    def wrong(self, pairs: set[Pair]) -> Iterator[Finding]:
        """Names that resolve to another machine."""
        yield from (self._finding(*group, "") for group in _sorted_out(pairs, set(self.answers)))

    def _finding(self, askers: list[str], names: list[str], problem: str) -> Finding:
        asker, name = next((a, b) for a in askers for b in names if (a, b) in self.answers)
        answer = self.answers[asker, name]
        got = ", ".join(answer.addresses)
        text = problem or f"resolves to {got}, which is not an address of it"
        subject = (
            f"the name {answer.name}" if len(names) == 1 else f"names of {len(names)} nodes ({fold_names(names)})"
        )
        if len(names) > 1:
            text = "do not resolve" if problem else f"resolve to other machines ({answer.name} to {got})"
        address = self.reached.seen[asker, name].address
        return warn(
            Where(node=asker, peer=name if len(names) == 1 else None),
            f"{subject} {text} on {fold_names(askers)}",
            why="torchrun hands out a host name as MASTER_ADDR; a node that cannot resolve it waits silently.",
            owner="node" if len(askers) == 1 else "site",
            evidence=[seen(f"getaddrinfo({answer.name}) on {asker}", got or "no address"),
                      seen(f"address of {name}", address)],
            fix=[
                you("Give torchrun addresses instead of names: that of node rank 0, and each node its own.",
                    f"getent ahosts {quote(answer.name)}   # on {asker}",
                    f"torchrun --rdzv-endpoint={address}:29400 --local-addr={address} ...   # on {name}, if it is "
                    "node rank 0"),
                self._right(name, asker, names, askers),
            ],
        )  # fmt: skip

    def _right(self, node: str, asker: str, names: list[str], askers: list[str]) -> Remedy:
        """Lines of /etc/hosts, and none that is wrong; localhost must stay what it is on every machine."""
        own = self.answers[asker, node].name
        if own.partition(".")[0] in hosts_file.LOOPBACK_NAMES:
            return admin(
                f"Give {node} a name of its own: {own} is each machine itself, and must stay so.",
                f"hostnamectl set-hostname NAME   # on the machine with {self.reached.seen[asker, node].address}",
            )
        return admin(
            "Give these names, and no others, their addresses in DNS, or in /etc/hosts, which is asked first.",
            *(f"{line}   # on {fold_names(askers)}" for line in self._lines(asker, names)),
        )

    def _lines(self, asker: str, names: list[str]) -> Iterator[str]:
        """For /etc/hosts, a line each."""
        for pair in [(asker, name) for name in names if (asker, name) in self.answers][:_MOST_LINES]:
            yield hosts_file.named(
                self.answers[pair].name, self.reached.seen[pair].address, self.answers[pair].addresses
            )


def _sorted_out(pairs: set[Pair], asked: set[Pair]) -> Iterator[tuple[list[str], list[str]]]:
    """(askers, names): a node that fails for two or more of its peers once, the rest by name."""
    by_asker: dict[str, list[str]] = {}
    for a, b in sorted(pairs):
        by_asker.setdefault(a, []).append(b)
    total = {a: sum(1 for asker, _ in asked if asker == a) for a in by_asker}
    blind = {a for a, names in by_asker.items() if len(names) > 1 and len(names) == total[a]}
    if blind and len(blind) == len({a for a, _ in asked}):
        yield sorted(blind), sorted({b for names in by_asker.values() for b in names})
        return
    yield from (([a], by_asker[a]) for a in sorted(blind))
    by_name: dict[str, list[str]] = {}
    for a, b in sorted(pairs):
        if a not in blind:
            by_name.setdefault(b, []).append(a)
    yield from ((askers, [name]) for name, askers in by_name.items())


def _late(pairs: set[Pair]) -> Iterator[Finding]:
    for asker in sorted({a for a, _ in pairs}):
        names = sorted(b for a, b in pairs if a == asker)
        yield unknown(
            Where(node=asker),
            f"its name service gave no answer in time for {fold_names(names)}",
            why="A job that is given names waits for the same service.",
            evidence=[seen("getaddrinfo", "no answer within the time of the measurement")],
            fix=[
                admin(
                    "See which server it asks, and whether that answers.",
                    f"cat /etc/resolv.conf   # on {asker}",
                    f"time getent ahosts {quote(names[0])}   # on {asker}",
                )
            ],
        )
