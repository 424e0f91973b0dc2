"""RDM002 to RDM004: whether a program of this user can use the HCAs that sysfs shows."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster, Hca, Node, Unread, at, known, value_or
from ncclcheck.reports.judgement.findings import (
    Finding,
    Remedy,
    State,
    Where,
    admin,
    fail,
    fine,
    not_read,
    note,
    seen,
    you,
)
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.nccl import wiring
from ncclcheck.reports.subjects.nodes import containers
from ncclcheck.reports.text.words.fold import fold_names

_OVER_TCP = "NCCL would silently use TCP, at a tenth of the speed or less, or fail to connect."
_PROVIDERS = {
    "mlx5_core": "mlx5",
    "mlx4_core": "mlx4",
    "efa": "efa",
    "bnxt_en": "bnxt_re",
    "irdma": "irdma",
    "ice": "irdma",
    "qede": "qedr",
    "mana": "mana",
    "hns3": "hns",
    "erdma": "erdma",
    "hfi1": "hfi1verbs",
}


def _needed(cluster: Cluster) -> list[tuple[Node, list[Hca]]]:
    """The HCAs of each node that NCCL or its EFA plugin would try to open."""
    pairs = []
    for node, _ in wiring.choosing(cluster):
        wanted = wiring.wanted(wiring.listed(node))
        names = {port.hca.name for port in wanted} | {hca.name for hca in wiring.efa(node)}
        hcas = [hca for hca in known(at(node, "rdma.devices")) if hca.name in names]
        pairs += [(node, hcas)] if hcas else []
    if not pairs:
        raise NothingToJudge("no HCA that NCCL would use")
    return pairs


def _map_them() -> list[Remedy]:
    return [
        you(
            "Map the devices into the container, with the right to lock memory.",
            "docker run --device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1 ...",
        ),
        you(
            "In a pod, ask for the cluster's RDMA resource and for IPC_LOCK.",
            'resources: {limits: {"rdma/hca": 1}}',
            'securityContext: {capabilities: {add: ["IPC_LOCK"]}}',
        ),
        admin("On the host, load the module that makes the files.", "modprobe ib_uverbs", "ls -l /dev/infiniband"),
    ]


@rule(
    "RDM002",
    "this user can open the HCAs that the job needs",
    worst=State.FAIL,
    needs=("rdma.devices", "rdma.device_files"),
)
def device_files(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The HCAs that NCCL would take have their files below /dev/infiniband, and this process can open as many of
    them as on the other nodes, and one at least.

    ## Why it matters
    A container shows the host's /sys, and so the HCAs, but not the host's /dev. NCCL finds no device then,
    writes one line at INFO, and goes on over TCP: the job runs at a tenth of its speed. A device rule of the
    container's control group refuses the file even where its mode says that all may open it.

    A pod sees the devices of all pods, for the kernel keeps /sys/class/infiniband apart only where
    `rdma system set netns exclusive` was set; it can open its own alone. NCCL skips the others, and so do we: they
    are named in the finding about a healthy node, and no other rule judges them. So it is where Slurm gave a part
    of a node to the job.

    ## Seen as
    slow

    ## How we know
    The names in /dev/infiniband, the HCA behind each in /sys/class/infiniband_verbs/uverbsN/ibdev, and open(2)
    of each for reading and writing, closed at once. HCAs that NCCL_IB_HCA leaves out are not judged, nor any
    where NCCL_IB_DISABLE is set.

    ## Fix
    - **you** `docker run --device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1`; in a pod the
      cluster's RDMA resource (`rdma/hca`, `nvidia.com/...`) and the capability IPC_LOCK.
    - **admin** `modprobe ib_uverbs` where the host itself has no such file; a udev rule for its mode.

    ## Source
    NVIDIA/nccl#451, vllm-project/vllm#42075, Mellanox/k8s-rdma-shared-dev-plugin#93; NCCL user guide,
    Troubleshooting; ibv_open_device(3).
    """
    needed = _needed(cluster)
    most = max(len(_own(node, hcas)) for node, hcas in needed)
    for node, hcas in needed:
        files = [name for name in known(at(node, "rdma.device_files")) if name.startswith("uverbs")]
        if not files:
            yield _no_files(node, hcas)
        elif (containers.runtimes(node) or _given_a_part(node, hcas)) and 0 < len(_own(node, hcas)) == most < len(
            hcas
        ):
            yield _others_too(node, _own(node, hcas), hcas)
        else:
            missing = [hca for hca in hcas if isinstance(hca.uverbs, str) and hca.uverbs not in files]
            yield from (_no_file(node, hca, files) for hca in missing)
            yield from _opened(node, [hca for hca in hcas if hca not in missing])


def _own(node: Node, hcas: list[Hca]) -> list[Hca]:
    return [hca for hca in hcas if hca.name not in wiring.shut(node)]


def _given_a_part(node: Node, hcas: list[Hca]) -> bool:
    """A job that was given some of the node's GPUs, whose control group refuses the cards of the others alike.

    A device rule answers EPERM; wrong rights answer EACCES.
    """
    opened = value_or(at(node, "rdma.opened"), [])
    refused = {file.name for file in opened if file.error and "Operation not permitted" in file.error}
    shut = [hca for hca in hcas if hca.name in wiring.shut(node)]
    usable, built_in = value_or(at(node, "gpus.usable"), 0), len(wiring.functions(node, "gpu"))
    return 0 < usable < built_in and all(hca.uverbs in refused for hca in shut)


def _others_too(node: Node, own: list[Hca], hcas: list[Hca]) -> Finding:
    """A container or a part of a node, with as many HCAs as on the other nodes, that sees more: a note at most."""
    gpus = value_or(at(node, "gpus.usable"), 0)
    where, names = Where(node=node.name), fold_names(hca.name for hca in own)
    evidence = [seen("/sys/class/infiniband", f"{len(hcas)} HCAs"), seen("can be opened", names)]
    if len(own) >= gpus:
        return fine(where, f"{names} can be opened; {len(hcas) - len(own)} more are not this job's", *evidence)
    return note(
        where,
        f"{names} can be opened, and no other of {len(hcas)} HCAs; there are {gpus} GPUs",
        why="The container has fewer HCAs than GPUs: where it was not meant so, the others go unused.",
        owner="job",
        evidence=evidence,
        fix=_map_them(),
    )


def _no_files(node: Node, hcas: list[Hca]) -> Finding:
    names = fold_names(hca.name for hca in hcas)
    return fail(
        Where(node=node.name),
        f"{names} cannot be used: there is no uverbs file in /dev/infiniband",
        why=_OVER_TCP,
        owner="job",
        evidence=[seen("/sys/class/infiniband", names), seen("/dev/infiniband", "no uverbs file")],
        fix=_map_them(),
    )


def _no_file(node: Node, hca: Hca, files: list[str]) -> Finding:
    return fail(
        Where(node=node.name, device=hca.name),
        f"its file /dev/infiniband/{hca.uverbs} is not here, others are",
        why=_OVER_TCP,
        owner="job",
        evidence=[seen("/dev/infiniband", ", ".join(files))],
        fix=_map_them(),
    )


def _opened(node: Node, hcas: list[Hca]) -> Iterator[Finding]:
    opened = at(node, "rdma.opened")
    if isinstance(opened, Unread):
        why = "The files are there; a container's device rules may still refuse them."
        what = "whether the HCAs can be opened was not tried"
        yield not_read(Where(node=node.name), "rdma.opened", opened, what, why=why)
        return
    errors = {file.name: file.error for file in opened if file.error}
    refused = [hca for hca in hcas if hca.uverbs in errors]
    for hca in refused:
        yield fail(
            Where(node=node.name, device=hca.name),
            f"opening /dev/infiniband/{hca.uverbs} failed: {errors[str(hca.uverbs)]}",
            why=_OVER_TCP,
            owner="job",
            evidence=[seen(f"open(/dev/infiniband/{hca.uverbs})", errors[str(hca.uverbs)])],
            fix=_map_them(),
        )
    if not refused:
        yield fine(Where(node=node.name), f"{fold_names(hca.name for hca in hcas)} can be opened")


@rule(
    "RDM003",
    "libibverbs and a provider library for every HCA are installed",
    worst=State.FAIL,
    needs=("rdma.devices",),
)
def libraries(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The user-space half of RDMA: libibverbs.so.1, and for each HCA its provider (libmlx5-rdmav*.so, libefa...).

    ## Why it matters
    NCCL loads libibverbs at run time. Where an image lacks it, or has it without the provider of the HCA, NCCL
    says `Failed to open libibverbs.so` or `No device found` at INFO and goes on over TCP. Slim images of torch
    lack both.

    ## How we know
    Files only: LD_LIBRARY_PATH, the linker's cache /etc/ld.so.cache and its usual folders; for the providers
    /etc/libibverbs.d and the folder libibverbs beside the library. Without an HCA the library is not needed,
    and nothing is reported.

    ## Fix
    - **you** `apt-get install -y rdma-core libibverbs1 ibverbs-providers` in the image (Debian, Ubuntu);
      `dnf install -y libibverbs rdma-core` (RHEL).
    - **admin** the same on the host, or the vendor's packages (DOCA-OFED, the EFA installer).

    ## Source
    NVIDIA/nvidia-container-toolkit#1877, NVIDIA/nccl-tests#14, NVIDIA/nccl#259 (harmless without an HCA).
    """
    for node, hcas in _needed(cluster):
        where, library, providers = Where(node=node.name), at(node, "rdma.libibverbs"), at(node, "rdma.providers")
        if isinstance(library, Unread):
            yield _no_library(where, library)
        elif isinstance(providers, Unread):
            yield not_read(where, "rdma.providers", providers)
        elif lacking := _lacking(hcas, providers):
            yield _no_provider(where, lacking, library, providers)
        else:
            yield fine(where, f"{library} with {', '.join(providers)}", seen("libibverbs", library))


def _lacking(hcas: list[Hca], providers: list[str]) -> dict[str, list[str]]:
    """HCAs by the provider that they need and that is not here."""
    by_provider: dict[str, list[str]] = {}
    for hca in hcas:
        by_name = "mlx5" if hca.name.startswith("mlx5_") else ""
        needed = _PROVIDERS.get(str(hca.driver), by_name)
        if needed and needed not in providers:
            by_provider.setdefault(needed, []).append(hca.name)
    return by_provider


def _no_library(where: Where, library: Unread) -> Finding:
    if library.kind != "no_tool":
        return not_read(where, "rdma.libibverbs", library)
    return fail(
        where,
        "libibverbs.so.1 is not installed, and there are HCAs",
        why=_OVER_TCP,
        owner="job",
        evidence=[seen("libibverbs.so.1", library.why)],
        fix=_install(),
    )


def _no_provider(where: Where, lacking: dict[str, list[str]], library: str, providers: list[str]) -> Finding:
    text = "; ".join(f"{name} for {fold_names(hcas)}" for name, hcas in lacking.items())
    return fail(
        where,
        f"libibverbs has no driver library {text}",
        why=_OVER_TCP,
        owner="job",
        evidence=[seen(library, f"providers: {', '.join(providers) or 'none'}")],
        fix=_install(),
    )


def _install() -> list[Remedy]:
    return [
        you(
            "Install the RDMA libraries in the image or environment of the job.",
            "apt-get install -y rdma-core libibverbs1 ibverbs-providers",
        )
    ]
