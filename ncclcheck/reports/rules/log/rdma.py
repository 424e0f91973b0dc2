"""LOG030-LOG032: by the log, RDMA is used where the job has it, with all cards on all hosts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from ncclcheck.probes.facts import LogEvent, LogProcess, Logs
from ncclcheck.reports.judgement.findings import (
    Evidence,
    Finding,
    State,
    Where,
    admin,
    note,
    seen,
    you,
)
from ncclcheck.reports.subjects.logs.ending import died, gave_up
from ncclcheck.reports.subjects.logs.logged import (
    at_host,
    by_host,
    by_known_host,
    cause,
    events_of,
    lines,
    log_rule,
    process_of,
)
from ncclcheck.reports.subjects.logs.network import over_sockets, over_verbs, values_of
from ncclcheck.reports.subjects.logs.reported import (
    ends,
    processes_by_host,
    settings_seen,
    starting,
    within_a_host,
)
from ncclcheck.reports.text.words.fold import fold_names, many

_ASKED = (
    "NCCL_IB_HCA",
    "NCCL_IB_GID_INDEX",
    "NCCL_IB_TC",
    "NCCL_IB_SL",
    "NCCL_IB_TIMEOUT",
    "NCCL_IB_QPS_PER_CONNECTION",
)
_CONTAINER = "docker run --network=host --device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1 IMAGE"
_SLOW = "TCP carries what RDMA should: often a tenth of the bandwidth, and every GPU waits for it."


@log_rule("LOG030", "the job uses RDMA where HCAs are present")
def rdma_used(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    `Using network Socket` in a job over several hosts that shows elsewhere that RDMA was to be used: other hosts
    use it, an interface is IPoIB (ib0), NCCL_IB_* variables or NCCL_NET=IB are set, or a card is listed.

    ## Why it matters
    NCCL takes TCP without a word above INFO when it finds no usable card, and the job is then many times slower.
    Where only some hosts do it, the job hangs or dies with `wrong type 3 != 4`. With NCCL_NET=IB it ends at once:
    `network IB not found`.

    ## Seen as
    hangs, slow, dies, setting without effect

    ## How we know
    The lines of each process: the network that it took, `Failed to open libibverbs.so` (the image lacks the
    library), `No device found` (no active port, no /dev/infiniband in the container, or NCCL_IB_HCA fits no card),
    NCCL_IB_DISABLE. NCCL up to 2.25 prints the name that NCCL_NET asks for and that no network has; from 2.26 on
    it is a plugin's where there are cards, or where a plugin was not found. Without any such hint TCP may be all
    that there is: that is a note. NCCL 2.4 to 2.32.

    ## Fix
    - **you** start the container with `--device=/dev/infiniband`, have libibverbs1 and ibverbs-providers in the
      image, remove NCCL_IB_DISABLE. Confirm: `ibv_devinfo` inside of the container.
    - **admin** bring the ports to ACTIVE (cable, subnet manager).

    ## Source
    vllm-project/vllm#42075, NVIDIA/nccl#451, NVIDIA/nccl#259 (harmless without a card),
    NVIDIA/nvidia-container-toolkit#1877; NCCL user guide, Troubleshooting, Networking.
    """
    if refused := events_of(logs, "net-not-found"):
        if not events_of(logs, "ofi-no-provider"):
            yield from _refusals(logs, refused)
        return
    without = [process for process in logs.processes if over_sockets(process) and not over_verbs(process)]
    named_elsewhere = events_of(logs, "ib-open-device", "ofi-no-provider")  # LOG031, LOG045
    if not without or named_elsewhere or within_a_host(logs):
        return
    why = _expected(logs, without)
    said_so = [event for event in events_of(logs, "ib-no-device", "ib-no-library", "nic-setting")
               if event.sign != "nic-setting" or _turns_off(event)]  # fmt: skip
    where = fold_names(process.host for process in without)
    if why and said_so:
        yield _unused(said_so, where, why, filtered(logs, {process.host for process in without}))
    elif why:
        yield _unused_silently(without[0], where, why)
    elif said_so:
        yield note(
            Where(),
            f"{where} sent over TCP, and nothing shows that there is an RDMA card",
            why="That is right for hosts without such cards.",
            evidence=lines(said_so),
        )


def _turns_off(event: LogEvent) -> bool:
    """Whether a setting keeps NCCL from RDMA."""
    pair = (event.fields.get("name"), event.fields.get("value"))
    return pair == ("NCCL_NET", "Socket") or (pair[0] == "NCCL_IB_DISABLE" and pair[1] != "0")


def _expected(logs: Logs, without: list[LogProcess]) -> list[Evidence]:
    """What shows that there should be RDMA."""
    others = fold_names(other.host for other in logs.processes if over_verbs(other))
    all_evidence = [seen("other hosts", f"{others} use RDMA")] if others else []
    all_evidence += [
        seen(f"{lacking.host}, NET/IB", f"lists {', '.join(lacking.devices)}")
        for lacking in without
        if lacking.devices
    ]
    for process in without:
        for end in ends(process):
            if end.interface.startswith(("ib", "rdma", "roce")):
                all_evidence.append(
                    seen(f"{process.host}, its interfaces", f"{end.interface} belongs to an RDMA card")
                )
    all_evidence += lines(events_of(logs, "hca-listed"))[:1]
    if not any(lacking.settings.get("NCCL_NET") == "Socket" for lacking in without):
        all_evidence += settings_seen(logs, *_ASKED)
    return [evidence for index, evidence in enumerate(all_evidence) if evidence not in all_evidence[:index]][:4]


def filtered(logs: Logs, hosts: set[str]) -> str:
    """NCCL_IB_HCA=... where it leaves a process of these hosts without a card."""
    without = {
        (event.file, event.host, event.pid) for event in events_of(logs, "ib-no-device") if event.host in hosts
    }
    events = [event for event in events_of(logs, "nic-setting") if (event.file, event.host, event.pid) in without]
    return next(
        (f"NCCL_IB_HCA={event.fields['value']}" for event in events if event.fields["name"] == "NCCL_IB_HCA"), ""
    )


def _unused(events: list[LogEvent], where: str, why: list[Evidence], only: str) -> Finding:
    signs = {event.sign for event in events}
    reason, fix = "no port of a card is usable there", [
        you("Confirm: look for the card inside of the job's container, and give it the devices.",
            "ls /dev/infiniband", "ibv_devinfo", _CONTAINER),
        admin("Bring the ports to ACTIVE.", "ibstat", "cat /sys/class/infiniband/*/ports/*/state"),
    ]  # fmt: skip
    if "ib-no-library" in signs:
        reason = "libibverbs is not in the image"
        fix = [you("Confirm, and install it in the image.", "ldconfig -p | grep libibverbs",
                   "apt-get install -y libibverbs1 ibverbs-providers")]  # fmt: skip
    elif off := next((event.fields["name"] for event in events if _turns_off(event)), ""):
        reason = f"{off} turns RDMA off"
        fix = [you("Confirm by a run without it.", f"unset {off}")]
    elif only:
        reason = f"{only} names no card there with an active port"
        fix = [you("Confirm: compare it with the cards of that host, and correct it there.", "ibv_devinfo",
                   "unset NCCL_IB_HCA")]  # fmt: skip
    elif "ib-no-device" not in signs:
        reason = "the log does not say why"
    return cause(
        events,
        f"{where} sent over TCP and not over RDMA: {reason}",
        why=_SLOW,
        owner="node",
        fix=fix,
        state=State.WARN,
        more=why,
    )


def _unused_silently(process: LogProcess, where: str, why: list[Evidence]) -> Finding:
    return Finding(
        state=State.WARN,
        where=Where(node=process.host),
        what=f"{where} sent over TCP, though its RDMA cards were there or asked for",
        why=_SLOW,
        owner="node",
        evidence=[seen(f"{process.file}:{process.first_line}", f"network {process.network or 'Socket'}"), *why],
        remedies=[you("Confirm: look what NCCL says of its cards.", "export NCCL_DEBUG=INFO", "ibv_devinfo")],
    )


class _Refusal(NamedTuple):
    """Why a process has no network of the name that is asked for, as far as it tells.

    by: who asks for it, NCCL_NET or the program. name: NCCL 2.26 and later do not print it. plugin: a library that
    was asked for and not found. broken: why one that is there could not be loaded. cards: there are some. only:
    NCCL_IB_HCA=... where that leaves it none.
    """

    name: str
    plugin: str
    broken: str
    cards: bool
    only: str
    by: str

    @property
    def is_unknown(self) -> bool:
        """Whether no network has the name, rather than IB no card."""
        return self.name != "IB" if self.name else self.cards or bool(self.plugin or self.broken)


def _refusals(logs: Logs, refused: list[LogEvent]) -> Iterator[Finding]:
    """One finding for all hosts that tell the same."""
    by_refusal: dict[_Refusal, list[LogEvent]] = {}
    for host, events in by_known_host(refused).items():
        writer, process = (events[0].file, events[0].host, events[0].pid), process_of(logs, events[0])
        own = [event for event in logs.events if (event.file, event.host, event.pid) == writer]
        name = events[0].fields.get("network", "")
        if name.startswith("IB") and process is not None and process.plugin:
            name = "IB"  # a plugin's, which is there and has no card
        cards = process is not None and bool(process.devices)
        of_program = "" if process and "NCCL_NET" in process.settings else _asked_in_config(own)
        by = _CONFIG if of_program else "NCCL_NET"
        how = _Refusal(
            name or of_program, _plugin_missing(own), _plugin_broken(own), cards, filtered(logs, {host}), by
        )
        by_refusal.setdefault(how, []).extend(events)
    for how, events in by_refusal.items():
        yield _unknown(logs, how, events) if how.is_unknown else _refused(logs, how, events)


def _refused(logs: Logs, how: _Refusal, events: list[LogEvent]) -> Finding:
    hosts = list(dict.fromkeys(event.host for event in events))
    fix = [you("Confirm: look for the card inside of the job's container, and give it the devices.",
               "ibv_devinfo", _CONTAINER),
           admin("Bring its ports to ACTIVE: the cable, the switch, the subnet manager.", "ibstat")]  # fmt: skip
    what = f"NCCL found no card for the network that {how.by} asks for, and gave up"
    if how.only:
        where = fold_names(hosts) or "a host"
        what = f"{how.only} leaves NCCL no card on {where}, and {how.by} allows no other network"
        fix = [you("Confirm: compare it with the cards and ports of that host, and correct it there (`^` excludes "
                   "what begins so, `=` wants the whole name, `:2` a second port).", "ibv_devinfo",
                   "unset NCCL_IB_HCA")]  # fmt: skip
    elif not how.name:
        what += "; or no network has that name"
        fix.append(_NAME_IT)
    if how.by == _CONFIG:
        fix.append(_IN_PROGRAM)
    return cause(
        events,
        what,
        why="NCCL was restricted to one network, found no usable card for it, and gave up.",
        owner="job" if how.only else "node",
        fix=fix,
        more=[*settings_seen(logs, "NCCL_NET", "NCCL_IB_HCA"),
              *lines(events_of(logs, "ib-no-device", "ib-no-library"))[:1]],
        at=at_host(hosts[0], events) if len(hosts) == 1 else None,
    )  # fmt: skip


def _asked_in_config(own: list[LogEvent]) -> str:
    """The network that the program names for its communicator; empty without one."""
    return next((event.fields["network"].strip() for event in own if event.sign == "config-net"), "")


def _plugin_missing(own: list[LogEvent]) -> str:
    """The library of a plugin that a process was told to load and did not find; empty without one."""
    tried = (_NOT_FOUND.search(event.text) for event in own if event.sign == "no-plugin")
    return next((match[1] for match in tried if match and match[1] != "libnccl-net.so"), "")


def _plugin_broken(own: list[LogEvent]) -> str:
    """The loader's own words of a plugin that is there and cannot be loaded; empty without one."""
    errors = (event.fields["error"] for event in own if event.sign == "no-plugin" and "error" in event.fields)
    return next((error.strip() for error in errors if not _IS_ABSENT.match(error)), "")


_IS_ABSENT = re.compile(r"libnccl-net[\w.-]*: cannot open shared object file")  # the plugin itself
_NOT_FOUND = re.compile(r"NET/Plugin: Could not find: (?:\S+ )?([\w.-]{1,80}?)(?:\. |\.?$)")


_CONFIG = "the program (netName of its ncclConfig_t)"
_IN_PROGRAM = you(
    "Leave netName out, and confirm that it starts: NCCL knows IB, Socket, and the plugins that it loaded.",
    "grep -rnE 'netName|net_name' --include=*.py --include=*.c* .",
)
_NAME_IT = you(
    "See what the name is, and who sets it: NCCL knows IB, Socket, and the names of plugins that it loaded.",
    "env | grep NCCL_NET",
    "grep NCCL_NET /etc/nccl.conf ~/.nccl.conf",
    "unset NCCL_NET",
)


def _unknown(logs: Logs, how: _Refusal, events: list[LogEvent]) -> Finding:
    what = f"no network is called {how.name!r}, which {how.by} asks for"
    if not how.name:
        what = "no network has the name that NCCL_NET asks for"
    if how.broken:
        what += f": its plugin could not be loaded ({how.broken})"
    elif how.plugin:
        what += f": its plugin {how.plugin} was not found"
    else:
        what += ": it is unknown, or its plugin was not loaded"
    hosts = list(dict.fromkeys(event.host for event in events))
    return cause(
        events,
        what,
        why="NCCL knows IB and Socket, and the names of plugins that it has loaded; it gives up on any other.",
        owner="job",
        at=at_host(hosts[0], events) if len(hosts) == 1 else Where(),
        fix=[_IN_PROGRAM if how.by == _CONFIG else _NAME_IT,
             you("For a plugin: its libnccl-net.so must be in the loader's path on every host.",
                 "echo $LD_LIBRARY_PATH; ldconfig -p | grep libnccl-net")],
        more=settings_seen(logs, "NCCL_NET", "NCCL_NET_PLUGIN"),
    )  # fmt: skip


@log_rule("LOG031", "every visible HCA can be opened")
def cards_open(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    `Call to ibv_open_device failed`, `Unable to open device mlx5_0`: the card is listed in /sys, and the process
    may not open its device file.

    ## Why it matters
    NCCL goes on without that card. With none left it takes TCP, and dies where the other hosts take RDMA.

    ## Seen as
    dies

    ## How we know
    The line itself. It is FAIL where the process did not reach `Init COMPLETE` or one ended, else a warning. The
    usual reason is a container that shows the host's /sys but has no /dev/infiniband/uverbs*, or whose device
    cgroup forbids it.

    ## Fix
    - **you** start the container with `--device=/dev/infiniband` and an unlimited memlock. Confirm: `ibv_devinfo`
      inside of it says `Failed to open device`.
    - **admin** in Kubernetes, an RDMA device plugin; else the rights of /dev/infiniband/uverbs*.

    ## Source
    NVIDIA/nccl#451; NCCL user guide, Troubleshooting, Networking; ibv_open_device(3).
    """
    processes = processes_by_host(logs)
    for host, events in by_host(events_of(logs, "ib-open-device")).items():
        stopped = any(starting(process) for process in processes.get(host, [])) or died(logs)
        stopped = stopped or bool(events_of(logs, "wrong-socket-type"))  # the others went on with theirs
        stopped = stopped or any(gave_up(logs, event) for event in events)
        cards = ", ".join(values_of(events, "device")) or "an RDMA card"
        yield cause(
            events,
            f"NCCL cannot open {cards}",
            why="The process sees the card but may not use it; NCCL continues without it, over TCP if need be.",
            owner="node",
            fix=[you("Confirm inside of the job's container, and give it the devices.",
                     "ls -l /dev/infiniband", "ibv_devinfo", _CONTAINER)],
            state=State.FAIL if stopped else State.WARN,
        )  # fmt: skip


@log_rule("LOG032", "all hosts of the job use the same number of HCAs", risk=True)
def same_cards(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    One host uses fewer RDMA cards than the others, by `NET/IB : Using`, or by `Rank 3 has 1 local Net devices
    (max 4)` of NCCL 2.30 and later.

    ## Why it matters
    NCCL uses as many channels as the host with the fewest cards can carry: one port that is down slows all. NCCL
    2.30 can also refuse such a job (`Detected mixed local Net device counts`).

    ## Seen as
    slow

    ## How we know
    The lists of the hosts, compared. A port is missing from them when it is not ACTIVE, when its device was not
    handed to the container, or when NCCL_IB_HCA differs.

    ## Fix
    - **admin** confirm with `ibstat` on that host, and bring the port up (cable, switch port, subnet manager).
    - **you** leave the host out until then; give NCCL_IB_HCA the same meaning on all hosts.

    ## Source
    NCCL user guide, Troubleshooting, Networking; NCCL user guide, NCCL_IB_HCA.
    """
    refused = events_of(logs, "net-counts-refused")
    if events := refused or events_of(logs, "net-counts-differ"):
        yield _counted(logs, events, State.FAIL if refused else State.WARN)
        return
    cards = {
        host: max((process.devices for process in processes), key=len)
        for host, processes in processes_by_host(logs).items()
    }
    cards = {host: devices for host, devices in cards.items() if devices}
    most = max((len(devices) for devices in cards.values()), default=0)
    full = next((devices for devices in cards.values() if len(devices) == most), {})
    listed = by_host(events_of(logs, "ib-devices"))
    for host, devices in cards.items():
        if len(devices) < most and (events := listed.get(host, [])):
            missing = ", ".join(name for name in full if name not in devices)
            more = [seen("other hosts", f"{most} cards; not here: {missing or 'other names'}")]
            yield _fewer(events, f"{host} uses {many(len(devices), 'RDMA card')}, others {most}", State.WARN, more)


def _counted(logs: Logs, events: list[LogEvent], state: State) -> Finding:
    ranks = {process.rank: process.host for process in logs.processes if process.rank is not None}
    short = [int(event.fields["short"]) for event in events_of(logs, "net-counts-differ")]
    where = list(dict.fromkeys(ranks.get(rank) or f"rank {rank}" for rank in short))
    what = f"{fold_names(where) or 'some ranks'}: fewer network cards than the others ({events[0].fields['most']})"
    at = Where(node=ranks.get(short[0]), rank=short[0]) if short else Where()
    return _fewer(events, what, state, settings_seen(logs, "NCCL_IB_HCA", "NCCL_IGNORE_NET_MISMATCH"), at)


def _fewer(
    events: list[LogEvent], what: str, state: State, more: list[Evidence], at: Where | None = None
) -> Finding:
    return cause(
        events,
        what,
        why="The host with the fewest cards sets the number of channels: the others' cards are idle in part.",
        owner="node",
        fix=[
            admin("Confirm that a port is not ACTIVE there, and repair it: cable, switch port, subnet manager.",
                  "ibstat", "cat /sys/class/infiniband/*/ports/*/state"),
            you("Let NCCL_IB_HCA name the same cards everywhere, or unset it.", "env | grep NCCL_IB_HCA"),
        ],
        state=state,
        more=more,
        at=at,
    )  # fmt: skip
