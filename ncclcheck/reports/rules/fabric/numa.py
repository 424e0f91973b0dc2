"""FAB006 to FAB009: GPUs, HCAs, cores and memory are near each other."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from ncclcheck.probes.facts import Bound, Cluster, Node, NumaNode, PciDevice, Unread, at, known, value_or
from ncclcheck.reports.judgement.findings import (
    Evidence,
    Finding,
    Remedy,
    State,
    Where,
    admin,
    fine,
    note,
    seen,
    warn,
    you,
)
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.nccl import carrying, profiles, wiring
from ncclcheck.reports.subjects.nccl.variables import ValueInForce, effective, nccl_version, values
from ncclcheck.reports.text.words.fold import fold_names

# GPUs on one package with their processor: no PCIe switch is hidden, and Azure has no file for them
# (Azure/azurehpc-health-checks#165).
_ON_PACKAGE = ("NVIDIA GB200", "NVIDIA GB300", "GB200", "GB300")
_FILE = "NCCL_TOPO_FILE"
CPUS_ALLOWED = "/proc/self/status, Cpus_allowed_list"
_MEMS_ALLOWED = "/proc/self/status, Mems_allowed_list"
_CUMEM_HOST = ((2, 24, 0), (2, 26, 5))


@rule("FAB006", "every GPU has a nearby HCA", worst=State.WARN, needs=("fabric.pci", "rdma.devices"))
def near(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    For each GPU the nearest HCA that NCCL would use: below the same PCIe switch (PIX, PXB), at the same host
    bridge (PHB), in the same NUMA node (NODE), or across the processors (SYS).

    ## Why it matters
    Across the processors GPUDirect RDMA is off and the link between the sockets is shared: such a GPU gets a part
    of the bandwidth of the others. Usually the HCA beside it is down, or left out by NCCL_IB_HCA.

    ## Seen as
    slow

    ## How we know
    The common part of both paths in the PCIe tree of sysfs, else their NUMA nodes. A warning for SYS where the
    node uses as many cards as it has NUMA nodes with GPUs; with fewer it was built so, and that is a note: two
    ports of one card are in one slot. Not in virtual machines, whose tree is made up.

    ## Fix
    - **you** take that HCA in again: `NCCL_IB_HCA`, RDM009.
    - **admin** bring its port up (RDM005), or move a card to the other socket's slots; `nvidia-smi topo -m`.

    ## Source
    NVIDIA/nccl#820; NCCL user guide, NCCL_NET_GDR_LEVEL; nvidia-smi(1), topo.
    """
    judged = False
    for node, taken in carrying.using(cluster):
        if wiring.is_virtual(node) is not False:
            continue
        used = {port.hca.pci for port in taken.used}
        hcas = [function for function in wiring.functions(node) if function.name in used]
        given = {value_or(card.pci, "").lower()[-12:] for card in value_or(at(node, "gpus.cards"), [])} - {""}
        gpus = [gpu for gpu in wiring.functions(node, "gpu") if not given or gpu.name[-12:] in given]
        near = wiring.between(node)
        ways = {gpu.name: wiring.nearest([near[gpu.name][hca.name] for hca in hcas]) for gpu in gpus}
        far = [name for name, way in ways.items() if way == "SYS"]
        judged = judged or any(ways.values())
        if far:
            yield _far(node, far, hcas, gpus)
        elif any(ways.values()):
            yield fine(Where(node=node.name), f"{len(gpus)} GPUs, nearest HCAs at {_ways(ways)}")
    if not judged:
        raise NothingToJudge("no bare-metal node whose GPUs and HCAs are placed")


def _ways(ways: dict[str, str | None]) -> str:
    return ", ".join(sorted({way for way in ways.values() if way}))


def _far(node: Node, far: list[str], hcas: list[PciDevice], gpus: list[PciDevice]) -> Finding:
    where = Where(node=node.name, device=", ".join(far[:4]) + ("..." if far[4:] else ""))
    what = f"{len(far)} of {len(gpus)} GPUs have no HCA in their NUMA node"
    evidence = [seen("HCAs used", ", ".join(wiring.hca_names(node).get(hca.name, hca.name) for hca in hcas))]
    # How the node was built shows in all of its GPUs, not in those that the job was given.
    everywhere = wiring.functions(node, "gpu")
    sockets = {gpu.numa_node for gpu in everywhere if not isinstance(gpu.numa_node, Unread)}
    slots = {hca.name.rpartition(":")[0] for hca in hcas}  # functions of one card share a bus
    if len(slots) < len(sockets):
        return note(
            where, what, why="The node has too few cards for all to be near.", owner="node", evidence=evidence
        )
    return warn(
        where,
        what,
        why="Their traffic crosses the processors, without GPUDirect RDMA.",
        owner="node",
        evidence=evidence,
        fix=[
            you("Include the nearby HCA again, if it is excluded.", "nvidia-smi topo -m", "echo $NCCL_IB_HCA"),
            admin("Bring its port up.", "ibstat"),
        ],
    )


@rule(
    "FAB007",
    "the job may use the cores and memory local to its GPUs",
    worst=State.WARN,
    needs=("fabric.pci", "fabric.numa", "fabric.bound"),
)
def affinity(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    This process may run on cores, and use memory, of the NUMA node of each GPU of the job.

    ## Why it matters
    NCCL's threads and the data loaders inherit the mask of the process. Bound to the other socket they copy across
    the processors, and NCCL's proxy threads crowd on a few cores: low bandwidth with nothing wrong in any log.
    Job systems bind by order of cores, not by GPU, unless asked to.

    ## Seen as
    slow

    ## How we know
    Cpus_allowed_list and Mems_allowed_list in /proc/self/status against the cpulist of each GPU's NUMA node. Where
    NVML says which GPUs the job may use, only these count. What the job system gives to each rank of another job
    step may differ. That a job has too few cores is reported by HST006.

    ## Fix
    - **you** `srun --cpu-bind=none` or `--gpu-bind=closest --cpu-bind=...`, `numactl --cpunodebind=N`; or let
      NCCL ignore the mask: `export NCCL_IGNORE_CPU_AFFINITY=1`.
    - **admin** task/affinity with the right topology; in Kubernetes the topology manager (`single-numa-node`).

    ## Source
    NCCL user guide, NCCL_IGNORE_CPU_AFFINITY; sched_setaffinity(2), numactl(8), srun(1).
    """
    judged = False
    for node in wiring.with_gpus(cluster):
        bound: Bound = known(at(node, "fabric.bound"))
        nodes: dict[str, NumaNode] = {numa.name: numa for numa in known(at(node, "fabric.numa"))}
        placed = [gpu for gpu in _gpus_of_job(node) if str(gpu.numa_node) in nodes]
        judged = judged or bool(placed)
        allowed, memory = wiring.cpus(bound.cpus), wiring.cpus(bound.mems)
        cores = {name: wiring.cpus(value_or(node.cpus, "")) for name, node in nodes.items()}
        apart = [g for g in placed if cores[str(g.numa_node)] and not cores[str(g.numa_node)] & allowed]
        starved = [g for g in placed if g not in apart and _number(g) not in memory]
        if apart:
            what = f"no core of this process is in their NUMA node ({bound.cpus})"
            yield _apart(node, apart, what, seen(CPUS_ALLOWED, bound.cpus))
        if starved:
            what = f"this process may not use their NUMA node's memory ({bound.mems})"
            yield _apart(node, starved, what, seen(_MEMS_ALLOWED, bound.mems))
    if not judged:
        raise NothingToJudge("no GPU whose NUMA node is known")


def _number(gpu: PciDevice) -> int:
    return gpu.numa_node if isinstance(gpu.numa_node, int) else -1


def _gpus_of_job(node: Node) -> list[PciDevice]:
    """The GPUs that the job may use where NVML told, else all."""
    cards = value_or(at(node, "gpus.cards"), [])
    wanted = {card.pci.lower()[-12:] for card in cards if isinstance(card.pci, str)}
    gpus = wiring.functions(node, "gpu")
    return [gpu for gpu in gpus if gpu.name[-12:] in wanted] or gpus


def _apart(node: Node, gpus: list[PciDevice], what: str, mask: Evidence) -> Finding:
    numbers = sorted({_number(gpu) for gpu in gpus})
    return warn(
        Where(node=node.name, device=", ".join(gpu.name for gpu in gpus[:4]) + ("..." if gpus[4:] else "")),
        what,
        why="All data of these GPUs crosses the processors, and NCCL's threads run far from them.",
        owner="job",
        evidence=[mask, seen("NUMA nodes of the GPUs", ", ".join(map(str, numbers)))],
        fix=[
            you(
                "Bind each rank beside its GPU, or do not bind.",
                "srun --cpu-bind=none ...",
                f"numactl --cpunodebind={numbers[0]} --preferred={numbers[0]} ...",
                "export NCCL_IGNORE_CPU_AFFINITY=1",
            )
        ],
    )


@rule("FAB008", "the NUMA nodes of the GPUs have memory", worst=State.WARN, needs=("fabric.pci", "fabric.numa"))
def memory(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The NUMA node that a GPU belongs to has memory of its own.

    ## Why it matters
    NCCL 2.24 to 2.26.4 takes host memory there by CUDA's cuMem functions. In a node without memory (a DIMM that
    failed, a virtual machine or container that was given memory of the other socket only) that ends in `Cuda
    failure 'out of memory'` or `invalid device ordinal`, with plenty of memory free. NCCL 2.26.5 and later fall
    back by themselves.

    ## Seen as
    slow, out of memory, dies

    ## How we know
    MemTotal in /sys/devices/system/node/nodeN/meminfo. With other versions it is a note, for all memory is then
    across the processors.

    ## Fix
    - **you** `export NCCL_CUMEM_HOST_ENABLE=0` with those versions, or NCCL 2.26.5 and later.
    - **admin** find the memory that is missing: `numactl -H`, `dmidecode -t memory`.

    ## Source
    pytorch/pytorch#152302, NVIDIA/nccl#2059; NCCL user guide, NCCL_CUMEM_HOST_ENABLE; numactl(8).
    """
    judged = False
    for node in wiring.with_gpus(cluster):
        empty = {numa.name for numa in known(at(node, "fabric.numa")) if numa.memory == 0}
        placed = [gpu for gpu in wiring.functions(node, "gpu") if _number(gpu) >= 0]
        judged = judged or bool(placed)
        hit = [gpu for gpu in placed if str(gpu.numa_node) in empty]
        if hit:
            yield _without_memory(node, hit)
    if not judged:
        raise NothingToJudge("no GPU whose NUMA node is known")


def _without_memory(node: Node, gpus: list[PciDevice]) -> Finding:
    version = nccl_version(node)
    numbers = ", ".join(sorted({str(gpu.numa_node) for gpu in gpus}))
    what = f"NUMA node {numbers}, to which {len(gpus)} GPUs belong, has no memory"
    evidence = [seen(f"/sys/devices/system/node/node{numbers}/meminfo", "MemTotal 0 kB")]
    off = values(node).get("NCCL_CUMEM_HOST_ENABLE", "").strip() == "0"
    if version is None or not _CUMEM_HOST[0] <= version < _CUMEM_HOST[1] or off:
        return note(
            Where(node=node.name), what, why="All host memory is across the processors.", evidence=evidence
        )
    return warn(
        Where(node=node.name),
        what,
        why=f"NCCL {'.'.join(map(str, version))} takes memory there and fails with `out of memory`.",
        owner="job",
        evidence=evidence,
        fix=[you("Keep NCCL from it, or use NCCL 2.26.5 and later.", "export NCCL_CUMEM_HOST_ENABLE=0")],
    )


@rule("FAB009", "NCCL sees the real PCIe topology or has a topology file", worst=State.WARN, needs=("fabric.pci",))
def topology(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    In a virtual machine with several GPUs and HCAs NCCL can tell which of them are near: by the PCIe tree, or by
    the provider's topology file.

    ## Why it matters
    A guest sees its cards side by side on a flat bus, all at distance PHB or SYS. NCCL then pairs GPUs with the
    wrong HCAs and leaves GPUDirect RDMA off: less than half of the bandwidth that the same hardware gives with
    the provider's file. Containers on such machines often miss the file that the image of the machine has.

    ## Seen as
    slow

    ## How we know
    No bridge is above any GPU or HCA, or their NUMA node is -1 on a machine with several; there is neither
    /var/run/nvidia-topologyd/virtualTopology.xml nor NCCL_TOPO_FILE. With EFA devices nothing is reported: the
    plugin aws-ofi-nccl (RDM004) hands NCCL the file for its machine.

    ## Fix
    - **you** mount the provider's file into the container and name it:
      `export NCCL_TOPO_FILE=/opt/microsoft/ndv5/topo.xml` (Azure), with `-v /opt/microsoft:/opt/microsoft:ro`.
    - **admin** use the provider's image, whose /etc/nccl.conf names the file.
    - **you** where the provider has none: `ncclcheck bench --with NCCL_NET_GDR_LEVEL=SYS` measures GPUDirect RDMA
      over what looks like a long distance.

    ## Source
    NCCL user guide, NCCL_TOPO_FILE and Troubleshooting, Topology detection; Azure azhpc-images, ndv5 settings;
    aws/aws-ofi-nccl#173, aws/aws-ofi-nccl#785.
    """
    nodes = [node for node in wiring.with_gpus(cluster) if wiring.is_virtual(node)]
    pairs = [(node, wiring.functions(node, "gpu"), set(wiring.hca_names(node))) for node in nodes]
    several = [(node, gpus, hcas) for node, gpus, hcas in pairs if len(gpus) > 1 and len(hcas) > 1]
    if not several:
        raise NothingToJudge("no virtual machine with several GPUs and HCAs")
    for node, gpus, hcas in several:
        cards = [*gpus, *(function for function in wiring.functions(node, "nic") if function.name in hcas)]
        flat = all(value_or(card.path, [""]) == [] for card in cards)
        unplaced = [card for card in cards if card.numa_node == -1]
        homes = len(value_or(at(node, "fabric.numa"), []))
        named = bool(value_or(at(node, "fabric.topology_file"), False)) or _FILE in values(node)
        if wiring.efa(node) and not named:
            yield fine(Where(node=node.name), "the EFA plugin brings the topology of Amazon's machines")
            continue
        on_package = any(
            value_or(card.model, "").startswith(_ON_PACKAGE) for card in value_or(at(node, "gpus.cards"), [])
        )
        if named or on_package or not (flat or (unplaced and homes > 1)):
            yield fine(Where(node=node.name), "a topology file is named" if named else "its cards have places")
        else:
            yield _made_up(node, cards, flat, nodes)


def _made_up(node: Node, cards: list[PciDevice], flat: bool, nodes: list[Node]) -> Finding:
    how = "on one flat bus" if flat else "in no NUMA node"
    elsewhere = [(node.name, effective(node)[_FILE]) for node in nodes if _FILE in effective(node)]
    given = [seen(f"{_FILE} on {name}", f"{setting.value} ({setting.source})") for name, setting in elsewhere[:1]]
    return warn(
        Where(node=node.name),
        f"{len(cards)} GPUs and HCAs of this virtual machine are {how}, and no topology file is named",
        why="NCCL pairs GPUs with the wrong HCAs, and leaves GPUDirect RDMA off.",
        owner="job",
        evidence=[
            seen("product", value_or(at(node, "fabric.product"), "virtual machine")),
            seen("/sys/bus/pci/devices", fold_names(card.name for card in cards[:4]) + "..."),
            *given,
        ],
        fix=[_file_of(node, elsewhere[0] if elsewhere else None)],
    )


def _file_of(node: Node, elsewhere: tuple[str, ValueInForce] | None) -> Remedy:
    """The file that another node names, or that of the platform; a path of another provider would help nobody."""
    if elsewhere or profiles.is_azure([node]):
        path = elsewhere[1].value if elsewhere else "/opt/microsoft/ndv5/topo.xml"
        whose = f"that {elsewhere[0]} has" if elsewhere else "of the provider"
        return you(f"Name the file {whose}, and mount it into the container.", f"export {_FILE}={quote(path)}")
    return you(
        f"Ask the provider for the topology file of this type of machine, and name it in {_FILE}. "
        "If there is none, measure whether GPUDirect RDMA over any distance is faster.",
        "ncclcheck bench --with NCCL_NET_GDR_LEVEL=SYS",
    )
