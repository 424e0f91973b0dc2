"""Settings that InfiniBand and RoCE are better without."""

from __future__ import annotations

from ncclcheck.reports.recommend.advice import SettingRule, number, without
from ncclcheck.reports.recommend.settings.rdma import infiniband
from ncclcheck.reports.recommend.site import SetVariable, Site
from ncclcheck.reports.rules.nccl.verbs import lowest
from ncclcheck.reports.subjects.nccl import wiring

_ENV = "NCCL user guide"
_QPS = "NCCL_IB_QPS_PER_CONNECTION"


def _too_short(setting: SetVariable) -> bool:
    return setting.number is not None and 0 < setting.number < lowest(setting.on.version)[setting.name]


def _every_node_is_active(site: Site) -> bool:
    """Whether every node has an HCA that could carry data between machines."""
    return site.several and all(wiring.has_rdma(node) for node in site.nodes)


def _is_on(setting: SetVariable) -> bool:
    return bool(setting.number)


def _only_infiniband(site: Site) -> bool:
    return bool(infiniband(site))


def _several_rails(site: Site) -> bool:
    ports = site.ports()
    return len(ports) > len(site.nodes)


def _nvlink_and_rails(site: Site) -> bool:
    return site.has_nvlink() and _several_rails(site)


def _above_one(setting: SetVariable) -> bool:
    return (setting.number or 0) > 1


def _on_bare_metal(setting: SetVariable) -> bool:
    return setting.number == 1 and wiring.is_virtual(setting.on.node) is False


RULES = (
    SettingRule(
        rule="R29", title="InfiniBand and RoCE are not turned off where every node has them", action="unset",
        find=without("NCCL_IB_DISABLE", only=_every_node_is_active, when=_is_on,
                     why="Every node has an HCA with an ACTIVE port, and the job runs over TCP because of it."),
        source=f"{_ENV}, Debugging, NCCL_IB_DISABLE", gain="RDMA instead of TCP: often ten times the bandwidth",
        risk="if it was set because of a fault of the fabric, that comes back: run bench without it",
    ),
    SettingRule(
        rule="R12", title="InfiniBand's timeout and retries are not below NCCL's own", action="unset",
        find=without("NCCL_IB_TIMEOUT", "NCCL_IB_RETRY_CNT", when=_too_short,
                     why="It is far below NCCL's own default: a brief link failure ends the job."),
        source=f"{_ENV}, NCCL_IB_TIMEOUT; NVIDIA/nccl src/transport/net_ib/connect.cc",
        gain="a switch that restarts does not end the job",
    ),
    SettingRule(
        rule="R6", title="one queue pair a connection on InfiniBand", action="try",
        find=without(_QPS, only=_only_infiniband, when=_above_one,
                     why="Where the fabric has adaptive routing, it spreads packets of one queue pair already."),
        source=f"{_ENV}, {_QPS} and NCCL_IB_ADAPTIVE_ROUTING", gain="less memory and lower latency",
        risk="where the fabric has no adaptive routing more may be right: measure both",
        disagree="NVIDIA's default is 1; Azure sets 4 on InfiniBand.",
    ),
    SettingRule(
        rule="R7", title="messages are not split over queue pairs", action="try", since=(2, 20, 0),
        find=without("NCCL_IB_SPLIT_DATA_ON_QPS", when=number(1),
                     why="The default is 0 since NCCL 2.20; 1 was the default of 2.18 and 2.19."),
        source=f"{_ENV}, NCCL_IB_SPLIT_DATA_ON_QPS", gain="lower latency",
        disagree="In NVIDIA/nccl#1401 a cluster of H100 with four 400 Gb/s cards was faster with 1: measure both.",
    ),
    SettingRule(
        rule="R17", title="adaptive routing is left to NCCL on InfiniBand", action="unset", of_machine=True,
        find=without("NCCL_IB_ADAPTIVE_ROUTING", only=_only_infiniband, when=number(1),
                     why="It is on by itself on InfiniBand."),
        source=f"{_ENV}, NCCL_IB_ADAPTIVE_ROUTING", gain="none: it is the default",
    ),
    SettingRule(
        rule="R23", title="GPUDirect over C2C is on by itself from NCCL 2.27 on", action="unset", since=(2, 27, 0),
        find=without("NCCL_NET_GDR_C2C", when=number(1), why="It is on by itself since NCCL 2.27."),
        source=f"{_ENV}, NCCL_NET_GDR_C2C; NVIDIA/nccl src/graph/paths.cc", gain="none: it is the default",
    ),
    SettingRule(
        rule="R26", title="relaxed ordering is not forced on bare metal", action="unset", of_machine=True,
        find=without("NCCL_IB_PCI_RELAXED_ORDERING", when=_on_bare_metal,
                     why="The default, 2, uses it where it works; 1 fails where it does not."),
        source=f"{_ENV}, NCCL_IB_PCI_RELAXED_ORDERING; NVIDIA/nccl#1205", gain="none now",
    ),
    SettingRule(
        rule="R16", title="PXN is not turned off on nodes with NVLink and several rails", action="try",
        find=without("NCCL_PXN_DISABLE", only=_nvlink_and_rails, when=number(1),
                     why="With PXN a GPU sends over the rail of another one: fewer connections for all-to-all."),
        source=f"{_ENV}, NCCL_PXN_DISABLE", gain="all-to-all over many nodes",
        disagree="Azure's recipes turn it off; NVIDIA, OCI and GCP leave it on. It depends on message sizes.",
    ),
    SettingRule(
        rule="L22", title="rings do not cross rails unless that was measured", action="try",
        find=without("NCCL_CROSS_NIC", only=_several_rails, when=number(1),
                     why="On a fabric with a switch for each rail it sends rings through the spine."),
        source=f"{_ENV}, NCCL_CROSS_NIC", gain="no congestion on the spine",
        disagree="NVIDIA has 1 for nodes whose cards are all on one switch; the default, 2, tries both.",
    ),
)  # fmt: skip
