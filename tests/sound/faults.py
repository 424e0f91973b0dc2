"""Single faults, put into a healthy cluster as changes of facts, each with the place that must be named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ncclcheck.probes.facts import (
    EXAMPLE_TUNER,
    ClockOffset,
    Cluster,
    Commit,
    Gid,
    Gpu,
    GpuProcess,
    Hca,
    KernelEvent,
    Limits,
    Mount,
    NotKnown,
    NvFabric,
    NvLinks,
    PathMtu,
    PciDevice,
    PluginFile,
    Port,
    Pressure,
    RemappedRows,
    Space,
    SpareRows,
    Unread,
    Variable,
    Waiting,
    Xid,
    known,
    replace,
    value_or,
    variables,
)
from ncclcheck.probes.facts import Node as Facts
from ncclcheck.reports.subjects.nccl import lan, wiring
from tests.sound.machine import Plan, cluster
from tests.sound.parts import GH200, Card


class Truth(NamedTuple):
    """What must be named: the node, and any of these words; no words: the node alone."""

    node: str
    words: tuple[str, ...] = ()


class Case(NamedTuple):
    """A cluster with one fault, and the same without it."""

    name: str
    sound: Cluster
    cluster: Cluster
    truth: Truth


class Fault(NamedTuple):
    """A change of one node, and the words that name the device. None: this kind of machine cannot have it.

    alone: it can be seen on one node, without others to compare with.
    """

    name: str
    change: Callable[[Plan, Facts], Facts | None]
    words: Callable[[Plan], tuple[str, ...]] = lambda _: ()
    alone: bool = True


NODES = 4


def cases(plan: Plan) -> Iterator[Case]:
    """Every fault that this kind can have, on the last but one of several nodes, else on the only one."""
    several = max(plan.counts) > 1
    profile = next(iter(plan.profiles), "")
    sound = cluster(plan, NODES if several else 1, profile)
    place = NODES - 2 if several else 0
    for fault in FAULTS:
        if not (several or fault.alone):
            continue
        changed = _changed(fault, plan, sound.nodes[place])
        if changed is not None and _matters(plan, sound.nodes[place], changed):
            nodes = [*sound.nodes[:place], changed, *sound.nodes[place + 1 :]]
            truth = Truth(changed.name, fault.words(plan))
            yield Case(f"{plan.kind}: {fault.name}", sound, replace(sound, nodes=nodes), truth)
    if several:
        yield _clock(plan, sound, place)
        yield _control_mtu(plan, sound, place)


def _changed(fault: Fault, plan: Plan, node: Facts) -> Facts | None:
    """What this machine does not show cannot be seen to fail either."""
    try:
        return fault.change(plan, node)
    except NotKnown:
        return None


def _matters(plan: Plan, before: Facts, after: Facts) -> bool:
    """Without a GPU of NVIDIA no NCCL runs: what NCCL alone would use is no fault there."""
    if not isinstance(known(before.gpus).cards, Unread):
        return True
    of_sockets = {plan.control, *(value for profile in plan.profiles.values() for value in profile.values())}
    rails = [card.netdev for card in plan.cards if card.netdev and card.netdev not in of_sockets]
    now = {card.name: card for card in known(known(after.network).interfaces)}
    for interface in known(known(before.network).interfaces):
        if interface.name in rails and interface.name in now:
            same_link = {key: getattr(interface, key) for key in ("running", "up", "mtu", "speed_mbit")}
            addresses = known(now[interface.name].addresses) or interface.addresses
            after = _with_interface(after, interface.name, addresses=addresses, **same_link)
    same = replace(after, rdma=before.rdma, fabric=before.fabric, gpus=before.gpus, stack=before.stack)
    return same != before


def _clock(plan: Plan, sound: Cluster, place: int) -> Case:
    """The clock of one node is 90 s ahead: it sees all others behind, and they see it ahead."""
    late = sound.nodes[place].name

    def off(node: str, peer: str) -> float:
        return 90.0 * ((peer == late) - (node == late))

    reach = [
        replace(seen, peers=[
            replace(peer, clock=ClockOffset(seconds=off(seen.node, peer.peer),
            within_s=0.0001)) for peer in seen.peers
        ])
        for seen in sound.measurements.reach
    ]  # fmt: skip
    changed = replace(sound, measurements=replace(sound.measurements, reach=reach))
    return Case(f"{plan.kind}: clock 90 s ahead", sound, changed, Truth(late))


def _control_mtu(plan: Plan, sound: Cluster, place: int) -> Case:
    """The control interface of one node has another MTU: what is larger than the receiver's is lost."""
    usual = sound.measurements.reach[place].mtu
    other = 9000 if usual == 1500 else 1500
    odd = sound.nodes[place].name

    def passed(node: str, peer: str) -> PathMtu:
        sent = other if node == odd else usual
        return PathMtu(sent=sent, arrived=min(sent, other if odd in (node, peer) else usual, usual))

    reach = [
        replace(
            seen,
            mtu=other if seen.node == odd else usual,
            peers=[replace(peer, path_mtu=passed(seen.node, peer.peer)) for peer in seen.peers],
        )
        for seen in sound.measurements.reach
    ]
    nodes = [_with_interface(n, plan.control, mtu=other) if n.name == odd else n for n in sound.nodes]
    changed = replace(sound, nodes=nodes, measurements=replace(sound.measurements, reach=reach))
    return Case(f"{plan.kind}: control MTU", sound, changed, Truth(odd, (plan.control,)))


# Devices that are chosen for a fault: the sixth of eight, the last of fewer.


def _nth(items: list[Any]) -> int:
    return min(5, len(items) - 1)


def _gpu(plan: Plan) -> tuple[str, ...]:
    place = _nth(plan.gpus)
    return (f"GPU {place}", plan.gpus[place].pci)


def _rail(plan: Plan) -> Card | None:
    rails = [card for card in plan.cards if card.data and card.hca]
    return rails[_nth(rails)] if rails else None


def _rail_words(plan: Plan) -> tuple[str, ...]:
    """None where the node has this card alone."""
    rail = _rail(plan)
    return (
        ()
        if rail is None or sum(card.data for card in plan.cards) == 1
        else tuple(word for word in (rail.hca, rail.slot.pci, rail.netdev) if word)
    )


def _with_gpu(plan: Plan, node: Facts, **changes: Any) -> Facts:
    gpus, place = known(node.gpus), _nth(plan.gpus)
    cards: list[Gpu] = list(known(gpus.cards))
    cards[place] = replace(cards[place], **changes)
    return replace(node, gpus=replace(gpus, cards=cards))


def _on_gpu(**changes: Any) -> Callable[[Plan, Facts], Facts | None]:
    return lambda plan, node: _with_gpu(plan, node, **changes)


def _nvlinked(**changes: Any) -> Callable[[Plan, Facts], Facts | None]:
    def change(plan: Plan, node: Facts) -> Facts | None:
        links = known(known(node.gpus).cards)[_nth(plan.gpus)].nvlinks
        if len(plan.gpus) == 2:  # both ends lose a link, and that looks like a smaller bridge
            return None
        return _with_gpu(plan, node, nvlinks=replace(links, **changes)) if isinstance(links, NvLinks) else None

    return change


def _fallen(plan: Plan, node: Facts) -> Facts:
    """The driver lost it: NVML names it and tells nothing else, CUDA counts none of them."""
    gpus, place = known(node.gpus), _nth(plan.gpus)
    card = known(gpus.cards)[place]
    gone = Unread("absent", f"{card.name}: GPU is lost")
    facts = dict.fromkeys(set(Gpu.__struct_fields__) - {"name", "index", "trouble"}, gone)
    cards = list(known(gpus.cards))
    cards[place] = Gpu(name=card.name, index=card.index, trouble="GPU is lost", **facts)
    slot = plan.gpus[place]
    xid = Xid(name="Xid 79", code=79, pci=slot.pci, hours=2.0,
              line=f"NVRM: Xid (PCI:{slot.pci[:-2]}): 79, pid=4711, GPU has fallen off the bus.")  # fmt: skip
    xids = [xid] if isinstance(gpus.xids, list) else gpus.xids
    return replace(node, gpus=replace(gpus, cards=cards, xids=xids, usable=Unread("broken", "cuInit: 999")))


def gpu_missing(plan: Plan, node: Facts) -> Facts | None:
    """It is not on the PCIe bus at all: one fewer everywhere."""
    if len(plan.gpus) < 2:
        return None
    gpus, place = known(node.gpus), _nth(plan.gpus)
    slot = plan.gpus[place]
    cards = [
        replace(card, index=index, name=f"GPU {index}",
                peers=[peer for peer in known(card.peers) if peer.name != f"GPU {len(plan.gpus) - 1}"])
        for index, card in enumerate(card for card in known(gpus.cards) if card.pci != slot.pci)
    ]  # fmt: skip
    fewer = replace(
        gpus, cards=cards, pci=[pci for pci in known(gpus.pci) if pci != slot.pci], usable=len(cards),
        devices=[f"nvidia{index}" for index in range(len(cards))],
    )  # fmt: skip
    return replace(_without_pci(node, slot.pci), gpus=fewer)


def _without_pci(node: Facts, *names: str) -> Facts:
    fabric = known(node.fabric)
    return replace(
        node, fabric=replace(fabric, pci=[device for device in known(fabric.pci) if device.name not in names])
    )


def _pci(of: Callable[[Plan], str | None], **link: Any) -> Callable[[Plan, Facts], Facts | None]:
    """The link of a function is worse than it could be."""

    def change(plan: Plan, node: Facts) -> Facts | None:
        name, fabric = of(plan), known(node.fabric)
        devices: list[PciDevice] = known(fabric.pci)
        device = next((pci_device for pci_device in devices if pci_device.name == name), None)
        if device is None or isinstance(device.link, Unread) or device.link.gts <= link.get("gts", 0):
            return None
        if device.link.width <= link.get("width", 0):
            return None  # its slot has no more lanes
        changed = replace(device, link=replace(device.link, **link))
        listed = [changed if listed_device is device else listed_device for listed_device in devices]
        return replace(node, fabric=replace(fabric, pci=listed))

    return change


def _gpu_width(plan: Plan, node: Facts) -> Facts | None:
    """Four lanes of sixteen while it computes, for idle links may give lanes up; in sysfs and in NVML.

    A GH200 reaches its CPU otherwise, and of a GPU that is cut nobody tells whether it computes.
    """
    card = known(known(node.gpus).cards)[0]
    if plan.gpu is GH200 or isinstance(card.utilization, Unread) or isinstance(card.pcie_width, Unread):
        return None
    changed = _pci(lambda p: p.gpus[_nth(p.gpus)].pci, width=4)(plan, node) or node
    return _with_gpu(plan, changed, pcie_width=4, utilization=60)


def _rail_pci(plan: Plan) -> str | None:
    rail = _rail(plan)
    return None if rail is None else rail.slot.pci


def _with_hca(plan: Plan, node: Facts, change: Callable[[Hca], Hca]) -> Facts | None:
    rail = _rail(plan)
    if rail is None:
        return None
    rdma = known(node.rdma)
    devices = [change(hca) if hca.name == rail.hca else hca for hca in known(rdma.devices)]
    return replace(node, rdma=replace(rdma, devices=devices))


def _old_firmware(plan: Plan, node: Facts) -> Facts | None:
    rail = _rail(plan)
    if rail is None or rail.layer == "Unspecified" or not rail.model or rail.driver == "virtio_net":
        return None  # of a card that names no model or board nobody knows with which others to compare it
    return _with_hca(plan, node, lambda hca: replace(hca, firmware=f"{rail.firmware[:2]}.31.1014"))


def _on_port(change: Callable[[Port], Port]) -> Callable[[Plan, Facts], Facts | None]:
    """Of a port whose state says something: the driver of EFA always says ACTIVE, at one rate."""

    def changed(plan: Plan, node: Facts) -> Facts | None:
        rail = _rail(plan)
        if rail is None or rail.layer == "Unspecified":
            return None
        return _with_hca(plan, node, lambda hca: replace(hca, ports=[change(port) for port in known(hca.ports)]))

    return changed


def _port_down(plan: Plan, node: Facts) -> Facts | None:
    """The port and, where it has one, its interface."""
    rail = _rail(plan)
    changed = _on_port(lambda port: replace(port, state="DOWN", physical="Polling"))(plan, node)
    return None if changed is None or rail is None else _with_interface(changed, rail.netdev, running=False)


def _with_interface(node: Facts, name: str, **changes: Any) -> Facts:
    network = known(node.network)
    interfaces = [
        replace(interface, **changes) if interface.name == name else interface
        for interface in known(network.interfaces)
    ]
    return replace(node, network=replace(network, interfaces=interfaces))


def hca_missing(plan: Plan, node: Facts) -> Facts | None:
    rail = _rail(plan)
    if rail is None:
        return None
    rdma, network, container = known(node.rdma), known(node.network), known(node.container)
    devices = known(rdma.devices)
    file = next(device.uverbs for device in devices if device.name == rail.hca)
    fewer = replace(
        rdma, hcas=[name for name in known(rdma.hcas) if name != rail.hca],
        devices=[device for device in devices if device.name != rail.hca],
        device_files=[name for name in known(rdma.device_files) if name != file],
        opened=[opened_file for opened_file in known(rdma.opened) if opened_file.name != file],
    )  # fmt: skip
    interfaces = [
        interface for interface in known(network.interfaces) if interface.name != rail.netdev or not rail.netdev
    ]
    files = [name for name in known(container.rdma_files) if name != file]
    return replace(
        _without_pci(node, rail.slot.pci), rdma=fewer, network=replace(network, interfaces=interfaces),
        container=replace(container, rdma_files=files),
    )  # fmt: skip


def _roce(plan: Plan) -> bool:
    rail = _rail(plan)
    return rail is not None and rail.layer == "Ethernet"


def _no_address(plan: Plan, node: Facts) -> Facts | None:
    """The interface of a rail lost its address: only the link-local entries are left in the table."""
    rail = _rail(plan)
    if rail is None or not _roce(plan):
        return None
    changed = _on_port(lambda port: replace(port, gids=[gid for gid in known(port.gids) if _local(gid)]))(
        plan, node
    )
    return None if changed is None else _with_interface(changed, rail.netdev, addresses=[])


def _local(gid: Gid) -> bool:
    return str(gid.gid).startswith("fe80")


def _gid_moved(plan: Plan, node: Facts) -> Facts | None:
    """The IPv4 entries stand at 4 and 5: another address came and went."""
    if not _roce(plan) or "NCCL_IB_GID_INDEX" not in variables(node):
        return None  # NCCL 2.21 and later finds the entry by itself

    def moved(port: Port) -> Port:
        moved = [gid if _local(gid) else replace(gid, index=gid.index + 2) for gid in known(port.gids)]
        return replace(port, gids=moved)

    return _on_port(moved)(plan, node)


def _rail_mtu(plan: Plan, node: Facts) -> Facts | None:
    rail = _ethernet(plan)
    return None if rail is None or rail.mtu <= 1500 else _with_interface(node, rail.netdev, mtu=1500)


def _flapping(plan: Plan, node: Facts) -> Facts | None:
    """Forty times down in the days since boot; up now. Beside IPoIB it carries nothing of the job."""
    if plan.control not in lan.choice_of_nccl(node).names:
        return None
    return _with_interface(node, plan.control, downs=40)


def _ethernet(plan: Plan) -> Card | None:
    rails = [c for c in plan.cards if c.data and c.netdev not in ("", plan.control) and c.layer == "Ethernet"]
    return rails[0] if rails else None


def _rail_mtu_words(plan: Plan) -> tuple[str, ...]:
    rail = _ethernet(plan)
    return () if rail is None else tuple(word for word in (rail.netdev, rail.hca) if word)


def _slower_port(plan: Plan, node: Facts) -> Facts | None:
    """A quarter of its rate: one lane of four, after a dirty connector."""
    return _on_port(lambda port: replace(port, rate_gbit=known(port.rate_gbit) / 4))(plan, node)


def _no_subnet_manager(plan: Plan, node: Facts) -> Facts | None:
    rail = _rail(plan)
    if rail is None or rail.layer != "InfiniBand":
        return None
    return _on_port(lambda port: replace(port, state="INIT", lid=0, sm_lid=0))(plan, node)


def _no_partition(plan: Plan, node: Facts) -> Facts | None:
    rail = _rail(plan)
    if rail is None or rail.layer != "InfiniBand":
        return None
    return _on_port(lambda port: replace(port, pkeys=[0x7FFF, 0, 0, 0, 0, 0, 0, 0]))(plan, node)


def _driver(plan: Plan, node: Facts) -> Facts:
    other, cuda = ("550.54.15", "12.4") if plan.driver != "550.54.15" else ("545.23.08", "12.3")
    return replace(
        node, gpus=replace(known(node.gpus), nvml_driver=other, driver_cuda=cuda),
        stack=replace(known(node.stack), driver=other),
    )  # fmt: skip


def _reboot_missing(_: Plan, node: Facts) -> Facts:
    """The driver's files were upgraded, its module was not: NVML refuses."""
    gpus = known(node.gpus)
    unseen = Unread("absent", "NVML: Driver/library version mismatch")
    return replace(node, gpus=replace(
        gpus, nvml="Driver/library version mismatch", nvml_driver=unseen, cards=unseen, others=unseen,
        usable=Unread("broken", "cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"),
        cuda_error="CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)",
    ))  # fmt: skip


def _other_nccl(plan: Plan, node: Facts) -> Facts:
    nccl = known(node.nccl)
    other = "2.19.3" if plan.nccl != "2.19.3" else "2.18.6"
    older = replace(known(nccl.loaded), version=other, origin="LD_LIBRARY_PATH", path="/opt/old/lib/libnccl.so.2")
    return replace(node, nccl=replace(nccl, loaded=older))


def _other_variable(_: Plan, node: Facts) -> Facts | None:
    """What one node alone has, from a login file: a variable on which all ranks must agree."""
    return _with_variables(node, NCCL_ALGO="Ring" if variables(node).get("NCCL_ALGO") == "Tree" else "Tree")


def _with_variables(node: Facts, **values: str) -> Facts:
    job = known(node.job)
    kept = [variable for variable in known(job.variables) if variable.name not in values]
    return replace(
        node, job=replace(job, variables=[*kept, *(Variable(name=k, value=v) for k, v in values.items())])
    )


def _interface_of_another(_: Plan, node: Facts) -> Facts:
    return _with_variables(node, NCCL_SOCKET_IFNAME="eth7")


def _host(**changes: Any) -> Callable[[Plan, Facts], Facts | None]:
    return lambda _, node: replace(node, host=replace(known(node.host), **changes))


def _memlock(plan: Plan, node: Facts) -> Facts | None:
    """Nothing but RDMA locks memory by this limit."""
    low = replace(known(node.host), memlock=Limits(soft=65536, hard=65536), ipc_lock=False)
    return None if _rail(plan) is None else replace(node, host=low)


def _no_peermem(plan: Plan, node: Facts) -> Facts | None:
    """Where GPUDirect goes through the module alone, and PCIe tells which cards have GPUs near."""
    if plan.open_driver or not plan.peer_modules or _rail(plan) is None:
        return None
    if isinstance(known(node.fabric).pci, Unread):
        return None
    return replace(node, rdma=replace(known(node.rdma), peer_modules=[]))


def _no_peermem_open(plan: Plan, node: Facts) -> Facts | None:
    """The closed kernel module was installed on one node: neither dma-buf nor a peer module.

    EFA's driver may have a way of its own, which no file tells.
    """
    rail = _rail(plan)
    if not plan.open_driver or plan.peer_modules or rail is None or rail.layer == "Unspecified":
        return None
    return replace(node, rdma=replace(known(node.rdma), open_driver=False))


def _acs(plan: Plan, node: Facts) -> Facts | None:
    """A firmware update turned on the IOMMU's translation and the access controls of all bridges."""
    fabric = known(node.fabric)
    if not plan.iommus or not plan.root:
        return None
    on = ["SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd"]
    devices = [
        replace(device, iommu="DMA-FQ", acs=on if device.kind == "bridge" else device.acs)
        for device in known(fabric.pci)
    ]
    line = known(fabric.command_line).replace(" iommu=pt", "")
    return replace(node, fabric=replace(fabric, pci=devices, command_line=line))


def _iommu(plan: Plan, node: Facts) -> Facts | None:
    """The same without root: only that the IOMMU translates. On Grace it is the default."""
    fabric = known(node.fabric)
    if not plan.iommus or plan.root or plan.iommu != "identity" or plan.cpu.startswith("ARM"):
        return None
    if plan.gpu.p2p != "ok" and not plan.cards:
        return None  # nothing crosses it
    devices = [replace(device, iommu="DMA-FQ") for device in known(fabric.pci)]
    line = known(fabric.command_line).replace(" iommu=pt", "").replace("iommu.passthrough=1 ", "")
    return replace(node, fabric=replace(fabric, pci=devices, command_line=line))


def _one_socket(plan: Plan, node: Facts) -> Facts | None:
    """The job may use the cores and the memory of the first socket alone, and a GPU is known to be at another."""
    if len(plan.numa) < 2 or not plan.numa[1][0]:
        return None
    fabric = known(node.fabric)
    nodes = {node.name for node in value_or(fabric.numa, [])}
    if not {str(gpu.numa_node) for gpu in wiring.functions(node, "gpu")} & nodes - {"0"}:
        return None
    bound = replace(known(fabric.bound), cpus=plan.numa[0][0], mems="0")
    return replace(node, fabric=replace(fabric, bound=bound))


def _no_plugin(plan: Plan, node: Facts) -> Facts | None:
    if not plan.plugins:
        return None
    return replace(node, nccl=replace(known(node.nccl), plugins=[], plugin_files=[]))


def _other_plugin(plan: Plan, node: Facts) -> Facts | None:
    """The same path, another file: an image of last year."""
    if not plan.plugins:
        return None
    nccl = known(node.nccl)
    first, *others = known(nccl.plugin_files)
    return replace(node, nccl=replace(nccl, plugin_files=[replace(first, sha256="0" * 64), *others]))


def _old_plugin(plan: Plan, node: Facts) -> Facts | None:
    """A plugin of 2023 by its own text, with the NCCL of today."""
    nccl = known(node.nccl)
    if not plan.product_of_plugin:
        return None
    files = [replace(file, product="aws-ofi-nccl 1.6.0", sha256="1" * 64) for file in known(nccl.plugin_files)]
    return replace(node, nccl=replace(nccl, plugin_files=files))


def _no_imex(plan: Plan, node: Facts) -> Facts | None:
    """The container of one tray was started without the channel."""
    return replace(node, gpus=replace(known(node.gpus), imex=[])) if plan.imex else None


def _device_file_denied(plan: Plan, node: Facts) -> Facts | None:
    """A rule of udev or of a control group keeps this user from the card."""
    rail = _rail(plan)
    if rail is None:
        return None
    rdma = known(node.rdma)
    file = next(hca.uverbs for hca in known(rdma.devices) if hca.name == rail.hca)
    opened = [
        replace(device_file, error="Permission denied") if device_file.name == file else device_file
        for device_file in known(rdma.opened)
    ]
    return replace(node, rdma=replace(rdma, opened=opened))


def _no_provider(plan: Plan, node: Facts) -> Facts | None:
    return None if _rail(plan) is None else replace(node, rdma=replace(known(node.rdma), providers=[]))


def _other_user(plan: Plan, node: Facts) -> Facts | None:
    """A process of another job holds most of one GPU's memory."""
    if isinstance(known(known(node.gpus).cards)[0].processes, Unread) or not plan.gpu.memory:
        return None
    used = int(plan.gpu.memory * 2**20 * 0.8)
    process = GpuProcess(name="python", pid=991, memory=used, user="eve", state="S")
    return _with_gpu(
        plan, node, memory_used=used, processes=[process], utilization=99, pcie_gen=min(plan.gpu.gen, 5)
    )


def _own_name(_: Plan, node: Facts) -> Facts | None:
    host = known(node.host)
    local = replace(known(host.own_name), addresses=["127.0.1.1"])
    return replace(node, host=replace(host, own_name=local))


def _clique(_: Plan, node: Facts) -> Facts | None:
    """One tray registered with another partition of the rack."""
    gpus = known(node.gpus)
    cards = known(gpus.cards)
    domains = [card.fabric for card in cards]
    if not isinstance(domains[0], NvFabric) or not domains[0].cluster:
        return None
    moved = [replace(card, fabric=replace(known(card.fabric), clique=32765)) for card in cards]
    return replace(node, gpus=replace(gpus, cards=moved))


def _fabric_manager(plan: Plan, node: Facts) -> Facts | None:
    """No GPU is registered: the fabric manager does not run."""
    gpus = known(node.gpus)
    if not plan.gpu.switched or not isinstance(known(gpus.cards)[0].fabric, NvFabric):
        return None
    waiting = NvFabric(state="in_progress")
    cards = [replace(card, fabric=waiting) for card in known(gpus.cards)]
    return replace(node, gpus=replace(
        gpus, cards=cards, cuda_error="CUDA_ERROR_SYSTEM_NOT_READY (802)", usable=Unread("broken", "cuInit: 802")
    ))  # fmt: skip


def _other_manager(_: Plan, node: Facts) -> Facts | None:
    """The package of the fabric manager was updated and that of the driver was not."""
    gpus = known(node.gpus)
    newer = [
        replace(service, version="999.10.01") if service.name == "nvidia-fabricmanager" else service
        for service in known(gpus.services)
    ]
    return None if newer == gpus.services else replace(node, gpus=replace(gpus, services=newer))


def _ecc(plan: Plan, node: Facts) -> Facts | None:
    return _with_gpu(plan, node, ecc_uncorrected=3, ecc_uncorrected_ever=3) if plan.gpu.ecc else None


def _no_spare_row(plan: Plan, node: Facts) -> Facts | None:
    worn = RemappedRows(correctable=0, uncorrectable=8, pending=False, failed=True)
    return _with_gpu(plan, node, remapped=worn) if plan.gpu.ecc else None


def _row_pending(plan: Plan, node: Facts) -> Facts | None:
    worn = RemappedRows(correctable=0, uncorrectable=1, pending=True, failed=False)
    return _with_gpu(plan, node, remapped=worn) if plan.gpu.ecc else None


def _last_spare_row(plan: Plan, node: Facts) -> Facts | None:
    worn = SpareRows(all=637, many=2, some=0, few=0, none=1)
    return _with_gpu(plan, node, spare_rows=worn) if plan.gpu.ecc else None


def _inforom(plan: Plan, node: Facts) -> Facts | None:
    return _with_gpu(plan, node, inforom=False) if plan.gpu.ecc else None


def _no_p2p(plan: Plan, node: Facts) -> Facts | None:
    """One GPU cannot read any other, nor they it: an ACS or a driver setting of this node."""
    if plan.gpu.p2p != "ok" or len(plan.gpus) < 2:
        return None
    if max(plan.counts) == 1 and not plan.gpu.links:
        return None  # boards without NVLink may have none by their chipset, and no other node tells
    gpus = known(node.gpus)
    cards = [
        replace(card, peers=[replace(peer, p2p="chipset not supported") for peer in known(card.peers)])
        for card in known(gpus.cards)
    ]
    return replace(node, gpus=replace(gpus, cards=cards))


def _same_address(plan: Plan, node: Facts) -> Facts | None:
    """The control interface has the address of the first node."""
    first = cluster(plan, 1).nodes[0]
    interface = next(
        interface for interface in known(known(first.network).interfaces) if interface.name == plan.control
    )
    return _with_interface(node, plan.control, addresses=known(interface.addresses))


def _small(size: int) -> Space:
    return Space(size=size, free=size, path="/dev/shm")


def _sick(**changes: Any) -> Callable[[Plan, Facts], Facts | None]:
    return lambda _, node: replace(node, health=replace(known(node.health), **changes))


def _bad_dimm(_: Plan, node: Facts) -> Facts | None:
    health = known(node.health)
    if isinstance(health.memory_errors, Unread):
        return None
    first, *others = health.memory_errors
    return replace(node, health=replace(health, memory_errors=[*others, replace(first, uncorrected=2)]))


def _silent_server(_: Plan, node: Facts) -> Facts | None:
    health = known(node.health)
    answers = [replace(answer, late=True) for answer in known(health.answers)]
    return replace(node, health=replace(health, answers=answers)) if answers else None


def _dead_nvme(_: Plan, node: Facts) -> Facts | None:
    health = known(node.health)
    first, *others = known(health.nvmes)
    return replace(node, health=replace(health, nvmes=[replace(first, state="dead"), *others]))


_READ_ONLY = Mount(point="/local", kind="ext4", source="/dev/nvme1n1", options=["rw", "relatime", "ro"])
_STUCK = Waiting(name="python", pid=4711, seconds=2.0, user="kim", wchan="nfs_wait_bit_killable")
_HUNG = KernelEvent(
    name="hung task", times=3, line="task python:4711 blocked for more than 120 seconds.", hours=0.2
)


def _small_window(plan: Plan, node: Facts) -> Facts | None:
    """The hypervisor or the BIOS gave 256 MiB."""
    card, rail = known(known(node.gpus).cards)[_nth(plan.gpus)], _rail(plan)
    no_hca = rail is None or rail.layer == "Unspecified" or rail.driver == "hfi1" or card.mig is True
    small = plan.gpu.memory < 30_000  # MiB: such boards have small windows by design
    if no_hca or small or isinstance(card.bar1, Unread) or known(card.bar1) < known(card.memory_total):
        return None
    return _with_gpu(plan, node, bar1=256 * 2**20)


def _small_requests(plan: Plan, node: Facts) -> Facts | None:
    rail, fabric = _rail(plan), known(node.fabric)
    fast = rail is not None and rail.gbit >= 200 and rail.layer != "Unspecified" and not rail.slot.vf
    if rail is None or not (fast and plan.root) or plan.hypervisor is True:
        return None
    pci = [
        replace(device, max_read=512) if device.name == rail.slot.pci else device for device in known(fabric.pci)
    ]
    return replace(node, fabric=replace(fabric, pci=pci))


def _crossed(_: Plan, node: Facts) -> Facts | None:
    """The cables of the first two rails are in each other's socket."""
    rdma = known(node.rdma)
    if isinstance(rdma.leaves, Unread):
        return None
    leaf, two, *others = rdma.leaves
    crossed = [replace(two, name=leaf.name), replace(leaf, name=two.name), *others]
    return replace(node, rdma=replace(rdma, leaves=crossed))


def _plugin_of_another_nccl(plan: Plan, node: Facts) -> Facts | None:
    nccl = known(node.nccl)
    if not plan.symbols_of_plugin:
        return None
    files = [replace(file, symbols=["net v3", "net v4"]) for file in known(nccl.plugin_files)]
    return replace(node, nccl=replace(nccl, plugin_files=files))


def _buffer_in_bytes(_: Plan, node: Facts) -> Facts:
    return _with_variables(node, TORCH_FR_BUFFER_SIZE="2097152")


def _example_tuner(_: Plan, node: Facts) -> Facts:
    path = "/opt/train/lib/libnccl-tuner-example.so"
    nccl = known(node.nccl)
    file = PluginFile(
        name="libnccl-tuner-example.so", path=path, product=EXAMPLE_TUNER, sha256="0" * 64, symbols=[]
    )
    with_it = replace(nccl, plugins=[*known(nccl.plugins), path], plugin_files=[*known(nccl.plugin_files), file])
    return _with_variables(replace(node, nccl=with_it), NCCL_TUNER_PLUGIN=path)


def _mounted_read_only(_: Plan, node: Facts) -> Facts | None:
    """A disk of which all nodes have the like was mounted read-only at boot."""
    health = known(node.health)
    disks = known(health.disks)
    if not disks:
        return None
    first, *others = disks
    return replace(node, health=replace(health, disks=[replace(first, options=["ro", "relatime", "ro"]), *others]))


def _balancing(_: Plan, node: Facts) -> Facts | None:
    """The site turned it off, and this node has the kernel's default back."""
    fabric = known(node.fabric)
    seen = bool(known(known(node.gpus).cards)) and bool(known(fabric.pci))
    return replace(node, fabric=replace(fabric, numa_balancing=1)) if seen and fabric.numa_balancing == 0 else None


def _imex_stopped(_: Plan, node: Facts) -> Facts | None:
    gpus = known(node.gpus)
    services = known(gpus.services)
    if not any(service.name == "nvidia-imex" and service.state == "active" for service in services):
        return None
    stopped = [
        replace(service, state="inactive") if service.name == "nvidia-imex" else service for service in services
    ]
    return replace(node, gpus=replace(gpus, services=stopped))


def _no_persistence(_: Plan, node: Facts) -> Facts | None:
    """nvidia-persistenced was not started on this node."""
    gpus = known(node.gpus)
    cards = known(gpus.cards)
    if not cards or not all(card.persistence is True for card in cards):
        return None
    return replace(node, gpus=replace(gpus, cards=[replace(card, persistence=False) for card in cards]))


def _no_carrier(plan: Plan, node: Facts) -> Facts | None:
    """The cable of the control interface came loose, and it is no port of RDMA."""
    if any(card.net or card.netdev == plan.control for card in plan.cards):
        return None  # NCCL takes the cards first
    named = {interface.name: interface for interface in known(known(node.network).interfaces)}
    physical = plan.control in named and named[plan.control].kind == "physical"
    return _with_interface(node, plan.control, running=False) if physical else None


FAULTS: list[Fault] = [
    Fault("disk mounted read-only at boot", _mounted_read_only, alone=False),
    Fault("NUMA balancing back on", _balancing, alone=False),
    Fault("IMEX stopped on one tray", _imex_stopped, lambda _: ("nvidia-imex",), alone=False),
    Fault("persistence mode off", _no_persistence, alone=False),
    Fault("control interface without carrier", _no_carrier, lambda plan: (plan.control,), alone=False),
    Fault("DIMM with uncorrected errors", _bad_dimm, lambda _: ("DIMM_00",)),
    Fault("host that waits for memory", _sick(pressure=Pressure(some=40.0, full=23.0))),
    Fault("strict overcommit used up", _sick(commit=Commit(mode=2, limit=2**38, used=2**38 - 2**30))),
    Fault("process stuck in the kernel", _sick(waiting=[_STUCK], kernel=[_HUNG]), lambda _: ("4711",)),
    Fault("file server silent", _silent_server, lambda _: ("/scratch",)),
    Fault("disk gone read-only", _sick(disks=[_READ_ONLY]), lambda _: ("/local",)),
    Fault("NVMe controller dead", _dead_nvme, lambda _: ("nvme0",)),
    Fault("BAR1 of 256 MiB", _small_window, _gpu),
    Fault("small read requests of one card", _small_requests, _rail_words),
    Fault("cables of two rails crossed", _crossed, alone=False),
    Fault("plugin for another NCCL", _plugin_of_another_nccl),
    Fault("Flight Recorder's buffer in bytes", _buffer_in_bytes, lambda _: ("TORCH_FR_BUFFER_SIZE",)),
    Fault("NVIDIA's example of a tuner", _example_tuner, lambda _: ("libnccl-tuner-example.so",)),
    Fault("GPU fell off the bus", _fallen, _gpu),
    Fault("GPU missing", gpu_missing, alone=False),
    Fault("GPU at four lanes", _gpu_width, _gpu),
    Fault("uncorrected ECC errors", _ecc, _gpu),
    Fault("no spare row left", _no_spare_row, _gpu),
    Fault("row remapping pending", _row_pending, _gpu),
    Fault("a bank without a spare row", _last_spare_row, _gpu),
    Fault("corrupted InfoROM", _inforom, _gpu),
    Fault("GPU slowed by its power brake", _on_gpu(throttle=["hw_slowdown", "hw_power_brake"]), _gpu),
    Fault("GPU slowed by heat", _on_gpu(throttle=["sw_thermal", "hw_thermal"], temperature=92, margin=-1), _gpu),
    Fault("two NVLinks down", _nvlinked(down=[2, 3]), _gpu),
    Fault("fabric manager not running", _fabric_manager),
    Fault("fabric manager of another version", _other_manager, lambda _: ("999.10.01",)),
    Fault("other clique", _clique, alone=False),
    Fault("GPU memory held by another job", _other_user, _gpu),
    Fault("exclusive mode prohibits", _on_gpu(compute_mode="prohibited"), _gpu),
    Fault("P2P refused", _no_p2p),
    Fault("other driver", _driver, alone=False),
    Fault("driver upgraded without a reboot", _reboot_missing),
    Fault("other NCCL", _other_nccl, alone=False),
    Fault("variable of one node", _other_variable, lambda _: ("NCCL_ALGO",), alone=False),
    Fault("interface of another machine", _interface_of_another, lambda _: ("eth7", "NCCL_SOCKET_IFNAME")),
    Fault("HCA missing", hca_missing, alone=False),
    Fault("port down", _port_down, _rail_words),
    Fault("port at a quarter of its rate", _slower_port, _rail_words),
    Fault("no subnet manager", _no_subnet_manager, _rail_words),
    Fault("partition membership lost", _no_partition, _rail_words, alone=False),
    Fault("rail without address", _no_address, _rail_words),
    Fault("GID entries moved", _gid_moved, _rail_words),
    Fault("rail MTU 1500", _rail_mtu, _rail_mtu_words, alone=False),
    Fault("control link flapping", _flapping, lambda plan: (plan.control,), alone=False),
    Fault("same address twice", _same_address, alone=False),
    Fault("card at half its lanes", _pci(_rail_pci, width=8), _rail_words),
    Fault("card at a lower speed", _pci(_rail_pci, gts=8.0), _rail_words),
    Fault("other firmware of a card", _old_firmware, _rail_words, alone=False),
    Fault("device file denied", _device_file_denied, _rail_words),
    Fault("no provider library", _no_provider),
    Fault("peer module missing", _no_peermem),
    Fault("neither dma-buf nor peer module", _no_peermem_open),
    Fault("ACS and IOMMU on", _acs),
    Fault("IOMMU translates", _iommu),
    Fault("bound to one socket", _one_socket),
    Fault("plugin missing", _no_plugin),
    Fault("other plugin", _other_plugin, alone=False),
    Fault("plugin of 2023", _old_plugin, alone=False),
    Fault("no IMEX channel", _no_imex, alone=False),
    Fault("memlock 64 KiB", _memlock),
    Fault("nofile 256", _host(nofile=Limits(soft=256, hard=256))),
    Fault("shm 64 MiB", _host(shm=_small(64 * 2**20))),
    Fault("tmp full", _host(tmp=Space(size=900 * 2**30, free=0, path="/tmp"))),
    Fault("clock source HPET", _host(clocksource="hpet")),
    Fault("own name is loopback", _own_name, alone=False),
]
