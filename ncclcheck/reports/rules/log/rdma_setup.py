"""LOG039, LOG043-LOG045, LOG184: by the log, plugins and cards are the ones that settings mean."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ncclcheck.probes.facts import Logs
from ncclcheck.reports.judgement.findings import Finding, State, admin, you
from ncclcheck.reports.subjects.logs.ending import died
from ncclcheck.reports.subjects.logs.logged import cause, events_of, lines, log_rule
from ncclcheck.reports.subjects.logs.network import ignores_disable, over_sockets
from ncclcheck.reports.subjects.logs.reported import (
    finished_start,
    processes_by_host,
    setting,
    settings_seen,
    starting,
    version_seen,
    within_a_host,
)
from ncclcheck.reports.text.words.fold import fold_names

_NUMBERED = re.compile(r"_\d+$")  # mlx5_1 is one card, mlx5 is meant as a beginning


@log_rule("LOG039", "NCCL_IB_DISABLE affects the network in use")
def plugin_obeys(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    NCCL_IB_DISABLE=1 is set, and the log says `Using network IBext`: HPC-X's plugin sends over RDMA all the same.
    Where the log prints no settings at all: connections of that plugin time out while they are made.

    ## Why it matters
    People turn RDMA off because it does not work between their hosts. The plugin of HPC-X, which NVIDIA's images
    bring, has a switch of its own; the job then dies as before, with `ibv_modify_qp failed` or status 12.

    ## Seen as
    dies

    ## How we know
    The setting and the network in the same process. It is FAIL where a connection over RDMA then failed, else a
    warning. Without settings in the log this is one of two possible causes: the other is a wrong GID (LOG034).

    ## Fix
    - **you** `export NCCL_IBEXT_DISABLE=1` beside NCCL_IB_DISABLE=1, or `NCCL_NET_PLUGIN=none` with
      NCCL_NET=Socket (NCCL 2.13 and later). Confirm: the log says `Using network Socket`.

    ## Source
    NVIDIA/nccl-tests#227, NVIDIA/nccl#676; NCCL user guide, NCCL_IB_DISABLE, NCCL_NET_PLUGIN.
    """
    events = [event for event in events_of(logs, "ib-plugin") if "network" in event.fields]
    broken = events_of(logs, "ib-modify-qp", "ib-completion", "ib-open-device", "ib-memory")
    ours = [process for process in logs.processes if ignores_disable(process)]
    all_evidence = settings_seen(logs, "NCCL_IB_DISABLE")
    if (
        not events
        or (logs.processes and not ours)
        or not (all_evidence or any("modify_qp" in event.text for event in broken))
    ):
        return
    plugin = events[0].fields["network"]
    what = f"NCCL_IB_DISABLE has no effect on the plugin {plugin}, which uses RDMA"
    fix = [you("Turn the plugin off as well; confirm by `Using network Socket` in the log.",
               "export NCCL_IB_DISABLE=1 NCCL_IBEXT_DISABLE=1")]  # fmt: skip
    if not all_evidence:
        what = f"the plugin {plugin} uses RDMA, whatever NCCL_IB_DISABLE says, and its connections fail"
        fix.append(you("If RDMA is wanted: confirm the address (GID) that it uses.", "show_gids"))
    yield cause(
        [*events[:2], *broken[:1]],
        what,
        why="HPC-X's plugin has its own switch; what does not work over RDMA fails as if nothing had been set.",
        owner="job",
        fix=fix,
        state=State.FAIL if broken else State.WARN,
        more=all_evidence,
    )


@log_rule("LOG043", "NCCL_IB_HCA selects the named HCAs and no others", worst=State.WARN)
def no_prefix(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    NCCL_IB_HCA names mlx5_1, and NCCL uses mlx5_10, mlx5_11 too.

    ## Why it matters
    The value is a list of beginnings of names, unless it begins with `=`. A card of the storage or management
    network slips in: it is slow, or its network does not reach the other hosts.

    ## Seen as
    slow

    ## How we know
    The value of the variable and the list after `NET/IB : Using`: a card that begins with a name of the value and
    is not it. A name without a number at its end (mlx5) is meant as a beginning. All versions of NCCL.

    ## Fix
    - **you** write the names with a leading `=`: `export NCCL_IB_HCA==mlx5_1`.

    ## Source
    NCCL user guide, NCCL_IB_HCA.
    """
    events = [event for event in events_of(logs, "nic-setting") if event.fields["name"] == "NCCL_IB_HCA"]
    value = setting(logs, "NCCL_IB_HCA") or ""
    if not events or value[:1] in ("=", "^"):
        return
    used = {
        card.partition(":")[0]
        for process in logs.processes
        for whole in process.devices
        for card in whole.split("+")
    }
    named = {name.partition(":")[0] for name in value.split(",")}
    asked = {name for name in named if name in used or _NUMBERED.search(name)}
    extra = sorted(card for card in used - asked if card.startswith(tuple(asked)))
    if extra:
        yield cause(
            events,
            f"NCCL_IB_HCA={value} also takes {fold_names(extra)}",
            why="The names are beginnings of names: cards that were not meant carry data of the job.",
            owner="job",
            fix=[you("Ask for exactly these names, and confirm by the `NET/IB : Using` line.",
                     f"export NCCL_IB_HCA=={','.join(sorted(asked))}")],
            state=State.WARN,
            more=lines(events_of(logs, "ib-devices"))[:1],
        )  # fmt: skip


@log_rule("LOG044", "connected HCAs use one link layer, InfiniBand or RoCE")
def one_kind(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    `Attempted to connect incompatible devices`, or `Can't merge net devices with different link_layer`: an
    InfiniBand card was to talk to one of Ethernet.

    ## Why it matters
    They are two networks. The job ends while it connects.

    ## How we know
    The line itself, and the lists after `NET/IB : Using`: /IB and /RoCE in one list, or one on this host and the
    other on that. Many machines have InfiniBand cards for data and an Ethernet card of the same maker for storage.

    ## Fix
    - **you** name the cards for data: `export NCCL_IB_HCA==mlx5_0,mlx5_1`. Confirm by the list that NCCL prints.

    ## Source
    NCCL user guide, NCCL_IB_HCA; NCCL user guide, Troubleshooting, Networking.
    """
    events = events_of(logs, "ib-link-mix")
    apart = _apart(logs)
    if not events and not apart:
        return
    cards = {card: kind for process in logs.processes for card, kind in process.devices.items()}
    wanted = [card.partition(":")[0] for card, kind in cards.items() if kind == "IB"]
    yield cause(
        events or events_of(logs, "ib-devices"),
        apart or "an InfiniBand card was to talk to a RoCE card",
        why="They are two networks, and NCCL pairs cards by their order in its lists.",
        owner="job",
        fix=[you("Confirm by the lists of all hosts, and name the cards for data only.",
                 "ibv_devinfo | grep -E 'hca_id|link_layer'",
                 f"export NCCL_IB_HCA=={','.join(dict.fromkeys(wanted)) or 'mlx5_0,mlx5_1'}")],
        more=[*(lines(events_of(logs, "ib-devices"))[:2] if events else []), *settings_seen(logs, "NCCL_IB_HCA")],
    )  # fmt: skip


def _apart(logs: Logs) -> str:
    """Hosts that have no kind of link in common; empty where all have."""
    kinds = {
        host: {kind for process in processes for kind in process.devices.values()}
        for host, processes in processes_by_host(logs).items()
    }
    only = {kind: [host for host, links in kinds.items() if links == {kind}] for kind in ("IB", "RoCE")}
    if not only["IB"] or not only["RoCE"]:
        return ""
    return f"{fold_names(only['IB'])} uses InfiniBand and {fold_names(only['RoCE'])} RoCE"


@log_rule("LOG045", "the libfabric plugin finds a provider (EFA)")
def provider_found(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    `NET/OFI Could not find any optimal provider`, or `Unable to find a protocol that worked`: aws-ofi-nccl is
    there, and libfabric offers it nothing.

    ## Why it matters
    NCCL goes on over TCP, at a small part of an EFA instance's bandwidth, or stops where NCCL_NET asks for the
    plugin.

    ## Seen as
    slow

    ## How we know
    The plugin's line, in a job that is not known to be on one machine only; FAIL where the start did not come to
    its end, or a process ended, and nothing was sent over sockets; else a warning. `.. supporting GPUDirect
    RDMA` is another line, after which the plugin tries without it.

    ## Fix
    - **you** confirm with `fi_info -p efa` inside of the container; hand over /dev/infiniband (Kubernetes: the
      resource vpc.amazonaws.com/efa), and set `NCCL_NET="AWS Libfabric"` so that it fails loudly.
    - **admin** install the EFA driver and its libfabric; the security group must allow all traffic within itself.

    ## Source
    NVIDIA/nccl#229; aws-ofi-nccl README.
    """
    events = events_of(logs, "ofi-no-provider")
    if events and not within_a_host(logs):
        sockets = any(over_sockets(process) for process in logs.processes)
        stopped = (
            events_of(logs, "net-not-found") or any(starting(process) for process in logs.processes) or died(logs)
        )
        where = (
            f"{events[0].host}: "
            if len(processes_by_host(logs)) > 1 and len({event.host for event in events}) == 1
            else ""
        )
        yield cause(
            events,
            f"{where}libfabric offers the plugin no provider" + (", and data goes over TCP" if sockets else ""),
            why="The EFA device, its driver or its libfabric cannot be used from this container.",
            owner="node",
            fix=[you("Confirm, and give the devices to the container.", "fi_info -p efa", "ls /dev/infiniband",
                     "docker run --device=/dev/infiniband --ulimit memlock=-1 IMAGE"),
                 you("Let the job stop where the plugin does not work.", "export NCCL_NET='AWS Libfabric'")],
            state=State.FAIL if stopped and not sockets else State.WARN,
            more=[*settings_seen(logs, "NCCL_NET"), *version_seen(logs, events[0])],
        )  # fmt: skip


_OFI_KNOWN = ("ofi-no-provider", "ofi-address", "ofi-peer-gone")  # LOG045 and others say more


@log_rule("LOG184", "the libfabric plugin's calls and transfers succeed (EFA)")
def plugin_works(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A call of aws-ofi-nccl to libfabric, or a transfer, that failed: an endpoint, a completion queue or an address
    vector that cannot be opened, an operation that completed with an error.

    ## Why it matters
    NCCL's start or its next collective ends with it; what the ranks raise afterwards only follows.

    ## Seen as
    dies

    ## How we know
    The plugin's own warning, with the call and libfabric's error, in a job that ended or did not come through its
    start, and where no better known line of the plugin stands beside it. `provider efa output empty list`
    beside it: the device is not there.

    ## Fix
    - **you** `fi_info -p efa` inside of the container; the device and memlock handed to it; a plugin, libfabric
      and NCCL that go together, the same on all nodes.
    - **admin** EFA's driver; a security group that allows all traffic within itself, in both directions.

    ## Source
    aws-ofi-nccl README; AWS documentation, Get started with EFA and NCCL; aws/aws-ofi-nccl#161.
    """
    events = [event for event in events_of(logs, "ofi-failed") if event.level in ("WARN", "ERROR")]
    if not events or events_of(logs, *_OFI_KNOWN) or (finished_start(logs) and not died(logs)):
        return
    absent = events_of(logs, "efa-not-offered")
    text = events[0].text.partition("NET/OFI ")[2].strip() or events[0].text
    group = admin("Let the security group allow all traffic within itself, in both directions.")
    sent = "completed with error" in text and not absent  # the device is there: what it sends does not arrive
    yield cause(
        [*events[:2], *absent[:1]],
        f"the libfabric plugin (EFA) failed: {text[:160]}",
        why="libfabric offers no EFA device here: it is not in this container, or its driver does not serve it."
        if absent
        else "It may be that the security group blocks what it sends, or that driver or versions do not fit."
        if sent
        else "The device, its driver or the versions do not fit, or the network between the nodes blocks it.",
        owner="node",
        fix=[
            you("Confirm, in the container on that node.", "fi_info -p efa", "ls /dev/infiniband; ulimit -l"),
            *([group] if sent else []),
            you("Give the devices to the container (Kubernetes: vpc.amazonaws.com/efa).",
                "docker run --device=/dev/infiniband --ulimit memlock=-1 IMAGE"),
            you("Take a plugin, libfabric and NCCL that were released together, the same on all nodes.",
                "cat /opt/amazon/efa_installed_packages"),
            *([] if sent else [group]),
        ],
        more=version_seen(logs, events[0]),
    )  # fmt: skip
