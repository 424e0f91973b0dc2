"""LOG016 to LOG018, LOG191: ranks that do not agree on what they are parts of."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import LogEvent, LogProcess, Logs
from ncclcheck.reports.judgement.findings import Evidence, Finding, State, Where, admin, fail, note, seen, you
from ncclcheck.reports.rules.log.rdma import filtered
from ncclcheck.reports.rules.log.shm import unnamed
from ncclcheck.reports.subjects.logs.dialled_addresses import names
from ncclcheck.reports.subjects.logs.logged import cause, events_of, log_rule
from ncclcheck.reports.subjects.logs.logged_node import BY_NCCL
from ncclcheck.reports.subjects.logs.reported import (
    finished_start,
    one_version,
    set_apart,
    setting,
    settings_seen,
    starting,
    within_a_host,
)
from ncclcheck.reports.subjects.logs.start.communicators import apart

_SOCKET, _VERBS = "3", "4"
_INTERNAL = "internal network plugin"  # said where the network's own plugin is not there
_TRANSPORTS = {_SOCKET: "NET/Socket", _VERBS: "NET/IB"}
_LATER_ENCODING = 10_000  # 2.9 and later write two digits a part


@log_rule("LOG016", "all ranks use the same NCCL network")
def one_network(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    Some ranks send over TCP (NET/Socket) and others over RDMA (NET/IB or a plugin), in one job.

    ## Why it matters
    The two do not understand each other: the ranks end in their start, or hang. Mostly one node lost its RDMA
    cards (no device in the container, port down), or a variable is set on one node only.

    ## Seen as
    hangs, dies

    ## How we know
    `socketFinalizeAccept: wrong type 3 != 4` or `4 != 3`: 3 is NET/Socket, 4 NET/IB, the peer's first (2.16 and
    later); or `Using network ...` differs between hosts whose start did not come to its end. A warning where one
    host loaded a plugin for the network and another found none, and no start came through.

    ## Fix
    - **you** set NCCL_IB_DISABLE and NCCL_NET alike on all nodes; to go on at once over TCP: `NCCL_IB_DISABLE=1`
      on all.
    - **admin** bring back RDMA on the node that fell back to TCP: `ibstat`, /dev/infiniband in the container.

    ## Source
    NVIDIA/nccl-tests#188, hiyouga/LLaMA-Factory#3641; NCCL's source, enum ncclSocketType.
    """
    wrong = [event for event in events_of(logs, "wrong-socket-type") if _of_networks(event)]
    gave_up = {event.host for event in events_of(logs, "net-not-found")}  # LOG030: it takes none
    networks = {
        process.host: process.network
        for process in logs.processes
        if process.network and (wrong or starting(process)) and process.host not in gave_up
    }
    differ = len(set(networks.values())) > 1
    if not wrong and not differ:
        yield from _other_plugins(logs)
        return
    fallen = [host for host, network in networks.items() if network == "Socket"] if differ else []
    if any(event.host in fallen or not fallen for event in events_of(logs, "ib-open-device")):
        return  # LOG031: that is why it fell back
    what = (
        f"{names(fallen)} uses NET/Socket, {names(set(networks) - set(fallen))} {_others(networks)}"
        if fallen
        else f"a peer of {names(event.host for event in wrong)} uses another network of NCCL{_sides(wrong)}"
    )
    only = filtered(logs, {*fallen})
    what += f": {only} names no card of {names(fallen)} with an active port" if only else ""
    at = Where(node=fallen[0]) if fallen else None
    evidence = [seen(f"network of {host}", network) for host, network in [*networks.items()][:4]] if differ else []
    evidence += settings_seen(logs, "NCCL_IB_DISABLE", "NCCL_NET")
    why = "TCP and RDMA do not understand each other: the ranks end, or wait for ever."
    set_off = settings_seen(logs, "NCCL_IB_DISABLE")  # then it is taken out, by what says so of that node
    fix = [
        you("Confirm: compare what each node took.",
            "grep -n 'Using network\\|NET/IB' LOG", "env | grep -E 'NCCL_(IB|NET)'"),
        *([] if set_off else [you("Until it is fixed use TCP on all nodes.", "export NCCL_IB_DISABLE=1")]),
        *([you("Compare it with the cards of that host, and correct it there.", "ibv_devinfo",
               "unset NCCL_IB_HCA")] if only else []),
        admin("Bring the RDMA cards of that node back.", "ibstat", "ls -l /dev/infiniband"),
    ]  # fmt: skip
    if wrong:
        yield cause(wrong, what, why=why, owner="node", fix=fix, at=at, more=evidence)
    else:
        place = Where(node=(fallen or [*networks])[0])
        yield fail(place, what, why=why, owner="node", evidence=_begins(logs) + evidence, fix=fix)


def _other_plugins(logs: Logs) -> Iterator[Finding]:
    """Hosts with a plugin for the network beside hosts that found none, where nothing shows that they met."""
    with_one = {event.host: event for event in reversed(events_of(logs, "ib-plugin")) if event.host}
    without = {
        event.host: event
        for event in reversed(events_of(logs, "no-plugin"))
        if event.host and _INTERNAL in event.text
    }
    none = [event for host, event in without.items() if host not in with_one]
    if not with_one or not none or any(process.completed for process in logs.processes):
        return
    plugin = next((event.fields["path"] for event in with_one.values() if "path" in event.fields), "")
    yield cause(
        [*none, *with_one.values()],
        f"{names(event.host for event in none)} found no network plugin, {names(with_one)} uses one"
        + (f" ({plugin})" if plugin else ""),
        why="What a plugin sends the built-in network need not understand: ranks hang in their first exchange.",
        owner="job",
        state=State.WARN,
        at=Where(node=none[0].host),
        fix=[
            you("Confirm: what each node loads.", "grep -n 'NET/Plugin\\|Plugin Path\\|Using network' LOG",
                "echo $LD_LIBRARY_PATH"),
            you("Let all nodes load the same one, or none.", "export NCCL_NET_PLUGIN=none"),
        ],
    )  # fmt: skip


def _of_networks(event: LogEvent) -> bool:
    """Before 2.27 and from 2.30.7 the line tells both types; in between it may tell none."""
    types = {event.fields.get("got"), event.fields.get("wanted")}
    return types in ({_SOCKET, _VERBS}, {None})


def _others(networks: dict[str, str]) -> str:
    return ", ".join(sorted({network for network in networks.values() if network != "Socket"})) or "another"


def _sides(events: list[LogEvent]) -> str:
    got = next((event.fields["got"] for event in events if "got" in event.fields), "")
    own = next((event.fields["wanted"] for event in events if "wanted" in event.fields), "")
    return f": it uses {_TRANSPORTS.get(got, got)}, this one {_TRANSPORTS.get(own, own)}" if got and own else ""


def _begins(logs: Logs) -> list[Evidence]:
    """The first process of each network."""
    first = {process.network: process for process in reversed(logs.processes) if process.network}
    return [
        seen(f"{process.file}:{process.first_line}", f"{process.host}:{process.pid} uses {network}")
        for network, process in first.items()
    ]


@log_rule("LOG017", "only ranks of this job connect to NCCL's ports")
def strangers(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    Something connected to a port of NCCL and did not speak as a rank of this communicator does.

    ## Why it matters
    Ranks of another job or left over from an earlier one, a port scanner or a monitor. NCCL up to 2.30.4 may end
    the rank for it.

    ## How we know
    `wrong magic A != B`: each communicator has a random number of its own, and A is what came. Where A is text
    ("HTTP", "SSH-") it is no NCCL at all. Other pairs of types than 3 and 4 in `wrong type` are of the same kind.
    In 2.30.7 it is information: the connection is dropped. Behind a service mesh it is LOG029; of a rank of the
    job that holds another id LOG192.

    ## Fix
    - **you** end what is left of earlier jobs on the nodes; give two jobs different nodes or ports.
    - **admin** keep scanners away from compute nodes.

    ## Source
    NCCL's source, socket.cc (2.16 and later); NCCL user guide, Troubleshooting, Networking.
    """
    strange = [event for event in events_of(logs, "wrong-socket-type") if not _of_networks(event)]
    events = sorted([*events_of(logs, "wrong-magic"), *strange], key=lambda event: event.order)
    loud = [event for event in events if event.level != "INFO"]
    if loud and not finished_start(logs) and not events_of(logs, "mesh-sidecar") and not apart(logs):
        peers = sorted({event.fields["peer"] for event in loud if "peer" in event.fields})
        yield cause(
            loud,
            f"something that is no rank of this job dials NCCL on {names(event.host for event in loud)}"
            + (f", from {', '.join(peers[:3])}" if peers else "") + _spoken(loud),
            why="A second job, a process left over, or a port scanner; the rank may end for it.",
            owner="site",
            fix=[
                you("Confirm: look who else runs on the node, and who dials.",
                    "ps -eo pid,user,lstart,cmd | grep -i python", "ss -tnp"),
                you("End what an earlier job left.", "pgrep -af 'torchrun|python'"),
                admin("Keep port scanners away from the compute nodes."),
            ],
        )  # fmt: skip


def _spoken(events: list[LogEvent]) -> str:
    """What came instead of the number, where it is text: its bytes stand last first."""
    for event in events:
        digits = event.fields.get("got", "").rjust(16, "0") if event.sign == "wrong-magic" else ""
        text = bytes.fromhex(digits)[::-1].decode("ascii", "ignore") if digits else ""
        if len(text) == 8 and text.isprintable():
            return f": it said {text!r}"
    return ""


@log_rule("LOG018", "all ranks use the same NCCL version")
def same_version(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    Ranks of one job loaded different versions of libnccl.

    ## Why it matters
    What they exchange in the start has another layout in each version. 2.23 and later say so; before that ranks
    end with "Message truncated" or "family 0 is neither AF_INET", or hang.

    ## Seen as
    hangs, dies

    ## How we know
    `Mismatched NCCL version detected`; or versions that processes logged; or, where no version is logged, or of
    one side only, the two lines that such a mixture makes; or hosts that did not come through their start and say
    in the words of different releases that there is no plugin. The two lines can also come from different NCCL_*
    variables or a stale process, and the finding says so.

    ## Fix
    - **you** one environment or image on all nodes; one of the wheels nvidia-nccl-cu11 and -cu12, not both.
    - **admin** remove an old libnccl.so.2 of the system from the loader's path.

    ## Source
    NVIDIA/nccl#1267 (2.19.3 and 2.20.5 in one job); NCCL's source, init.cc (2.23 and later).
    """
    events = events_of(logs, "nccl-mismatch")
    versions = {
        process.version: process for process in reversed(logs.processes) if process.version and starting(process)
    }
    signs = [
        *([] if one_version(logs) else events_of(logs, "bootstrap-truncated")),
        *(event for event in events_of(logs, "socket-family") if _of_another(logs, event)),
    ]
    if events:
        first = events[0]
        fields = first.fields
        a = f"{_version(fields['a'])} on rank {fields['rank_a']}"
        b = f"{_version(fields['b'])} on rank {fields['rank_b']}"
        yield cause(events, f"ranks loaded different NCCL versions: {a}, {b}", why=_LAYOUT, owner="job",
                    fix=_VERSIONS, at=_rank(logs, int(first.fields["rank_b"])))  # fmt: skip
    elif len(versions) > 1:
        odd = min(versions.values(), key=lambda process: sum(p.version == process.version for p in logs.processes))
        what = "processes loaded different NCCL versions: " + ", ".join(sorted(versions))
        evidence = [seen(f"{p.file}:{p.first_line}", f"{p.host}:{p.pid} NCCL {v}") for v, p in versions.items()]
        at = Where(node=odd.host)
        if signs:
            yield cause(signs, what, why=_LAYOUT, owner="job", fix=_VERSIONS, at=at, more=evidence)
        else:
            yield fail(at, what, why=_LAYOUT, owner="job", evidence=evidence, fix=_VERSIONS)
    elif signs and not set_apart(logs, SHARED):
        yield cause(
            signs,
            f"{names(sign.host for sign in signs)} could not read what a peer sent: most likely the peer has "
            "another NCCL version",
            why="Else NCCL_* variables that differ, or a process left over; the log does not show all versions.",
            owner="job",
            fix=_VERSIONS,
        )
    elif by_words := _other_words(logs):
        yield cause(
            by_words,
            "hosts loaded different releases of NCCL, by their words of a plugin that is not there: "
            + "; ".join(f"{names([event.host])} {_RELEASES[_words_of(event)]}" for event in by_words),
            why=_LAYOUT,
            owner="job",
            fix=_VERSIONS,
            at=Where(),
        )


# Said of a network plugin that is not there: seen in logs of 2.4 to 2.18, and of 2.19 to 2.27.
_RELEASES = {"internal implementation": "before 2.19", "internal network plugin": "2.19 or later"}


def _words_of(event: LogEvent) -> str:
    return next((words for words in _RELEASES if "NET/Plugin" in event.text and words in event.text), "")


def _other_words(logs: Logs) -> list[LogEvent]:
    """A line of each release, where hosts say in the words of two that there is no plugin, and none started."""
    if finished_start(logs) or any(process.completed for process in logs.processes):
        return []
    by_host: dict[str, LogEvent] = {}
    for event in events_of(logs, "no-plugin"):
        if _words_of(event):
            by_host.setdefault(event.host, event)
    by_words = {_words_of(event): event for event in reversed(by_host.values())}
    return [*by_words.values()] if len(by_words) > 1 else []


# By which ranks of a host choose how they hand each other data; both ends must choose alike (run with other values
# on one rank, libnccl 2.27.7).
SHARED = (
    "NCCL_SHM_DISABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_P2P_LEVEL",
    "NCCL_CUMEM_ENABLE",
    "NCCL_CUMEM_HOST_ENABLE",
    "NCCL_SHM_USE_CUDA_MEMCPY",
    "NCCL_P2P_USE_CUDA_MEMCPY",
    "NCCL_P2P_DIRECT_DISABLE",
    "NCCL_NVLS_ENABLE",
    "NCCL_NET_DISABLE_INTRA",
    "NCCL_RUNTIME_CONNECT",
    "NCCL_MNNVL_ENABLE",
    "NCCL_COLLNET_ENABLE",
    "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_NCHANNELS",
    "NCCL_MAX_CTAS",
    "NCCL_MIN_CTAS",
)


@log_rule("LOG191", "ranks have the same settings of NCCL where both ends must")
def settings_agree(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A variable that decides how ranks hand each other data (NCCL_P2P_DISABLE, NCCL_SHM_DISABLE, NCCL_CUMEM_ENABLE)
    is set on some ranks alone, and they could not connect.

    ## Why it matters
    Each rank chooses by its own variables. What one offers then the other cannot take: the start ends with
    `Message truncated` or an error of CUDA, which name no variable, or a rank crashes.

    ## How we know
    `NCCL_P2P_DISABLE set by environment to 1` of some ranks and not of others of the job, and a line that such a
    difference makes: a message of another length, memory of a peer that cannot be opened, a segment of /dev/shm
    without a name, a local socket that is gone. Without such a line it is a note.

    ## Fix
    - **you** set it alike on all ranks, or nowhere; /etc/nccl.conf and ~/.nccl.conf of a node count, too.

    ## Source
    NVIDIA/nccl src/transport/p2p.cc, shm.cc and generic.cc; libnccl 2.27.7, run with such values.
    """
    apart = set_apart(logs, SHARED)
    if not apart:
        return
    events = [
        *events_of(logs, "bootstrap-truncated"),
        *(event for event in events_of(logs, *BY_NCCL) if "/p2p.cc" in event.fields.get("place", "")),
        *(event for event in events_of(logs, "nccl-warning") if "UDS: " in event.text),
        *unnamed(logs),
    ]
    fix = [
        you("Confirm: set it alike on all ranks, or nowhere.", "env | grep NCCL_"),
        you("See whether a file of the node sets it.", "cat /etc/nccl.conf ~/.nccl.conf"),
    ]
    why = "Each rank chooses by its own variables how it hands data to a peer, and the peer chose otherwise."
    if events:
        yield cause(events, f"ranks could not connect, for {apart}", why=why, owner="job", fix=fix)
    else:
        yield note(Where(), f"ranks differ in a setting that both ends need: {apart}", why=why)


_LAYOUT = "What ranks exchange in their start has another layout in each version: they end or hang."
_VERSIONS = [
    you(
        "Confirm: compare the version and the file on every node.",
        'python -c "import torch; print(torch.cuda.nccl.version())"',
        "pip list | grep nvidia-nccl; ldconfig -p | grep libnccl; env | grep LD_LIBRARY_PATH",
    ),
    you("Use one environment or image on all nodes, with one of the wheels.", "pip uninstall nvidia-nccl-cu11"),
    admin("Remove an older libnccl of the system.", "ldconfig -p | grep libnccl"),
]


def _of_another(logs: Logs, event: LogEvent) -> bool:
    """Family 0 without an interface that was asked for: NVIDIA/nccl#1267. One host alone is LOG013."""
    versions = {process.version for process in logs.processes if process.version}
    if len(versions) > 1 or one_version(logs):
        return len(versions) > 1
    asked = setting(logs, "NCCL_SOCKET_IFNAME", event) is not None
    return event.fields.get("family") == "0" and not asked and not within_a_host(logs)


def _version(code: str) -> str:
    number = int(code)
    return (
        f"{number // 10000}.{number // 100 % 100}.{number % 100}"
        if number >= _LATER_ENCODING
        else f"{number // 1000}.{number // 100 % 10}.{number % 100}"
    )


def _rank(logs: Logs, rank: int) -> Where:
    process: LogProcess | None = next((process for process in logs.processes if process.rank == rank), None)
    return Where(node=process.host if process else None, rank=rank)
