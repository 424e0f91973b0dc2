"""FAB010 to FAB013: settings of the kernel that slow a job down, and their agreement between nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from ncclcheck.probes.facts import Cluster, Governor, Node, PciDevice, Unread, at, known, value_or
from ncclcheck.reports.judgement.derived import derived_from
from ncclcheck.reports.judgement.findings import Finding, State, Where, admin, fine, note, seen, warn
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.nccl import wiring
from ncclcheck.reports.subjects.nodes.agree.agreement import disagreements, group
from ncclcheck.reports.subjects.nodes.fixes import boot
from ncclcheck.reports.text.words.fold import size

_BY_HARDWARE = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")


@rule(
    "FAB010",
    "the frequency governor lets the cores run at full clock",
    worst=State.WARN,
    needs=("fabric.governor",),
)
def governor(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The frequency governor lets the cores run at full clock.

    ## Why it matters
    NCCL's proxy threads, the data loaders and every kernel launch depend on single cores. At the lowest clock
    small collectives take twice their time, and one such node slows all others down.

    ## Seen as
    slow

    ## How we know
    scaling_governor, scaling_driver and energy_performance_preference in /sys/devices/system/cpu/cpufreq.
    `powersave` holds the lowest clock with acpi-cpufreq and the like. With intel_pstate and amd-pstate-epp the
    hardware chooses, and `powersave` is their ordinary mode; there the preference `power` is the slow one.

    ## Fix
    - **admin** `cpupower frequency-set -g performance`, or a tuned profile:
      `tuned-adm profile throughput-performance`.
    - **you** nothing; name the node to its administrator.

    ## Source
    NVIDIA Grace CPU Benchmarking Guide, Platform Configuration; the kernel's pages cpufreq and intel_pstate;
    cpupower-frequency-set(1).
    """
    for node in wiring.with_gpus(cluster):
        policy: Governor = known(at(node, "fabric.governor"))
        driver, preference = value_or(policy.driver, ""), value_or(policy.preference, "")
        text = f"{', '.join(policy.names)} by {driver or 'an unknown driver'}"
        slow = "powersave" in policy.names and driver not in _BY_HARDWARE
        if slow or (driver in _BY_HARDWARE and preference == "power"):
            yield _held_down(node, text if slow else f"{text}, preference power")
        else:
            yield fine(Where(node=node.name), text)


def _held_down(node: Node, text: str) -> Finding:
    return warn(
        Where(node=node.name),
        f"its cores are capped at a low clock: {text}",
        why="Threads of NCCL and the data loaders run slowly there, and all ranks wait for them.",
        owner="node",
        evidence=[seen("/sys/devices/system/cpu/cpufreq", text)],
        fix=[admin("Let the cores run at full clock.", "cpupower frequency-set -g performance")],
    )


@rule("FAB011", "automatic NUMA balancing is off", worst=State.NOTE,
      needs=("fabric.numa_balancing", "fabric.numa"))  # fmt: skip
def numa_balancing(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Automatic NUMA balancing is off on nodes with GPUs and several NUMA nodes.

    ## Why it matters
    The kernel takes pages away from the process now and then, to see by the faults who uses them, and moves them.
    For a training job, whose memory is pinned or bound anyway, these are only stalls, at another time on each
    rank. NVIDIA's and AMD's guides for GPU servers turn it off.

    ## Seen as
    slow

    ## How we know
    /proc/sys/kernel/numa_balancing. It is a note, for it is most distributions' default and costs some percent at
    most.

    ## Fix
    - **admin** `sysctl -w kernel.numa_balancing=0`, and a line in /etc/sysctl.d.

    ## Source
    NVIDIA Grace CPU Benchmarking Guide, Platform Configuration; the kernel's page sysctl/kernel; numa(7).
    """
    nodes = [node for node in wiring.with_gpus(cluster) if len(known(at(node, "fabric.numa"))) > 1]
    if not nodes:
        raise NothingToJudge("no node with GPUs has several NUMA nodes")
    for node in nodes:
        if known(at(node, "fabric.numa_balancing")):
            yield note(
                Where(node=node.name),
                "automatic NUMA balancing is on",
                why="It stalls the ranks at random for pages that are where they should be.",
                owner="node",
                evidence=[seen("/proc/sys/kernel/numa_balancing", known(at(node, "fabric.numa_balancing")))],
                fix=[admin("Turn it off.", "sysctl -w kernel.numa_balancing=0")],
            )


def _isolates(value: str, node: Node) -> bool:
    """Whether isolcpus leaves a job less than half of its cores."""
    lists = ",".join(part for part in value.split(",") if part[:1].isdecimal())
    everything = {
        cpu for numa in value_or(at(node, "fabric.numa"), []) for cpu in wiring.cpus(value_or(numa.cpus, ""))
    }
    return bool(everything) and len(wiring.cpus(lists) & everything) * 2 > len(everything)


def _fewer(value: str, node: Node) -> bool:
    """Whether as many cores are there as nr_cpus allows: then others may be left out."""
    cores = at(node, "host.cores")
    return value.isdecimal() and not isinstance(cores, Unread) and int(value[:9]) <= cores


_TRAPS: dict[str, tuple[Callable[[str, Node], bool], str]] = {
    "numa": (lambda value, _: value == "off", "NCCL sees one NUMA node, and places nothing right"),
    "isolcpus": (_isolates, "most cores are taken from the scheduler: all threads of a rank share one core"),
    "pci": (lambda value, _: "nommconf" in value.split(","), "the extended registers of PCIe are not seen"),
    "pcie_aspm": (lambda value, _: value == "force", "links sleep between packets"),
    "pcie_aspm.policy": (lambda value, _: "power" in value, "links sleep between packets"),
    "maxcpus": (lambda *_: True, "cores are left out"),
    "nr_cpus": (_fewer, "cores are left out"),
    "mem": (lambda *_: True, "memory is left out"),
}


_OF_PROVIDER = ("maxcpus", "nr_cpus", "mem")


@rule("FAB012", "no kernel boot option harms the job", worst=State.WARN,
      needs=("fabric.command_line",))  # fmt: skip
def command_line(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Options on the kernel command line that were meant for another purpose: `numa=off`, `isolcpus` over most cores,
    `pci=nommconf`, `pcie_aspm=force` or a saving policy, `maxcpus`, `nr_cpus`, `mem`.

    ## Why it matters
    They come from a guide for databases or low latency, from a rescue boot or a driver's work-around, and stay.
    With isolcpus all threads of a rank run on the one core on which it started; with numa=off no GPU has a place;
    with the others cores, memory or registers are missing and nothing says why.

    ## Seen as
    slow

    ## How we know
    /proc/cmdline. In a virtual machine the options that leave cores or memory out are the provider's, and are not
    judged.

    ## Fix
    - **admin** take the option out: `grubby --update-kernel=ALL --remove-args=...`, on Debian and Ubuntu
      `/etc/default/grub` and `update-grub`, and reboot.
    - **you** `taskset -pc 0-95 $$` undoes isolcpus for your own processes.

    ## Source
    The kernel's page kernel-parameters; bootparam(7), taskset(1).
    """
    for node in wiring.with_gpus(cluster):
        words = [word.partition("=") for word in known(at(node, "fabric.command_line")).split()]
        for name, equals, value in words:
            test, what = _TRAPS.get(name, (None, ""))
            if name in _OF_PROVIDER and wiring.is_virtual(node):
                continue
            if test and equals and test(value, node):
                yield _trap(node, f"{name}={value}"[:80], what)


def _trap(node: Node, option: str, what: str) -> Finding:
    return warn(
        Where(node=node.name),
        f"the kernel was started with {option}: {what}",
        why="It was meant for another purpose, and holds the job back.",
        owner="node",
        evidence=[seen("/proc/cmdline", option)],
        fix=[admin("Take it out and reboot.", *boot.remove(node, option))],
    )


@rule(
    "FAB013",
    "all nodes have the same NUMA and PCIe layout and settings",
    worst=State.WARN,
    needs=("fabric.numa", "fabric.pci"),
    at_least=2,
    between_machines=True,
)
def alike(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    All nodes with GPUs have the same NUMA nodes, the same places of GPUs and HCAs in the PCIe tree, and the same
    settings of huge pages, NUMA balancing, governor and IOMMU.

    ## Why it matters
    A BIOS that was reset or updated on one node changes NUMA nodes per socket, the IOMMU or a slot. NCCL builds
    its rings by what it sees on each node; where that differs, the rings are the worst that fit all, and one node
    is slower in every job without a fault of its own.

    ## Seen as
    slow

    ## How we know
    /sys/devices/system/node, the distances between GPUs and HCAs in the PCIe tree, /proc/meminfo, cpufreq. A
    virtual function is no card of its own. The odd node by majority; a difference in NUMA nodes or places is a
    warning, one in settings a note. NUMA balancing is the kernel's default, so that where most nodes have it off
    somebody turned it off, and a node that has it on has lost that setting: a warning.

    ## Fix
    - **admin** compare the BIOS settings (NUMA nodes per socket, IOMMU, SR-IOV) and `lstopo` of both nodes.
    - **you** nothing; name the node to its administrator.

    ## Source
    NCCL user guide, Troubleshooting; AMD-AGI/Primus node-smoke compares nodes by majority; lstopo(1).
    """
    nodes = {node.name: node for node in wiring.with_gpus(cluster)}
    if len(nodes) < 2:
        raise NothingToJudge("fewer than two nodes with GPUs")
    differs = False
    for subject, source, usual, value in _COMPARED:
        by_node = {name: text for name, node in nodes.items() if (text := value(node))}
        if len(by_node) < 2 or group(by_node).agree:
            continue
        differs = True
        lost = value is _balancing and group(by_node).majority == _OFF
        level, fix = (warn, [_TURN_OFF]) if lost else (usual, [_COMPARE])
        yield from disagreements(by_node, subject, source, level=level, why=_UNLIKE, owner="node", fix=fix)
    if not differs:
        yield fine(Where(), f"{len(nodes)} nodes have the same layout and settings")


_UNLIKE = "One node that is built or set otherwise is slower in every job, without a fault of its own."
_OFF = "0"  # of /proc/sys/kernel/numa_balancing
_TURN_OFF = admin("Turn it off as on the others; undo: 1.", "sysctl -w kernel.numa_balancing=0")
_COMPARE = admin("Compare the BIOS settings and the layout with another node.", "lstopo --no-io", "numactl -H")


def _numa_nodes(node: Node) -> str:
    nodes = known(at(node, "fabric.numa"))
    return str(len(nodes))


@derived_from("fabric", "rdma")
def _places(node: Node) -> str:
    """How many HCAs there are at each distance of a GPU, and for how many GPUs."""
    names = set(wiring.hca_names(node))
    hcas = [
        function
        for function in wiring.functions(node, "nic")
        if function.name in names and not function.virtual_function
    ]
    seen_by = Counter(_distances(near, hcas) for near in wiring.between(node).values()) if hcas else Counter()
    return "; ".join(f"{count} GPUs with {ways}" for ways, count in sorted(seen_by.items()))


def _distances(near: Mapping[str, str | None], hcas: list[PciDevice]) -> str:
    ways = [near[hca.name] or "unknown" for hca in hcas]
    return ", ".join(f"{ways.count(way)} {way}" for way in sorted(set(ways)))


def _huge(node: Node) -> str:
    pages = at(node, "fabric.huge_pages")
    if isinstance(pages, Unread):
        return ""
    return f"{size(pages.total * pages.size) if pages.total else 'none'}, {value_or(pages.transparent, 'unread')}"


def _governors(node: Node) -> str:
    policy = at(node, "fabric.governor")
    return "" if isinstance(policy, Unread) else ", ".join(policy.names)


def _iommus(node: Node) -> str:
    types = {function.iommu for function in wiring.functions(node, "gpu") if isinstance(function.iommu, str)}
    return ", ".join(sorted(types))


def _balancing(node: Node) -> str:
    state = at(node, "fabric.numa_balancing")
    return "" if isinstance(state, Unread) else str(state)


_COMPARED: tuple[tuple[str, str, Callable[..., Finding], Callable[[Node], str]], ...] = (
    ("the number of NUMA nodes", "/sys/devices/system/node", warn, _numa_nodes),
    ("the layout of GPUs and HCAs", "/sys/bus/pci/devices", warn, _places),
    ("the setting of huge pages (set aside, transparent)", "/proc/meminfo", note, _huge),
    ("the governor", "scaling_governor", note, _governors),
    ("the IOMMU", "iommu_groups/*/type", note, _iommus),
    ("NUMA balancing", "/proc/sys/kernel/numa_balancing", note, _balancing),
)
