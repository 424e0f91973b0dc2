"""Clouds and makes of machines: what their own profiles set, and may therefore stay; told by facts alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ncclcheck.probes.facts import Node, Unread, at, value_or
from ncclcheck.reports import lan, wiring
from ncclcheck.reports.recommend.advice import Found, SettingRule, without
from ncclcheck.reports.recommend.site import Held, Site

_OCI, _AZURE = "OracleCloud.com", "7783-7084-3265-9085-8269-3286-77"
_MANY = 8
_GIB = "/usr/local/gib/"
_OCI_DOC = "OCI, recommended NCCL parameters by shape (oci-hpc-oke)"
_TOPOLOGY = {"A100": "/opt/microsoft/ndv4/topo.xml", "H100": "/opt/microsoft/ndv5/topo.xml"}


@dataclass(frozen=True)
class Platform:
    """A platform, how it is recognised, and the variables that its own profile sets."""

    name: str
    is_it: Callable[[Site], bool]
    keeps: frozenset[str]


def _aws(site: Site) -> bool:
    return "Amazon EC2" in site.products() and bool(site.nodes) and all(wiring.efa(node) for node in site.nodes)


def _azure(site: Site) -> bool:
    return _AZURE in site.products() or "Microsoft Corporation Virtual Machine" in site.products()


def _oci(site: Site) -> bool:
    return _OCI in site.products()


def _tcpx(site: Site) -> bool:
    return any(name.startswith("NCCL_GPUDIRECTTCPX_") for one in site.settings for name in one.all)


def _tcpxo(site: Site) -> bool:
    return any(name.startswith("NCCL_FASTRAK_") for one in site.settings for name in one.all)


def _gib(site: Site) -> bool:
    return any(path.startswith(_GIB) for path in site.plugins())


def _coreweave(site: Site) -> bool:
    names = [value_or(at(node, "rdma.hcas"), []) for node in site.nodes]
    return bool(names) and all(hcas and all(name.startswith("ibp") for name in hcas) for hcas in names)


def _slingshot(site: Site) -> bool:
    return bool(site.nodes) and all(_hsn(node) for node in site.nodes)


def _hsn(node: Node) -> list[str]:
    listed = at(node, "network.interfaces")
    return [] if isinstance(listed, Unread) else [one.name for one in listed if one.name.startswith("hsn")]


PLATFORMS = (
    Platform("AWS with EFA", _aws, frozenset({"NCCL_SOCKET_IFNAME"})),
    Platform("Azure", _azure, frozenset({"NCCL_IB_PCI_RELAXED_ORDERING", "NCCL_TOPO_FILE",
    "NCCL_IGNORE_CPU_AFFINITY"})),
    Platform("OCI", _oci, frozenset({
        "NCCL_IB_TC", "NCCL_IB_SL", "NCCL_IB_TIMEOUT", "NCCL_IB_QPS_PER_CONNECTION",
        "NCCL_IB_SPLIT_DATA_ON_QPS", "NCCL_IB_HCA", "NCCL_CUMEM_ENABLE", "NCCL_SOCKET_IFNAME",
        "NCCL_IGNORE_CPU_AFFINITY", "NCCL_BUFFSIZE"})),
    Platform("GCP with TCPX", _tcpx, frozenset({
        "NCCL_ALGO", "NCCL_PROTO", "NCCL_CROSS_NIC", "NCCL_NET_GDR_LEVEL", "NCCL_P2P_PXN_LEVEL",
        "NCCL_SOCKET_IFNAME",
        "NCCL_NSOCKS_PERTHREAD", "NCCL_SOCKET_NTHREADS", "NCCL_P2P_NET_CHUNKSIZE", "NCCL_DYNAMIC_CHUNK_SIZE"})),
    Platform("GCP with TCPXO", _tcpxo, frozenset({
        "NCCL_PROTO", "NCCL_MIN_NCHANNELS", "NCCL_BUFFSIZE", "NCCL_NVLSTREE_MAX_CHUNKSIZE",
        "NCCL_P2P_NET_CHUNKSIZE",
        "NCCL_CROSS_NIC", "NCCL_SOCKET_IFNAME", "NCCL_NET_GDR_LEVEL", "NCCL_DYNAMIC_CHUNK_SIZE"})),
    Platform("GCP with gIB", _gib, frozenset({
        "NCCL_CROSS_NIC", "NCCL_NET_GDR_LEVEL", "NCCL_P2P_NET_CHUNKSIZE", "NCCL_NVLS_CHUNKSIZE",
        "NCCL_IB_ADAPTIVE_ROUTING", "NCCL_IB_QPS_PER_CONNECTION", "NCCL_IB_TC", "NCCL_IB_FIFO_TC"})),
    Platform("CoreWeave", _coreweave, frozenset({
        "NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "NCCL_NET_PLUGIN", "NCCL_IB_ADDR_FAMILY", "NCCL_IB_ADDR_RANGE",
        "NCCL_IB_TC", "NCCL_IB_ADAPTIVE_ROUTING"})),
    Platform("HPE Slingshot", _slingshot, frozenset({
        "NCCL_NET", "NCCL_SOCKET_IFNAME", "NCCL_NET_GDR_LEVEL", "NCCL_CROSS_NIC", "NCCL_PROTO"})),
)  # fmt: skip


def keeps(site: Site) -> Mapping[str, str]:
    """Variables that the profile of this platform sets -> its name: they are not taken away as leftovers."""
    return {name: one.name for one in PLATFORMS if one.is_it(site) for name in one.keeps}


_AWS_SETS = {
    "NCCL_BUFFSIZE": 8388608, "NCCL_P2P_NET_CHUNKSIZE": 524288, "NCCL_NVLSTREE_MAX_CHUNKSIZE": 524288,
    "NCCL_NVLS_CHUNKSIZE": 524288, "NCCL_NET_FORCE_FLUSH": 0,
}  # fmt: skip


def _as_the_plugin(held: Held) -> bool:
    return held.number == _AWS_SETS[held.name]


def _aws_plugin(site: Site) -> bool:
    return _aws(site) and bool(site.plugins())


def loud_without_efa(site: Site) -> Iterator[Found]:
    """P6: EFA and its plugin are there, and NCCL said that it uses TCP."""
    if site.networks() == {"Socket"} and _has_efa_plugin(site) and not site.is_set("NCCL_NET"):
        why = "NCCL took TCP although EFA is there: with the plugin's name it fails instead, and says why."
        yield Found("NCCL_NET", "AWS Libfabric", why, ["NCCL's log: Using network Socket", *site.plugins()[:1]])


def _has_efa_plugin(site: Site) -> bool:
    return bool(site.plugins()) and bool(site.nodes) and all(wiring.efa(node) for node in site.nodes)


def gib_profile(site: Site) -> Iterator[Found]:
    """P9: Google's gIB plugin without the file that belongs to it."""
    if _gib(site) and not site.is_set("NCCL_CONF_FILE", "NCCL_TUNER_CONFIG_PATH"):
        why = "Google ships this plugin's settings in a file, or as scripts/set_nccl_env.sh to be sourced."
        yield Found("NCCL_CONF_FILE", f"{_GIB}scripts/nccl.conf", why, site.plugins()[:1])


def azure_topology(site: Site) -> Iterator[Found]:
    """P11: a virtual machine of Azure whose PCIe tree NCCL cannot see."""
    problem = site.told("FAB009")
    model = next((name for name in _TOPOLOGY if any(name in model for model in site.models())), "")
    if _azure(site) and problem and model and not site.is_set("NCCL_TOPO_FILE"):
        why = "Azure's image has this file, a container needs it mounted; without it NCCL guesses what is near."
        yield Found("NCCL_TOPO_FILE", _TOPOLOGY[model], why, [*problem, f"GPU {model}"])


def azure_without_pxn(site: Site) -> Iterator[Found]:
    """P12: many virtual machines of Azure with H100."""
    many = len(site.nodes) >= _MANY and any("H100" in one for one in site.models()) and bool(site.ports())
    if _azure(site) and many and not site.is_set("NCCL_PXN_DISABLE"):
        why = "Azure's recipes for large jobs turn it off."
        yield Found("NCCL_PXN_DISABLE", "1", why, [f"Azure, {len(site.nodes)} nodes with H100"])


def oci_class(site: Site) -> Iterator[Found]:
    """P14, P15: RoCE of Oracle's cloud."""
    if (
        _oci(site)
        and site.ports()
        and all(one.is_roce for _, one in site.ports())
        and not site.is_set("NCCL_IB_TC")
    ):
        yield Found(
            "NCCL_IB_TC", "41", "Oracle's fabric for GPUs is lossless in this class.", [f"asset tag {_OCI}"]
        )


def oci_queue_pairs(site: Site) -> Iterator[Found]:
    """P14, P16: shapes for which Oracle sets four queue pairs."""
    models = {name for name in ("A100", "GB300") if any(name in model for model in site.models())}
    if _oci(site) and models and site.ports() and not site.is_set("NCCL_IB_QPS_PER_CONNECTION"):
        why = "Oracle's table for this shape has four queue pairs a connection."
        yield Found(
            "NCCL_IB_QPS_PER_CONNECTION", "4", why, [f"asset tag {_OCI}", f"GPU {', '.join(sorted(models))}"]
        )


def slingshot_interfaces(site: Site) -> Iterator[Found]:
    """P18: high-speed interfaces of Slingshot beside others, and NCCL takes others too."""
    if not _slingshot(site) or site.is_set("NCCL_SOCKET_IFNAME"):
        return
    if any(not name.startswith("hsn") for node in site.nodes for name in lan.choice_of_nccl(node).names):
        yield Found("NCCL_SOCKET_IFNAME", "hsn", "The fast interfaces of Slingshot are hsn0 and on.",
                    [f"{node.name}: {', '.join(_hsn(node))}" for node in site.nodes[:2]])  # fmt: skip


RULES = (
    SettingRule(
        rule="L18", title="nothing that AWS's plugin sets by itself", action="unset",
        find=without(*_AWS_SETS, only=_aws_plugin, when=_as_the_plugin,
                     why="The plugin sets this value by itself, and a newer one may know better."),
        source="aws-ofi-nccl src/platform-aws.cpp", gain="none now",
    ),
    SettingRule(
        rule="L19", title="no lists of an older TCPXO profile", action="unset", harmful=True,
        find=without("NCCL_ALGO", "NCCL_NVLS_ENABLE", only=_tcpxo,
                     why="Google's profile has it no longer, and its checker ends the job on a difference."),
        source="GoogleCloudPlatform/container-engine-accelerators, gpudirect-tcpxo",
        gain="the job starts", risk="source the profile that is installed: nccl-env-profile.sh",
    ),
    SettingRule(
        rule="P6", title="EFA by its name, so that its absence is an error", action="try", find=loud_without_efa,
        source="aws-ofi-nccl src/nccl_ofi_interface_nvidia.cpp", gain="no silent TCP",
        risk="the job does not start where the plugin does not work, which is what is wanted",
    ),
    SettingRule(
        rule="P9", title="the file that belongs to Google's gIB", action="try", find=gib_profile, since=(2, 23, 0),
        source="GoogleCloudPlatform/container-engine-accelerators, gpudirect-rdma",
        gain="the settings of the vendor", risk="the file was not looked at",
    ),
    SettingRule(
        rule="P11", title="Azure's topology file", action="try", find=azure_topology,
        source="Azure/azhpc-images, components/customizations", gain="every GPU uses the card near it",
        risk="the file of another size of machine is worse than none",
    ),
    SettingRule(
        rule="P18", title="Slingshot's interfaces", action="try", find=slingshot_interfaces,
        source="Isambard-AI and CSCS documentation", gain="the fast network",
    ),
    SettingRule(
        rule="P14", title="the traffic class of Oracle's fabric", action="try", find=oci_class, source=_OCI_DOC,
        gain="no packets dropped under load", risk="other shapes may have another class",
    ),
    SettingRule(
        rule="P16", title="four queue pairs on shapes for which Oracle sets them", action="try",
        find=oci_queue_pairs,
        source=_OCI_DOC, gain="no two flows on one cable",
        disagree="NVIDIA's default is 1; OCI's table for H100 has none.",
    ),
    SettingRule(
        rule="P12", title="no PXN on many virtual machines of Azure", action="try", find=azure_without_pxn,
        source="Azure/ai-infrastructure-on-azure", gain="all_reduce at large sizes",
        disagree="NVIDIA, OCI and GCP leave PXN on; Azure's own documents differ.",
    ),
)  # fmt: skip
