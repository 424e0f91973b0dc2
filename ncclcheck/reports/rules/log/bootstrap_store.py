"""LOG019 and LOG021: how torchrun and torch's store bring the processes together, and the port at which."""

from __future__ import annotations

import re
from collections.abc import Iterator
from shlex import quote

from ncclcheck.probes.facts import LogEvent, Logs
from ncclcheck.reports.judgement.findings import Finding, Where, admin, you
from ncclcheck.reports.subjects.logs.ending import came_through
from ncclcheck.reports.subjects.logs.logged import cause, events_of, log_rule, process_of, where
from ncclcheck.reports.subjects.logs.reported import setting, starts_later

_DEFAULTS = ("29500", "29400")
_TWICE = 2  # lines of waiting: one alone is a start that took longer than 10 s
_PROGRESS = ("training-goes-on", "work-goes-on", "ended-well", "nccl-tests-row")
_OF_PYTHON = re.compile(r"OSError: \[Errno (?:48|98)\]")
_LOST = re.compile(r"got error: (?:Connection (?:reset|closed)|Broken pipe|Failed to recv)")
_RAISED = re.compile(r"^\S{0,80}Error: ")
_LISTENS = re.compile(r"server socket has failed to (?:listen|bind)")
RENDEZVOUS = "torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=$HEAD:29511 train.py"


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
        at=where(events[0]),
        fix=[
            *([_OWN_NUMBERS] if rank_0 else []),
            you("Confirm: see who listens there, on the node of rank 0.",
                f"ss -ltnp 'sport = :{number or 29500}'"),
            you("Take another port on all nodes; on one node let torchrun find a free one.",
                "torchrun --standalone --nproc-per-node=8 train.py", RENDEZVOUS),
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
        at=where(events[0]),
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
        at=where(events[0]),
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
                you("Give all nodes one id.", RENDEZVOUS + " --rdzv-id=$SLURM_JOB_ID"),
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
            you("Start the same command on every node.", RENDEZVOUS),
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
                        f"rm -- {quote(path)}",
                    )
                ]
                if path
                else []
            ),
            you(
                "Confirm: see who runs on each node, also of an earlier start.",
                "srun --ntasks-per-node=1 bash -c 'hostname; pgrep -af python'",
            ),
            you("End all of them and start anew, on another port or --rdzv-id.", RENDEZVOUS),
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
