"""RDM022, RDM023: HCAs reach the memory of GPUs without a detour, and no bond is in the way."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster, Node, Unread, at, known, value_or
from ncclcheck.reports.judgement.findings import Finding, State, Where, admin, fine, note, seen, unknown, warn, you
from ncclcheck.reports.judgement.rule import rule
from ncclcheck.reports.subjects.nccl import carrying
from ncclcheck.reports.subjects.nccl.hca import PEERMEM_SINCE
from ncclcheck.reports.subjects.nccl.variables import as_version, nccl_version, parse_int, values
from ncclcheck.reports.text.words.fold import fold_names

_DMABUF_KERNEL = (5, 12, 0)  # the first Linux with dma-buf memory regions for RDMA
_DMABUF_SINCE = (2, 13, 0)  # the first NCCL that uses dma-buf
_OLD_PATHS = ("nv_mem", "nv_peer_mem", "nv_mem_nc")


@rule(
    "RDM022",
    "GPUDirect RDMA is available",
    worst=State.WARN,
    needs=("rdma.devices", "rdma.peer_modules"),
)
def gpudirect(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    One of the two mechanisms of GPUDirect RDMA is present: nvidia-peermem, or dma-buf with NVIDIA's open
    kernel module.

    ## Why it matters
    Without it each byte is copied through the host's memory: 10 GB/s instead of 180 were measured so. NCCL says
    `GPU Direct RDMA Disabled for HCA` at INFO and goes on.

    ## How we know
    /sys/module/nvidia_peermem, and /sys/kernel/mm/memory_peers/nv_mem of older drivers. NCCL up to 2.22 looks
    only for the latter and does not see nvidia_peermem alone; later ones do. dma-buf needs NCCL 2.13, Linux 5.12
    and the open kernel module (/proc/driver/nvidia/version says so), and NCCL_DMABUF_ENABLE not 0. Whether it is
    used in the end is in NCCL's log (`via NET/IB/0/GDRDMA`). GeForce cards cannot do it,
    nor can Omni-Path but by PSM2: that is a note.

    ## Fix
    - **admin** `modprobe nvidia-peermem` and a line in /etc/modules-load.d; or the open kernel module.
    - **you** with NCCL up to 2.22 and nvidia_peermem loaded: a newer NCCL.

    ## Source
    NVIDIA/nccl#1676, NVIDIA/nccl#1343, NVIDIA/nccl#897; NCCL user guide, Troubleshooting, GPU Direct RDMA.
    """
    for node, taken in carrying.using(cluster):
        modules, where = known(at(node, "rdma.peer_modules")), Where(node=node.name)
        version = nccl_version(node)
        old = [name for name in modules if name.rpartition("/")[2] in _OLD_PATHS]
        seen_by_nccl = bool(old) or ("nvidia_peermem" in modules and (version or PEERMEM_SINCE) >= PEERMEM_SINCE)
        dmabuf = _dmabuf(node)
        evidence = [
            seen("/sys/module", ", ".join(modules) or "no nvidia_peermem"),
            seen("dma-buf", dmabuf or "usable"),
        ]
        if seen_by_nccl or not dmabuf:
            yield fine(where, "by " + ("dma-buf" if not dmabuf else modules[0]), *evidence)
        elif _has_only_geforce(node):
            yield note(where, "GeForce cards have no GPUDirect RDMA", why=_COPIED, owner="site", evidence=evidence)
        elif all(port.hca.driver == "hfi1" for port in taken.used):
            what = "Omni-Path has no GPUDirect RDMA by verbs, which is what NCCL uses"
            yield note(where, what, why=_COPIED, owner="site", evidence=evidence)
        elif modules and "nvidia_peermem" in modules and version:
            what = f"nvidia_peermem is loaded, but NCCL {'.'.join(map(str, version))} does not look for it"
            fix = [you("Use NCCL 2.23 or later.", "python -m pip install --upgrade nvidia-nccl-cu12")]
            yield warn(where, what, why=_COPIED, owner="job", evidence=evidence, fix=fix)
        elif dmabuf == "unread":
            yield _unread(node)
        else:
            fix = [admin("Load the module, now and at boot.", "modprobe nvidia-peermem",
                         "echo nvidia-peermem > /etc/modules-load.d/nvidia-peermem.conf")]  # fmt: skip
            what = f"neither nvidia-peermem nor dma-buf: {dmabuf}"
            yield warn(where, what, why=_COPIED, owner="node", evidence=evidence, fix=fix)


_COPIED = "What goes over the network is copied through the host's memory: a tenth of the speed was measured."


def _has_only_geforce(node: Node) -> bool:
    models = [value_or(card.model, "") for card in value_or(at(node, "gpus.cards"), [])]
    return bool(models) and all("GeForce" in model for model in models)


def _dmabuf(node: Node) -> str:
    """Why dma-buf cannot be used; empty where it can, `unread` where that is not known."""
    opened, kernel = at(node, "rdma.open_driver"), as_version(at(node, "host.kernel"))
    if parse_int(values(node).get("NCCL_DMABUF_ENABLE", "1")).value == 0:
        return "NCCL_DMABUF_ENABLE=0"
    if (nccl_version(node) or _DMABUF_SINCE) < _DMABUF_SINCE:
        return "NCCL before 2.13 cannot use dma-buf"
    if kernel is not None and kernel < _DMABUF_KERNEL:
        return "the kernel is older than 5.12"
    if isinstance(opened, Unread) or kernel is None:
        return "unread"
    return "" if opened else "the driver is not the open kernel module"


def _unread(node: Node) -> Finding:
    opened = at(node, "rdma.open_driver")
    why = opened.why if isinstance(opened, Unread) else "the kernel's version is not known"
    return unknown(
        Where(node=node.name),
        f"nvidia-peermem is not loaded, and whether dma-buf can be used could not be read: {why}",
        why="With NVIDIA's open kernel module nothing else is needed.",
        evidence=[seen("rdma.open_driver", why)],
    )


@rule("RDM023", "no RoCE link is a bond", worst=State.NOTE, needs=("rdma.devices",))
def bonds(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    HCAs over a bond of two ports (mlx5_bond_0) that NCCL would use.

    ## Why it matters
    A bond sends each connection over one of its ports, by a hash. With NCCL's few connections one port is often
    idle: 240 of 400 Gb/s were seen, where ib_write_bw with many connections has 395. NVIDIA's engineers advise
    two HCAs instead.

    ## How we know
    The name that the driver gives to such a device. It is a note, for a bond may be wanted for its fail-over.

    ## Fix
    - **you** try `NCCL_IB_QPS_PER_CONNECTION=4` with `NCCL_IB_SPLIT_DATA_ON_QPS=0`, and measure.
    - **admin** take the bond apart, so that NCCL has two HCAs; or hash by layer 3 and 4.

    ## Source
    NVIDIA/nccl-tests#191, NVIDIA/nccl-tests#265, NVIDIA/nccl#1015.
    """
    bonded: dict[str, list[str]] = {}
    for node, port in carrying.roce_ports(cluster):
        if "bond" in port.hca.name:
            bonded.setdefault(node.name, []).append(f"{port.name} ({value_or(port.port.rate_gbit, 0.0):g} Gb/s)")
    for name, devices in bonded.items():
        yield note(
            Where(node=name),
            f"NCCL would use a bond: {', '.join(devices)}",
            why="A single connection uses one port of a bond.",
            evidence=[seen("/sys/class/infiniband", fold_names(devices))],
            fix=[you("Try more connections, and measure.", "export NCCL_IB_QPS_PER_CONNECTION=4")],
        )
