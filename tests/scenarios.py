"""The scenarios: faults of a cluster, and what the report must say of each."""

from __future__ import annotations

from tests.lab import faults, stop_sshd, start_sshd, wrong_key
from tests.scenario import ALL, Expect, Scenario
from ncclcheck.reports.findings import State

_HEALTHY = (
    Scenario(name="healthy-2-ssh", hosts=2, exit_code=0),
    Scenario(name="healthy-3-ssh", exit_code=0, gate=True),
    Scenario(name="healthy-4-slurm", hosts=4, launcher="slurm", exit_code=0),
    Scenario(name="healthy-4-srun", hosts=4, launcher="srun", exit_code=0),
    Scenario(name="healthy-3-join", launcher="join", mgmt=False, exit_code=0),
    Scenario(name="healthy-3-join-mgmt", launcher="join", exit_code=0),
)

_ADDRESSES = (
    Scenario(
        name="another subnet, unrouted",
        fault=lambda s: faults.other_subnet(s["h2"], routed=False),
        expect=(Expect(code="NET003", node="h2", device="eth0", words="10.77.9.0/24", remedy="route"),),
        gate=True,
    ),
    Scenario(name="another subnet, routed", fault=lambda s: faults.other_subnet(s["h2"], routed=True), exit_code=0),
    Scenario(
        name="wrong prefix length",
        fault=lambda s: faults.wrong_prefix(s["h2"]),
        expect=(Expect(code="NET003", node="h2", device="eth0", words="/28", remedy="/24"),),
    ),
    Scenario(
        name="duplicate address",
        fault=lambda s: faults.duplicate_address(s["h3"], s["h2"]),
        expect=(Expect(code="NET010", words="10.77.0.22"),),
        gate=True,
    ),
    Scenario(
        name="two hosts with one name",
        fault=lambda s: faults.same_name(s["h3"], s["h2"]),
        expect=(Expect(code="NET010", words="h2"),),
    ),
    Scenario(
        name="own name is loopback",
        fault=lambda s: faults.own_name_is_loopback(s["h2"]),
        expect=(Expect(code="NET005", node="h2", words="127.0.1.1", remedy="/etc/hosts"),),
    ),
    Scenario(
        name="a peer's name is unknown",
        fault=lambda s: faults.unresolvable(s["h2"], s["h3"]),
        expect=(Expect(code="NET013", node="h2", words="h3", remedy="/etc/hosts"),),
    ),
)

_LINKS = (
    Scenario(
        name="MTU 1400 on one host",
        fault=lambda s: faults.mtu(s["h2"], 1400),
        expect=(Expect(code="NET007", node="h2", device="eth0"), Expect(code="NET004", node="h2", state=State.WARN)),
        gate=True,
    ),
    Scenario(
        name="MTU 9000 over a path of 1500",
        fault=lambda s: faults.mtu(s["h2"], 9000),
        expect=(Expect(code="NET007", node="h2", device="eth0"), Expect(code="NET004", node="h2", state=State.WARN)),
    ),
    *(
        Scenario(
            name=f"high ports dropped, {way}",
            fault=lambda s, way=way: faults.drop_high_ports(s["h2"], way),
            expect=(Expect(code="NET006", node="h2", device="eth0", remedy="nft"),),
            gate=way == "in",
        )
        for way in ("in", "out", "both")
    ),
    Scenario(
        name="3 % of packets lost",
        fault=lambda s: faults.loss(s["h2"], 3),
        expect=(Expect(code="NET009", node="h2", device="eth0"),),
    ),
    Scenario(
        name="link down",
        fault=lambda s: faults.link_down(s["h2"]),
        expect=(Expect(code="NET003", node="h2", device="eth0", remedy="ip link set dev eth0 up"),),
        gate=True,
    ),
    Scenario(
        name="cut off from the data network",
        fault=lambda s: faults.cut_off(s["h2"], "eth0"),
        expect=(Expect(code="NET006", node="h2", device="eth0"),),
    ),
    Scenario(
        name="100 Mbit/s on one host",
        fault=lambda s: faults.limited(s["h2"], "100mbit"),
        expect=(Expect(code="NET008", node="h2", device="eth0", state=State.WARN),),
    ),
)

_CLOCKS = tuple(
    Scenario(
        name=f"clock {shift:+d} s",
        fault=lambda s, shift=shift: faults.clock(s["h2"], shift),
        expect=(Expect(code="HST009", node="h2", words=word, remedy="chronyc makestep"),),
        gate=shift > 0,
    )
    for shift, word in ((90, "ahead"), (-90, "behind"))
)

_VARIABLES = (
    Scenario(
        name="NCCL_SOCKET_IFNAME=mgmt0 on one host",
        launcher="join",
        env={"h2": {"NCCL_SOCKET_IFNAME": "mgmt0"}},
        expect=(Expect(code="NCC005", node="h2", words="NCCL_SOCKET_IFNAME", state=State.WARN),),
    ),
    Scenario(
        name="GLOO_SOCKET_IFNAME=mgmt0 on one host",
        launcher="join",
        env={"h2": {"GLOO_SOCKET_IFNAME": "mgmt0"}},
        expect=(Expect(code="NCC005", node="h2", words="GLOO_SOCKET_IFNAME", state=State.WARN),),
    ),
    Scenario(
        name="NCCL_SOCKET_IFNAME misspelt everywhere",
        env={ALL: {"NCCL_SOCKET_IFNAME": "eht0"}},
        expect=(Expect(code="NCC007", words="eht0", remedy="eth0"),),
        gate=True,
    ),
    Scenario(
        name="NCCL_SOCKET_IFNAME misspelt on one host",
        launcher="join",
        mgmt=False,
        env={"h2": {"NCCL_SOCKET_IFNAME": "eht0"}},
        expect=(Expect(code="NCC007", node="h2", words="eht0", remedy="eth0"),),
        also=("NCC005",),
    ),
    Scenario(
        name="GLOO_SOCKET_IFNAME misspelt everywhere",
        env={ALL: {"GLOO_SOCKET_IFNAME": "eht0"}},
        expect=(Expect(code="NCC007", words="eht0", remedy="eth0"),),
    ),
    Scenario(
        name="NCCL_SOCKET_IFNAME=docker0",
        fault=lambda s: faults.docker_bridge(*s.lab.hosts),
        env={ALL: {"NCCL_SOCKET_IFNAME": "docker0"}},
        expect=(Expect(code="NET002", device="docker0", remedy="eth0"),),
        also=("NET010",),
        gate=True,
    ),
    Scenario(
        name="GLOO_SOCKET_IFNAME=docker0",
        fault=lambda s: faults.docker_bridge(*s.lab.hosts),
        env={ALL: {"GLOO_SOCKET_IFNAME": "docker0"}},
        expect=(Expect(code="NET002", device="docker0", remedy="eth0"),),
        also=("NET010",),
    ),
    Scenario(
        name="docker0 there and not asked for", fault=lambda s: faults.docker_bridge(*s.lab.hosts), exit_code=0
    ),
)

from tests.scenarios_of_jobs import OF_JOBS
from tests.scenarios_of_nodes import OF_NODES
SCENARIOS = (*_HEALTHY, *_ADDRESSES, *_LINKS, *_CLOCKS, *_VARIABLES, *OF_NODES, *OF_JOBS)
