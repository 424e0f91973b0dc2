"""Settings of NCCL's network that do not fit what the node has: the network itself, its plugins, EFA."""

from __future__ import annotations

import os.path
from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster, Unread, at, known
from ncclcheck.reports.judgement.findings import Evidence, Finding, State, admin, fail, note, seen, warn, you
from ncclcheck.reports.judgement.rule import rule
from ncclcheck.reports.subjects.nccl import wiring
from ncclcheck.reports.subjects.nccl.settings import Settings, nodes_with

_PLUGINS = (("NCCL_NET_PLUGIN", "net"), ("NCCL_TUNER_PLUGIN", "tuner"))
_BUILT_IN = {"none", "static_plugin"}
_STALE = ("FI_EFA_FORK_SAFE", "FI_EFA_USE_DEVICE_RDMA", "FI_PROVIDER")


def _net_plugins(settings: Settings) -> list[str]:
    """Files of network plugins that NCCL would load on this node."""
    paths: list[str] = known(at(settings.node, "nccl.plugins"))
    return [path for path in paths if "net" in os.path.basename(path)]


def _hcas(settings: Settings) -> list[str] | None:
    """RDMA devices; None where it could not be seen whether there are any."""
    hcas = at(settings.node, "rdma.hcas")
    if isinstance(hcas, Unread):
        return [] if hcas.kind == "absent" else None
    return list(hcas)


def _rdma(hcas: list[str]) -> Evidence:
    return seen("/sys/class/infiniband", ", ".join(hcas) or "no device")


@rule(
    "NCC009",
    "NCCL_NET names a network that the node has",
    worst=State.FAIL,
    needs=("job.variables", "nccl.plugins"),
)
def network_is_there(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    NCCL_NET=IB on a node without an RDMA device, or the name of a plugin's network where no network plugin would
    be found.

    ## Why it matters
    Without NCCL_NET a missing network is replaced by plain sockets. With it NCCL takes that network or none: init
    ends with an internal error. Where only some nodes lack it, the others wait for them.

    ## Seen as
    does not start, dies

    ## How we know
    /sys/class/infiniband, and the plugins that the dynamic linker would find. `Socket` needs nothing. Whether a
    plugin that was found names its network so cannot be seen from outside.

    ## Fix
    - **you** remove it, to see what NCCL chooses; in a container hand in the devices
      (`docker run --device /dev/infiniband`) or the plugin's directory.
    - **admin** install the plugin, or the driver of the RDMA device, on that node.

    ## Source
    NCCL user guide, NCCL_NET (2.10 and later); NVIDIA/nccl#229; NVIDIA/nccl-tests#188.
    """
    for settings in nodes_with(cluster, "NCCL_NET"):
        wanted, hcas, plugins = settings.text("NCCL_NET"), _hcas(settings), _net_plugins(settings)
        ib = wanted.lower() == "ib"
        if wanted.lower() in ("", "socket") or plugins or (ib and hcas != []):
            continue
        missing = "no RDMA device" if ib else "no network plugin that NCCL would find"
        yield fail(
            settings.where,
            f"NCCL_NET={wanted}, and the node has {missing}",
            why="NCCL takes this network or none: init ends with an error instead of using sockets.",
            owner="job",
            evidence=[*settings.evidence("NCCL_NET"), _rdma(hcas or []) if ib else seen("plugins found", "none")],
            fix=[
                you("Remove it, or hand the devices or the plugin into the container.", "unset NCCL_NET"),
                admin("Install what it names.", "ls /sys/class/infiniband", "ldconfig -p | grep libnccl-net"),
            ],
        )


@rule(
    "NCC010",
    "the plugins named in NCCL_NET_PLUGIN and NCCL_TUNER_PLUGIN are found",
    worst=State.WARN,
    needs=("job.variables", "nccl.plugins"),
)
def named_plugins(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    A plugin that a variable asks for, and that the dynamic linker would not find.

    ## Why it matters
    NCCL says so at NCCL_DEBUG=INFO only, and goes on with its own network. On a cloud whose fast network needs
    the plugin the job then runs over plain TCP, at a hundredth of the bandwidth, and nobody notices.

    ## Seen as
    slow, setting without effect

    ## How we know
    The name as it stands and as `libnccl-net-NAME.so`, looked for where the linker looks: LD_LIBRARY_PATH and
    its cache. A RUNPATH inside libnccl is not followed. `none` asks for no plugin and is fine.

    ## Fix
    - **you** add the plugin's directory to LD_LIBRARY_PATH in the job script, or mount it into the container; to
      be sure that the job stops without it, set NCCL_NET to the name of its network as well.
    - **admin** install it on all nodes, or add its directory to /etc/ld.so.conf.d.

    ## Source
    NCCL user guide, NCCL_NET_PLUGIN (2.11 and later) and NCCL_TUNER_PLUGIN (2.19 and later); NVIDIA/nccl#229;
    ld.so(8).
    """
    for settings in nodes_with(cluster, *(name for name, _ in _PLUGINS)):
        paths: list[str] = known(at(settings.node, "nccl.plugins"))
        for name, kind in _PLUGINS:
            value = settings.text(name)
            names = {os.path.basename(value), f"libnccl-{kind}-{value}.so"}
            if not value or value.lower() in _BUILT_IN or any(os.path.basename(path) in names for path in paths):
                continue
            yield warn(
                settings.where,
                f"{name}={value} is found nowhere that the linker looks",
                why="NCCL silently continues without it, usually over plain TCP.",
                owner="job",
                evidence=[
                    *settings.evidence(name, "LD_LIBRARY_PATH"),
                    seen("plugins found", ", ".join(paths) or "none"),
                ],
                fix=[
                    you("Add its directory.", "export LD_LIBRARY_PATH=/path/to/plugin:$LD_LIBRARY_PATH"),
                    admin("Install it on all nodes.", "ldconfig -p | grep libnccl"),
                ],
            )


@rule(
    "NCC028",
    "the network plugin honours NCCL_IB_DISABLE",
    worst=State.WARN,
    needs=("job.variables", "nccl.plugins"),
)
def disabled_in_plugin(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    NCCL_IB_DISABLE=1 together with HPC-X's network plugin (nccl-rdma-sharp), without NCCL_IBEXT_DISABLE=1.

    ## Why it matters
    The plugin brings InfiniBand code of its own under the name IBext, which does not read NCCL_IB_DISABLE. Who
    turned InfiniBand off to go around a fault still uses it, and looks for the fault in the wrong place.

    ## How we know
    The path of the network plugin that NCCL would load has `hpcx` or `sharp` in it.

    ## Fix
    - **you** `export NCCL_IBEXT_DISABLE=1`, or leave the plugin out: `NCCL_NET_PLUGIN=none`.

    ## Source
    NVIDIA/nccl#676; NVIDIA/nccl-tests#227.
    """
    for settings in nodes_with(cluster, "NCCL_IB_DISABLE"):
        plugins = [path for path in _net_plugins(settings) if "hpcx" in path.lower() or "sharp" in path.lower()]
        if not plugins or not settings.number("NCCL_IB_DISABLE") or settings.number("NCCL_IBEXT_DISABLE"):
            continue
        yield warn(
            settings.where,
            f"NCCL_IB_DISABLE=1, and {os.path.basename(plugins[0])} uses InfiniBand all the same",
            why="The plugin has a switch of its own and does not read this one.",
            owner="job",
            evidence=[*settings.evidence("NCCL_IB_DISABLE"), seen("plugin", plugins[0])],
            fix=[you("Turn it off there too.", "export NCCL_IBEXT_DISABLE=1")],
        )


@rule(
    "NCC029",
    "FI_PROVIDER names the provider that the node has",
    worst=State.WARN,
    needs=("job.variables",),
)
def provider_without_device(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    FI_PROVIDER=efa on a node without any RDMA device, and another provider than efa on a node with EFA devices.

    ## Why it matters
    The OFI plugin then finds no provider, NCCL says so at INFO only and uses plain TCP. It happens on instance
    types without EFA, on instances started without the EFA interface, and in containers without its device.
    The other way round libfabric hides every provider that FI_PROVIDER does not name, and EFA lies idle.

    ## Seen as
    slow, setting without effect

    ## How we know
    /sys/class/infiniband, where an EFA device is listed like any other RDMA device; its driver is efa.

    ## Fix
    - **you** start the instances or pods with EFA (`vpc.amazonaws.com/efa` in the pod's limits, or `docker run
      --device /dev/infiniband/uverbs0`); set `NCCL_NET=Libfabric`, so that a job without it stops.
    - **admin** attach EFA interfaces to the launch template, install the EFA driver.

    ## Source
    NVIDIA/nccl#229; AWS, Elastic Fabric Adapter user guide; aws-ofi-nccl documentation; fi_fabric(7), FI_PROVIDER.
    """
    for settings in nodes_with(cluster, "FI_PROVIDER"):
        if _hides_efa(settings.text("FI_PROVIDER")) and (devices := wiring.efa(settings.node)):
            yield _idle_efa(settings, [device.name for device in devices])
        if "efa" in settings.text("FI_PROVIDER").lower().split(",") and _hcas(settings) == []:
            yield warn(
                settings.where,
                "FI_PROVIDER=efa, and the node has no RDMA device",
                why="The plugin finds no provider, and NCCL silently falls back to plain TCP.",
                owner="job",
                evidence=[*settings.evidence("FI_PROVIDER"), _rdma([])],
                fix=[
                    you("Start the job on nodes with EFA, or hand its device in.", "ls /sys/class/infiniband"),
                    admin("Attach EFA interfaces to these instances."),
                ],
            )


def _hides_efa(providers: str) -> bool:
    """Whether a filter of libfabric leaves EFA out; one that begins with ^ names those that it leaves out."""
    named = providers.lower().strip()
    listed = "efa" in named.lstrip("^").split(",")
    return bool(named) and (listed if named.startswith("^") else not listed)


def _idle_efa(settings: Settings, devices: list[str]) -> Finding:
    return warn(
        settings.where,
        f"FI_PROVIDER={settings.text('FI_PROVIDER')} leaves EFA unused",
        why="libfabric shows the plugin only the providers that it names; data then goes by TCP.",
        owner="job",
        evidence=[*settings.evidence("FI_PROVIDER"), _rdma(devices)],
        fix=[you("Remove it: the plugin chooses EFA by itself.", "unset FI_PROVIDER")],
    )


@rule(
    "NCC030",
    "no setting of an older EFA plugin is left",
    worst=State.NOTE,
    needs=("job.variables", "nccl.plugins"),
)
def stale_efa(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    FI_EFA_FORK_SAFE, FI_EFA_USE_DEVICE_RDMA and FI_PROVIDER together with a network plugin, and NCCL_PROTO=simple
    beside them.

    ## Why it matters
    Old instructions for EFA ask for all of them. Plugins after 1.5 set what is needed themselves; FI_EFA_FORK_SAFE
    costs speed on kernels from 5.15 on, and NCCL_PROTO=simple takes the faster protocols from small messages.

    ## Seen as
    slow

    ## How we know
    The variables, on nodes where NCCL would load a network plugin.

    ## Fix
    - **you** remove them and measure again with `ncclcheck bench`.

    ## Source
    AWS, EFA cheat sheet and aws-ofi-nccl release notes (plugin 1.5 and later).
    """
    for settings in nodes_with(cluster, *_STALE):
        names = [name for name in (*_STALE, "NCCL_PROTO") if name in settings.all]
        if not _net_plugins(settings):
            continue
        listed = ", ".join(names)
        yield note(
            settings.where,
            f"settings of older EFA plugins: {listed}",
            why="Plugins after 1.5 set what they need; left-overs cost speed.",
            evidence=settings.evidence(*names),
            fix=[you("Remove them and measure again.", f"unset {' '.join(names)}")],
        )
