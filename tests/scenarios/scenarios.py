"""The scenarios: faults of a cluster, and what the report must say of each."""

from __future__ import annotations

from ncclcheck.reports.judgement.findings import State
from tests.lab import faults
from tests.scenarios.scenario import ALL, Expect, Scenario, both
from tests.scenarios.scenarios_of_environments import OF_ENVIRONMENTS
from tests.scenarios.scenarios_of_filters import OF_FILTERS
from tests.scenarios.scenarios_of_init import OF_INIT
from tests.scenarios.scenarios_of_jobs import OF_JOBS
from tests.scenarios.scenarios_of_joins import OF_JOINS
from tests.scenarios.scenarios_of_limits import OF_LIMITS
from tests.scenarios.scenarios_of_networks import OF_NETWORKS
from tests.scenarios.scenarios_of_nodes import OF_NODES
from tests.scenarios.scenarios_of_own_ways import OF_OWN_WAYS
from tests.scenarios.scenarios_of_silence import OF_SILENCE
from tests.scenarios.scenarios_of_speed import OF_SPEED
from tests.scenarios.scenarios_of_starts import OF_STARTS

_HEALTHY = (
    Scenario(name="healthy: 2 hosts, ssh", hosts=2, exit_code=0),
    Scenario(name="healthy: 3 hosts, ssh", exit_code=0, gate=True),
    Scenario(name="healthy: 4 hosts, Slurm", hosts=4, launcher="slurm", exit_code=0),
    Scenario(name="healthy: 4 hosts, srun", hosts=4, launcher="srun", exit_code=0),
    Scenario(name="healthy: 3 hosts, join", launcher="join", mgmt=False, exit_code=0),
    Scenario(name="healthy: 3 hosts, join, two networks", launcher="join", exit_code=0),
    Scenario(name="healthy: docker0 everywhere", fault=lambda s: faults.docker_bridge(*s.lab.hosts), exit_code=0),
    Scenario(
        name="healthy: another subnet, routed",
        fault=lambda s: faults.other_subnet(s["h2"], routed=True),
        exit_code=0,
    ),
)

_ADDRESSES = (
    Scenario(
        name="another subnet, unrouted",
        fault=lambda s: faults.other_subnet(s["h2"], routed=False),
        expect=(Expect(code="NET003", node="h2", device="eth0", words="10.77.9.0/24", remedy="route"),),
        gate=True,
    ),
    Scenario(
        name="wrong prefix length",
        fault=lambda s: faults.wrong_prefix(s["h2"]),
        expect=(Expect(code="NET003", node="h2", device="eth0", words="/28", remedy="10.77.0.22/24"),),
    ),
    Scenario(
        name="duplicate address",
        fault=lambda s: faults.duplicate_address(s["h3"], s["h2"]),
        expect=(Expect(code="NET010", node="h3", device="eth0", words="10.77.0.22", remedy="arping"),),
        gate=True,
    ),
    Scenario(
        name="two hosts with one name",
        fault=lambda s: faults.same_name(s["h3"], s["h2"]),
        expect=(
            Expect(code="NET010", node="h3", words="host name 'h2'", state=State.WARN),
            Expect(code="NET005", node="h3", words="10.77.0.22"),
        ),
    ),
    Scenario(
        name="own name is loopback",
        fault=lambda s: faults.own_name_is_loopback(s["h2"]),
        expect=(Expect(code="NET005", node="h2", words="127.0.1.1", remedy="/etc/hosts"),),
    ),
    Scenario(
        name="a peer's name is unknown",
        fault=lambda s: faults.unresolvable(s["h2"], s["h3"]),
        expect=(Expect(code="NET013", node="h2", words="h3", remedy="/etc/hosts", state=State.WARN),),
        exit_code=0,
    ),
)

_LINKS = (
    Scenario(
        name="MTU 1400 on one host",
        fault=lambda s: faults.mtu(s["h2"], 1400),
        expect=(
            Expect(code="NET004", node="h2", words="1400", remedy="mtu 1500", state=State.WARN),
            Expect(code="NET007", node="h2", device="eth0", words="1500 bytes", state=State.WARN),
        ),
        also=("NET008",),
        exit_code=0,
    ),
    Scenario(
        name="MTU 9000 on one host over a path of 1500",
        fault=lambda s: faults.mtu(s["h2"], 9000),
        expect=(
            Expect(code="NET004", node="h2", words="9000", remedy="mtu 1500", state=State.WARN),
            Expect(code="NET007", node="h2", device="eth0", words="9000 bytes", state=State.WARN),
        ),
        also=("NET008",),
        exit_code=0,
    ),
    Scenario(
        name="MTU 9000 on two hosts over a path of 1500",
        fault=lambda s: both(faults.mtu(s["h2"], 9000), faults.mtu(s["h3"], 9000)),
        expect=(Expect(code="NET007", node="h2", device="eth0", words="9000 bytes"),),
        also=("NET004", "NET008", "NET009"),
    ),
    *(
        Scenario(
            name=f"high ports dropped, {way}",
            fault=lambda s, way=way: faults.drop_high_ports(s["h2"], way),  # type: ignore[misc]
            expect=(Expect(code="NET006", node="h2", device="eth0", remedy="on h2"),),
            gate=way == "in",
        )
        for way in ("in", "out", "both")
    ),
    Scenario(
        name="3 % of packets lost",
        fault=lambda s: faults.loss(s["h2"], 3),
        expect=(Expect(code="NET009", node="h2", device="eth0", words="lost", state=State.WARN),),
        also=("NET008",),
        exit_code=0,
        gate=True,
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
        expect=(Expect(code="NET006", node="h2", device="eth0", words="nothing passes"),),
    ),
    Scenario(
        name="100 Mbit/s on one host",
        fault=lambda s: faults.limited(s["h2"], "100mbit"),
        expect=(Expect(code="NET008", node="h2", device="eth0", words="h2 itself limits", remedy="tc qdisc del"),),
        cure="admin",
    ),
    *(
        Scenario(
            name=f"clock {shift:+d} s",
            fault=lambda s, shift=shift: faults.clock(s["h2"], shift),  # type: ignore[misc]
            expect=(Expect(code="HST009", node="h2", words=word, remedy="chronyc makestep"),),
            gate=shift < 0,
        )
        for shift, word in ((90, "90 s ahead"), (-90, "90 s behind"))
    ),
)

_VARIABLES = (
    Scenario(
        name="NCCL_SOCKET_IFNAME=mgmt0 on one host",
        launcher="join",
        env={"h2": {"NCCL_SOCKET_IFNAME": "mgmt0"}},
        expect=(Expect(code="NET003", node="h2", device="mgmt0", state=State.WARN, remedy="eth0"),),
        also=("NET005",),
        exit_code=0,
    ),
    Scenario(
        name="GLOO_SOCKET_IFNAME=mgmt0 on one host",
        launcher="join",
        env={"h2": {"GLOO_SOCKET_IFNAME": "mgmt0"}},
        expect=(Expect(code="NET003", node="h2", device="mgmt0", state=State.WARN, remedy="GLOO_SOCKET_IFNAME"),),
        also=("NET005",),
        exit_code=0,
    ),
    Scenario(
        name="NCCL_SOCKET_IFNAME misspelt",
        env={ALL: {"NCCL_SOCKET_IFNAME": "eht0"}},
        expect=(Expect(code="NCC007", node="h2", words="eht0", remedy="NCCL_SOCKET_IFNAME=eth0"),),
        gate=True,
    ),
    Scenario(
        name="NCCL_SOCKET_IFNAME misspelt on one host",
        launcher="join",
        mgmt=False,
        env={"h2": {"NCCL_SOCKET_IFNAME": "eht0"}},
        expect=(Expect(code="NCC007", node="h2", words="eht0", remedy="NCCL_SOCKET_IFNAME=eth0"),),
    ),
    Scenario(
        name="GLOO_SOCKET_IFNAME misspelt",
        env={ALL: {"GLOO_SOCKET_IFNAME": "eht0"}},
        expect=(Expect(code="NCC007", node="h2", words="eht0", remedy="GLOO_SOCKET_IFNAME=eth0"),),
    ),
    *(
        Scenario(
            name=f"{variable}=docker0",
            fault=lambda s: faults.docker_bridge(*s.lab.hosts),
            env={ALL: {variable: "docker0"}},
            expect=(Expect(code="NET010", device="docker0", words="172.17.0.1 is on 3 nodes", remedy=variable),),
            also=("NET002", "NET005"),
            gate=variable.startswith("NCCL"),
        )
        for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
    ),
)

SCENARIOS = (
    *(*_HEALTHY, *_ADDRESSES, *_LINKS, *_VARIABLES, *OF_NETWORKS, *OF_OWN_WAYS, *OF_JOINS),
    *(
        *OF_NODES,
        *OF_SILENCE,
        *OF_JOBS,
        *OF_LIMITS,
        *OF_SPEED,
        *OF_STARTS,
        *OF_INIT,
        *OF_ENVIRONMENTS,
        *OF_FILTERS,
    ),
)
