"""The seam: what other nodes, logs or a saved file told becomes a cluster that may be judged, shown and pasted.

No secret is in it, and no name or address of a node, an interface or a card that a shell takes for more than one
word: such names stand in commands of remedies, and no true one holds any of these characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ncclcheck.probes.facts import Cluster, Node, at, replace, value_or
from ncclcheck.probes.facts.guard.secrets import is_secret, without_secrets
from ncclcheck.probes.facts.guard.walk import Place, changed, strings

_FOREIGN = re.compile(r"[^\w.:@%+=,/#-]|^-")  # what shlex.quote leaves alone, and the # of gpu-1#2
_OURS = re.compile(r"node rank \d+|GPU \d+|pid \d+")  # what we call what has no name
_NODES = {
    ("Silence", "node"),
    ("RankState", "node"),
    ("Job", "missing"),
    ("PeerReach", "peer"),
    ("Arrival", "name"),
    *(("Meeting", name) for name in ("addresses", "sources", "elsewhere")),
    ("NameServer", "address"),
    ("PeerReach", "address"),
}
_PLACES = ("network.interfaces", "rdma.devices", "fabric.pci", "gpus.cards", "job.variables")


def cluster(gathered: Cluster) -> Cluster:
    """The same without secrets and with names that are names."""
    rest = without_secrets(replace(gathered, nodes=[], baseline=None))
    clean: set[int] = set()
    nodes = [without_secrets(_without_secret_variables(node), clean) for node in gathered.nodes]
    return _named(replace(rest, nodes=nodes, baseline=gathered.baseline))


def _without_secret_variables(node: Node) -> Node:
    """A saved file may hold what no probe reports."""
    listed = value_or(at(node, "job.variables"), [])
    if not any(is_secret(variable.name) for variable in listed):
        return node
    return replace(
        node, job=replace(node.job, variables=[variable for variable in listed if not is_secret(variable.name)])
    )


def _named(source: Cluster) -> Cluster:
    texts = dict.fromkeys(_names(source))
    names = [name for name in texts if _FOREIGN.search(name) and not _OURS.fullmatch(name)]
    if not names:
        return source
    new = _renamed(names, {node.name for node in source.nodes})
    longest_first = sorted(new, key=len, reverse=True)

    def change(_: Place, text: str) -> str:
        for name in longest_first:
            text = text.replace(name, new[name])
        return text

    return changed(source, change)


def _renamed(names: Iterable[str], taken: set[str]) -> dict[str, str]:
    """Two names stay two."""
    new: dict[str, str] = {}
    for name in names:
        plain = _FOREIGN.sub("_", name)
        while plain in taken:
            plain += "_"
        taken.add(plain)
        new[name] = plain
    return new


def _names(source: Cluster) -> Iterator[str]:
    for node in source.nodes:
        yield node.name
        yield str(value_or(at(node, "host.hostname"), ""))
        for place in _PLACES:
            yield from (device.name for device in value_or(at(node, place), []))
        for interface in value_or(at(node, "network.interfaces"), []):
            yield from (address.address for address in value_or(interface.addresses, []))
    yield from (
        text for place, text in strings([source.job, source.run, source.measurements.reach]) if place in _NODES
    )
