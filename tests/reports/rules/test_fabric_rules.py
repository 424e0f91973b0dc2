"""Rules about PCIe, NUMA and the kernel: raised, not raised, and unknown where a fact is unread."""

from __future__ import annotations

from typing import Any

import pytest

from ncclcheck.probes.facts import (
    Bound,
    Errors,
    Fabric,
    Governor,
    Gpu,
    GpuPeer,
    Gpus,
    HugePages,
    Node,
    NumaNode,
    NvLinks,
    PcieLink,
    Policy,
    Unread,
    known,
    replace,
)
from ncclcheck.reports.judgement.rule import all_rules
from ncclcheck.reports.subjects.nccl import wiring
from tests.helpers.clusters import ABSENT, DENIED, verdict
from tests.helpers.hcas import GPUS, NICS, fabric, gpu_node, hca, port, rdma, tree

RULES = [rule for rule in all_rules() if rule.code[:3] == "FAB"]
SWITCH, PORT = "0000:16:00.0", "0000:17:0a.0"
X8 = PcieLink(gts=32.0, width=8, most_gts=32.0, most_width=16)
GEN4 = PcieLink(gts=16.0, width=16, most_gts=16.0, most_width=16)
NARROW = PcieLink(gts=16.0, width=16, most_gts=32.0, most_width=16)
NUMA = [NumaNode(name="0", cpus="0-47", memory=2**39), NumaNode(name="1", cpus="48-95", memory=2**39)]
EMPTY = [NUMA[0], NumaNode(name="1", cpus="48-95", memory=0)]
VM: dict[str, Any] = {"hypervisor": True, "product": "QEMU Standard PC"}
MANY = Errors(correctable=4000, nonfatal=0, fatal=0)


def a(changes: dict[str, dict[str, Any]] | None = None, name: str = "a", **facts: Any) -> Node:
    """A node with four GPUs and four HCAs; changes of cards by address, facts of the fabric."""
    return gpu_node(name, rdma(*[hca(number) for number in range(4)]), fabric=fabric(tree(changes), **facts))


def flat(**facts: Any) -> Node:
    """A virtual machine with all cards on one bus."""
    return a({name: {"path": [], "numa_node": -1} for name in [*GPUS, *NICS]}, **VM, **facts)


def alone(bridge: dict[str, Any]) -> Node:
    """A desktop: one GPU behind a translating IOMMU, no HCA."""
    cards = tree({PORT: bridge, GPUS[0]: {"iommu": "DMA-FQ"}})
    others = [*GPUS[1:], *NICS]
    return gpu_node("a", rdma(), fabric=fabric([card for card in cards if card.name not in others]))


def flat_with_efa() -> Node:
    devices = [hca(number, port(link_layer="Unspecified"), driver="efa") for number in range(4)]
    return gpu_node("a", rdma(*devices), fabric=flat().fabric)


def with_env(node: Node, **env: str) -> Node:
    return gpu_node("a", node.rdma, env=env, fabric=node.fabric)


def governed(*names: str, driver: str = "acpi-cpufreq", preference: Any = ABSENT) -> Node:
    return a(governor=Governor(names=list(names), driver=driver, preference=preference))


def started(line: str, **facts: Any) -> Node:
    return a(command_line=f"ro quiet {line}", **facts)


def near_only_to_one_socket() -> Node:
    return gpu_node("a", rdma(hca(0), hca(1), hca(2, port(state="DOWN")), hca(3, port(state="DOWN"))))


def half_of_one_hca() -> Node:
    """One card in the first socket; the job was given two GPUs of the second alone."""
    cards = [Gpu(name=f"GPU {i}", index=i, pci=name) for i, name in enumerate(GPUS[2:])]
    return gpu_node("a", rdma(hca(0)), gpus=Gpus(pci=GPUS, cards=cards))


def bridged() -> Node:
    """A workstation behind a translating IOMMU: two GPUs with a bridge, no HCA."""
    pair = [replace(device, iommu="DMA-FQ") for device in tree() if device.name not in [*GPUS[2:], *NICS]]
    links = NvLinks(links=4, down=[])
    cards = [Gpu(name=f"GPU {i}", index=i, nvlinks=links, peers=[GpuPeer(name="x", p2p="ok")]) for i in (0, 1)]
    return gpu_node("a", rdma(), fabric=fabric(pair), gpus=Gpus(pci=GPUS[:2], cards=cards))


def two_ports_of_one_card() -> Node:
    """Both functions of a card in the first socket, where GPUs are in both."""
    second = NICS[0][:-1] + "1"
    cards = [device for device in tree() if device.name not in NICS[1:]]
    first = next(card for card in cards if card.name == NICS[0])
    cards.append(replace(first, name=second))
    return gpu_node("a", rdma(hca(0), hca(1, pci=second)), fabric=fabric(cards))


CASES: list[tuple[str, str, list[Node], str]] = [
    ("FAB001", "off", [a()], "ok"),
    ("FAB001", "on", [a({PORT: {"acs": ["SrcValid", "ReqRedir"]}})], "warn"),
    ("FAB001", "validation alone", [a({PORT: {"acs": ["SrcValid"]}})], "ok"),
    ("FAB001", "only root sees it", [a({PORT: {"acs": DENIED}})], "unknown"),
    ("FAB001", "a bridge without it", [a({PORT: {"acs": ABSENT}})], "ok"),
    ("FAB001", "a virtual machine", [a({PORT: {"acs": ["ReqRedir"]}}, **VM)], "skipped"),
    ("FAB001", "who knows", [a({PORT: {"acs": ["ReqRedir"]}}, hypervisor=ABSENT, product=DENIED)], "unknown"),
    ("FAB001", "one card alone", [alone({"acs": ["ReqRedir"]})], "skipped"),
    ("FAB002", "passes", [a()], "ok"),
    ("FAB002", "two GPUs joined by NVLink", [bridged()], "note"),
    ("FAB002", "translates", [a({GPUS[0]: {"iommu": "DMA-FQ"}})], "warn"),
    ("FAB002", "one card alone", [alone({})], "skipped"),
    ("FAB002", "a virtual machine", [a({GPUS[0]: {"iommu": "DMA"}}, **VM)], "skipped"),
    ("FAB002", "Arm", [a({GPUS[0]: {"iommu": "DMA"}}, iommus=["smmu3.0x1"])], "ok"),
    ("FAB002", "old kernel", [a({n: {"iommu": ABSENT} for n in [*GPUS, *NICS]}, command_line="ro")], "unknown"),
    ("FAB002", "old kernel, told", [a({n: {"iommu": ABSENT} for n in [*GPUS, *NICS]})], "ok"),
    ("FAB002", "off", [a({n: {"iommu": ABSENT} for n in [*GPUS, *NICS]}, iommus=[], command_line="")], "ok"),
    ("FAB003", "full", [a()], "ok"),
    ("FAB003", "an HCA at x8", [a({NICS[0]: {"link": X8}})], "warn"),
    ("FAB003", "a switch at x8", [a({SWITCH: {"link": X8}})], "warn"),
    ("FAB003", "a GPU that is idle", [a({GPUS[0]: {"link": NARROW}})], "ok"),
    ("FAB003", "a slot of generation 4", [a({NICS[0]: {"link": NARROW}, PORT: {"link": GEN4}})], "ok"),
    ("FAB003", "a virtual machine", [a({NICS[0]: {"link": X8}}, **VM)], "note"),
    ("FAB003", "a guest of three", [a({NICS[0]: {"link": X8}}, **VM), *[a({}, n, **VM) for n in "bc"]], "warn"),
    ("FAB003", "all guests", [a({NICS[0]: {"link": X8}}, name, **VM) for name in "abc"], "note"),
    ("FAB003", "unread", [a({n: {"link": ABSENT} for n in [*NICS, SWITCH, "0000:96:00.0"]})], "skipped"),
    ("FAB004", "carries it", [a()], "ok"),
    ("FAB004", "generation 4", [a({PORT: {"link": GEN4}})], "warn"),
    ("FAB004", "a virtual machine", [a({PORT: {"link": GEN4}}, **VM)], "skipped"),
    ("FAB005", "not counted", [a()], "skipped"),
    ("FAB005", "few", [a({GPUS[0]: {"errors": Errors(correctable=3, nonfatal=0, fatal=0)}})], "ok"),
    ("FAB005", "many", [a({GPUS[0]: {"errors": MANY}})], "warn"),
    ("FAB005", "one that counts", [a({NICS[0]: {"errors": Errors(correctable=0, nonfatal=1, fatal=0)}})], "warn"),
    ("FAB006", "near", [a()], "ok"),
    ("FAB006", "one socket has none", [near_only_to_one_socket()], "warn"),
    ("FAB006", "one HCA for two sockets, half the GPUs given", [half_of_one_hca()], "note"),
    ("FAB006", "one HCA for two sockets", [gpu_node("a", rdma(hca(0)))], "note"),
    ("FAB006", "one card of two ports for two sockets", [two_ports_of_one_card()], "note"),
    ("FAB007", "all cores", [a()], "ok"),
    ("FAB007", "the other socket", [a(bound=Bound(cpus="0-47", mems="0-1"))], "warn"),
    ("FAB007", "the other memory", [a(bound=Bound(cpus="0-95", mems="0"))], "warn"),
    ("FAB007", "no place", [a({name: {"numa_node": -1} for name in GPUS})], "skipped"),
    ("FAB007", "unread", [a(bound=DENIED)], "unknown"),
    ("FAB008", "memory", [a()], "ok"),
    ("FAB008", "none", [a(numa=EMPTY)], "note"),
    ("FAB009", "bare metal", [a()], "skipped"),
    ("FAB009", "flat", [flat()], "warn"),
    ("FAB009", "a file", [flat(topology_file=True)], "ok"),
    ("FAB009", "the EFA plugin brings it", [flat_with_efa()], "ok"),
    ("FAB009", "a variable", [with_env(flat(), NCCL_TOPO_FILE="/opt/microsoft/ndv5/topo.xml")], "ok"),
    ("FAB009", "placed", [a(**VM)], "ok"),
    ("FAB010", "performance", [a()], "ok"),
    ("FAB010", "powersave", [governed("powersave")], "warn"),
    ("FAB010", "powersave of intel_pstate", [governed("powersave", driver="intel_pstate")], "ok"),
    ("FAB010", "which prefers power", [governed("powersave", driver="intel_pstate", preference="power")], "warn"),
    ("FAB010", "no governor", [a(governor=ABSENT)], "skipped"),
    ("FAB010", "unread", [a(governor=DENIED)], "unknown"),
    ("FAB011", "off", [a()], "ok"),
    ("FAB011", "on", [a(numa_balancing=1)], "note"),
    ("FAB011", "one NUMA node", [a(numa_balancing=1, numa=NUMA[:1])], "skipped"),
    ("FAB011", "unread", [a(numa_balancing=DENIED)], "unknown"),
    ("FAB012", "nothing", [a()], "ok"),
    ("FAB012", "numa=off", [started("numa=off")], "warn"),
    ("FAB012", "isolcpus over most", [started("isolcpus=managed_irq,domain,2-95")], "warn"),
    ("FAB012", "isolcpus over few", [started("isolcpus=0-7")], "ok"),
    ("FAB012", "nommconf", [started("pci=realloc,nommconf")], "warn"),
    ("FAB012", "nr_cpus", [started("nr_cpus=96")], "warn"),
    ("FAB012", "room for more", [started("nr_cpus=8192")], "ok"),
    ("FAB012", "nr_cpus of a provider", [started("nr_cpus=96", **VM)], "ok"),
    ("FAB012", "unread", [a(command_line=DENIED)], "unknown"),
    ("FAB013", "alike", [a(), a(name="b")], "ok"),
    ("FAB013", "other NUMA nodes", [a(), a(name="b"), a(name="c", numa=NUMA[:1])], "warn"),
    ("FAB013", "another slot", [a(), a(name="b"), a({NICS[0]: {"path": [], "root": "x"}}, name="c")], "warn"),
    ("FAB013", "huge pages", [a(), a(name="b", huge_pages=HugePages(total=512, free=512, size=2**30))], "note"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("code", "nodes", "state"), [(c[0], *c[2:]) for c in CASES], ids=[f"{c[0]} {c[1]}" for c in CASES]
)
def test_state(code: str, nodes: list[Node], state: str) -> None:
    judgement = verdict(code, *nodes)
    assert judgement.state.value == state, [finding.what for finding in judgement.findings]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_an_unread_probe_is_unknown(rule: Any) -> None:
    late = Unread("timed_out", "probe fabric gave no answer")
    nodes = [gpu_node(name, rdma(hca(0)), fabric=late) for name in "ab"]
    assert verdict(rule.code, *nodes).state.value == "unknown"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_nodes_without_gpus_are_not_judged(rule: Any) -> None:
    none = Gpus(pci=ABSENT, devices=ABSENT, usable=ABSENT)
    nodes = [gpu_node(name, rdma(hca(0)), gpus=none, fabric=fabric(command_line="numa=off")) for name in "ab"]
    assert verdict(rule.code, *nodes).state.value == "skipped"


@pytest.mark.parametrize(
    ("version", "env", "state"),
    [("2.23.4", {}, "note"), ("2.26.2", {}, "warn"), ("2.26.5", {}, "note"),
     ("2.26.2", {"NCCL_CUMEM_HOST_ENABLE": "0"}, "note")],
)  # fmt: skip
def test_a_node_without_memory_matters_to_some_versions(version: str, env: dict[str, str], state: str) -> None:
    node = gpu_node("a", rdma(hca(0)), version=version, env=env, fabric=fabric(numa=EMPTY))
    assert verdict("FAB008", node).state.value == state


def test_only_the_gpus_of_the_job_count() -> None:
    gpus = Gpus(pci=GPUS, devices=["nvidia0"], usable=1, cards=[Gpu(name="GPU0", index=0, pci="00000000:18:00.0")])
    bound = fabric(bound=Bound(cpus="0-47", mems="0"))
    assert verdict("FAB007", gpu_node("a", rdma(hca(0)), gpus=gpus, fabric=bound)).state.value == "ok"


def test_thresholds_of_the_site() -> None:
    node = a({GPUS[0]: {"errors": MANY}})
    assert verdict("FAB005", node, policy=Policy(thresholds={"FAB005.correctable": 9999.0})).state.value == "ok"


def test_the_hca_is_called_by_its_name() -> None:
    finding = verdict("FAB003", a({NICS[0]: {"link": X8}})).findings[0]
    assert (finding.where.device, finding.what) == (
        "mlx5_0",
        "its PCIe link runs at 32 GT/s x8, both ends can 32 GT/s x16",
    )


@pytest.mark.parametrize(
    ("flag", "product", "virtual"),
    [
        (True, "", True),
        (False, "QEMU", False),
        (ABSENT, "NVIDIA GB200 NVL", False),
        (ABSENT, "Amazon EC2 c7g.metal", False),
        (ABSENT, "Amazon EC2 p5.48xlarge", True),
        (ABSENT, "Microsoft Corporation Virtual Machine", True),
        (ABSENT, DENIED, None),
    ],
)
def test_what_is_a_virtual_machine(flag: Any, product: Any, virtual: bool | None) -> None:
    node = gpu_node("a", rdma(hca(0)), fabric=Fabric(hypervisor=flag, product=product))
    assert wiring.is_virtual(node) is virtual


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0-2,8", {0, 1, 2, 8}), ("", set()), ("x,1-", {1}), ("5-3", set()), ("1-99999999999999999999", set())],
)
def test_lists_of_cpus(text: str, cpus: set[int]) -> None:
    assert wiring.cpus(text) == cpus


@pytest.mark.parametrize(
    ("product", "command"),
    [
        ("Microsoft Corporation Virtual Machine", "export NCCL_TOPO_FILE=/opt/microsoft/ndv5/topo.xml"),
        ("Alibaba Cloud Alibaba Cloud ECS", "ncclcheck bench --with NCCL_NET_GDR_LEVEL=SYS"),
    ],
)
def test_the_file_of_another_provider_is_not_named(product: str, command: str) -> None:
    guest = flat()
    guest = replace(guest, fabric=replace(known(guest.fabric), product=product))
    findings = verdict("FAB009", guest).findings
    assert [line for finding in findings for remedy in finding.remedies for line in remedy.commands] == [command]
