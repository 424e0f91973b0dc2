"""A sound machine from its plan, and a cluster of them: each node with names, addresses and serials of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from ipaddress import IPv4Interface
from pathlib import Path

from ncclcheck.probes.facts import (
    Bound,
    ClockOffset,
    Cluster,
    Commit,
    ConfFile,
    ConfLine,
    Connect,
    Container,
    Counters,
    DeviceFile,
    Echoes,
    Fabric,
    FileSystemAnswer,
    Governor,
    Gpus,
    Health,
    Host,
    HugePages,
    Interface,
    Job,
    JobFacts,
    Launcher,
    Leaf,
    Library,
    Limits,
    Lock,
    Marks,
    Measurements,
    MemoryModule,
    Mount,
    NamedFile,
    Namespace,
    Nccl,
    Network,
    Node,
    NodeReach,
    NumaNode,
    Nvme,
    PathMtu,
    PeerReach,
    Place,
    PluginFile,
    PortRange,
    Pressure,
    Rdma,
    Resolution,
    Room,
    Route,
    RuntimeSign,
    Service,
    SharedMemory,
    Space,
    Stack,
    Storage,
    Swap,
    System,
    Unread,
    Variable,
    Wheel,
    known,
    replace,
)
from tests.helpers.clusters import ABSENT, LO, nic
from tests.sound.parts import Card, Model, Slot, bridges, gpu_facts, hca_facts, opened, pci_facts

GIB = 2**30
# With MLNX_OFED the module registers itself, under both names of its two clients.
OFED = ("nvidia_peermem", "/sys/kernel/mm/memory_peers/nv_mem", "/sys/kernel/mm/memory_peers/nv_mem_nc")
_PSTATE = Governor(names=["performance"], driver="intel_pstate", preference="performance")
_NAMES = Path(__file__).with_name("names.txt")


@dataclass(frozen=True)
class Plan:
    """What the nodes of one kind have in common. {n} in a text differs from node to node: 11, 12, ...

    control: the interface of the job's TCP traffic. interfaces: all that belong to no card. root: the tool was
    started by root, as in a prolog. huge_pages: of two MiB. numa: cores and GiB of each NUMA node.
    """

    kind: str
    source: str
    story: str
    product: str
    gpu: Model
    gpus: list[Slot]
    cards: list[Card]
    interfaces: list[Interface]
    control: str
    names: str = "node{n}"
    profiles: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    counts: tuple[int, ...] = (1, 2, 4)
    expected: Mapping[str, str] = field(default_factory=dict)
    cpu: str = "GenuineIntel Intel(R) Xeon(R) Platinum 8480C"
    numa: tuple[tuple[str, int], ...] = (("0-55,112-167", 1024), ("56-111,168-223", 1024))
    system: str = "Ubuntu 22.04.5 LTS"
    kernel: str = "5.15.0-1063-nvidia"
    command_line: str = "BOOT_IMAGE=/boot/vmlinuz ro iommu=pt"
    iommu: str | Unread = "identity"
    iommus: tuple[str, ...] = ("dmar0", "dmar1")
    driver: str = "570.133.20"
    cuda: str = "12.8"
    nccl: str = "2.27.3"
    torch: str = "2.8.0+cu128"
    open_driver: bool = False
    peer_modules: tuple[str, ...] = OFED
    providers: tuple[str, ...] = ("mlx5",)
    plugins: tuple[str, ...] = ()
    hypervisor: bool | Unread = False
    asset_tag: str = ""
    topology_file: bool = False
    governor: Governor | Unread = _PSTATE
    clocksource: str = "tsc"
    huge_pages: int = 0
    page: int = 2 * 2**20
    root: bool = False
    pod: bool = False
    launcher: Launcher = "slurm"
    mounts: tuple[str, str] = ("lustre", "10.0.0.5@o2ib:/scratch")
    usable_gpus: int | None = None
    gateway: str = ""
    imex: tuple[str, ...] = ()
    conf: Mapping[str, str] = field(default_factory=dict)  # of /etc/nccl.conf
    product_of_plugin: str = ""
    symbols_of_plugin: tuple[str, ...] = ()
    leaves: Mapping[str, str] = field(default_factory=dict)  # the switch of each HCA, where it is known
    tweak: Callable[[Node], Node] = lambda node: node  # what only this kind has


def cluster(plan: Plan, count: int, profile: str = "") -> Cluster:
    """So many nodes, all alike, with what they saw of each other."""
    nodes = [make(plan, number, plan.profiles.get(profile, {})) for number in range(count)]
    job = Job(
        launcher=plan.launcher if count > 1 else "local", nodes_asked=count, nodes_answered=count,
        chosen_by="SLURM_JOB_ID=48213" if plan.launcher == "slurm" and count > 1 else "",
    )  # fmt: skip
    reach = [_reach(plan, number, nodes) for number in range(count)] if count > 1 else []
    return Cluster(nodes=nodes, job=job, measurements=Measurements(reach=reach))


def at_work(sound: Cluster) -> Cluster:
    """The same while all GPUs compute: clocks, power and links as they are then."""
    return replace(sound, nodes=[_working(node) for node in sound.nodes])


def _working(node: Node) -> Node:
    gpus = known(node.gpus)
    cards = [
        replace(
            card, utilization=97, clock=int(known(card.clock_max) * 0.9), clock_memory=card.clock_memory_max,
            throttle=["sw_power_cap"], power_draw=known(card.power_cap) * 0.98, temperature=64,
            margin=card.margin if isinstance(card.margin, Unread) else 21, pcie_gen=card.pcie_gen_max,
        )
        for card in known(gpus.cards)
    ]  # fmt: skip
    return replace(node, gpus=replace(gpus, cards=cards))


def make(plan: Plan, number: int, profile: Mapping[str, str]) -> Node:
    """One node of this kind."""
    name = plan.names.format(n=number + 11)
    env = {key: value.format(n=number + 11) for key, value in profile.items()}
    if plan.launcher == "slurm":
        env = {"SLURM_JOB_ID": "48213", **env}
    node = Node(
        name=name,
        host=_host(plan, name, number),
        network=_network(plan, number),
        nccl=_nccl(plan, env),
        stack=Stack(
            python="3.12.8", executable="/opt/train/bin/python", ncclcheck="0.1.0", torch=plan.torch,
            torch_path=f"{_SITE}/torch", torch_cuda=plan.torch.rpartition("cu")[2][:2] + "." + plan.torch[-1],
            driver=plan.driver,
            numpy="1.26.4" if plan.torch < "2.3" else "2.1.3", preloaded=ABSENT, customised=[], hiding=[],
        ),
        job=JobFacts(
            variables=[Variable(name=key, value=value) for key, value in sorted(env.items())],
            launcher_programs=["srun", "sbatch"] if plan.launcher == "slurm" else [],
            master=Unread("absent", "MASTER_ADDR is not set"),
            port_holders=Unread("absent", "MASTER_PORT is not set"),
        ),
        gpus=_gpus(plan, number),
        rdma=_rdma(plan, number),
        fabric=_fabric(plan),
        container=_container(plan),
        storage=_storage(plan),
        system=System(
            uid=0 if plan.root else 1007, stack=8 * 2**20, processes=4126521, address_space=-1, data=-1,
            file_size=-1,
            cpu_seconds=-1, tasks=Unread("absent", "no control group limits the number of processes"),
            tasks_used=412, ports=PortRange(first=32768, last=60999), tcp_rmem=6291456, tcp_wmem=4194304,
            remove_ipc=False, cpu=plan.cpu,
        ),
        health=_health(plan, number),
    )  # fmt: skip
    return plan.tweak(node)


_SITE = "/opt/train/lib/python3.12/site-packages"


def _host(plan: Plan, name: str, number: int) -> Host:
    cores = sum(len(_cpus(cpus)) for cpus, _ in plan.numa)
    memory = sum(gib for _, gib in plan.numa) * GIB
    address = str(IPv4Interface(_control(plan, number)).ip)
    return Host(
        hostname=name,
        system=plan.system,
        kernel=plan.kernel,
        boot_id=hashlib.md5(f"{plan.kind} {number}".encode(), usedforsecurity=False).hexdigest(),
        cores=cores,
        usable_cores=float(cores),
        memory=memory,
        memory_limit=Unread("absent", "no control group limits memory"),
        memory_available=int(memory * 0.95),
        memlock=Limits(soft=-1, hard=-1),
        ipc_lock=plan.root or plan.pod,
        nofile=Limits(soft=1048576, hard=1048576),
        shm=Space(size=memory // 2, free=memory // 2, path="/dev/shm"),
        tmp=Space(size=900 * GIB, free=700 * GIB, path="/tmp"),
        clocksource=plan.clocksource,
        own_name=Resolution(name=name, addresses=[address]),
        uptime_s=86400.0 * (3 + number % 5),
    )


def _network(plan: Plan, number: int) -> Network:
    """The interfaces in the kernel's order: lo, those of no card, those of cards."""
    of_cards = [
        nic(
            card.netdev, *([card.net] if card.net else []),
            kind="ipoib" if card.layer == "InfiniBand" else "physical",
            mtu=card.mtu or (4092 if card.layer == "InfiniBand" else 9000), speed_mbit=int(card.gbit * 1000),
            driver="ib_ipoib" if card.layer == "InfiniBand" else card.driver, running=card.up, up=card.up,
        )
        for card in plan.cards
        if card.netdev
    ]  # fmt: skip
    numbered = [_numbered(interface, number) for interface in [LO, *plan.interfaces, *of_cards]]
    return Network(
        interfaces=numbered, routes=list(_routes(plan, numbered)), rules=[], refusing=[], shapers=[], filters=[]
    )


def _numbered(interface: Interface, number: int) -> Interface:
    assert not isinstance(interface.addresses, Unread)
    addresses = [replace(a, address=a.address.format(n=number + 11)) for a in interface.addresses]
    return replace(interface, addresses=addresses, downs=2 if interface.running is True else 0)


def _routes(plan: Plan, interfaces: list[Interface]) -> list[Route]:
    routes: list[Route] = []
    for interface in interfaces:
        assert not isinstance(interface.addresses, Unread)
        for address in interface.addresses:
            if address.family == "ipv4" and interface.name != "lo" and interface.running is True:
                network = IPv4Interface(f"{address.address}/{address.prefix}").network
                subnet = IPv4Interface(f"{address.address}/24").network if address.prefix == 32 else network
                gateway = str(subnet.network_address + 1)
                if interface.name == plan.control:
                    way = plan.gateway or gateway
                    routes.append(
                        Route(destination="0.0.0.0/0", gateway=way, interface=interface.name, metric=100)
                    )
                on_link = address.prefix < 32
                if not on_link:  # a cloud's DHCP gives the router, and the subnet behind it
                    routes.append(
                        Route(destination=f"{gateway}/32", gateway="", interface=interface.name, metric=100)
                    )
                routes.append(
                    Route(
                        destination=str(subnet),
                        gateway="" if on_link else gateway,
                        interface=interface.name,
                        metric=0,
                    )
                )
    return routes


def _control(plan: Plan, number: int) -> str:
    """The address of the control interface, with its prefix."""
    for interface in plan.interfaces:
        if interface.name == plan.control and not isinstance(interface.addresses, Unread):
            first = interface.addresses[0]
            return f"{first.address.format(n=number + 11)}/{first.prefix}"
    card = next(card for card in plan.cards if card.netdev == plan.control)
    return card.net.format(n=number + 11)


def _nccl(plan: Plan, env: Mapping[str, str]) -> Nccl:
    variables = {**plan.conf, **env}
    paths = [(name, variables[name]) for name in ("NCCL_TOPO_FILE", "NCCL_GRAPH_FILE") if name in variables]
    return Nccl(
        loaded=Library(path=f"{_SITE}/nvidia/nccl/lib/libnccl.so.2", origin="pip package", version=plan.nccl),
        others=[],
        known_names=_known(plan.nccl),
        plugins=list(plan.plugins),
        plugin_files=[
            PluginFile(
                name=Path(path).name,
                path=path,
                sha256=hashlib.sha256(path.encode()).hexdigest(),
                product=plan.product_of_plugin or Unread("absent", "no name with a version stands in it"),
                symbols=list(plan.symbols_of_plugin),
            )
            for path in plan.plugins
        ],
        named_files=[NamedFile(name=name, path=path, output=False, fits=True) for name, path in paths],
        wheels=[Wheel(name=f"nvidia-nccl-cu{plan.torch.rpartition('cu')[2][:2]}", version=plan.nccl)],
        wanted=plan.nccl,
        conf_files=[
            ConfFile(
                path="/etc/nccl.conf",
                lines=[
                    ConfLine(line=i, name=name, value=value)
                    for i, (name, value) in enumerate(plan.conf.items(), 1)
                ],
            )
        ]
        if plan.conf
        else [],
        stray_lines=[],
        topology=[],
    )


@cache
def _known(version: str) -> list[str]:
    """The NCCL_* names that the library of this version holds."""

    def number(text: str) -> tuple[int, ...]:
        return tuple(int(part) for part in text.split("."))

    lines = (line.split() for line in _NAMES.read_text().splitlines())
    here = number(version)
    return [name for name, since, *last in lines if number(since) <= here and all(here <= number(v) for v in last)]


def _gpus(plan: Plan, number: int) -> Gpus:
    cards = [gpu_facts(plan.gpu, plan.gpus, index) for index in range(len(plan.gpus))]
    return Gpus(
        pci=[slot.pci for slot in plan.gpus],
        devices=[f"nvidia{index}" for index in range(len(plan.gpus))],
        usable=len(plan.gpus) if plan.usable_gpus is None else plan.usable_gpus,
        cuda_error="",
        driver_cuda=plan.cuda,
        nvml="",
        nvml_driver=plan.driver,
        user="root" if plan.root else "kim",
        cards=[replace(card, uuid=f"{card.uuid}-{number + 11:012x}") for card in cards],
        others=[],
        imex=[DeviceFile(name=name) for name in plan.imex],
        services=_services(plan),
        xids=[]
        if plan.root
        else Unread("denied", "/dev/kmsg may not be read by this user: Operation not permitted"),
    )


def _services(plan: Plan) -> list[Service]:
    """Those of a host; a pod has no systemd, and only the kernel's modules are to be seen."""
    names = ["nvidia-persistenced"] if plan.gpu.persistence else []
    names += ["nvidia-fabricmanager"] if plan.gpu.switched and not plan.imex else []
    names += ["nvidia-imex"] if plan.imex else []
    programs = [] if plan.pod else [Service(name=name, state="active", version=plan.driver) for name in names]
    modules = [Service(name="nvidia_peermem", state="loaded", version=plan.driver)]
    return [*programs, *(modules if "nvidia_peermem" in plan.peer_modules else [])]


def _rdma(plan: Plan, number: int) -> Rdma:
    cards = [card for card in plan.cards if card.hca]
    if not cards:
        none = Unread("absent", "no RDMA device on this machine")
        return Rdma(hcas=none, devices=none, device_files=none, opened=none, libibverbs=none, providers=none,
                    peer_modules=none, open_driver=none, leaves=none)  # fmt: skip
    mine: list[DeviceFile] = opened(cards)
    arch = "aarch64" if "ARM" in plan.cpu or "Grace" in plan.cpu else "x86_64"
    return Rdma(
        hcas=[card.hca for card in cards],
        devices=[hca_facts(card, number, index) for index, card in enumerate(cards)],
        device_files=[*(file.name for file in mine), "rdma_cm"],
        opened=mine,
        libibverbs=f"/usr/lib/{arch}-linux-gnu/libibverbs.so.1",
        providers=list(plan.providers),
        peer_modules=list(plan.peer_modules),
        open_driver=plan.open_driver,
        leaves=_leaves(plan, number, cards),
    )


def _leaves(plan: Plan, number: int, cards: list[Card]) -> list[Leaf] | Unread:
    """Eight ports of a switch a rail, as far as somebody listens."""
    leafs = [
        Leaf(name=f"{card.hca}:1", switch=plan.leaves[card.hca], identity=f"0x{plan.leaves[card.hca]}",
             port=str(number + 1), told_by="LLDP")
        for card in cards if card.hca in plan.leaves
    ]  # fmt: skip
    return leafs or Unread("denied", "only root asks InfiniBand switches, through /dev/infiniband/umad*")


def _fabric(plan: Plan) -> Fabric:
    slots = [*plan.gpus, *(card.slot for card in plan.cards)]
    kinds = ["gpu"] * len(plan.gpus) + ["nic"] * len(plan.cards)
    iommu = plan.iommu
    rests = plan.gpu.rests
    cards = [
        pci_facts(slot, kind, root=plan.root, iommu=iommu, rests=rests and kind == "gpu")
        for slot, kind in zip(slots, kinds, strict=True)
    ]
    above = [pci_facts(slot, "bridge", root=plan.root, iommu=iommu) for slot in bridges(slots)]
    count = len(plan.numa)
    return Fabric(
        pci=list({device.name: device for device in [*cards, *above]}.values()),
        iommus=list(plan.iommus),
        command_line=plan.command_line,
        numa=[
            NumaNode(
                name=str(i), cpus=cpus, memory=gib * GIB, distances=[10 if i == j else 21 for j in range(count)]
            )
            for i, (cpus, gib) in enumerate(plan.numa)
        ],
        bound=Bound(cpus=f"0-{sum(len(_cpus(cpus)) for cpus, _ in plan.numa) - 1}", mems=_range(count)),
        huge_pages=HugePages(total=plan.huge_pages, free=plan.huge_pages, size=plan.page, transparent="madvise"),
        governor=plan.governor,
        numa_balancing=0,
        hypervisor=plan.hypervisor,
        product=plan.product,
        asset_tag=plan.asset_tag,
        topology_file=plan.topology_file,
    )


def _range(count: int) -> str:
    return "0" if count == 1 else f"0-{count - 1}"


def _cpus(text: str) -> list[int]:
    """The numbers in 0-55,112-167."""
    cpus: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cpus += range(int(first), int(last or first) + 1)
    return cpus


def _container(plan: Plan) -> Container:
    own = "its number is that of the machine's own one"
    other = "its number is not that of the machine's own one"
    shared = not plan.pod
    files = [f"uverbs{index}" for index, card in enumerate([c for c in plan.cards if c.hca]) if card.ours]
    return Container(
        runtimes=[] if shared else [RuntimeSign(name="kubernetes", source="KUBERNETES_SERVICE_HOST")],
        namespaces=[
            Namespace(name="net", host=shared, how=own if shared else other),
            Namespace(name="ipc", host=shared, how=own if shared else other),
            Namespace(name="pid", host=shared, how=own if shared else other),
            Namespace(name="user", host=True, how=own),
            Namespace(name="uts", host=shared, how=own if shared else other),
        ],
        capabilities=["IPC_LOCK"] if plan.pod else [],
        seccomp="off" if shared else "filter",
        no_new_privileges=False,
        gpu_files=["nvidia-uvm", *(f"nvidia{i}" for i in range(len(plan.gpus))), "nvidiactl"],
        rdma_files=["rdma_cm", *files] if files else ABSENT,
        shm_mount=Mount(point="/dev/shm", kind="tmpfs", source="tmpfs", options=["rw", "nosuid", "nodev"]),
        shm=SharedMemory(mode="1777", writable=True),
        meshes=[],
    )


def _storage(plan: Plan) -> Storage:
    kind, source = plan.mounts
    remote = kind in ("lustre", "nfs4", "fuse.gcsfuse")

    def place(name: str, path: str, told_by: str, point: str, local: bool) -> Place:
        mount = (
            Mount(point=point, kind="ext4", source="/dev/nvme0n1p2", options=["rw", "relatime"])
            if local
            else Mount(point=point, kind=kind, source=source, options=["rw", "relatime"], network=remote)
        )
        room = Room(path=path, size=2**43, free=2**42, inodes=2**26, inodes_free=2**25, writable=True)
        return Place(name=name, path=path, told_by=told_by, mount=mount, room=room)  # type: ignore[arg-type]

    places = [
        place("working directory", "/scratch/run7", "the working directory", "/scratch", False),
        place("temporary directory", "/tmp", "default", "/", True),
        place("cache", "/scratch/home/.cache", "HOME", "/scratch", False),
    ]
    return Storage(places=places, flock=Lock(outcome="ok"), fcntl=Lock(outcome="ok"), deleted="")


def _health(plan: Plan, number: int) -> Health:
    """With what healthy machines have: a few corrected errors, swap that is hardly used, short stalls."""
    kind, source = plan.mounts
    memory = sum(gib for _, gib in plan.numa) * GIB
    guest = plan.hypervisor is True
    swap = 0 if guest or plan.pod else 8 * GIB
    none = Unread("absent", "no EDAC driver counts the memory errors of this machine")
    modules = [
        MemoryModule(name=f"mc{mc}/dimm{dimm}", corrected=3 * (mc == number), uncorrected=0,
                     label=f"DIMM_{mc}{dimm}")
        for mc in range(8) for dimm in range(2)
    ]  # fmt: skip
    point = "/scratch"
    remote = kind in ("lustre", "nfs4", "fuse.gcsfuse")
    return Health(
        memory_errors=none if guest else modules,
        kernel=[] if plan.root else Unread("denied", "/dev/kmsg may not be read by this user"),
        waiting=[],
        swap=Swap(total=swap, used=swap // 100),
        pressure=Pressure(some=0.12, full=0.08),
        commit=Commit(mode=0, limit=memory // 2, used=memory // 20),
        nvmes=[Nvme(name=f"nvme{disk}", state="live", model="SAMSUNG MZWLJ3T8HBLS-00007") for disk in range(4)],
        disks=[Mount(point="/", kind="ext4", source="/dev/nvme0n1p2", options=["rw", "relatime"])],
        answers=[FileSystemAnswer(name=point, kind=kind, source=source)] if remote else [],
    )


def _reach(plan: Plan, number: int, nodes: list[Node]) -> NodeReach:
    """All that one node saw of the others, over a healthy network."""
    own = str(IPv4Interface(_control(plan, number)).ip)
    interface = next(card for card in _network(plan, number).interfaces if card.name == plan.control)  # type: ignore[union-attr]
    mtu = interface.mtu if isinstance(interface.mtu, int) else 1500
    peers = [
        PeerReach(
            peer=peer.name,
            address=(address := str(IPv4Interface(_control(plan, other)).ip)),
            connect=Connect(outcome="ok"),
            rtt_us=92.0,
            clock=ClockOffset(seconds=0.0003, within_s=0.0001),
            echoes=Echoes(sent=50, arrived=50, returned=50),
            path_mtu=PathMtu(sent=mtu, arrived=mtu),
            source=own,
            seen_as=own,
            interface=plan.control,
            resolved=Resolution(name=peer.name, addresses=[address]),
        )
        for other, peer in enumerate(nodes)
        if other != number
    ]
    shared = Marks(path="/scratch/run7", written_s=0.002, seen=[peer.peer for peer in peers])
    return NodeReach(
        node=nodes[number].name, interface=plan.control, address=own, mtu=mtu, peers=peers,
        counters=Counters(packets=640000, errors=0, drops=0), marks=shared, seconds=1.1,
    )  # fmt: skip
