"""Rules over what a job ran: raised, not raised, and unread."""

from __future__ import annotations

from typing import Any

import pytest

from ncclcheck.probes.facts import (
    Connections,
    Diagnosis,
    Diagnostics,
    Endpoint,
    Fabric,
    Gpu,
    GpuPeer,
    Gpus,
    Hca,
    Job,
    Library,
    Measurements,
    Moved,
    Nccl,
    NetDevice,
    Node,
    NvLinks,
    Port,
    Rdma,
    Traffic,
    Transport,
    Unread,
)
from ncclcheck.reports.judgement.findings import State, Verdict
from tests.helpers.clusters import ABSENT, LO, nic, node, states_of, verdict

SEEN_GPU = Gpus(pci=["0000:1b:00.0"], devices=["nvidia0"], usable=1, cards=ABSENT)
NO_RDMA = Rdma(hcas=ABSENT, devices=ABSENT, peer_modules=ABSENT)
SILENT = Unread("recorded", "NCCL_DEBUG_FILE is set, and NCCL_DEBUG is WARN")


def _port(state: str = "ACTIVE", layer: str = "InfiniBand") -> list[Port]:
    return [Port(name="1", state=state, link_layer=layer)]


def _rdma(*hcas: Hca, modules: list[str] | None = None) -> Rdma:
    return Rdma(hcas=[hca.name for hca in hcas], devices=list(hcas), peer_modules=modules or [])


def _machine(name: str, number: int, **facts: Any) -> Node:
    env = facts.pop("env", {})
    given: dict[str, Any] = {"gpus": SEEN_GPU, "rdma": NO_RDMA, "fabric": Fabric(pci=ABSENT)}
    return node(name, LO, nic("eth0", f"10.1.0.{number}/24"), env=env, **{**given, **facts})


def _rank(rank: int, name: str, *connections: Connections, **facts: Any) -> Transport:
    given: dict[str, Any] = {
        "network": "IB",
        "bootstrap": Endpoint(interface="eth0", address=f"10.1.0.{rank + 1}"),
    }
    return Transport(rank=rank, node=name, source="log", connections=list(connections), **{**given, **facts})


def _between(kind: str, count: int = 4, **more: Any) -> Connections:
    return Connections(kind=kind, peers="inter", count=count, **more)


def _within(kind: str, count: int = 4) -> Connections:
    return Connections(kind=kind, peers="intra", count=count)


SOCKET, RDMA, DIRECT = _between("NET/Socket"), _between("NET/IB"), _between("NET/IB/GDRDMA")


def _judge(code: str, nodes: list[Node], ranks: list[Transport], *, backend: str = "nccl", **more: Any) -> Verdict:
    job = Job(nodes_asked=len(nodes), nodes_answered=len(nodes), backend=backend, ranks=len(ranks))
    return verdict(code, *nodes, job=job, command="bench", measurements=Measurements(transport=ranks, **more))


def _two(first: dict[str, Any], second: dict[str, Any] | None = None) -> list[Node]:
    return [_machine("a1", 1, **first), _machine("a2", 2, **(first if second is None else second))]


IB = {"rdma": _rdma(Hca(name="mlx5_0", ports=_port()))}
DOWN = {"rdma": _rdma(Hca(name="mlx5_0", ports=_port("DOWN")))}
ROCE = {"rdma": _rdma(Hca(name="mlx5_0", ports=_port(layer="Ethernet")))}
EFA = {"rdma": _rdma(Hca(name="efa_0", driver="efa", ports=_port(layer="Unspecified")))}
UNREAD = {"rdma": Rdma(devices=Unread("denied", "no right"))}
NO_IB = {**IB, "env": {"NCCL_IB_DISABLE": "1"}}


@pytest.mark.parametrize(
    ("facts", "connection", "state"),
    [
        ({}, SOCKET, State.OK),
        (DOWN, SOCKET, State.OK),
        (IB, SOCKET, State.FAIL),
        (EFA, SOCKET, State.FAIL),
        (NO_IB, SOCKET, State.WARN),
        (ROCE, SOCKET, State.WARN),
        ({**ROCE, "env": {"NCCL_NET": "Socket"}}, SOCKET, State.NOTE),
        ({**IB, "env": {"NCCL_IB_DISABLE": "0"}}, SOCKET, State.FAIL),
        (UNREAD, SOCKET, State.UNKNOWN),
        (UNREAD, DIRECT, State.OK),
        (IB, DIRECT, State.OK),
    ],
)
def test_sockets_beside_an_hca(facts: dict[str, Any], connection: Connections, state: State) -> None:
    judgement = _judge("BEN005", _two(facts), [_rank(0, "a1", connection), _rank(1, "a2", connection)])
    assert judgement.state is state
    assert all(finding.where.node for finding in judgement.findings if finding.state is not State.OK)
    assert len(judgement.findings) == (1 if state is State.OK else 2)


def test_the_choice_counts_where_nothing_was_connected_yet() -> None:
    ranks = [_rank(0, "a1", network="Socket", no_infiniband="Failed to open libibverbs.so[.1]"), _rank(1, "a2")]
    judgement = _judge("BEN005", _two(IB), ranks)
    assert states_of(judgement) == [("fail", "a1"), ("ok", "a2")]
    assert "Failed to open libibverbs" in str(judgement.findings[0].evidence)


def test_a_log_that_could_not_be_read_is_unknown_once_a_node() -> None:
    ranks = [_unread(rank, "a1") for rank in (0, 1)]
    judgement = _judge("BEN005", _two(IB), [*ranks, _rank(2, "a2", DIRECT)])
    assert states_of(judgement) == [("unknown", "a1"), ("ok", "a2")]
    assert "NCCL_DEBUG is WARN" in judgement.findings[0].what


def _unread(rank: int, name: str) -> Transport:
    return Transport(rank=rank, node=name, source="log", connections=SILENT, network=SILENT)


def _gloo(rank: int, name: str, interface: str = "eth0", address: str = "") -> Transport:
    return Transport(
        rank=rank, node=name, source="sockets", network="TCP",
        connections=[Connections(kind="TCP", peers="inter", count=2)],
        interfaces=[Endpoint(interface=interface, address=address or f"10.1.0.{rank + 1}")],
    )  # fmt: skip


def test_gloo_is_told_with_its_interface() -> None:
    judgement = _judge("BEN005", _two(IB), [_gloo(0, "a1"), _gloo(1, "a2")], backend="gloo")
    assert [finding.what for finding in judgement.findings] == ["a[1-2]: gloo over TCP, by eth0"]


def test_without_a_job_there_is_nothing_to_judge() -> None:
    for code in ("BEN005", "BEN010", "BEN011", "BEN012", "BEN013", "BEN014"):
        assert _judge(code, _two(IB), []).state is State.SKIPPED


def _cards(**facts: Any) -> dict[str, Any]:
    return {"gpus": Gpus(pci=["0000:1b:00.0"], cards=[Gpu(name=f"GPU {i}", index=i, **facts) for i in range(2)])}


def _peers(**way: Any) -> dict[str, Any]:
    """Two cards without NVLink, each with this way to the other."""
    cards = [
        Gpu(name=f"GPU {i}", index=i, nvlinks=ABSENT, peers=[GpuPeer(name=f"GPU {1 - i}", **way)]) for i in (0, 1)
    ]
    return {"gpus": Gpus(pci=["0000:1b:00.0"], cards=cards)}


LINKED = _cards(nvlinks=NvLinks(links=18, down=[]))
NEAR = _peers(path="PIX", p2p="ok")
FAR = _peers(path="SYS", p2p="ok")
REFUSED = _peers(path="PIX", p2p="chipset not supported")
NOT_TOLD = _cards()


@pytest.mark.parametrize(
    ("facts", "kind", "state"),
    [
        (LINKED, "SHM", State.WARN),
        (LINKED, "NET/IB", State.WARN),
        (LINKED, "P2P/CUMEM", State.OK),
        (NEAR, "SHM", State.WARN),
        (FAR, "SHM", State.OK),
        (REFUSED, "SHM", State.OK),
        (NOT_TOLD, "SHM", State.UNKNOWN),
        (NOT_TOLD, "P2P/IPC", State.OK),
    ],
)
def test_a_detour_within_the_node(facts: dict[str, Any], kind: str, state: State) -> None:
    judgement = _judge("BEN010", [_machine("a1", 1, **facts)], [_rank(0, "a1", _within(kind))])
    assert states_of(judgement) == [(state.value, "a1")]


def test_a_detour_that_was_asked_for_is_the_jobs() -> None:
    nodes = [_machine("a1", 1, **LINKED, env={"NCCL_P2P_DISABLE": "1"})]
    (finding,) = _judge("BEN010", nodes, [_rank(0, "a1", _within("SHM"))]).findings
    assert finding.owner == "job"
    assert finding.remedies[0].commands == ["unset NCCL_P2P_DISABLE"]


ENABLED = [NetDevice(name="mlx5_0:1", index=0, gpudirect=True)]
MODULE = {"rdma": _rdma(Hca(name="mlx5_0", ports=_port()), modules=["nvidia_peermem"])}


@pytest.mark.parametrize(
    ("facts", "first", "second", "expected"),
    [
        (IB, _rank(0, "a1", DIRECT), _rank(1, "a2", DIRECT), ["ok", "ok"]),
        (IB, _rank(0, "a1", DIRECT), _rank(1, "a2", RDMA), ["warn", "ok"]),
        (IB, _rank(0, "a1", RDMA), _rank(1, "a2", RDMA), []),
        (IB, _rank(0, "a1", RDMA, devices=ENABLED), _rank(1, "a2", RDMA), ["warn"]),
        (MODULE, _rank(0, "a1", RDMA), _rank(1, "a2", RDMA), ["warn", "warn"]),
    ],
)
def test_rdma_without_gpudirect(
    facts: dict[str, Any], first: Transport, second: Transport, expected: list[str]
) -> None:
    judgement = _judge("BEN011", _two(facts), [first, second])
    assert [state for state, _ in states_of(judgement)] == expected
    assert judgement.state is (State.WARN if "warn" in expected else State.OK)


def test_gpudirect_needs_rdma() -> None:
    ranks = [_rank(0, "a1", SOCKET), _rank(1, "a2", SOCKET)]
    assert _judge("BEN011", _two(IB), ranks).state is State.SKIPPED


def _rails(*mib: int, ranks: int = 2) -> Verdict:
    devices = [NetDevice(name=f"mlx5_{i}:1", index=i) for i in range(len(mib))]
    told_ = [_rank(rank, f"a{1 + rank // ranks}", DIRECT, devices=devices) for rank in range(2 * ranks)]
    moved = [Moved(name=f"mlx5_{i}:1", sent=count * 2**19, received=count * 2**19) for i, count in enumerate(mib)]
    traffic = [Traffic(node=name, seconds=9, interfaces=[], hcas=moved) for name in ("a1", "a2")]
    return _judge("BEN012", _two(IB), told_, traffic=traffic)


@pytest.mark.parametrize(
    ("mib", "ranks", "state"),
    [
        ((900, 880), 2, State.OK),
        ((900, 2), 2, State.WARN),
        ((900, 450), 2, State.OK),
        ((20, 0), 2, State.OK),
        ((900, 2), 1, State.SKIPPED),
        ((900,), 2, State.SKIPPED),
    ],
)
def test_idle_rails(mib: tuple[int, ...], ranks: int, state: State) -> None:
    judgement = _rails(*mib, ranks=ranks)
    assert judgement.state is state
    assert ["mlx5_1" in finding.what for finding in judgement.findings if finding.state is State.WARN] == [
        True,
        True,
    ][: 2 * (state is State.WARN)]


@pytest.mark.parametrize(("used", "state"), [("eth0", State.OK), ("docker0", State.WARN)])
def test_the_interface_of_nccl(used: str, state: State) -> None:
    ranks = [_rank(i, f"a{i + 1}", SOCKET, bootstrap=Endpoint(interface=used, address="10.1.0.1")) for i in (0, 1)]
    judgement = _judge("BEN013", _two({}), ranks)
    assert judgement.state is state
    if state is State.WARN:
        assert "docker0" in judgement.findings[0].what
        assert "eth0" in judgement.findings[0].what


@pytest.mark.parametrize(
    ("used", "moved", "state"),
    [
        ("eth0", {"eth0": 900, "eth1": 1, "lo": 90000}, State.OK),
        ("eth0", {"eth0": 1, "eth1": 900}, State.WARN),
        ("eth0", {"eth0": 0, "eth1": 9}, State.OK),
        ("lo", {"lo": 900}, State.WARN),
    ],
)
def test_the_interface_of_gloo(used: str, moved: dict[str, int], state: State) -> None:
    counted = [Moved(name=name, sent=mib * 2**20, received=0) for name, mib in moved.items()]
    traffic = [Traffic(node=name, seconds=9, interfaces=counted, hcas=ABSENT) for name in ("a1", "a2")]
    ranks = [_gloo(0, "a1", used), _gloo(1, "a2", used)]
    judgement = _judge("BEN013", _two({}), ranks, backend="gloo", traffic=traffic)
    assert judgement.state is state


def test_the_interface_to_name_is_that_of_most_nodes() -> None:
    """A node whose own name leads to the management network: naming that one would send all of the job there."""
    cards = [
        (number, nic("mgmt0", f"10.2.0.{number}/24"), nic("eth0", f"10.1.0.{number}/24")) for number in (1, 2, 3)
    ]
    nodes = [node(f"a{number}", LO, *(pair if number == 3 else reversed(pair))) for number, *pair in cards]
    judgement = _judge("BEN013", nodes, [_gloo(i, f"a{i + 1}") for i in range(3)], backend="gloo")
    (finding,) = (finding for finding in judgement.findings if finding.state is State.WARN)
    assert finding.what == "the job used eth0, predicted was mgmt0"
    assert [r.commands for r in finding.remedies] == [
        ["export NCCL_SOCKET_IFNAME='=eth0' GLOO_SOCKET_IFNAME=eth0"]
    ]


def test_one_node_crosses_no_network() -> None:
    assert _judge("BEN013", [_machine("a1", 1)], [_gloo(0, "a1")], backend="gloo").state is State.SKIPPED


@pytest.mark.parametrize(
    ("text", "ok", "state"),
    [
        ("verified P2P access in both directions between every GPU pair (12 peer accesses)", True, State.OK),
        ("only 11/12 GPU-to-GPU peer accesses passed verification", False, State.WARN),
        ("same-nic rank 3 (a2): 88.0 Gbit/s, >30% off median 190.5 Gbit/s in comm 0x1", False, State.WARN),
        ("2 ranks share a device and measure it together", False, State.NOTE),
    ],
)
def test_nccls_own_diagnostics(text: str, ok: bool, state: State) -> None:
    diagnostics = Diagnostics(results=[Diagnosis(ok=ok, check="p2p", text=text)], seconds=3)
    judgement = _judge("BEN014", _two(IB), [_rank(0, "a1")], diagnostics=diagnostics)
    assert judgement.state is state
    assert f"p2p: {text}" in judgement.findings[0].what


def test_diagnostics_without_an_end_are_unknown() -> None:
    diagnostics = Diagnostics(seconds=30, problem="gave no answer in 30 s")
    assert _judge("BEN014", _two(IB), [_rank(0, "a1")], diagnostics=diagnostics).state is State.UNKNOWN


def test_an_older_nccl_has_no_diagnostics_and_it_is_said() -> None:
    old = Nccl(loaded=Library(path="/usr/lib/libnccl.so.2", origin="system", version="2.18.1"))
    judgement = _judge("BEN014", _two({"nccl": old}), [_rank(0, "a1")])
    assert (judgement.state, judgement.reason) == (
        State.SKIPPED,
        "NCCL 2.18.1 has none of its own; 2.31 and later do",
    )
