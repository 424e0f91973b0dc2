"""Clusters for tests of rules: nodes with just the facts that a rule looks at."""

from __future__ import annotations

from typing import Any

from ncclcheck.probes.facts import (
    Address,
    Cluster,
    Gpus,
    Host,
    Interface,
    Job,
    JobFacts,
    Limits,
    Network,
    Node,
    Resolution,
    Route,
    Space,
    Unread,
    Variable,
)
from ncclcheck.reports.judgement.findings import Verdict
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules

DENIED = Unread("denied", "not for this user")
ABSENT = Unread("absent", "there is none")


def nic(name: str, *addresses: str, kind: Any = "physical", **changes: Any) -> Interface:
    """An interface that is up; addresses as 10.1.0.17/24."""
    given: dict[str, Any] = {"up": True, "running": True, "mtu": 1500, "speed_mbit": ABSENT, "members": ABSENT}
    return Interface(name=name, kind=kind, addresses=[address(text) for text in addresses], **{**given, **changes})


def address(text: str) -> Address:
    value, _, prefix = text.partition("/")
    return Address(family="ipv6" if ":" in value else "ipv4", address=value, prefix=int(prefix))


LO = nic("lo", "127.0.0.1/8", "::1/128", kind="loopback", mtu=65536)


def route(destination: str, interface: str, gateway: str = "", metric: int = 0) -> Route:
    return Route(destination=destination, gateway=gateway, interface=interface, metric=metric)


def node(
    name: str,
    *interfaces: Interface,
    routes: list[Route] | Unread | None = None,
    env: dict[str, str] | None = None,
    own: str = "",
    **facts: Any,
) -> Node:
    """A node whose own name resolves to `own`, else to the first address of its first card."""
    cards = [i for i in interfaces if i.kind != "loopback" and not isinstance(i.addresses, Unread) and i.addresses]
    first = own or (cards[0].addresses[0].address if cards else "")  # type: ignore[index]
    host = Host(
        hostname=name,
        boot_id=f"boot of {name}",
        own_name=Resolution(name=name, addresses=[first] if first else []),
    )
    given: dict[str, Any] = {
        "host": host,
        "network": Network(interfaces=list(interfaces), routes=[] if routes is None else routes),
        "job": JobFacts(variables=[Variable(name=k, value=v) for k, v in (env or {}).items()]),
        "gpus": Gpus(pci=ABSENT, devices=ABSENT, usable=ABSENT, cuda_error=ABSENT, driver_cuda=ABSENT),
    }
    return Node(name=name, **{**given, **facts})


def host(**facts: Any) -> Host:
    """A host with these facts only; sizes as Space, limits as Limits."""
    return Host(**facts)


def limits(soft: int, hard: int = -1) -> Limits:
    return Limits(soft=soft, hard=hard)


def space(size: int, free: int) -> Space:
    return Space(size=size, free=free, path="/tmp")


def verdict(code: str, *nodes: Node, **facts: Any) -> Verdict:
    """What one rule says of these nodes."""
    job = facts.pop("job", Job(nodes_asked=len(nodes)))
    rules = [rule for rule in all_rules() if rule.code == code]
    return judge(Cluster(nodes=list(nodes), job=job, **facts), rules)[0]


def states_of(judged: Verdict) -> list[tuple[str, str | None]]:
    """State and node of every finding."""
    return [(finding.state.value, finding.where.node) for finding in judged.findings]
