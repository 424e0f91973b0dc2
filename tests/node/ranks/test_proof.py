"""Over what a job ran, as its agent finds it out: real sockets, counters, real ranks, and NCCL's diagnostics."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from ncclcheck.base import endpoint, wire
from ncclcheck.node.ranks.proof import Proof
from ncclcheck.node.ranks.torchrun import Torchrun
from ncclcheck.probes.facts import Diagnosis, Endpoint, Moved, RankState, Transport, Unread
from ncclcheck.probes.job.context import CollectivePlan, JobPlan
from ncclcheck.probes.job.usage import diagnostics, traffic
from ncclcheck.probes.logs.nccl_lines.place import expand
from ncclcheck.reports.judgement.findings import State
from tests.conftest import ROOT, Command, environment
from tests.helpers.trees import tree
from tests.scenarios.scenario import Scenario
from tests.scenarios.scenario_run import Labs

LO = Endpoint(interface="lo", address="127.0.0.1")


def _job(backend: str, seconds: float = 60.0) -> wire.StartJob:
    plan = msgspec.Raw(msgspec.json.encode(JobPlan(collectives=CollectivePlan(rows=[]))))
    where = f"127.0.0.1:{endpoint.free_port('127.0.0.1')}"
    return wire.StartJob(
        run_id=f"proof-{os.getpid()}", endpoint=where, is_host=True, local_addr="127.0.0.1", nodes=1,
        ranks_per_node=1, backend=backend, plan=plan, env={}, seconds=seconds,
    )  # fmt: skip


def test_open_connections_of_a_process() -> None:
    """Both ends are ours; the listener and what goes to a store's port do not count."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as store:
        port, store_port = server.getsockname()[1], store.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", store_port)):
            ends = server.accept()[0], store.accept()[0]
            counter = traffic.connections(os.getpid(), {store_port})
            for end in ends:
                end.close()
    assert not isinstance(counter, Unread)
    assert counter[LO, True] == 2


def test_connections_over_ipv6_that_carry_ipv4() -> None:
    with (
        socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server,
        socket.create_connection(("127.0.0.1", server.getsockname()[1])),
    ):
        end, _ = server.accept()
        counter = traffic.connections(os.getpid(), ())
        end.close()
    assert not isinstance(counter, Unread)
    assert set(counter) == {(LO, True)}


def test_a_process_that_is_gone() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert traffic.connections(child.pid, ()) == Unread("absent", f"process {child.pid} is gone")


_DEV = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
  eth0: {} 10 0 0 0 0 0 3 {} 9 0 0 0 0 0 0
bond0.7:50 1 0 0 0 0 0 0 60 1 0 0 0 0 0 0
"""  # noqa: E501


def test_counters_of_interfaces_and_hcas(tmp_path: Path) -> None:
    counters = "/sys/class/infiniband/mlx5_4/ports/1/counters"
    files = {
        "/proc/net/dev": _DEV.format(1000, 2000), f"{counters}/port_xmit_data": "100\n",
        f"{counters}/port_rcv_data": "7\n", "/sys/class/infiniband/efa_0/ports/1/state": "4: ACTIVE\n",
    }  # fmt: skip
    before = traffic.CounterReading.take(tree(tmp_path, files))
    (tmp_path / "proc/net/dev").write_text(_DEV.format(4000, 2500))
    (tmp_path / counters[1:] / "port_xmit_data").write_text("350\n")
    moved = before.until_now("here")
    assert moved.interfaces == [
        Moved(name="eth0", sent=500, received=3000), Moved(name="bond0.7", sent=0, received=0),
    ]  # fmt: skip
    assert moved.hcas == [Moved(name="mlx5_4:1", sent=1000, received=0)]
    (tmp_path / "proc/net/dev").write_text(_DEV.format(1, 1))
    assert [interface.name for interface in before.until_now("here").interfaces] == ["bond0.7"]  # type: ignore[union-attr]


def test_without_an_hca_it_is_said(tmp_path: Path) -> None:
    moved = traffic.CounterReading.take(tree(tmp_path, {"/proc/net/dev": _DEV.format(1, 1)})).until_now("here")
    assert moved.hcas == Unread("absent", "there is no /sys/class/infiniband")


def test_a_log_of_nccl_is_asked_for_beside_the_users_environment(tmp_path: Path) -> None:
    """Our settings reach the ranks alone: what NCC006 judges was read from the agent's own environment."""
    user = {"NCCL_DEBUG": "WARN", "NCCL_SOCKET_IFNAME": "eth0"}
    proof = Proof(_job("nccl"), "here", str(tmp_path), user)
    assert user == {"NCCL_DEBUG": "WARN", "NCCL_SOCKET_IFNAME": "eth0"}
    assert proof.environment["NCCL_DEBUG"] == "INFO"
    log = Path(expand(proof.environment["NCCL_DEBUG_FILE"], 771, "x"))
    log.write_bytes((ROOT / "tests/data/logs/nccl-2.21-roce.log").read_bytes())
    measurements = proof.measurements({2: RankState(rank=2, node="here", pid=771)}, "", died=False)
    assert [(transport.rank, transport.source, transport.network) for transport in measurements.transport] == [
        (2, "log", "IB")
    ]
    assert [port.node for port in measurements.traffic] == ["here"]
    assert Proof(_job("gloo"), "here", str(tmp_path), user).environment == {}


def _late(*_: object) -> list[Transport]:
    time.sleep(1)
    return []


def test_a_log_that_does_not_answer_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ncclcheck.node.ranks.proof._READ_S", 0.2)
    monkeypatch.setattr("ncclcheck.probes.logs.nccl_lines.place.transports", _late)
    proof = Proof(_job("nccl"), "here", str(tmp_path), {})
    (transport,) = proof.measurements({0: RankState(rank=0, node="here", pid=1)}, "", died=False).transport
    assert isinstance(transport.connections, Unread)
    assert transport.connections.kind == "timed_out"


def test_ranks_of_nccl_that_fail_are_told_of_too(tmp_path: Path) -> None:
    """No GPU here: the rank ends before NCCL prints a line, and that is what is said."""
    import torch  # noqa: PLC0415

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    run = Torchrun(_job("nccl"), "here", str(tmp_path), lambda _: None)
    run.note(wire.RankReport(state=RankState(rank=0, node="here", pid=os.getpid())))
    run.child.wait(60)
    (transport,) = run.proof().transport
    assert isinstance(transport.connections, Unread)
    assert transport.connections.why == f"NCCL wrote no log to {tmp_path}/nccl.{os.getpid()}.log"


def test_bench_tells_over_what_gloo_ran(ncclcheck: Command) -> None:
    """Two simulated nodes: every rank is connected to all others, over lo, and BEN005 says so."""
    ran = ncclcheck("bench", "--nodes", "2", "--quick", "--nproc-per-node", "2", "--ops", "barrier", "-o", "json")
    assert ran.code == 0, ran.err
    document = ran.document
    assert sorted(rank.rank for rank in document.measurements.transport) == [0, 1, 2, 3]
    for transport in document.measurements.transport:
        assert transport.interfaces == [LO]
        assert not isinstance(transport.connections, Unread)
        assert [(kind.kind, kind.peers) for kind in transport.connections] == [("TCP", "intra")]
        assert transport.connections[0].count >= 3
    assert {port.node for port in document.measurements.traffic} == {"sim0", "sim1"}
    verdicts = {verdict.code: verdict for verdict in document.verdicts}
    assert verdicts["BEN005"].findings[0].what == "sim[0-1]: gloo over TCP, by lo"
    assert {verdicts[code].state for code in ("BEN010", "BEN011", "BEN013", "BEN014")} == {State.SKIPPED}


@pytest.mark.nightly
def test_bench_between_hosts_tells_the_interface_and_its_bytes() -> None:
    with Labs() as labs:
        outcome = labs.run(
            Scenario(name="over eth0", hosts=2, command=("bench", "--quick", "--ops", "all_reduce"))
        )
    document = outcome.documents["h1"]
    for rank in document.measurements.transport:
        assert [interface.interface for interface in rank.interfaces] == ["eth0"]
    for node in document.measurements.traffic:
        assert not isinstance(node.interfaces, Unread)
        moved = {interface.name: interface.sent for interface in node.interfaces}
        assert moved["eth0"] > 10 * moved["mgmt0"]
    verdict = next(verdict for verdict in document.verdicts if verdict.code == "BEN013")
    assert (verdict.state, {finding.where.node for finding in verdict.findings}) == (State.OK, {"h1", "h2"})


_REPORT = """
yew1:9 NCCL DIAG === NCCL Diagnostics ===
yew1:9 NCCL DIAG [OK]   p2p: verified P2P access in both directions between every GPU pair (12 peer accesses)
yew1:9 NCCL DIAG [INFO] net bw: same-nic rank 3 (yew2): 40.1 Gbit/s, >30% off median 91.0 Gbit/s in comm 0x7
NCCL DIAG [INFO] test unable to complete in allocated time
yew1:9 NCCL DIAG [OK]   p2p: verified P2P access in both directions between every GPU pair (12 peer accesses)
yew1:9 NCCL DIAG NCCL diagnostics completed in 310.2 ms across 4 ranks
"""


def test_diagnostics_are_read_as_they_are_documented() -> None:
    done = diagnostics.run(["printf", "%s", _REPORT], 5)
    assert (done.problem, len(done.results)) == ("", 3)
    assert done.results[1:] == [
        Diagnosis(
            ok=False, check="net bw",
            text="same-nic rank 3 (yew2): 40.1 Gbit/s, >30% off median 91.0 Gbit/s in comm 0x7",
        ),
        Diagnosis(ok=False, check="", text="test unable to complete in allocated time"),
    ]  # fmt: skip


def test_diagnostics_see_what_switches_them_on() -> None:
    done = diagnostics.run(
        ["sh", "-c", 'echo "NCCL DIAG [OK] x: $NCCL_RUN_DIAGNOSTICS$NCCL_RUN_RAS_DIAGNOSTICS"'], 5
    )
    assert done.results == [Diagnosis(ok=True, check="x", text="11")]
    assert done.problem == "NCCL printed no end of them"


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        (["sleep", "30"], "sleep 30 gave no answer in 0.5 s"),
        (["sh", "-c", "echo no GPU >&2; exit 3"], "ended with exit status 3: no GPU"),
    ],
)
def test_diagnostics_that_do_not_end_well(argv: list[str], problem: str) -> None:
    assert diagnostics.run(argv, 0.5).problem == problem


def test_processes_of_the_diagnostics_meet_and_end() -> None:
    """With gloo in the place of NCCL: two of them meet in a store as torchrun has it."""
    port = str(endpoint.free_port("127.0.0.1"))
    common = environment(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=port, WORLD_SIZE="2", GLOO_SOCKET_IFNAME="lo",
        TORCHELASTIC_USE_AGENT_STORE="False",
    )  # fmt: skip
    started = [
        subprocess.Popen(
            diagnostics.command("gloo"), env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
        )
        for rank in (0, 1)
    ]  # fmt: skip
    errors = [process.communicate(timeout=60)[1] for process in started]
    assert [process.returncode for process in started] == [0, 0], errors
