"""Scenarios of networks that fail in ways of which the symptom stands far from the cause."""

from __future__ import annotations

from contextlib import AbstractContextManager

from ncclcheck.reports.judgement.findings import State
from tests.lab import faults
from tests.scenarios.scenario import Expect, Scenario, Scene, both

_BENCH = ("bench", "--quick", "--nproc-per-node", "1", "--deadline", "60")


def _join(name: str, **more: object) -> Scenario:
    return Scenario(name=name, launcher="join", mgmt=False, **more)  # type: ignore[arg-type]


_BLACK_HOLES = (
    _join(
        "join: large packets are lost, both ways",
        hosts=2,
        command=_BENCH,
        fault=lambda s: faults.black_hole(s["h2"]),
        expect=(Expect(code="NET007", node="h2", device="eth0", words="both ways, vanish: 1500 bytes do not"),),
        refused=True,
        first="NET007 on h2",
        gate=True,
    ),
    _join(
        "join: large packets are lost, one way of three hosts",
        command=_BENCH,
        fault=lambda s: faults.black_hole(s["h2"], "out", over=1300),
        expect=(Expect(code="NET007", node="h2", device="eth0", words="from h2"),),
        refused=True,
    ),
    Scenario(
        name="large packets are lost on the data network",
        hosts=2,
        command=_BENCH,
        fault=lambda s: faults.black_hole(s["h2"], "in"),
        expect=(
            Expect(code="NET007", node="h2", words="from h1 to h2 vanish: 1500 bytes do not arrive, 1400 do"),
        ),
        refused=True,
    ),
    Scenario(
        name="large packets are lost on the data network, cured",
        hosts=2,
        fault=lambda s: faults.black_hole(s["h2"]),
        expect=(Expect(code="NET007", node="h2", remedy="mtu 1400   # on every node"),),
        cure="admin",
    ),
    Scenario(
        name="large packets are lost on ssh's own network",
        fault=lambda s: faults.black_hole(s["h3"], device="mgmt0"),
        expect=(Expect(code="RUN001", node="h3", words="path MTU", state=State.UNKNOWN),),
        exit_code=3,
        seconds=40,
        gone_within=25,  # sshd's own patience with a login that comes to nothing
    ),
)


_LOSSES = (
    _join(
        "join: packets are lost from h2 to h3, and a job shows it",
        command=_BENCH,
        fault=lambda s: faults.loss(s["h3"], 8, s["h2"]),
        expect=(
            Expect(code="NET009", node="h2", words="lost from h2 to h3"),
            Expect(code="BEN004", node="h2", words="because of NET009"),
        ),
        also=("BEN003",),
        first="NET009 on the link h2 -> h3",
        seconds=60,
    ),
)


def _docker_names(scene: Scene) -> AbstractContextManager[object]:
    """Both hosts resolve their own name to docker0, whose address is the same on both."""
    h1, h2 = scene["h1"], scene["h2"]
    wrong = both(faults.names(h1, h1="172.17.0.1"), faults.names(h2, h2="172.17.0.1"))
    return both(faults.docker_bridge(h1, h2), wrong)


_ADDRESSES = (
    _join(
        "own names are docker0's address on two hosts",
        hosts=2,
        command=_BENCH,
        fault=_docker_names,
        expect=(Expect(code="NET005", node="h1", words="172.17.0.1", remedy="GLOO_SOCKET_IFNAME=eth0"),),
        refused=True,
        first="NET005 on h[1-2]",
        cure="admin",
    ),
    _join(
        "a bridge has a peer's address",
        fault=lambda s: faults.bridge("docker0", "10.77.0.33/32", s["h2"]),
        expect=(Expect(code="NET010", node="h2", device="docker0", words="h3", remedy="ip addr del"),),
        first="NET010 on h2",
        cure="admin",
    ),
    Scenario(
        name="a /8 on one host of a routed network",
        fault=lambda s: faults.too_wide(s["h1"], s["h2"]),
        expect=(Expect(code="NET003", node="h1", device="eth0", words="/8", remedy="10.77.0.11/24"),),
        also=("NET011",),  # mgmt0 is in 10.0.0.0/8 too
        first="NET003 on h1",
        cure="admin",
    ),
    _join(
        "two addresses on one of two hosts",
        hosts=2,
        fault=lambda s: faults.two_addresses(s["h2"], "10.76.5.22/24"),
        expect=(Expect(code="NET003", node="h2", device="eth0", words="10.77.0.22", remedy="ip addr"),),
        first="NET003 on h2",
        cure="admin",
    ),
    Scenario(
        name="two addresses on one of two hosts, ssh",
        hosts=2,
        fault=lambda s: faults.two_addresses(s["h2"], "10.76.5.22/24"),
        expect=(Expect(code="NET003", node="h2", device="eth0", words="10.77.0.22", remedy="ip addr"),),
        first="NET003 on h2",
        cure="admin",
    ),
    _join(
        "join: no route to node rank 0",
        hosts=2,
        fault=lambda s: faults.no_route(s["h2"]),
        arguments={"h1": ("--wait", "12")},
        expect=(
            Expect(code="RUN001", node="node rank 1", state=State.UNKNOWN),
            Expect(code="RUN010", node="h2", words="no route", remedy="ip route add", by="h2"),
        ),
        exits={"h1": (3,)},
        cure="admin",
    ),
)


def _cause(name: str, **more: object) -> Scenario:
    """Of three hosts, with a job that would hang or fail: the fact stands first, and its fix lets the job run."""
    given: dict[str, object] = {"hosts": 3, "command": _BENCH, "refused": True, "seconds": 60, **more}
    return _join(f"cause before its symptoms: {name}", **given)


def _own_names(scene: Scene) -> AbstractContextManager[object]:
    """h2 and h3 resolve their own name to docker0."""
    h2, h3 = scene["h2"], scene["h3"]
    wrong = both(faults.names(h2, h2="172.17.0.1"), faults.names(h3, h3="172.17.0.1"))
    return both(faults.docker_bridge(*scene.lab.hosts), wrong)


_CAUSES = (
    _cause(
        "a /8 on one host of a routed network",
        fault=lambda s: faults.too_wide(s["h1"], s["h2"]),
        expect=(
            Expect(code="RUN010", node="h1", device="eth0", words="the prefix length /8", remedy="10.77.0.11/24"),
            Expect(code="NET003", node="h1", device="eth0", words="/8", remedy="10.77.0.11/24"),
        ),
        first="NET003 on h1",
        cure="admin",
    ),
    _cause(
        "a bridge has a peer's address",
        fault=lambda s: faults.bridge("docker0", "10.77.0.33/32", s["h2"]),
        expect=(Expect(code="NET010", node="h2", device="docker0", words="h3", remedy="ip addr del"),),
        first="NET010 on h2",
        cure="admin",
    ),
    _cause(
        "own names are docker0's address",
        fault=_own_names,
        expect=(Expect(code="NET005", node="h2", words="172.17.0.1", remedy="GLOO_SOCKET_IFNAME=eth0"),),
        first="NET005 on h[2-3]",
        cure="admin",
    ),
    _cause(
        "another address before that of the common subnet",
        fault=lambda s: faults.two_addresses(s["h2"], "10.76.5.22/24"),
        expect=(Expect(code="NET003", node="h2", device="eth0", words="10.77.0.22", remedy="ip addr"),),
        first="NET003 on h2",
        cure="admin",
    ),
    _cause(
        "a second address in the common subnet, on another cable",
        fault=lambda s: faults.other_cable(s["h2"], "10.77.0.122/24"),
        expect=(
            Expect(code="RUN010", node="h2", device="eth1", words="10.77.0.122/24", remedy="ip addr del"),
            Expect(code="NET006", node="h2", device="eth1", words="10.77.0.122/24", remedy="ip addr del"),
        ),
        also=("NET011",),
        first="NET006 on h2",
        cure="admin",
    ),
    *(
        _cause(
            f"a trailing blank in {variable} of one host",
            env={"h2": {variable: "eth0 "}},
            expect=(
                Expect(
                    code="NCC007",
                    node="h2",
                    words=f"{variable}='eth0 ' ends with a space",
                    remedy=f"{variable}=eth0",
                ),
            ),
            first="NCC007 on h2",
            cure="you",
        )
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    ),
)

_DETOURS = (
    Scenario(
        name="a forgotten route leads to half of the subnet",
        fault=lambda s: faults.stray_route(s["h2"], "10.77.0.0/25 dev mgmt0"),
        expect=(Expect(code="NET003", node="h2", device="mgmt0", words="10.77.0.0/25 dev mgmt0"),),
        first="NET003 on h2",
        cure="admin",
    ),
    Scenario(
        name="a forgotten route leads to one host, and everything passes",
        fault=lambda s: faults.stray_route(s["h3"], "10.77.0.22/32 via 10.78.0.22 dev mgmt0", rp_filter=0),
        expect=(Expect(code="NET003", node="h3", device="mgmt0", words="to h2 by mgmt0", state=State.WARN),),
        exit_code=0,
        cure="admin",
    ),
    _join(
        "join: a bridge shadows half of the subnet",
        hosts=2,
        fault=lambda s: faults.bridge("docker0", "10.77.0.1/25", s["h2"]),
        arguments={"h1": ("--wait", "12"), "h2": ("--wait", "8")},
        expect=(
            Expect(code="RUN001", node="node rank 1", state=State.UNKNOWN),
            Expect(code="RUN010", node="h2", device="docker0", words="by docker0, not by eth0", by="h2"),
        ),
        also=("NET011",),
        exits={"h1": (3,)},
        cure="admin",
    ),
)

_NEIGHBOURS = (
    Scenario(
        name="two hosts with one MAC address",
        fault=lambda s: faults.same_mac(s["h3"], s["h2"]),
        expect=(Expect(code="NET010", node="h3", device="eth0", words="so has h2", remedy="address 02:00:"),),
        first="NET010 on h[2-3]",
        cure="admin",
    ),
    Scenario(
        name="a permanent neighbour entry leads elsewhere",
        fault=lambda s: faults.written_neighbour(s["h1"], s["h2"]),
        expect=(Expect(code="NET006", node="h1", device="eth0", words="02:00:00:00:00:99"),),
        first="NET006 on h1",
        cure="admin",
    ),
)

_FAMILIES = (
    _join(
        "names resolve to IPv6 first, and one of two hosts drops it",
        hosts=2,
        command=_BENCH,
        fault=lambda s: faults.ipv6_dropped(s["h2"]),
        expect=(Expect(code="NET006", node="h2", device="eth0", words="2001:db8:77::", remedy="GLOO_SOCKET"),),
        refused=True,
        first="NET006 on h2",
        cure="you",
    ),
    _join(
        "names resolve to IPv6 first, and it passes",
        hosts=2,
        command=_BENCH,
        fault=lambda s: faults.ipv6_dropped(s["h2"], lost=False),
        exit_code=0,
    ),
)

_LIMITS = (
    Scenario(
        name="few new connections a second",
        fault=lambda s: faults.few_connections(s["h2"]),
        expect=(Expect(code="NET006", node="h2", device="eth0", words="connections", state=State.WARN),),
        exit_code=0,
    ),
)

_SHORT_WAIT = {"h1": ("--wait", "12"), "h2": ("--wait", "9"), "h3": ("--wait", "9")}
_OWN = (
    Scenario(
        name="a host's own policy rule refuses what it sends",
        fault=lambda s: faults.refusing_rule(s["h2"], "10.77.0.0/24"),
        expect=(Expect(code="NET006", node="h2", device="eth0", words="prohibit", remedy="ip rule del pref 100"),),
        first="NET006 on h2",
        cure="admin",
    ),
    Scenario(
        name="a host's own route refuses one of its peers",
        fault=lambda s: faults.refusing_route(s["h2"], "10.77.0.33/32"),
        expect=(Expect(code="NET006", node="h2", words="`blackhole 10.77.0.33/32`", remedy="ip route del"),),
        first="NET006 on h2",
        cure="admin",
    ),
    Scenario(
        name="a host's own filter drops what it sends",
        hosts=2,
        fault=lambda s: faults.filtered(s["h2"], "output", "oifname eth0 tcp dport 1024-65535 drop"),
        expect=(
            Expect(code="NET006", node="h2", words="its own packet filter", remedy="insert rule inet lab_own"),
        ),
        first="NET006 on h2",
        cure="admin",
    ),
    Scenario(
        name="a host's own filter rejects what comes in to it",
        hosts=2,
        fault=lambda s: faults.filtered(s["h2"], "input", "iifname eth0 tcp dport 1024-65535 reject"),
        expect=(Expect(code="NET006", node="h2", words="only h2 has a packet filter", remedy="insert rule inet"),),
        first="NET006 on h2",
        cure="admin",
    ),
    _join(
        "join: a policy rule of the node that joins refuses node rank 0",
        hosts=2,
        fault=lambda s: faults.refusing_rule(s["h2"], "10.77.0.11", "blackhole"),
        arguments=_SHORT_WAIT,
        expect=(
            Expect(code="RUN001", node="node rank 1", state=State.UNKNOWN),
            Expect(code="RUN010", node="h2", words="its policy rule", remedy="ip rule del pref 100", by="h2"),
        ),
        exits={"h1": (3,)},
        cure="admin",
    ),
    _join(
        "join: the filter of the node that joins drops what it sends",
        hosts=2,
        fault=lambda s: faults.filtered(s["h2"], "output", "oifname eth0 ip daddr 10.77.0.11 drop"),
        arguments=_SHORT_WAIT,
        expect=(
            Expect(code="RUN001", node="node rank 1", state=State.UNKNOWN),
            Expect(code="RUN010", node="h2", words="this node itself", remedy="insert rule inet lab_own", by="h2"),
        ),
        exits={"h1": (3,)},
        cure="admin",
    ),
)

OF_NETWORKS = (
    *_OWN,
    *_BLACK_HOLES,
    *_LOSSES,
    *_ADDRESSES,
    *_CAUSES,
    *_DETOURS,
    *_NEIGHBOURS,
    *_FAMILIES,
    *_LIMITS,
)
