"""LOG019 to LOG021 and LOG027: how torchrun and torch's store bring the processes together."""

from __future__ import annotations

import re
from collections.abc import Iterator
from shlex import quote

from ncclcheck.probes.facts import LogEvent, Logs
from ncclcheck.probes.facts.log.fields import first_named
from ncclcheck.reports.judgement.findings import Finding, Where, admin, you
from ncclcheck.reports.rules.log.values import before_a_refusal
from ncclcheck.reports.subjects.logs.ending import came_through
from ncclcheck.reports.subjects.logs.logged import cause, events_of, log_rule, process_of, where
from ncclcheck.reports.subjects.logs.reported import owner_of, setting, starts_later

_DEFAULTS = ("29500", "29400")
_NETWORK = {"110", "113", "101"}
_RETRIES = 20  # a start that goes well tells it once or twice a rank
# tries at the end of a log; a start that goes well logs one or two a rank: chosen between that and _RETRIES
_IN_VAIN = 5
_TWICE = 2  # lines of waiting: one alone is a start that took longer than 10 s
_PROGRESS = ("training-goes-on", "work-goes-on", "ended-well", "nccl-tests-row")
# As clouds and Ray fold them.
_SIMILAR = re.compile(r"^\[(?P<cloud>\d{1,6}) similar log lines\]|\[repeated (?P<ray>\d{1,6})x across cluster\]")
_OF_PYTHON = re.compile(r"OSError: \[Errno (?:48|98)\]")
_LOST = re.compile(r"got error: (?:Connection (?:reset|closed)|Broken pipe|Failed to recv)")
_RAISED = re.compile(r"^\S{0,80}Error: ")
_LISTENS = re.compile(r"server socket has failed to (?:listen|bind)")
_WHY = ("error", "told", "error_of", "nccl", "ssh")
_RENDEZVOUS = "torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=$HEAD:29511 train.py"

_WEB = re.compile(
    r"HTTPS?Connection|https?://|huggingface|urllib3?\.|requests\.|aiohttp|httpx|Max retries exceeded"
)
_CHAIN = 200  # lines of tracebacks from a name that has no address to the last exception that follows from it


def _place(event: LogEvent, host: str = "") -> Where:
    return Where(node=host or event.host or None, rank=event.rank)


@log_rule("LOG019", "the job's port is free")
def port(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A process could not listen on its port because another one already does.

    ## Why it matters
    torch's store and torchrun's rendezvous listen on one port (29500 and 29400 unless told otherwise). A second
    job on the node, or ranks of an earlier one that did not end, hold it; so does another process of the same job
    that was also told to be rank 0, or node 0. The job ends before its first step. Where several processes of one
    log cannot listen, they are all told to be rank 0: only that one listens.

    ## Seen as
    does not start

    ## How we know
    errno 98, `EADDRINUSE`; as an OSError of Python it is of a port that the program itself opens. Of NCCL
    itself, without NCCL_COMM_ID, it is the range from which the system gives ports that is used up, or very
    narrow. Not reported where the start went well all the same: several agents on one machine try, and all but
    one go on as clients.

    ## Fix
    - **you** take another port on all nodes, or `--standalone` on one node, which picks a free one; end what is
      left.
    - **admin** end processes that a job of another user left.

    ## Source
    meta-pytorch/torchtune#392, pytorch/pytorch#126510, NVIDIA/Megatron-LM#1371; bind(2), ss(8).
    """
    events, alone = (
        [event for event in events_of(logs, "address-in-use") if not _was_passed(logs, event)],
        _waits_alone(logs),
    )
    if not events or starts_later(logs, events[-1]) or _went_on(logs, events[-1]):
        return
    numbers = [event.fields.get("port") or event.fields.get("taken") for event in events]
    number = next((number for number in numbers if number), "") or _of_nccl(logs, events[0])
    if not number and (used := _without_ports(logs, events)):
        yield used
        return
    if all(_OF_PYTHON.search(event.text) for event in events):
        yield _of_the_program(events)
        return
    default = " (the default)" if number in _DEFAULTS else ""
    taken = f"port {number}{default} is taken already" if number else "the port of the job is taken already"
    refused = _refused_listeners(logs)
    rank_0 = f"{refused} more" if refused > 1 else "two" if alone else ""
    yield cause(
        [*events, *alone],
        taken + (f": {rank_0} processes of the job are rank 0, or node 0" if rank_0 else ""),
        why="Another process of the same job listens there and waits for the rest of its ranks in vain." if alone
        else "Of a job's processes only rank 0 listens there: these were started without a RANK of their own, or "
        "torchrun was started once a rank." if rank_0
        else "A second job on the node with the same port, a process that an earlier job left, or two processes "
        "that were both told to be rank 0 (--node-rank 0).",
        owner="job",
        at=_place(events[0]),
        fix=[
            *([_OWN_NUMBERS] if rank_0 else []),
            you("Confirm: see who listens there, on the node of rank 0.",
                f"ss -ltnp 'sport = :{number or 29500}'"),
            you("Take another port on all nodes; on one node let torchrun find a free one.",
                "torchrun --standalone --nproc-per-node=8 train.py", _RENDEZVOUS),
            you("End the ranks that an earlier job left.", "pgrep -af 'torchrun|train.py'"),
        ],
    )  # fmt: skip


def _of_the_program(events: list[LogEvent]) -> Finding:
    """Torch's store and NCCL open their ports in C++: a socket of Python's is of the program's own."""
    return cause(
        events,
        "a port that the program itself opens is taken already",
        why="Of a server of its own, such as one for metrics: two ranks of a node were given the same port, or "
        "another process has it.",
        owner="job",
        at=_place(events[0]),
        fix=[
            you("Look at the line that opens it; give each rank of a node a port of its own, or port 0, for which "
                "the system chooses one."),
            you("Confirm: see who listens there.", "ss -ltnp"),
        ],
    )  # fmt: skip


def _of_nccl(logs: Logs, event: LogEvent) -> str:
    """The port of NCCL_COMM_ID: the only one that NCCL itself does not leave to the system."""
    address = setting(logs, "NCCL_COMM_ID", event) or "" if "Call to bind failed" in event.text else ""
    port = address.rpartition(":")[2]
    return port if port.isdecimal() else ""


def _without_ports(logs: Logs, events: list[LogEvent]) -> Finding | None:
    """Of NCCL, whose processes tell their settings and have no NCCL_COMM_ID: the system chooses its ports then."""
    processes = [process_of(logs, event) for event in events if "Call to bind failed" in event.text]
    if len(processes) < len(events) or not all(
        process and process.bootstrap and "NCCL_COMM_ID" not in process.settings for process in processes
    ):
        return None
    return cause(
        events,
        f"{events[0].host or 'the host'} has no free port left for NCCL",
        why="NCCL lets the system choose its ports, and all of the range for that are in use.",
        owner="node",
        at=_place(events[0]),
        fix=[
            you(
                "Confirm: how wide the range is, and what uses it.", "sysctl net.ipv4.ip_local_port_range", "ss -s"
            ),
            admin("Widen it.", "sysctl -w net.ipv4.ip_local_port_range='32768 60999'"),
        ],
    )


def _was_passed(logs: Logs, event: LogEvent) -> bool:
    """Whether NCCL came through its start after the line, or its process then wanted memory of its GPU."""
    if came_through(logs, event):
        return True
    full = (
        failure
        for failure in events_of(logs, "torch-gpu-memory")
        if failure.file == event.file and failure.line > event.line
    )
    return not _RAISED.search(event.text) and any(True for _ in full)


def _refused_listeners(logs: Logs) -> int:
    """How many processes raised that torch's store could not listen, of which no rank is told."""
    events = [event for event in events_of(logs, "python-error") if _LISTENS.search(event.text)]
    separate = [event for event in events if "chained" not in event.fields and "ray" not in event.text]
    return sum(event.count for event in separate) if all(event.rank is None for event in separate) else 0


def _waits_alone(logs: Logs) -> list[LogEvent]:
    """Lines of a store that listened, and to which not all came."""
    return [event for event in events_of(logs, "clients-missing") if len({*_came(event)}) > 1]


def _came(event: LogEvent) -> tuple[str, str]:
    """How many came, and of how many; nothing where it is not told."""
    fields = event.fields
    return fields.get("joined") or fields.get("came", ""), fields.get("wanted") or fields.get("world", "")


_OWN_NUMBERS = you(
    "Give each process another RANK, each node another --node-rank.",
    "srun bash -c 'echo $(hostname) RANK=$RANK NODE=$SLURM_NODEID' | sort",
)


def _went_on(logs: Logs, last: LogEvent) -> bool:
    """Whether a step was trained after the line."""
    return any(event.order > last.order for event in events_of(logs, "training-goes-on"))


@log_rule("LOG020", "the master's hostname resolves on every node")
def name(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    The host of MASTER_ADDR, or of --rdzv-endpoint, has no address on a node that dials it.

    ## Why it matters
    The node never reaches torch's store: it tries until its time-out (minutes), and all others wait for it.

    ## Seen as
    hangs

    ## How we know
    `The IPv6 network addresses of (HOST, PORT) cannot be retrieved (gai error: -2 ...)` and then the time-out for
    the same host, or so many times that it cannot be the one try that precedes IPv4, or again and again to the end
    of the log; `-3 - Temporary failure` as its last line. Else, once alone, it is harmless.

    ## Fix
    - **you** give the address itself: `export MASTER_ADDR=10.0.3.17`, `--rdzv-endpoint=10.0.3.17:29500`; look for
      a typo.
    - **admin** put the name into the DNS or /etc/hosts of every node.

    ## Source
    pytorch/pytorch#79388, pytorch/pytorch#76367; getaddrinfo(3), hosts(5).
    """
    lost = {_host(event) for event in events_of(logs, "store-unreachable")}
    wrong = malformed(logs)
    tried = [event for event in events_of(logs, "name-unresolved") if event.fields["host"] not in wrong]
    total = sum(max(event.count, event.count - 1 + _folded(event)) for event in tried)
    in_vain = total > _RETRIES or _to_the_end(logs, tried) or _nothing_after(logs, tried)
    in_vain = in_vain or any(_RAISED.search(event.text) for event in tried)
    events = [event for event in tried if event.fields["host"] in lost or in_vain]
    if lost or not tried:
        asked = events_of(logs, "python-name-unresolved")  # of NCCL_RAS_ADDR too, without which NCCL goes on
        refused = [
            of for event in events_of(logs, "setting-refused") if (of := before_a_refusal(logs, event))
        ]  # LOG072
        events += [
            event
            for event in asked
            if event not in refused and not _of_the_web(logs, event) and not came_through(logs, event)
        ]
    if not events or wrong or starts_later(logs, events[-1]):
        return
    host = next((event.fields["host"] for event in events if "host" in event.fields), "")
    by_ssh = events[0].text.startswith("ssh:")  # mpirun's and pdsh's way to the other nodes
    yield cause(
        events,
        f"{f'the name {host}' if host else 'the name of the master'} has no address on the node that dials it: "
        f"{_unknown(events)}",
        why="A typo in the list of hosts, a name that only some nodes know, or a node (a pod) that is not up yet."
        if by_ssh else "A typo in MASTER_ADDR or --rdzv-endpoint, or a name that only some nodes know.",
        owner="job",
        fix=[
            you("Confirm on each node: it must print an address.",
                f"getent ahosts {quote(host) if host else '$MASTER_ADDR'}"),
            you("Start mpirun once all names resolve; in Kubernetes the workers need a headless service, and must "
                "be up before the launcher.",
                f"for i in $(seq 60); do getent ahosts {quote(host or 'NODE')} && break; sleep 5; done") if by_ssh
            else you("Give the address instead of the name.",
                     "export MASTER_ADDR=$(getent ahostsv4 HEAD | awk 'NR==1{print $1}')"),
            admin("Make the name known on all nodes.", "cat /etc/hosts"),
        ],
    )  # fmt: skip


def _of_the_web(logs: Logs, event: LogEvent) -> bool:
    """Whether it was the name of a hub or a service, as the exceptions that follow from it tell."""
    after = (
        error for error in events_of(logs, "python-error") if error.file == event.file and error.line >= event.line
    )
    return any(error.line - event.line <= _CHAIN and _WEB.search(error.text) for error in after)


def _folded(event: LogEvent) -> int:
    """How often it was said, where only one of the lines is there."""
    match = _SIMILAR.search(event.text)
    return int(match["cloud"] or match["ray"]) if match else 1


def _nothing_after(logs: Logs, tried: list[LogEvent]) -> bool:
    """Whether the log ends with a try that no name server answered: IPv4 would ask the same one."""
    last = {file.name: file.lines for file in logs.files}
    return any(
        "Temporary failure" in event.fields["error"] and event.line >= last.get(event.file, 0) for event in tried
    )


def _to_the_end(logs: Logs, tried: list[LogEvent]) -> bool:
    """Whether a log ends with tries, of which there are more than a start that goes well has."""
    last = {file.name: file.lines for file in logs.files}
    here = [event for event in tried if event.line >= last.get(event.file, 0)]
    return any(sum(event.count for event in tried if event.file == end.file) >= _IN_VAIN for end in here)


def _unknown(events: list[LogEvent]) -> str:
    return next(
        (reason for event in events if (reason := first_named(event.fields, *_WHY))),
        "unknown",
    )


def malformed(logs: Logs) -> dict[str, LogEvent]:
    """What was dialled as the master and is no host's address -> the first line that tells it."""
    events: dict[str, LogEvent] = {}
    for event in events_of(logs, "address-malformed"):
        events.setdefault(event.fields.get("host") or event.fields.get("dialled", ""), event)
    return events


@log_rule("LOG170", "MASTER_ADDR is the hostname or address of one host")
def master_is_a_host(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    MASTER_ADDR, or the host of --rdzv-endpoint, is empty, a bare number, a netmask, a list of hosts, or holds a
    blank.

    ## Why it matters
    Nobody can dial it. A bare number is taken for an address (15 is 0.0.0.15), so no resolver complains; the ranks
    try until their time-out and speak of the network.

    ## Seen as
    hangs

    ## How we know
    What torch says that it dials: `network addresses of (, 29500)`, `trying to connect to (255.255.255.0, 29500)`,
    `(gpu-[01-04], 29500)`. A script that cuts a word out of `hostname -I`, `ip addr` or SLURM_NODELIST took the
    wrong one, or the variable was not exported.

    ## Fix
    - **you** print it where the job starts: `echo "[$MASTER_ADDR]"`; under Slurm
      `MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -1)`.

    ## Source
    PyTorch documentation, torch.distributed (environment variables); inet(3), scontrol(1), hostname(1).
    """
    for host, event in [*malformed(logs).items()][:1]:
        same = [event for event in events_of(logs, "address-malformed") if _dialled(event) == host]
        yield cause(
            same,
            f"what is dialled as the master is {_kind(host)}",
            why="Nobody has this address; every rank tries until its time-out.",
            owner="job",
            at=_place(event),
            fix=[
                you("Confirm, where the ranks start.", 'echo "[$MASTER_ADDR]"'),
                you("Give the first node's name.",
                    'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -1)'),
            ],
        )  # fmt: skip


def _dialled(event: LogEvent) -> str:
    return event.fields.get("host") or event.fields.get("dialled", "")


def _kind(host: str) -> str:
    if not host.strip():
        return "empty: MASTER_ADDR is not set"
    if host.isdigit():
        return f"the bare number {host}, which is read as an address"
    if host.startswith("255."):
        return f"a netmask, {host}"
    if host == "0.0.0.0":
        return "0.0.0.0, which is no host: a place to listen at, not one to dial"
    listed = "," in host or "[" in host
    return f"a list of hosts, {host}" if listed else f"no name of a host: {host!r}"


@log_rule("LOG027", "every node reaches the master's port", symptom=True)
def store(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A process dialled torch's store, or torchrun's rendezvous, and got no answer until its time-out.

    ## Why it matters
    Without the store no rank learns of the others. The process of rank 0 was not started, had ended, listens
    elsewhere, or a firewall stands between.

    ## How we know
    `The client socket has timed out after ... while trying to connect to (HOST, PORT)`, or
    `RendezvousConnectionError`. The errno of the tries before it says more: 113 and 110 are the network's, 111
    says that the host is there and nobody listens: not started, ended, or another port. torchrun lets that node
    listen whose own name or address is the endpoint's: with an alias no node does, and all dial. 127.0.0.1 and
    localhost are each node itself. A connection that stood and was lost is no case of this: the master ended.

    ## Fix
    - **you** the same endpoint on all nodes, as an address of the first one; start that one too; look at its log.
    - **admin** open the port between the nodes.

    ## Source
    pytorch/pytorch#79388, pytorch/pytorch#76367, pytorch/pytorch#73656 (aliases); PyTorch documentation, torchrun.
    """
    tries = events_of(logs, "store-refused")
    names = {event.fields["host"] for event in events_of(logs, "name-unresolved")}
    lost = events_of(logs, "store-unreachable") or [event for event in tries if event.fields["errno"] in _NETWORK]
    stood = events_of(logs, "store-broken")
    events = lost if stood else [*lost, *events_of(logs, "rendezvous-unreachable")]
    if not events or starts_later(logs, events[-1]) or any(_host(event) in names for event in lost):
        return
    first = next((event for event in events if event.fields), events[0])
    host = _host(first)
    number = first.fields.get("port") or first.fields.get("at", "")
    yield cause(
        [first, *(event for event in events if event is not first)],
        f"no answer from {host or 'the master'}{f', port {number}' if number else ''}" + _errno(tries),
        why=_itself(host) + _reason(tries),
        owner="job",
        at=_master(logs, first),
        fix=[
            you("Confirm: on the first node, then from each other one.",
                f"ss -ltn 'sport = :{number or '$MASTER_PORT'}'".replace("'", '"' if not number else "'"),
                f"nc -vz {quote(host) if host else '$MASTER_ADDR'} {number or '$MASTER_PORT'}"),
            you("Give all nodes the same endpoint: an address of the first node, not an alias.", _RENDEZVOUS),
            you("Look at the log of the first node for an earlier error."),
            admin("Open the port between the nodes.", "firewall-cmd --list-all"),
        ],
    )  # fmt: skip


def _host(event: LogEvent) -> str:
    return event.fields.get("host") or event.fields.get("name", "")


def _itself(host: str) -> str:
    if host == "localhost" or host.startswith("127.") or host == "::1":
        return f"{host} is each node itself: with several nodes give the address of the first one. "
    return ""


def _master(logs: Logs, event: LogEvent) -> Where:
    """The node that did not answer, where a log tells which one has the address; else who dialled it."""
    host = _host(event)
    is_name = bool(host) and not host[0].isdigit() and ":" not in host and host != "localhost"
    owner = owner_of(logs, host) or (host.partition(".")[0] if is_name else "")
    return Where(node=owner) if owner else where(event)


def _errno(tries: list[LogEvent]) -> str:
    error = next((event.fields["error"] for event in tries), "")
    return f" ({error})" if error else ""


def _reason(tries: list[LogEvent]) -> str:
    numbers = {event.fields["errno"] for event in tries}
    if "111" in numbers:
        return (
            "That host answers, and nobody listens: rank 0 was not started, had ended, or listens on another port."
        )
    if numbers & _NETWORK:
        return "The network does not let it through: a firewall, a wrong address, or a node that is down."
    return (
        "Rank 0 was not started or had ended, the address is wrong or an alias, or a firewall drops the packets."
    )


@log_rule("LOG021", "all nodes and ranks reach the rendezvous", symptom=True)
def meeting(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    The processes that came waited for others that did not, until the time-out.

    ## Why it matters
    torch starts when all of --nnodes or WORLD_SIZE are there. One node that is down, was not started, has another
    --rdzv-id or --nnodes, or ended in its imports keeps all waiting, 10 to 30 minutes by default.

    ## How we know
    `Timed out after 1801 seconds waiting for clients. 3/4 clients joined`, `RendezvousTimeoutError`,
    `RendezvousClosedError` (a node came after the others had ended), or a wait for a key that rank 0 never wrote.
    `config has no run_id, generated a random run_id` before a rendezvous that failed: each node has its own.
    `Waiting in store based barrier ... worker_count=7` of 8, again and again to the end of the log; a count above
    the world size shows that processes of an earlier attempt, or ranks beyond it, came as well; where they meet
    at a file (`init_method="file://..."`), that file is left of an earlier start.
    Where a process could not dial the master, that is reported instead.

    ## Fix
    - **you** start the same command on each node with the same --nnodes, --rdzv-id and --rdzv-endpoint; look at
      the log of the node that is missing; where nodes start late, `--rdzv-conf=join_timeout=1800`.
    - **admin** look after the node that does not come.

    ## Source
    PyTorch documentation, torchrun and torch.distributed (TCPStore); pytorch/pytorch#76367.
    """
    if alone := _each_its_own(logs):
        yield cause(
            alone,
            "torchrun was given no --rdzv-id: each node makes up its own, and nodes of different ids do not meet",
            why="The rendezvous keeps the nodes of one id apart from all others at the same endpoint.",
            owner="job",
            at=Where(),
            fix=[
                you("Confirm: the id in this line is another one on each node."),
                you("Give all nodes one id.", _RENDEZVOUS + " --rdzv-id=$SLURM_JOB_ID"),
                you("Or number the nodes by hand.",
                    "torchrun --nnodes=2 --node-rank=RANK --master-addr=$HEAD --master-port=29511 ..."),
            ],
        )  # fmt: skip
        return
    if events_of(logs, "store-unreachable", "rendezvous-unreachable", "master-not-used"):
        return
    missing, rendezvous = (
        events_of(logs, "clients-missing"),
        events_of(logs, "rendezvous-timeout", "rendezvous-closed"),
    )
    waited = events_of(logs, "store-wait")
    events = missing or rendezvous or waited or _still_waiting(logs)
    if not events or starts_later(logs, events[-1]):
        return
    if (too_many := _too_many(events, events_of(logs, "rendezvous-file"))) is not None:
        yield too_many
        return
    yield cause(
        events,
        _who_came(events[0]),
        why="The others follow from its end; what ended it is in its own lines or its host's log."
        if _LOST.search(events[0].text) else
        "A node is down or was not started, it was given another --nnodes, --rdzv-id or endpoint, or two were "
        "given the same RANK or --node-rank.",
        owner="job",
        fix=[
            *([_ITS_OWN_END] if _LOST.search(events[0].text) else []),
            *([you(f"Read what rank {owner} did meanwhile: it raised, works on alone, or hangs before this call.",
                   "py-spy dump --pid PID")] if (owner := events[0].fields.get("owner")) else []),
            you("Confirm: see on which nodes an agent runs, and with which arguments.",
                "srun --ntasks-per-node=1 bash -c 'hostname; pgrep -af torchrun'"),
            you("Start the same command on every node.", _RENDEZVOUS),
            you("Where nodes come late, wait longer for them.", "torchrun --rdzv-conf=join_timeout=1800 ..."),
            admin("Look after the node that does not come.", "sinfo -R"),
        ],
    )  # fmt: skip


_ITS_OWN_END = you(
    "Read its output from the first error on; where it wrote nothing, its host may have killed it.",
    "dmesg -T | grep -iE 'oom|killed|xid'",
)


def _too_many(events: list[LogEvent], files: list[LogEvent]) -> Finding | None:
    """Torch's store counts all that ever came to it; the barrier waits until their number is the world size."""
    came, wanted = _came(events[-1])
    if not came or not wanted or int(came) <= int(wanted):
        return None
    old = next((event.fields["path"] for event in files if "path" in event.fields), "")
    path = old or next((event.fields["file"] for event in files), "")
    of_file = f": the file at which they meet, {old}, is of an earlier start" if old else ": more than the job has"
    return cause(
        [*events, *files],
        f"{came} processes came to a start of {wanted}{of_file}",
        why="A file counts everyone who ever came to it, and torch deletes it only where the job ends in order."
        if path
        else "The store counts everyone who ever came, and the barrier waits for exactly the world size: it was "
        "passed, by processes of an earlier attempt or by ranks beyond the world size.",
        owner="job",
        fix=[
            *(
                [
                    you(
                        "Delete that file before each start, or give each start another one.",
                        f"rm -f {quote(path)}",
                    )
                ]
                if path
                else []
            ),
            you(
                "Confirm: see who runs on each node, also of an earlier start.",
                "srun --ntasks-per-node=1 bash -c 'hostname; pgrep -af python'",
            ),
            you("End all of them and start anew, on another port or --rdzv-id.", _RENDEZVOUS),
            you(
                "Where only some workers were started again: let the launcher restart all (torchrun does). Each "
                "process needs a RANK below WORLD_SIZE."
            ),
        ],
    )


def _each_its_own(logs: Logs) -> list[LogEvent]:
    """A made-up rendezvous id, where a rendezvous of torchrun failed; one node alone needs no other."""
    own, failed = events_of(logs, "run-id-of-its-own"), events_of(logs, "rendezvous-timeout", "rendezvous-closed")
    within = (f"{event.fields.get('raised_at', '')} {event.fields.get('raised_in', '')}" for event in logs.events)
    return (
        [*own, *failed[:1]] if own and (failed or any("elastic/rendezvous/" in place for place in within)) else []
    )


def _still_waiting(logs: Logs) -> list[LogEvent]:
    """Ranks that wait in the store's barrier to the end of their log: torch tells it every 10 s."""
    waits = events_of(logs, "barrier-waits")
    if sum(wait.count for wait in waits) < _TWICE or any(len({*_came(wait)}) < 2 for wait in waits):
        return []
    last = max(wait.order for wait in waits)
    went_on = events_of(logs, *_PROGRESS)
    return [] if logs.processes or any(event.order > last for event in went_on) else waits


def _who_came(event: LogEvent) -> str:
    fields, (came, wanted) = event.fields, _came(event)
    if event.sign == "barrier-waits":
        return f"{came} of {wanted} processes had come when the log ends, and they wait for the rest"
    if came:
        return f"{came} of {wanted} processes came" + (f" within {fields['after']} s" if "after" in fields else "")
    if event.sign == "store-wait":
        key = fields.get("keys") or fields.get("key", "")
        if "owner" in fields and _LOST.search(event.text):
            gone = f"rank {fields['owner']} went away while this communicator was made"
            return f"{gone}: its store closed the connection"
        if "owner" in fields:
            who = "" if event.rank is not None else "a rank "
            return f"{who}waited in vain for rank {fields['owner']}, which did not come to this communicator"
        if "waited" in fields:
            return (
                f"a rank waited {int(fields['waited']) // 1000} s in vain for an answer of the store at "
                f"{fields['store'].removeprefix('::ffff:')}:{fields['port']}: another rank or node never came"
            )
        return "a rank waited for a key that another rank never set" + (f" (key {key})" if key else "")
    if event.sign == "rendezvous-closed":
        return "a node came to a rendezvous that the others had closed"
    return "fewer nodes than --nnodes came to the rendezvous"
