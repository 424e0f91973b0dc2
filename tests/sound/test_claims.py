"""What an operator found wrong on healthy machines (F1 to F16): a document for each, so that it stays right."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from ncclcheck.probes.facts import (
    Cluster,
    GpuProcess,
    Node,
    Port,
    Resolution,
    Unread,
    Variable,
    Xid,
    known,
    replace,
    variables,
)
from ncclcheck.reports.judgement.findings import State
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.recommend import recommend
from ncclcheck.reports.text import summary
from ncclcheck.results import finish
from ncclcheck.run.plan.options import Options
from tests.helpers.clusters import nic
from tests.sound.kinds import MORE, PLANS
from tests.sound.machine import cluster
from tests.sound.parts import Card, Slot, hca_facts

Change = Callable[[Node], Node]


class Page:
    """What is said of a cluster: findings that fail or warn, notes, and settings by what is to be done."""

    def __init__(self, subject: Cluster) -> None:
        verdicts = judge(subject)
        self.findings = [(v.code, finding) for v in verdicts for finding in v.findings]
        self.advice = {
            (recommendation.action, recommendation.variable): recommendation.value
            for recommendation in recommend(subject, verdicts)
        }

    def alarms(self, *codes: str) -> list[tuple[str, str]]:
        """Code and words of what fails or warns, of these codes or of all."""
        return [
            (code, finding.what)
            for code, finding in self.findings
            if finding.state in (State.FAIL, State.WARN) and (not codes or code in codes)
        ]

    def notes(self, code: str) -> list[str]:
        return [finding.what for of, finding in self.findings if of == code and finding.state is State.NOTE]

    def fixes(self) -> str:
        return "\n".join(line for _, finding in self.findings for r in finding.remedies for line in r.commands)

    def actions(self, variable: str) -> dict[str, str | None]:
        """What is to be done about a variable -> the value."""
        return {action: value for (action, name), value in self.advice.items() if name == variable}


@cache
def sound(kind: str, count: int, profile: str) -> Cluster:
    plan = next(plan for plan in [*PLANS, *MORE] if plan.kind == kind)
    return cluster(plan, count, profile)


def page(kind: str, count: int = 2, profile: str = "", *, last: Change | None = None, all_: Change | None = None,
         **env: str) -> Page:  # fmt: skip
    """A healthy cluster; changed on its last node, or on all of them, or with variables on all of them."""
    nodes = list(sound(kind, count, profile).nodes)
    if last is not None:
        nodes[-1] = last(nodes[-1])
    if all_ is not None:
        nodes = [all_(node) for node in nodes]
    if env:
        nodes = [_with(node, env) for node in nodes]
    return Page(replace(sound(kind, count, profile), nodes=nodes))


def _with(node: Node, env: dict[str, str]) -> Node:
    listed = {**variables(node), **env}
    job = replace(known(node.job), variables=[Variable(name=k, value=v) for k, v in sorted(listed.items())])
    return replace(node, job=job)


def _port(*names: str, **changes: Any) -> Change:
    def changed(port: Port) -> Port:
        return replace(port, **changes)

    def change(node: Node) -> Node:
        rdma = known(node.rdma)
        devices = [
            replace(hca, ports=[changed(port) for port in known(hca.ports)]) if hca.name in names else hca
            for hca in known(rdma.devices)
        ]
        return replace(node, rdma=replace(rdma, devices=devices))

    return change


def _xids(*codes: int, line: str = "NVRM: Xid (PCI:0000:1b:00): {code}, something") -> Change:
    def change(node: Node) -> Node:
        xids = [
            Xid(name=f"Xid {code}", code=code, pci="0000:1b:00.0", line=line.format(code=code), hours=0.5)
            for code in codes
        ]
        return replace(node, gpus=replace(known(node.gpus), xids=xids))

    return change


# F1: cards that NCCL leaves idle


def test_f1_an_accelerated_function_without_an_address_is_not_judged() -> None:
    report = page("azure-nd-h100-v5")
    assert not report.alarms()
    assert not report.actions("NCCL_IB_HCA")


def test_f1_slower_cards_of_storage_are_not_judged() -> None:
    report = page("dgx-h100", all_=_port("mlx5_1", "mlx5_7", rate_gbit=200.0))
    assert not report.alarms()
    assert "mtu 9000" not in report.fixes()


def test_f1_cards_of_storage_get_into_no_list() -> None:
    report = page("dgx-h100", 4)
    assert "set" not in report.actions("NCCL_IB_HCA")


# F2, F3, F4: pods


@pytest.mark.parametrize("kind", ["kubernetes-sriov", "gke-a4"])
def test_f2_eth0_of_a_pod_is_right_beside_secondary_networks(kind: str) -> None:
    report = page(kind)
    assert not report.alarms("NET002")
    assert "set" not in report.actions("NCCL_SOCKET_IFNAME")


def test_f3_devices_of_other_pods_are_not_judged() -> None:
    assert not page("kubernetes-sriov").alarms("RDM002", "RDM013", "RDM014")


def _add_function(node: Node) -> Node:
    """A virtual function of mlx5_0 on one node, as a hypervisor makes it for a guest."""
    rdma, fabric = known(node.rdma), known(node.fabric)
    own = known(rdma.devices)[0]
    parent = next(device for device in known(fabric.pci) if device.name == own.pci)
    slot = Slot(parent.name[:-1] + "2", str(parent.root), tuple(known(parent.path)), 0, vf=True)
    card = Card("mlx5_20", slot, model="MT4126")
    function = replace(parent, name=slot.pci, virtual_function=True)
    device = replace(hca_facts(card, 0, 20), ports=own.ports)
    return replace(
        node, rdma=replace(rdma, hcas=[*known(rdma.hcas), "mlx5_20"], devices=[*known(rdma.devices), device],
                           device_files=[*known(rdma.device_files), "uverbs20"]),
        fabric=replace(fabric, pci=[*known(fabric.pci), function]),
    )  # fmt: skip


def test_f4_a_virtual_function_is_no_second_port() -> None:
    assert not page("dgx-h100", 2, "superpod", last=_add_function).alarms()
    assert not page("dgx-h100", 2, last=_add_function).alarms("FAB004", "RDM018", "FAB013")


# F5, F6: names and subnets


def test_f5_a_name_on_the_management_network_is_right() -> None:
    assert not page("dgx-h100", 4).alarms("NET005")


def test_f5_the_line_for_etc_hosts_is_no_rails() -> None:
    def local(node: Node) -> Node:
        host = known(node.host)
        return replace(node, host=replace(host, own_name=Resolution(name=node.name, addresses=["127.0.1.1"])))

    report = page("dgx-h100", 2, last=local)
    assert [code for code, _ in report.alarms()] == ["NET005"]
    assert "10.41.8." in report.fixes()
    assert "100.126." not in report.fixes()


def test_f6_one_note_a_subnet() -> None:
    report = page("oci-bm-gpu-h100")
    assert not report.alarms("NET011")
    assert len(report.notes("NET011")) <= 2


# F7 to F14: settings that somebody needs


@pytest.mark.parametrize(
    ("kind", "env", "variable"),
    [
        pytest.param("dgx-h100", {"NCCL_GRAPH_REGISTER": "0",
                     "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, "NCCL_GRAPH_REGISTER",
                     id="F7 Megatron asserts it"),
        pytest.param("dgx-h100", {"NCCL_ALGO": "^NVLS"}, "NCCL_ALGO", id="F8 an exclusion is no pin"),
        pytest.param("aws-p5", {"FI_EFA_USE_HUGE_PAGE": "0"}, "FI_EFA_USE_HUGE_PAGE", id="F9 forks of loaders"),
        pytest.param("aws-p5", {"NCCL_BUFFSIZE": "8388608", "NCCL_P2P_NET_CHUNKSIZE": "524288"}, "NCCL_BUFFSIZE",
                     id="F10 AWS's sizes with a plugin of before 1.16"),
        pytest.param("azure-nd-h100-v5", {"NCCL_MIN_NCHANNELS": "32"}, "NCCL_MIN_NCHANNELS",
                     id="F11 Azure's channels"),
        pytest.param("gcp-a3-mega", {"NCCL_SHIMNET_GUEST_CONFIG_CHECKER_CONFIG_FILE": "/a"},
                     "NCCL_SHIMNET_GUEST_CONFIG_CHECKER_CONFIG_FILE", id="F14 Google's shim"),
        pytest.param("gcp-a3-mega", {"NCCL_PROTO": "Simple,LL128", "NCCL_FASTRAK_NUM_FLOWS": "2"}, "NCCL_PROTO",
                     id="F14 Google's LL128 profile"),
        pytest.param("azure-nd-h100-v5", {"NCCL_PXN_DISABLE": "1"}, "NCCL_PXN_DISABLE", id="F16 R16 Azure's PXN"),
    ],
)  # fmt: skip
def test_what_somebody_needs_is_left_alone(kind: str, env: dict[str, str], variable: str) -> None:
    report = page(kind, all_=lambda node: _with(node, env))
    assert not report.alarms(), report.alarms()
    assert not report.actions(variable)


@pytest.mark.parametrize(
    ("kind", "env", "variable"),
    [
        pytest.param("dgx-h100", {"NCCL_ALGO": "Ring"}, "NCCL_ALGO", id="F8 determinism may want Ring"),
        pytest.param("dgx-h100", {"NCCL_IB_QPS_PER_CONNECTION": "4"}, "NCCL_IB_QPS_PER_CONNECTION",
                     id="F11 queue pairs are about speed"),
        pytest.param("dgx-h100", {"NCCL_MIN_NCHANNELS": "32"}, "NCCL_MIN_NCHANNELS", id="F11 so are channels"),
    ],
)  # fmt: skip
def test_what_is_about_speed_is_for_measuring(kind: str, env: dict[str, str], variable: str) -> None:
    report = page(kind, all_=lambda node: _with(node, env))
    assert set(report.actions(variable)) <= {"try"}
    assert not report.alarms(), report.alarms()


def test_f9_huge_pages_asked_for_say_nothing() -> None:
    assert set(page("aws-p5", FI_EFA_USE_HUGE_PAGE="1").actions("FI_EFA_USE_HUGE_PAGE")) == {"unset"}


@pytest.mark.parametrize("level", ["SYS", "PHB", "PIX", "3"])
def test_f12_a_level_of_gpudirect_stays(level: str) -> None:
    report = page("l40s-roce", NCCL_NET_GDR_LEVEL=level)
    assert "unset" not in report.actions("NCCL_NET_GDR_LEVEL")
    assert not report.alarms("NCC032") or level == "SYS"


@pytest.mark.parametrize(
    ("version", "noted"), [("2.26.5", False), ("2.27.3", True), ("2.29.2", False), ("2.30.3", False)]
)
def test_f13_the_fall_back_of_nvls_was_in_two_versions(version: str, noted: bool) -> None:
    def nccl(node: Node) -> Node:
        library = replace(known(known(node.nccl).loaded), version=version)
        return replace(node, nccl=replace(known(node.nccl), loaded=library, wanted=version, wheels=[]))

    report = page("dgx-h100", all_=nccl, NCCL_NVLS_ENABLE="1")
    assert not report.alarms("NCC033")
    assert bool(report.actions("NCCL_NVLS_ENABLE")) == noted
    assert bool(report.notes("NCC033")) == noted


def test_f14_a_name_of_google_is_no_typing_error() -> None:
    report = page("gcp-a3-mega", 2, "tcpxo", NCCL_DYNAMIC_CHUNK_SIZE="524288")
    assert not report.alarms("NCC003")
    assert "NCCL_CHUNK_SIZE" not in " ".join(finding.what for _, finding in report.findings)


# F15: Xids


@pytest.mark.parametrize("code", [109, 136, 143, 154, 155, 156, 157, 158, 167, 32, 69, 8, 120, 999])
def test_f15_no_xid_passes_unsaid(code: int) -> None:
    findings = [
        finding for of, finding in page("dgx-h100", last=_xids(code)).findings if of in ("GPU005", "GPU006")
    ]
    assert any(str(code) in finding.what and finding.state.rank <= State.NOTE.rank for finding in findings)


def test_f15_nor_does_one_of_an_nvswitch() -> None:
    line = "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error"
    change = _xids(12028, line=line)

    def switch(node: Node) -> Node:
        changed = change(node)
        xids = known(known(changed.gpus).xids)
        named = [replace(xid, name="SXid 12028", pci="0000:05:00.0") for xid in xids]
        return replace(changed, gpus=replace(known(changed.gpus), xids=named))

    findings = [finding for of, finding in page("dgx-h100", last=switch).findings if "12028" in finding.what]
    assert findings
    assert all(finding.state.rank <= State.NOTE.rank for finding in findings)


# F16


def _held_by_nobody(node: Node) -> Node:
    gpus = known(node.gpus)
    cards = [replace(card, memory_used=60 * 2**30, processes=[], utilization=90) for card in known(gpus.cards)]
    return replace(node, gpus=replace(gpus, cards=cards))


def test_f16_a_pod_beside_its_own_job_is_not_reset() -> None:
    report = page("kubernetes-sriov", all_=_held_by_nobody)
    assert not report.alarms("GPU027")
    assert "gpu-reset" not in report.fixes()


def test_f16_mig_has_no_peer_access() -> None:
    assert not page("mig-instance", 1, "slurm").alarms("GPU018", "GPU021")


@pytest.mark.parametrize("kind", ["l40s-roce", "gb200-nvl72", "a100-pcie"])
def test_f16_acs_matters_below_switches(kind: str) -> None:
    """ACS on root ports with no switch below: nothing is said, nor is setpci printed."""

    def redirect(node: Node) -> Node:
        fabric = known(node.fabric)
        roots = [
            replace(device, acs=["ReqRedir", "CmpltRedir"])
            if device.kind == "bridge" and not known(device.path)
            else device
            for device in known(fabric.pci)
        ]
        return replace(node, fabric=replace(fabric, pci=roots))

    report = page(kind, all_=redirect)
    assert not report.alarms("FAB001")


def test_f16_a_desktop_loses_nothing_to_its_iommu() -> None:
    assert not page("desktop-2-gpu", 1).alarms("FAB002")


def test_f16_a_network_of_the_bmc_is_no_card() -> None:
    def usb(node: Node) -> Node:
        network = known(node.network)
        more = nic("enxbe3af2b6059f", "169.254.3.1/24", driver="rndis_host")
        return replace(node, network=replace(network, interfaces=[*known(network.interfaces), more]))

    assert not page("dgx-h100", 3, last=usb).alarms()


def test_f16_roce_without_any_class_is_said() -> None:
    def without(node: Node) -> Node:
        absent = Unread("absent", "the file is empty")
        return _port(*(f"mlx5_{k}" for k in range(8)), traffic_class=absent)(node)

    report = page("h200-roce", all_=without)
    assert not report.alarms("RDM016")
    assert report.notes("RDM016")
    assert set(report.actions("NCCL_IB_TC")) == {"try"}


def test_f16_info_becomes_warnings() -> None:
    assert page("dgx-h100", NCCL_DEBUG="INFO").actions("NCCL_DEBUG") == {"set": "WARN"}


def test_f16_nemos_timeout_is_no_warning() -> None:
    report = page("dgx-h100", NCCL_IB_TIMEOUT="19")
    assert not report.alarms()
    assert not report.actions("NCCL_IB_TIMEOUT")


def test_f16_a_profile_of_a_vendor_is_not_taken_away() -> None:
    for kind, profile in (("gcp-a3-mega", "tcpxo"), ("azure-nd-h100-v5", "azure-megatron")):
        report = page(kind, 2, profile)
        assert not report.alarms()
        assert not [name for action, name in report.advice if action == "unset"]


def test_f16_efa_is_no_lack_of_hcas() -> None:
    report = page("aws-p5")
    assert not report.alarms()


def _without_conf(node: Node) -> Node:
    return replace(node, nccl=replace(known(node.nccl), conf_files=[], named_files=[]))


def test_f16_a_node_without_the_file_is_given_the_others() -> None:
    """P11, of H200 too; and where some nodes have it, it is theirs that is named."""
    report = page("azure-nd-h100-v5", 2, last=_without_conf)
    assert {code for code, _ in report.alarms()} == {"FAB009", "NCC005"}
    assert "export NCCL_TOPO_FILE=/opt/microsoft/ndv5/topo.xml" in report.fixes()


def test_f16_two_cards_of_two_networks_are_not_joined() -> None:
    """R10: the other port of the card is a slower one without an address."""
    report = page("oci-bm-gpu-h100", NCCL_IB_HCA="=mlx5_2")
    assert "try" not in report.actions("NCCL_IB_HCA")


# What the second exam found: a consequence, a card of nobody, a device of another job


def _link_down(name: str, netdev: str) -> Change:
    down = _port(name, state="DOWN", physical="Polling")

    def change(node: Node) -> Node:
        return _interface(down(node), netdev, running=False)

    return change


def _interface(node: Node, name: str, **changes: Any) -> Node:
    network = known(node.network)
    listed = [
        replace(interface, **changes) if interface.name == name else interface
        for interface in known(network.interfaces)
    ]
    return replace(node, network=replace(network, interfaces=listed))


def test_fewer_links_follow_from_a_port_that_is_down() -> None:
    report = page("dgx-h100", 2, last=_link_down("mlx5_4", "ibp79s0"))
    assert [code for code, _ in report.alarms()] == ["RDM005"]


def test_a_port_of_storage_that_is_down_fails_no_job() -> None:
    report = page("dgx-h100", 2, last=_link_down("mlx5_7", "ibp170s0f0"))
    assert [code for code, _ in report.alarms()] == ["RDM005"]
    assert not [finding for _, finding in report.findings if finding.state is State.FAIL]


def test_an_address_of_ipv6_that_another_machine_has() -> None:
    def twice(node: Node) -> Node:
        listed = next(
            interface for interface in known(known(node.network).interfaces) if interface.name == "gpu2_eth"
        ).addresses
        refused = [
            replace(address, state="" if address.address.startswith("fe80") else "duplicate")
            for address in known(listed)
        ]
        return _interface(node, "gpu2_eth", addresses=refused)

    report = page("ipv6-rails", 2, last=twice)
    assert [code for code, _ in report.alarms()] == ["RDM013"]
    assert "ip addr add fc00:200:2::a288:c/64 dev gpu2_eth" in report.fixes()


def test_two_trays_in_two_cliques_are_a_note() -> None:
    def other(node: Node) -> Node:
        gpus = known(node.gpus)
        cards = [replace(card, fabric=replace(known(card.fabric), clique=7)) for card in known(gpus.cards)]
        return replace(node, gpus=replace(gpus, cards=cards))

    report = page("gb200-nvl72", 2, last=other)
    assert not report.alarms()
    assert any("clique" in note for note in report.notes("GPU031"))


def test_a_rail_of_tcpx_with_another_mtu() -> None:
    report = page("gcp-a3-high", 2, "tcpx", last=lambda node: _interface(node, "enp12s0", mtu=1460))
    assert [code for code, _ in report.alarms()] == ["NET004"]


def test_a_topology_file_that_one_node_lacks_is_not_unset_on_all() -> None:
    def unreadable(node: Node) -> Node:
        nccl = known(node.nccl)
        files = [replace(file, fits=False) for file in known(nccl.named_files)]
        return replace(node, nccl=replace(nccl, named_files=files))

    assert "unset" not in page("vm-passthrough", 2, "provider", last=unreadable).actions("NCCL_TOPO_FILE")
    assert "unset" in page("vm-passthrough", 2, "provider", all_=unreadable).actions("NCCL_TOPO_FILE")


def test_an_address_twice_on_a_rail_says_nothing_of_sockets() -> None:
    first = next(
        interface
        for interface in known(known(sound("h200-roce", 2, "site").nodes[0].network).interfaces)
        if interface.name == "ens2np0"
    )
    report = page("h200-roce", 2, "site", last=lambda node: _interface(node, "ens2np0", addresses=first.addresses))
    assert report.alarms("NET010")
    assert "set" not in report.actions("NCCL_SOCKET_IFNAME")


def test_process_of_another_is_still_said() -> None:
    """The other side: what is wrong is said beside all this."""

    def occupied(node: Node) -> Node:
        gpus = known(node.gpus)
        cards = list(known(gpus.cards))
        process = GpuProcess(name="python3", pid=4242, memory=60 * 2**30, user="alice", state="S")
        cards[2] = replace(cards[2], memory_used=60 * 2**30, processes=[process])
        return replace(node, gpus=replace(gpus, cards=cards))

    assert {code for code, _ in page("dgx-h100", last=occupied).alarms()} == {"GPU025"}


# What the third look found


def test_a_range_beside_the_index_that_it_leads_to_is_a_note() -> None:
    report = page("address-range", 2, "site")
    assert not report.alarms()
    assert any("NCCL_IB_ADDR_RANGE" in note for note in report.notes("NCC023"))


def test_a_range_beside_an_index_that_leads_elsewhere_is_a_warning() -> None:
    report = page("address-range", 2, NCCL_IB_ADDR_RANGE="10.1.0.0/16", NCCL_IB_GID_INDEX="1")
    assert "NCC023" in {code for code, _ in report.alarms()}


def test_before_2_21_the_index_stays_and_the_range_goes() -> None:
    def old(node: Node) -> Node:
        nccl = known(node.nccl)
        return replace(node, nccl=replace(nccl, loaded=replace(known(nccl.loaded), version="2.20.5")))

    report = page("address-range", 2, "site", all_=old)
    assert "unset NCCL_IB_ADDR_RANGE" in report.fixes()
    assert "unset NCCL_IB_GID_INDEX" not in report.fixes()


def test_variables_of_googles_fast_socket_are_its_own() -> None:
    assert not page("gcp-a2-mega", 2, "fast-socket").notes("NCC003")


# F10 with newer plugins, S9, R1, VER012, P11, a wording

_SIZES = {"NCCL_BUFFSIZE": "8388608", "NCCL_P2P_NET_CHUNKSIZE": "524288"}


@pytest.mark.parametrize("kind", ["aws-p6-b200", "aws-p5en", "aws-p6e-gb200"])
def test_f10_a_plugin_from_1_16_on_sets_the_sizes_itself(kind: str) -> None:
    report = page(kind, all_=lambda node: _with(node, _SIZES))
    assert not report.alarms(), report.alarms()
    assert {name: report.actions(name) for name in _SIZES} == {name: {"unset": None} for name in _SIZES}


@pytest.mark.parametrize("kind", ["aws-p5", "aws-p4d", "aws-g6e-48xlarge", "kestrel-h100"])
def test_f10_an_older_one_does_not_nor_one_without_a_table(kind: str) -> None:
    report = page(kind, all_=lambda node: _with(node, _SIZES))
    assert not report.alarms(), report.alarms()
    assert not [name for name in _SIZES if "unset" in report.actions(name)]


def test_f10_other_sizes_than_the_plugins_are_somebodys_choice() -> None:
    report = page("aws-p5en", NCCL_BUFFSIZE="16777216")
    assert "unset" not in report.actions("NCCL_BUFFSIZE")


def _renumbered(node: Node) -> Node:
    """The same functions under names that the hypervisor gave in another order."""
    rdma = known(node.rdma)
    devices = [replace(hca, name=f"mlx5_{8 + place}") for place, hca in enumerate(known(rdma.devices))]
    return replace(node, rdma=replace(rdma, devices=devices, hcas=[hca.name for hca in devices]))


def test_f16_s9_names_of_functions_in_a_guest() -> None:
    """A guest shows no physical function: the model says what it is."""
    names = "=" + ",".join(f"mlx5_{k}" for k in range(8))
    report = page("gcp-a3-ultra", last=_renumbered, NCCL_IB_HCA=names)
    assert report.actions("NCCL_IB_HCA").get("unset", "kept") is None


def test_f16_r1_an_index_that_nccl_would_take_anyway_is_a_note() -> None:
    report = page("h200-nvl4", 2, "site")
    assert not report.alarms()
    assert report.actions("NCCL_IB_GID_INDEX") == {"unset": None}
    assert all("NCCL would choose by itself" in note for note in report.notes("RDM014"))


def test_f16_ver012_a_function_of_one_host_is_no_other_card() -> None:
    assert not page("dgx-h100", 3, last=_add_function).alarms("VER012")


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("azure-nd-h100-v5", "/opt/microsoft/ndv5/topo.xml"),
        ("azure-nd-h200-v5", "/opt/microsoft/ndv5/topo.xml"),
    ],
)
def test_f16_p11_where_no_node_has_the_file(kind: str, path: str) -> None:
    report = page(kind, 2, all_=_without_conf)
    assert {code for code, _ in report.alarms()} == {"FAB009"}
    assert report.actions("NCCL_TOPO_FILE") == {"try": path}


def test_f16_the_summary_of_a_p5_names_its_efa() -> None:
    whole = sound("aws-p5", 2, "")
    story = finish.Story(started="2026-01-01T00:00:00+00:00", seconds=1.0)
    lines = summary.facts(finish.make(whole, Options(command="env", only=("RDM010",)), story), 100)
    assert "32 EFA by the plugin" in lines
    assert "every ACTIVE port" not in lines
