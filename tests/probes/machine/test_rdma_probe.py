"""The RDMA probe over written trees, and over recordings of real machines where these are here."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclcheck.probes.facts import Cluster, Counter, DeviceFile, Gid, Job, Node, Rdma, Unread, unread_in
from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.devices import fabric, rdma
from ncclcheck.reports.judgement.findings import State
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules
from tests.helpers.trees import RECORDED, needs_recorded, tree

CLASS = "/sys/class/infiniband"
PLACE = "/sys/devices/pci0000:15/0000:15:01.0/0000:1a:00.0"
PORT = f"{PLACE}/infiniband/mlx5_0/ports/1"
ROCE_GIDS = {
    f"{PORT}/gids/{index}": text
    for index, text in enumerate([
        "fe80:0000:0000:0000:b83f:d2ff:fea1:0001", "fe80:0000:0000:0000:b83f:d2ff:fea1:0001",
        "0000:0000:0000:0000:0000:ffff:0a01:0011", "0000:0000:0000:0000:0000:ffff:0a01:0011",
        *["0000:0000:0000:0000:0000:0000:0000:0000"] * 60,
    ])
}  # fmt: skip
NODE: dict[str, str | bytes] = {
    f"{CLASS}/mlx5_0": f"-> ../../..{PLACE}/infiniband/mlx5_0",
    f"{PLACE}/infiniband/mlx5_0/hca_type": "MT4129\n",
    f"{PLACE}/infiniband/mlx5_0/board_id": "MT_0000000838\n",
    f"{PLACE}/infiniband/mlx5_0/fw_ver": "28.41.1000\n",
    f"{PLACE}/infiniband/mlx5_0/node_guid": "b83f:d203:00a1:0001\n",
    f"{PLACE}/infiniband/mlx5_0/device": "-> ../../../0000:1a:00.0",
    f"{PLACE}/driver": "-> ../../../../bus/pci/drivers/mlx5_core",
    "/sys/bus/pci/drivers/mlx5_core/uevent": "",
    f"{PORT}/state": "4: ACTIVE\n",
    f"{PORT}/phys_state": "5: LinkUp\n",
    f"{PORT}/rate": "400 Gb/sec (4X NDR)\n",
    f"{PORT}/link_layer": "Ethernet\n",
    f"{PORT}/lid": "0x0\n",
    f"{PORT}/sm_lid": "0x0\n",
    f"{PORT}/pkeys/0": "0xffff\n",
    f"{PORT}/pkeys/1": "0x0000\n",
    f"{PORT}/counters/link_downed": "2\n",
    f"{PORT}/counters/symbol_error": "N/A (no PMA)\n",
    f"{PORT}/hw_counters/packet_seq_err": "7\n",
    **ROCE_GIDS,
    f"{PORT}/gid_attrs/types/0": "IB/RoCE v1\n",
    f"{PORT}/gid_attrs/types/3": "RoCE v2\n",
    f"{PORT}/gid_attrs/ndevs/3": "eth0\n",
    f"{PLACE}/infiniband/mlx5_0/tc/1/traffic_class": "Global tclass=106\n",
    "/sys/class/infiniband_verbs/abi_version": "6\n",
    "/sys/class/infiniband_verbs/uverbs0/ibdev": "mlx5_0\n",
    "/sys/module/nvidia_peermem/version": "570\n",
    "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06\n",
    "/dev/infiniband/uverbs0": "",
    "/dev/infiniband/rdma_cm": "",
    "/usr/lib/x86_64-linux-gnu/libibverbs.so.1": "",
    "/usr/lib/x86_64-linux-gnu/libibverbs/libmlx5-rdmav34.so": "",
    "/usr/lib/x86_64-linux-gnu/libibverbs/libefa-rdmav34.so": "",
    "/etc/libibverbs.d/mlx5.driver": "driver mlx5\n",
}


def test_a_node(tmp_path: Path) -> None:
    facts = rdma.probe(tree(tmp_path, NODE, uverbs=[{"name": "uverbs0"}]))
    assert (facts.hcas, facts.device_files) == (["mlx5_0"], ["rdma_cm", "uverbs0"])
    assert facts.opened == [DeviceFile(name="uverbs0")]
    assert (facts.libibverbs, facts.providers) == ("/usr/lib/x86_64-linux-gnu/libibverbs.so.1", ["mlx5"])
    assert (facts.peer_modules, facts.open_driver) == (["nvidia_peermem"], True)
    hca = facts.devices[0]  # type: ignore[index]
    assert (hca.model, hca.board, hca.firmware) == ("MT4129", "MT_0000000838", "28.41.1000")
    assert (hca.driver, hca.pci, hca.uverbs) == ("mlx5_core", "0000:1a:00.0", "uverbs0")


def test_a_port(tmp_path: Path) -> None:
    port: Any = rdma.probe(tree(tmp_path, NODE)).devices[0].ports[0]  # type: ignore[index]
    assert (port.state, port.physical, port.rate_gbit, port.link_layer) == ("ACTIVE", "LinkUp", 400.0, "Ethernet")
    assert (port.lid, port.sm_lid, port.pkeys, port.traffic_class) == (0, 0, [0xFFFF, 0], "Global tclass=106")
    assert port.counters == [Counter(name="link_downed", value=2), Counter(name="packet_seq_err", value=7)]
    assert [gid.index for gid in port.gids] == [0, 1, 2, 3]
    assert port.gids[3] == Gid(
        index=3, gid="0000:0000:0000:0000:0000:ffff:0a01:0011", type="RoCE v2", netdev="eth0"
    )
    assert isinstance(port.gids[1].type, Unread)


def _without(*folders: str) -> dict[str, str | bytes]:
    return {path: text for path, text in NODE.items() if not path.startswith(folders)}


def test_a_container_without_the_device_files(tmp_path: Path) -> None:
    facts = rdma.probe(tree(tmp_path, {**_without("/dev/infiniband"), "/dev/null": ""}))
    assert facts.device_files == []
    assert isinstance(facts.opened, Unread)
    assert facts.opened.kind == "recorded"


def test_no_dev_at_all_says_nothing(tmp_path: Path) -> None:
    facts = rdma.probe(tree(tmp_path, _without("/dev")))
    assert facts.device_files == Unread("recorded", "there is no /dev in this recording")


def test_no_library(tmp_path: Path) -> None:
    facts = rdma.probe(tree(tmp_path, {**_without("/usr"), "/usr/bin/true": ""}))
    assert isinstance(facts.libibverbs, Unread)
    assert facts.libibverbs.kind == "no_tool"


@pytest.mark.parametrize("place", ["LD_LIBRARY_PATH", "CONDA_PREFIX", "cache"])
def test_a_library_elsewhere(tmp_path: Path, place: str) -> None:
    files: dict[str, str | bytes] = {**_without("/usr"), "/opt/x/lib/libibverbs.so.1": "", "/usr/bin/true": ""}
    env = {"LD_LIBRARY_PATH": "relative:/opt/x/lib"} if place == "LD_LIBRARY_PATH" else {}
    if place == "CONDA_PREFIX":
        env = {"CONDA_PREFIX": "/opt/x"}
    if place == "cache":
        files["/etc/ld.so.cache"] = b"glibc-ld.so.cache1.1\0libibverbs.so.1\0/opt/x/lib/libibverbs.so.1\0"
    facts = rdma.probe(tree(tmp_path, files, environment=env))
    assert facts.libibverbs == "/opt/x/lib/libibverbs.so.1"


def test_a_machine_without_any(tmp_path: Path) -> None:
    facts = rdma.probe(tree(tmp_path, {"/sys/class/net/lo/type": "772"}))
    assert facts.devices == Unread("absent", "no RDMA device on this machine")
    assert {fact.kind for _, fact in unread_in(facts)} == {"absent"}


def test_a_file_that_cannot_be_opened() -> None:
    assert rdma._try("uverbs-that-is-not-here").error == os.strerror(2)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(NODE)), st.binary(max_size=80), st.sets(st.sampled_from(sorted(NODE)), max_size=8))
def test_nothing_makes_it_raise(path: str, content: bytes, missing: set[str]) -> None:
    files = {name: text for name, text in NODE.items() if name not in missing}
    with tempfile.TemporaryDirectory() as folder:
        machine = tree(Path(folder), {**files, path: content})
        _judged(machine, machine)


def _judged(*machines: Machine) -> dict[str, State]:
    """What the rules say of nodes that these machines are."""
    nodes = [Node(name=f"n{i}", rdma=rdma.probe(m), fabric=fabric.probe(m)) for i, m in enumerate(machines)]
    rules = [rule for rule in all_rules() if rule.code[:3] in ("RDM", "FAB")]
    verdicts = judge(Cluster(nodes=nodes, job=Job(nodes_asked=len(nodes))), rules)
    assert not [f for v in verdicts for f in v.findings if f.owner == "tool"], "a rule raised"
    return {verdict.code: verdict.state for verdict in verdicts}


def _bad(*machines: Machine) -> set[str]:
    return {code for code, state in _judged(*machines).items() if state in (State.FAIL, State.WARN)}


@needs_recorded
def test_a_real_h100_node(tmp_path: Path) -> None:
    """Nine devices; mlx5_1 has gone down more often than its counter can count, and a bond is among them."""
    recorded = "gpud/components/accelerator/nvidia/infiniband/class/testdata/sys-class-infiniband-h100.0"
    shutil.copytree(RECORDED / recorded, tmp_path / "sys/class/infiniband")
    machine = Machine(str(tmp_path), recorded=True)
    facts = rdma.probe(machine)
    assert len(facts.hcas) == 9  # type: ignore[arg-type]
    assert {port.rate_gbit for hca in facts.devices for port in hca.ports} == {400.0, 200.0}  # type: ignore[union-attr]
    assert _bad(machine) == {"RDM007", "RDM011"}


def _gcm(folder: Path, name: str) -> Machine:
    """Sysfs as JSON; /sys/class/infiniband is added as the links that it is."""
    path = RECORDED / f"gcm/gcm/tests/data/health_checks/{name}.json"
    written: Mapping[str, Any] = json.loads(path.read_text())
    files = {key: text for key, text in written.items() if key.startswith("/sys") and isinstance(text, str)}
    for key in list(files):
        head, middle, tail = key.partition("/infiniband/")
        if middle and (hca := tail.split("/")[0]):
            files[f"{CLASS}/{hca}"] = f"-> ../..{head.removeprefix('/sys')}/infiniband/{hca}"
    return tree(folder / name, files)


@needs_recorded
@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("learn_good", set()),
        ("learn_ib_intf_bad_rate", {"RDM012", "RDM019"}),
        ("learn_ib_intf_bad_version", {"RDM012", "RDM019"}),
        ("learn_ib_misbound_if", {"RDM019", "RDM024"}),
        ("learn_stuck_ib_intf", {"RDM006"}),  # fewer links follow from it: RDM018 leaves them to RDM006
    ],
)
def test_machines_with_one_fault_each(tmp_path: Path, name: str, bad: set[str]) -> None:
    """Beside two good ones, as the odd node out."""
    good = _gcm(tmp_path, "learn_good")
    assert _bad(good, good, good if name == "learn_good" else _gcm(tmp_path, name)) == bad


def _archive(folder: Path) -> Machine:
    """procfs' fixtures: a text archive of directories, files with a number of lines, and links."""
    lines = iter((RECORDED / "procfs/testdata/fixtures.ttar").read_text(errors="replace").splitlines())
    path = ""
    for line in lines:
        key, _, value = line.partition(": ")
        if key == "Path":
            path = value
        inside = path.startswith(
            ("fixtures/sys/class/infiniband/", "fixtures/proc/cmdline", "fixtures/sys/devices/system")
        )
        target = folder / path.removeprefix("fixtures/")
        if key == "Lines" and inside:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text("".join(f"{next(lines)}\n" for _ in range(int(value))).replace("EOF\n", ""))
        elif key == "SymlinkTo" and inside:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(value)
    return Machine(str(folder), recorded=True)


@needs_recorded
def test_trees_of_other_drivers(tmp_path: Path) -> None:
    machine = _archive(tmp_path)
    facts = rdma.probe(machine)
    assert {"hfi1_0", "mlx4_0"} <= set(facts.hcas)  # type: ignore[arg-type]
    ports = [port for hca in facts.devices for port in hca.ports]  # type: ignore[union-attr]
    assert {port.state for port in ports} <= {"ACTIVE", "DOWN"}
    assert isinstance(facts, Rdma)
    _judged(machine)
