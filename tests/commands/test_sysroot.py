"""Whole recorded machines through the real command: `ncclcheck env --sysroot tests/machines/NAME`."""

from __future__ import annotations

from pathlib import Path

from ncclcheck.probes.facts import Node, at, unread_in
from ncclcheck.probes.machine.survey import PROBES
from ncclcheck.reports.judgement.findings import State
from ncclcheck.reports.judgement.jsondoc import Document
from tests.conftest import ROOT, Command

MACHINES = ROOT / "tests/machines"
BAD = {
    "CON005": "warn",  # Istio's proxy listens
    "CON006": "fail",  # /dev/shm has mode 755
    "STO001": "fail",  # no inode is left on /lustre
    "STO003": "warn",  # Lustre without flock
    "STO004": "warn",  # a read-only home
    "STO005": "warn",  # /tmp is mounted noexec
    "RDM002": "fail",  # an HCA in sysfs without /dev/infiniband
    "RDM003": "fail",  # no libibverbs
    "RDM007": "warn",  # its link has gone down 255 times
    "HST001": "fail",  # 64 KiB may be locked, with an HCA
    "HST002": "warn",  # 512 open files
    "HST003": "fail",  # Docker's 64 MiB, with two GPUs
    "HST004": "fail",  # 5 MiB left in /tmp
    "HST005": "warn",  # the container's name is in no hosts file
    "HST006": "warn",  # a CPU quota of one core
    "HST007": "warn",  # a memory limit of 1 GiB
    "HST008": "warn",  # hpet
    "NET012": "fail",  # lo is down
    "NCC003": "warn",  # NCCL_SOKET_IFNAME
    "NCC004": "warn",  # blanks around = in nccl.conf
    "NCC006": "warn",  # CUDA_LAUNCH_BLOCKING=1
    "VER001": "note",  # no torch
    "GPU005": "unknown",  # no kernel log in a container
    "GPU006": "unknown",
    "GPU008": "warn",  # a row of memory waits for a reset
    "GPU025": "unknown",  # somebody is on GPU 0, by a pid of the host
}


def _states(document: Document) -> dict[str, str]:
    return {verdict.code: verdict.state.value for verdict in document.verdicts}


def _node(document: Document) -> Node:
    return document.nodes[0].facts


def test_a_healthy_node(ncclcheck: Command) -> None:
    ran = ncclcheck("env", "--sysroot", str(MACHINES / "h100-node"), "-o", "json")
    states = _states(ran.document)
    assert ran.code == 0, ran.err
    assert {code: state for code, state in states.items() if state not in ("ok", "skipped")} == {}
    for code in (
        "HST001",
        "HST003",
        "NET001",
        "NET002",
        "NCC001",
        "NCC003",
        "NCC004",
        "NCC007",
        "GPU001",
        "GPU004",
        "GPU018",
    ):
        assert states[code] == "ok", code


def test_every_probe_reads_its_part_of_a_recording(ncclcheck: Command) -> None:
    node = _node(ncclcheck("env", "--sysroot", str(MACHINES / "h100-node"), "-o", "json").document)
    assert {probe.name for probe in node.probes if probe.unread is None} == set(PROBES)
    assert [path for path, fact in unread_in(node) if fact.kind == "recorded"] == []
    assert (at(node, "gpus.usable"), at(node, "gpus.driver_cuda"), at(node, "stack.driver")) == (
        8,
        "12.8",
        "570.124.06",
    )
    assert (at(node, "stack.torch"), at(node, "stack.torch_cuda")) == ("2.8.0+cu128", "12.8")
    assert at(node, "rdma.hcas") == [f"mlx5_{i}" for i in range(8)]
    cards = {card.name: card for card in at(node, "network.interfaces")}
    assert {name: card.kind for name, card in cards.items()} == {
        "lo": "loopback", "ens1f0np0": "physical", "ens1f1np1": "physical", "mgmt0": "physical", "bond0": "bond",
    }  # fmt: skip
    assert (cards["bond0"].members, cards["bond0"].speed_mbit) == (["ens1f0np0", "ens1f1np1"], 200000)
    assert [(route.destination, route.gateway, route.interface) for route in at(node, "network.routes")] == [
        ("0.0.0.0/0", "172.30.4.1", "mgmt0"),
        ("10.41.8.0/24", "", "bond0"),
        ("172.30.4.0/22", "", "mgmt0"),
        ("2001:db8:41:8::/64", "", "bond0"),
    ]
    assert [line.value for line in at(node, "nccl.conf_files")[0].lines] == ["mlx5", "22"]


def test_a_container_with_many_faults(ncclcheck: Command) -> None:
    ran = ncclcheck("env", "--sysroot", str(MACHINES / "bad-container"), "-o", "json")
    states = _states(ran.document)
    assert ran.code == 1, ran.err
    assert {code: state for code, state in states.items() if state not in ("ok", "skipped")} == BAD
    assert states["NET001"] == "ok", "docker0 is all that it has"


def test_a_tree_with_nothing_claims_nothing(ncclcheck: Command, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    ran = ncclcheck("env", "--sysroot", str(empty), "-o", "json")
    assert ran.code in (0, 3), ran.err
    verdicts = [v for v in ran.document.verdicts if v.state not in (State.UNKNOWN, State.SKIPPED)]
    assert {verdict.code for verdict in verdicts} <= {"RUN001", "RUN004"}


def test_a_damaged_recording_is_a_run_that_could_not_finish(ncclcheck: Command, tmp_path: Path) -> None:
    for name in ("cuda", "nvml", "interfaces", "own_name", "shm"):
        file = tmp_path / f"tree/.ncclcheck/{name}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text('{"type": "')
    ran = ncclcheck("env", "--sysroot", str(tmp_path / "tree"), "-o", "json")
    assert ran.code == 3, ran.err
    run004 = next(verdict for verdict in ran.document.verdicts if verdict.code == "RUN004")
    assert {finding.evidence[0].source for finding in run004.findings} == {
        "host.own_name", "host.shm", "network.interfaces",
    }  # fmt: skip
