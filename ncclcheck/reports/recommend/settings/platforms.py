"""Clouds and makes of machines: what their own documents have for them, where the facts tell which it is."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ncclcheck.reports.recommend.advice import Proposal, SettingRule, on, without
from ncclcheck.reports.recommend.site import SetVariable, Site
from ncclcheck.reports.subjects.nccl import lan, profiles, wiring
from ncclcheck.reports.subjects.nccl.variables import Version

_MANY_NODES = 8  # Azure's recipes say "large jobs" and no number: chosen, 64 GPUs
_OCI_DOC = "OCI, recommended NCCL parameters by shape (oci-hpc-oke)"
_FILES = (  # those of the models with NVLink, and of NC A100 v4; images for GB200 have none any more
    (re.compile("A100-SXM"), {"NCCL_TOPO_FILE": "/opt/microsoft/ndv4/topo.xml"}),
    (re.compile("H[12]00(?! NVL| PCIe)"), {"NCCL_TOPO_FILE": "/opt/microsoft/ndv5/topo.xml"}),
    (re.compile("A100 80GB PCIe"), {"NCCL_TOPO_FILE": "/opt/microsoft/ncv4/topo.xml",
                                    "NCCL_GRAPH_FILE": "/opt/microsoft/ncv4/graph.xml"}),
)  # fmt: skip
# of aws-ofi-nccl: since then it sets them by itself on P4 and later (commit f3f5c40b)
_PLUGIN_SETS_SINCE: Version = (1, 16, 0)
_WITH_A_TABLE = re.compile(r"Amazon EC2 (p4d|p4de|p5|p5e|p5en|p6-b200|p6-b300|p6e-gb200)\.(24|36|48)xlarge")

_AWS_SETS = {
    "NCCL_BUFFSIZE": 8388608, "NCCL_P2P_NET_CHUNKSIZE": 524288, "NCCL_NVLSTREE_MAX_CHUNKSIZE": 524288,
    "NCCL_NVLS_CHUNKSIZE": 524288, "NCCL_NET_FORCE_FLUSH": 0,
}  # fmt: skip


def _as_the_plugin(setting: SetVariable) -> bool:
    return setting.number == _AWS_SETS[setting.name]


def _aws_plugin(site: Site) -> bool:
    """Whether all machines are such that the plugin has a table for them, and the plugin is one that sets it."""
    table = all(_WITH_A_TABLE.search(profiles.products([node])) for node in site.nodes)
    versions = profiles.plugin_versions(site.nodes, "aws-ofi-nccl")
    return profiles.is_aws(site.nodes) and table and bool(versions) and min(versions) >= _PLUGIN_SETS_SINCE


# Two GPUs and two cards below one switch: the plugin says so to NCCL from this version on.
_TWO_A_SWITCH = re.compile(r"Amazon EC2 (p5en|p6-b200)\.")
_POLICY, _POLICY_VALUE = "NCCL_NETDEVS_POLICY", "max:1"
_PLUGIN_SETS_POLICY_SINCE: Version = (1, 18, 0)  # of aws-ofi-nccl


def _with_policy(site: Site) -> bool:
    """Whether all machines are of these, with a plugin that sets the policy."""
    versions = profiles.plugin_versions(site.nodes, "aws-ofi-nccl")
    return _two_a_switch(site) and bool(versions) and min(versions) >= _PLUGIN_SETS_POLICY_SINCE


def _two_a_switch(site: Site) -> bool:
    return profiles.is_aws(site.nodes) and all(
        _TWO_A_SWITCH.search(profiles.products([node])) for node in site.nodes
    )


def device_policy(site: Site) -> Iterator[Proposal]:
    """L18: p5en and p6-b200 with a plugin that does not say yet how NCCL should share out the cards."""
    versions = profiles.plugin_versions(site.nodes, "aws-ofi-nccl")
    if _two_a_switch(site) and versions and max(versions) < _PLUGIN_SETS_POLICY_SINCE and not site.is_set(_POLICY):
        why = "Two GPUs and two cards are below each switch: with one card for each none is shared."
        release = f"aws-ofi-nccl {'.'.join(map(str, min(versions)))}; 1.18.0 and later set it"
        yield Proposal(_POLICY, _POLICY_VALUE, why, [profiles.products(site.nodes[:1]), release])


def _of_tcpxo(site: Site) -> bool:
    return profiles.is_tcpxo(site.nodes)


def loud_without_efa(site: Site) -> Iterator[Proposal]:
    """P6: EFA and its plugin are on all of several nodes."""
    if not _has_efa_plugin(site) or site.is_set("NCCL_NET") or not site.several:
        return
    why = (
        "Where the plugin cannot use EFA, NCCL takes TCP without a word; with its name the job ends and says why."
    )
    if site.networks() == {"Socket"}:
        why = "NCCL took TCP although EFA is there: with the plugin's name it fails instead, and says why."
    chosen = [f"NCCL's log: Using network {name}" for name in sorted(site.networks())]
    yield Proposal("NCCL_NET", "AWS Libfabric", why, [*chosen, *site.plugins()[:1]])


def _has_efa_plugin(site: Site) -> bool:
    return bool(site.plugins()) and bool(site.nodes) and all(wiring.efa(node) for node in site.nodes)


def gib_profile(site: Site) -> Iterator[Proposal]:
    """P9: Google's gIB plugin without the file that belongs to it."""
    if profiles.is_gib(site.nodes) and not site.is_set("NCCL_CONF_FILE", "NCCL_TUNER_CONFIG_PATH"):
        why = "Google ships this plugin's settings in a file, or as scripts/set_nccl_env.sh to be sourced."
        yield Proposal("NCCL_CONF_FILE", f"{profiles.GIB}scripts/nccl.conf", why, site.plugins()[:1])


def azure_topology(site: Site) -> Iterator[Proposal]:
    """P11: a virtual machine of Azure whose PCIe tree NCCL cannot see."""
    problem = site.evidence_of("FAB009")
    if not profiles.is_azure(site.nodes) or not problem or site.is_set("NCCL_TOPO_FILE"):
        return
    for model in sorted(site.models()):
        files = next((files for pattern, files in _FILES if pattern.search(model)), {})
        why = "Azure's image has this file, a container needs it mounted; without it NCCL guesses what is near."
        for name, path in files.items():
            yield Proposal(name, path, why, [*problem, f"GPU {model}"])


def azure_without_pxn(site: Site) -> Iterator[Proposal]:
    """P12: many virtual machines of Azure with H100."""
    many = (
        len(site.nodes) >= _MANY_NODES and any("H100" in model for model in site.models()) and bool(site.ports())
    )
    if profiles.is_azure(site.nodes) and many and not site.is_set("NCCL_PXN_DISABLE"):
        why = "Azure's recipes for large jobs turn it off; measure all-to-all as well."
        yield Proposal("NCCL_PXN_DISABLE", "1", why, [f"Azure, {len(site.nodes)} nodes with H100"])


def oci_class(site: Site) -> Iterator[Proposal]:
    """P14, P15: RoCE of Oracle's cloud."""
    if (
        profiles.is_oci(site.nodes)
        and site.ports()
        and all(port.is_roce for _, port in site.ports())
        and not site.is_set("NCCL_IB_TC")
    ):
        yield Proposal(
            "NCCL_IB_TC",
            "41",
            "Oracle's fabric for GPUs is lossless in this class.",
            [f"asset tag {profiles.OCI}"],
        )


def oci_queue_pairs(site: Site) -> Iterator[Proposal]:
    """P14, P16: shapes for which Oracle sets four queue pairs."""
    models = {name for name in ("A100", "GB300") if any(name in model for model in site.models())}
    if profiles.is_oci(site.nodes) and models and site.ports() and not site.is_set("NCCL_IB_QPS_PER_CONNECTION"):
        why = "Oracle's table for this shape has four queue pairs a connection."
        yield Proposal(
            "NCCL_IB_QPS_PER_CONNECTION",
            "4",
            why,
            [f"asset tag {profiles.OCI}", f"GPU {', '.join(sorted(models))}"],
        )


def slingshot_interfaces(site: Site) -> Iterator[Proposal]:
    """P18: high-speed interfaces of Slingshot beside others, and NCCL takes others too."""
    if not profiles.is_slingshot(site.nodes) or site.is_set("NCCL_SOCKET_IFNAME"):
        return
    if any(not name.startswith("hsn") for node in site.nodes for name in lan.choice_of_nccl(node).names):
        interfaces = [f"{node.name}: {', '.join(profiles.slingshot_interfaces(node))}" for node in site.nodes[:2]]
        yield Proposal(
            "NCCL_SOCKET_IFNAME", "hsn", "The fast interfaces of Slingshot are hsn0 and on.", interfaces
        )


_CXI = {
    "FI_CXI_DISABLE_HOST_REGISTER": ("1", "Memory of the host is registered by CUDA alone, or the job hangs."),
    "FI_MR_CACHE_MONITOR": ("userfaultfd", "The default monitor of memory hangs together with NCCL."),
    "FI_CXI_RX_MATCH_MODE": ("software", "The card's own table of receives overflows in large jobs."),
}


def slingshot_provider(site: Site) -> Iterator[Proposal]:
    """P18: several nodes with Slingshot and a network plugin, without the settings of its provider."""
    if not profiles.is_slingshot(site.nodes) or not site.several or not site.plugins():
        return
    for name, (value, why) in _CXI.items():
        if not site.is_set(name):
            yield Proposal(name, value, why, [f"{site.nodes[0].name}: hsn0", *site.plugins()[:1]])


RULES = (
    SettingRule(
        rule="L18", title="nothing that AWS's plugin sets by itself", action="unset", harmful=True,
        find=without(*_AWS_SETS, only=_aws_plugin, when=_as_the_plugin,
                     why="The plugin sets this value by itself, and a newer one may know better."),
        source="aws-ofi-nccl release notes of 1.16.0, src/platform-aws.cpp", gain="none now",
    ),
    SettingRule(
        rule="L18", title="no policy for cards that AWS's plugin sets by itself", action="unset", harmful=True,
        find=without(_POLICY, only=_with_policy, when=on(_POLICY_VALUE),
                     why="The plugin sets this value by itself, and a newer one may know better."),
        source="aws-ofi-nccl src/platform-aws.cpp of 1.18.0", gain="none now",
    ),
    SettingRule(
        rule="L18", title="one card for each GPU on p5en and p6-b200", action="try", find=device_policy,
        since=(2, 28, 0), source=f"aws-ofi-nccl src/platform-aws.cpp of 1.18.0; NCCL user guide, {_POLICY}",
        gain="no card is shared in all-to-all", risk="a newer plugin is the better fix",
    ),
    SettingRule(
        rule="L19", title="no lists of an older TCPXO profile", action="try", harmful=True,
        find=without("NCCL_ALGO", "NCCL_NVLS_ENABLE", only=_of_tcpxo,
                     why="Google's profile has it no longer, and the checker of a newer plugin ends the job on a "
                     "difference; an older one may want it."),
        source="GoogleCloudPlatform/container-engine-accelerators, gpudirect-tcpxo",
        gain="the job starts with a newer plugin",
        risk="the profile beside the plugin decides: source its nccl-env-profile.sh",
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
        rule="P18", title="Slingshot's provider as its sites run it", action="try", find=slingshot_provider,
        source="CSCS documentation, NCCL; HPE Slingshot documentation, fi_cxi(7)", gain="no hang of large jobs",
        risk="software matching costs latency",
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
