"""Inside a node: NVLink, PCIe, shared memory, and the memory that NCCL takes."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import NvFabric, Unread
from ncclcheck.reports.recommend.advice import Proposal, SettingRule, number, without
from ncclcheck.reports.recommend.site import SetVariable, Site
from ncclcheck.reports.rules.fabric.numa import CPUS_ALLOWED

_ENV = "NCCL user guide"
_RUN = "NCCL user guide, Troubleshooting"


def p2p_that_damages(site: Site) -> Iterator[Proposal]:
    """I3: GeForce of the 40 series whose driver says that P2P works, and results were wrong or a rank hung."""
    models = {model for model in site.models() if "GeForce RTX 40" in model}
    problem = site.evidence_of("BEN001", "RUN003")
    if models and models == site.models() and site.peers_work() and problem:
        why = "These cards have no P2P of their own; a driver that allows it has damaged data or hung."
        yield Proposal("NCCL_P2P_DISABLE", "1", why, [f"GPU {', '.join(sorted(models))}", *problem])


def farther_p2p(site: Site) -> Iterator[Proposal]:
    """I4: PCIe only, peers can read each other's memory, and NCCL went through shared memory."""
    if "SHM" not in _first_words(site.kinds("intra")) or site.is_set("NCCL_P2P_LEVEL", "NCCL_P2P_DISABLE"):
        return
    if site.is_pcie_only() and site.peers_work():
        why = (
            "The GPUs can read each other's memory over PCIe, which NCCL does not use at this distance by itself."
        )
        evidence = [
            f"NCCL's log: {', '.join(sorted(site.kinds('intra')))}",
            "NVML: peer access works for every pair",
        ]
        yield Proposal("NCCL_P2P_LEVEL", "SYS", why, evidence)


def copy_engines(site: Site) -> Iterator[Proposal]:
    """I5: PCIe only and shared memory between the GPUs: copy engines instead of kernels."""
    name = "NCCL_SHM_USE_CUDA_MEMCPY"
    if "SHM" in _first_words(site.kinds("intra")) and site.is_pcie_only() and not site.is_set(name):
        why = "The GPUs of a node talk through shared memory; copy engines may be faster than kernels there."
        yield Proposal(name, "1", why, [f"NCCL's log: {', '.join(sorted(site.kinds('intra')))}"])


def _first_words(kinds: set[str]) -> set[str]:
    return {kind.partition("/")[0] for kind in kinds}


def tree_between_few(site: Site) -> Iterator[Proposal]:
    """I6: two to four nodes of RTX PRO cards without NVLink."""
    models = site.models()
    pro = bool(models) and all("RTX PRO" in model for model in models)
    if pro and site.is_pcie_only() and site.several and 2 <= len(site.nodes) <= 4 and not site.is_set("NCCL_ALGO"):
        why = "Between two to four nodes without NVLink a tree sends fewer bytes over the network than a ring."
        evidence = [f"GPU {', '.join(sorted(models))}, no NVLink", f"{len(site.nodes)} nodes"]
        yield Proposal("NCCL_ALGO", "allreduce:tree", why, evidence)


def without_host_memory_of_cuda(site: Site) -> Iterator[Proposal]:
    """I9: NCCL 2.24 to 2.26.4 where it may not place host memory."""
    problem = site.evidence_of("CON004", "FAB008")
    if problem and site.value("NCCL_CUMEM_HOST_ENABLE") is None:
        why = "This NCCL takes host memory by CUDA and does not fall back where that is not allowed."
        yield Proposal("NCCL_CUMEM_HOST_ENABLE", "0", why, problem)


def nvls_that_fails(site: Site) -> Iterator[Proposal]:
    """I12: NVLink SHARP could not be set up."""
    lines = [line for log in site.logs for line in log.warnings if "NVLS" in line or "multicast" in line.lower()]
    problem = [*site.evidence_of("GPU020"), *(f"NCCL: {line[:120]}" for line in lines[:2])]
    if problem and not site.is_set("NCCL_NVLS_ENABLE") and site.has_nvlink():
        why = "NVLink SHARP could not be set up; NCCL does without it until the fabric is repaired."
        yield Proposal("NCCL_NVLS_ENABLE", "0", why, problem)


def cores_of_others(site: Site) -> Iterator[Proposal]:
    """I20: the process may not use the cores beside its GPUs."""
    problem = site.evidence_of("FAB007", seen_in=CPUS_ALLOWED)
    if problem and not site.is_set("NCCL_IGNORE_CPU_AFFINITY"):
        why = "NCCL's threads share the few cores of the process, far from the GPU; to bind the ranks is better."
        yield Proposal("NCCL_IGNORE_CPU_AFFINITY", "1", why, problem)


def mixed_processors(site: Site) -> Iterator[Proposal]:
    """I26: processors of two vendors with a NCCL that counts costs by vendor."""
    if problem := site.evidence_of("NCC036"):
        why = "Ranks on processors of different vendors choose different algorithms with this NCCL, and hang."
        yield Proposal("NCCL_NET_OVERHEAD", "1000", why, problem)


def _nvlink(site: Site) -> bool:
    return site.has_nvlink()


def _pcie_with_peers(site: Site) -> bool:
    return site.is_pcie_only() and site.peers_work() and not site.evidence_of("BEN001", "RUN003")


def _asked_for(setting: SetVariable) -> bool:
    """CUMEM=0 although NVLink between machines is asked for, which needs it."""
    return setting.number == 0 and setting.on.number("NCCL_MNNVL_ENABLE") == 1


def _fabric_is_well(site: Site) -> bool:
    fabrics = [card.fabric for card in site.gpus()]
    return bool(fabrics) and all(
        isinstance(fabric, NvFabric)
        and fabric.state == "completed"
        and fabric.status == 0
        and bool(fabric.cluster)
        and _well(fabric)
        for fabric in fabrics
    )


def _well(fabric: NvFabric) -> bool:
    return fabric.health in ("", "healthy")


def _unreadable(setting: SetVariable) -> bool:
    nccl = setting.on.node.nccl
    files = [] if isinstance(nccl, Unread) or isinstance(nccl.named_files, Unread) else nccl.named_files
    return any(file.name == setting.name and not file.fits for file in files)


def _unreadable_everywhere(site: Site) -> bool:
    """Where other nodes read it, the file belongs on this one too (NCC011)."""
    return site.values_of("NCCL_TOPO_FILE") == site.values_of("NCCL_TOPO_FILE", _unreadable)


RULES = (
    SettingRule(
        rule="I3", title="no P2P on cards that damage data with it", action="set", find=p2p_that_damages,
        source="NVIDIA/nccl-tests#117; huggingface/accelerate, GeForce 40 series", gain="right results, no hang",
    ),
    SettingRule(
        rule="I9", title="no host memory by CUDA where it may not be placed", action="set", since=(2, 24, 0),
        until=(2, 26, 4), find=without_host_memory_of_cuda, source=f"{_RUN}, cuMem; pytorch/pytorch#152302",
        gain="init does not end with 'out of memory'", risk="SYS_NICE for the container is the alternative",
    ),
    SettingRule(
        rule="I26", title="the same costs on processors of all vendors", action="set", since=(2, 18, 1),
        until=(2, 19, 3), find=mixed_processors, source="NVIDIA/nccl#1136", gain="no hang",
        risk="a newer NCCL is the better fix",
    ),
    SettingRule(
        rule="I1", title="P2P is not turned off on GPUs with NVLink", action="unset",
        find=without("NCCL_P2P_DISABLE", only=_nvlink, when=number(1),
                     why="The GPUs have NVLinks that are up, but this setting disables them."),
        source=f"{_ENV}, Debugging, NCCL_P2P_DISABLE; huggingface/accelerate#2328",
        gain="5 to 20 times the bandwidth within a node",
        risk="if it was set for a hang, look at ACS first (FAB001)",
    ),
    SettingRule(
        rule="I7", title="shared memory is not turned off", action="unset",
        find=without("NCCL_SHM_DISABLE", when=number(1), why="Ranks of one node then talk over the network."),
        source=f"{_ENV}, Debugging, NCCL_SHM_DISABLE", gain="data within a node does not leave it",
    ),
    SettingRule(
        rule="I9", title="host memory by CUDA is not turned off from NCCL 2.26.5 on", action="unset",
        since=(2, 26, 5),
        find=without("NCCL_CUMEM_HOST_ENABLE", when=number(0),
                     why="NCCL falls back by itself since 2.26.5, where it may not place host memory."),
        source=f"{_RUN}, cuMem", gain="none now", risk="drivers before CUDA 13 without P2P may still need 0",
    ),
    SettingRule(
        rule="I10", title="cuMem is not off where something asked for needs it", action="unset",
        find=without("NCCL_CUMEM_ENABLE", when=_asked_for,
                     why="NVLink between machines, which is asked for, needs it."),
        source="verl-project/verl#7564; NVIDIA/nccl#1234", gain="what is asked for works",
        disagree="OCI's tables for H100 to B300 set 0; NVIDIA, vLLM and verl leave the default.", harmful=True,
    ),
    SettingRule(
        rule="I11", title="NVLink SHARP may fall back", action="try", since=(2, 27, 0), until=(2, 28, 99),
        find=without("NCCL_NVLS_ENABLE", when=number(1),
                     why="The default, 2, falls back where it does not work; with 1 that ends init."),
        source=f"{_ENV}, NCCL_NVLS_ENABLE", gain="init survives a fabric that is not ready",
    ),
    SettingRule(
        rule="I19", title="no topology file that cannot be read", action="unset", of_machine=True, harmful=True,
        find=without("NCCL_TOPO_FILE", when=_unreadable, only=_unreadable_everywhere,
                     why="The file cannot be read here, and NCCL says nothing of it."),
        source="NVIDIA/nccl src/graph/topo.cc", gain="none: it had no effect",
        risk="in a container it may be a mount "
        "that is missing: then mount it instead",
    ),
    SettingRule(
        rule="I2", title="P2P over PCIe, where NVML says that it works", action="try",
        find=without("NCCL_P2P_DISABLE", only=_pcie_with_peers, when=number(1),
                     why="NVML says that every pair of GPUs can read each other's memory; it may be a leftover."),
        source="NVIDIA/nccl#1637, NVIDIA/nccl-tests#117", gain="no detour through the host's memory",
        risk="if it was set for a hang, that comes back: bench has a deadline",
    ),
    SettingRule(
        rule="I10", title="cuMem as NCCL has it", action="try",
        find=without("NCCL_CUMEM_ENABLE", when=number(0),
                     why="It came into scripts because of a leak that NCCL 2.22.3 fixed."),
        since=(2, 22, 3), source="NVIDIA/nccl#1234; vllm-project/vllm#24141",
        gain="registered buffers",
        risk="memory may grow: watch it while measuring",
        disagree="OCI's tables for H100 to B300 set 0; NVIDIA, vLLM and verl leave the default.",
    ),
    SettingRule(
        rule="I17", title="NVLink between machines, where its fabric is well", action="try",
        find=without("NCCL_MNNVL_ENABLE", only=_fabric_is_well, when=number(0),
                     why="Every GPU is in a healthy fabric; 0 keeps its NVLinks to other machines idle."),
        source=f"{_ENV}, NCCL_MNNVL_ENABLE", gain="NVLink instead of the network within a rack",
        risk="init may hang where IMEX is broken: bench has a deadline",
    ),
    SettingRule(
        rule="I12", title="no NVLink SHARP while it fails", action="try", find=nvls_that_fails, since=(2, 17, 0),
        source=f"{_ENV}, NCCL_NVLS_ENABLE; NVIDIA/NeMo-Framework-Launcher#127", gain="init, and memory",
        risk="all_reduce within a node falls from about 480 to 370 GB/s on H100",
    ),
    SettingRule(
        rule="I20", title="NCCL's threads on any core, where the job is bound badly", action="try",
        find=cores_of_others, source=f"{_ENV}, NCCL_IGNORE_CPU_AFFINITY", gain="threads do not share a core",
        risk="the threads run on cores of other jobs: binding the ranks rightly is better",
    ),
    SettingRule(
        rule="I4", title="P2P over longer paths", action="try", find=farther_p2p,
        source=f"{_ENV}, NCCL_P2P_LEVEL; NVIDIA/nccl-tests#74", gain="no detour through the host's memory",
        risk="slower on some processors (NVIDIA/nccl-tests#74) and for all-to-all",
    ),
    SettingRule(
        rule="I5", title="copy engines for shared memory", action="try", find=copy_engines, since=(2, 13, 4),
        until=(2, 30, 4), source="AWS, EFA cheat sheet (awsome-distributed-training)",
        gain="AWS saw twice the bandwidth on g5 and g6",
    ),
    SettingRule(
        rule="I6", title="a tree for all_reduce between few nodes of RTX PRO", action="try", find=tree_between_few,
        since=(2, 24, 0), source="OCI, recommended NCCL parameters by shape",
        gain="34 against 21 GB/s busbw at OCI",
        risk="never NCCL_ALGO=Tree without a collective: it leaves broadcast without an algorithm",
    ),
)  # fmt: skip
