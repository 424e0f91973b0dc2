"""LOG107 to LOG109, LOG124, LOG182: workers and nodes that were lost, or never there (Ray, Slurm, MPI)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from shlex import quote

from ncclcheck.probes.facts import LogEvent, Logs
from ncclcheck.reports.judgement.findings import Finding, Where, admin, seen, you
from ncclcheck.reports.rules.log.first import errors
from ncclcheck.reports.subjects.logs.logged import cause, events_of, in_order, log_rule, where
from ncclcheck.reports.subjects.logs.words.wording import before, quoted, understood

_ENDED_WITHOUT_A_WORD = ("connection error code 2", "End of file", "exits unexpectedly")


@log_rule("LOG107", "Ray's memory monitor kills no worker")
def ray_kills_nobody(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    Ray killed a worker because the memory of its node, or of its container, was nearly full.

    ## Why it matters
    The other workers of the group wait in NCCL for the one that is gone, or see ActorDiedError; neither names the
    memory. It is host memory: GPUs may be empty.

    ## Seen as
    hangs

    ## How we know
    `Task was killed due to the node running low on memory`, `N worker(s) were killed ...` (2.55 and later), or
    raylet's `N Workers (tasks / actors) killed due to memory pressure (OOM)`, which names the node. Ray kills at
    95 % (RAY_memory_usage_threshold), before the kernel does.

    ## Fix
    - **you** fewer workers a node, a smaller prompt or replay buffer, no copies of the weights on the host
      (offload); more memory for the container.
    - **you** RAY_memory_usage_threshold=0.99 only where what is used can be given back.

    ## Source
    Ray documentation, Out-Of-Memory Prevention; ray-project/ray src/ray/raylet/node_manager.cc;
    hiyouga/EasyR1#185.
    """
    events = in_order(events_of(logs, "ray-memory"))
    if not events:
        return
    used = next((event.fields["used"] for event in events if "used" in event.fields), "")
    host = next((name for event in events if (name := event.host or event.fields.get("at", ""))), "")
    yield cause(
        events,
        "Ray killed a worker, for the memory of its node was nearly full" + (f" ({used})" if used else ""),
        why="The others wait for it in NCCL, or report a dead actor; neither says why.",
        owner="job",
        at=Where(node=host) if host else where(events[0]),
        fix=[
            you(
                "Confirm: who takes the memory of that node.",
                "ray memory --stats-only",
                "ps aux --sort=-rss | head",
            ),
            you("Run fewer workers a node, keep less on the host, or give its container more memory."),
        ],
    )


@log_rule("LOG182", "Ray's cluster has what the job asks for")
def ray_has_enough(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    The job asks Ray for more GPUs, or other resources, than the nodes of its cluster have free.

    ## Why it matters
    Ray does not refuse: it waits for nodes that never join, and the job stands still before its first step.

    ## How we know
    `Not enough GPUs available. Requested 16 GPUs, but only 8`, `No available node types can fulfill resource
    request`, `The following resource request cannot be scheduled right now`; `pending placement groups` of
    `ray status`. All but the first are printed while nodes still join, too: they count where no other failure is
    logged, and where the job did not go on.

    ## Fix
    - **you** ask for as many as `ray status` shows (nodes x GPUs a node), or start Ray on the missing nodes; end
      what an earlier job left in the cluster.

    ## Source
    Ray documentation, Resources, and Placement Groups; NVIDIA-NeMo/RL#271.
    """
    events = in_order(events_of(logs, "ray-lacks"))
    if not events or ("asked" not in events[0].fields and errors(logs)):
        return
    fields = events[0].fields
    lacks = (
        f"the job asks for {fields['asked']} {fields['kind']}s, and Ray's cluster has {fields['has']}"
        if "asked" in fields
        else f"Ray's cluster has fewer {fields['sort']}s than the engine asks for (tensor x pipeline parallel "
        "size)"
        if "sort" in fields
        else "no node of Ray's cluster has free what the job asks for: "
        f"{fields.get('request') or fields['pending']}"
    )
    has = {event.fields["sort"]: event.fields["total"] for event in events_of(logs, "ray-total")}
    lacks += f"; all of it has {', '.join(f'{total} {sort}' for sort, total in has.items())}" if has else ""
    yield cause(
        events,
        lacks,
        why="Ray waits for nodes that never join, and says no more.",
        owner="job",
        at=Where(),
        fix=[
            you("Confirm: what is there, and who has it.", "ray status", "ray list nodes"),
            you("Start Ray on the nodes that are missing, before the job.", "ray start --address=HEAD:6379"),
            you("Or ask for no more than there is: nodes, GPUs a node, tensor x pipeline parallel size."),
            you("End what an earlier job left in the cluster.", "ray list actors --filter state=ALIVE"),
        ],
    )  # fmt: skip


@log_rule("LOG108", "no Ray worker dies without an error message", symptom=True)
def ray_workers_live(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A worker process of Ray ended, and Ray saw only that its connection was gone.

    ## Why it matters
    ActorDiedError, RayActorError and EngineDeadError all report that it ended and not why: it was killed (host
    memory), it crashed, or its program ended itself.

    ## Seen as
    dies

    ## How we know
    `The actor is dead because its worker process has died`, `Worker exit type: SYSTEM_ERROR`. Ray names the
    process and the address of its node there. What the worker printed last is in its own file.

    ## Fix
    - **you** read the worker's own file on the named node; PYTHONFAULTHANDLER=1 prints the stack of a crash.
    - **admin** `dmesg` of that node shows whether the kernel killed it.

    ## Source
    Ray documentation, Debugging Failures and Logging; verl-project/verl#4921, verl-project/verl#472.
    """
    died = [event for event in in_order(events_of(logs, "ray-worker-died")) if "INTENDED" not in event.text]
    if not died or events_of(logs, "ray-memory", "node-lost"):
        return
    place = next(iter(events_of(logs, "ray-worker-at")), None)
    host = (place.host or place.fields.get("ip", "")) if place else ""
    pid = next((event.fields["pid"] for event in events_of(logs, "ray-worker-at") if "pid" in event.fields), "")
    yield cause(
        died,
        f"a worker of Ray ended{f', process {pid},' if pid else ''} and Ray does not know why{_guess(died)}",
        why="Its connection to Ray was gone: killed for want of memory, a crash, or its own exit.",
        owner="job",
        at=Where(node=host) if host else where(died[0]),
        more=[seen("another failure", errors(logs)[0].text[:200])] if errors(logs) else [],
        fix=[
            you("Confirm: what it printed last.",
                f"tail -n 50 /tmp/ray/session_latest/logs/worker-*{pid or 'PID'}.{{out,err}}"),
            you("Let Python print the stack of a crash.", "export PYTHONFAULTHANDLER=1"),
            admin("Look whether the kernel killed it.", "dmesg -T | grep -iE 'oom|killed process|segfault'"),
        ],
    )  # fmt: skip


def _guess(died: list[LogEvent]) -> str:
    text = " ".join(event.text for event in died)
    if "exceeded K8s pod memory" in text:
        return ": its pod may have exceeded its memory"
    return ": killed or crashed" if any(words in text for words in _ENDED_WITHOUT_A_WORD) else ""


@log_rule("LOG109", "every node of the job stays up")
def nodes_stay(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A node of the job failed: Slurm or Ray heard no more of it, or its memory had an error that could not be
    corrected.

    ## Why it matters
    All that other ranks print afterwards (closed connections, time-outs, SIGTERM) follows from it.

    ## Seen as
    hangs

    ## How we know
    Slurm's `DUE TO NODE FAILURE`, `Node failure on HOST`, `UNCORRECTABLE MEMORY ERROR`; Ray's `has been marked
    dead because the detector has missed too many heartbeats`. Slurm's first line stands on the host that
    reports it, not on the one that failed. Ray's may also be a raylet that was starved or killed on a node that
    lives.

    ## Fix
    - **admin** look at the node: its console, `journalctl -b -1`, the BMC's event log.
    - **you** start again without it: `srun --exclude=NODE`.

    ## Source
    SchedMD/slurm src/slurmd/slurmstepd/req.c and src/srun; Ray documentation, Fault Tolerance (nodes).
    """
    events = in_order(events_of(logs, "node-lost"))
    if not events:
        return
    named = next((name for event in events if (name := _failed(event))), "")
    first = [event for event in events if _failed(event) == named]
    yield cause(
        first + [event for event in events if event not in first],
        _lost(events[0], named),
        why="What other ranks print afterwards follows from it.",
        owner="node",
        at=Where(node=named) if named else Where(),
        fix=[
            admin("Confirm: why it went.", f"scontrol show node {quote(named or 'NODE')}", "journalctl -b -1 -e",
                  "ipmitool sel list | tail"),
            you("Start again without it.", f"sbatch --exclude={quote(named or 'NODE')} job.sh"),
        ],
    )  # fmt: skip


def _lost(event: LogEvent, named: str) -> str:
    if "late" in event.fields:
        waited = f" for {int(event.fields['for']) // 1000} s" if "for" in event.fields else " in time"
        return (
            f"Ray took {named or 'a node'} for dead, for no heartbeat came{waited}: it was overloaded, or cut off"
        )
    because = _BECAUSE.search(event.text)
    if because:  # as Ray tells it: the node may live
        return f"Ray marked {named or 'a node'} dead: {because[1].strip()}"
    return f"node {named} failed" if named else "a node of the job failed; slurmctld's log names it"


def _failed(event: LogEvent) -> str:
    """The node that the line says is gone; who reports it stands in its prefix."""
    fields = event.fields
    named = event.host if "Node failure on" in event.text or "late" in fields else ""
    return named or fields.get("own", "") or fields.get("at", "")


def _in_short(text: str) -> str:
    """Of an error stack of MPICH what stands deepest: it is printed from the outermost call to the innermost."""
    wrapper, _, stack = text.partition("error stack:")
    calls = [call.strip() for call in _CALL.split(stack) if call.strip(" .:") and "MPI error" not in call]
    names = [name for name in _CALL.findall(stack) if not name.startswith("(unknown)")]
    deepest = calls[-1] if calls else f"{names[-1].strip(' .:')} failed" if names else ""
    return deepest[:120] or wrapper.strip()[:120]


_CALL = re.compile(r"[\w()]{3,60}\(\d{0,5}\)\.{0,40}: ?")
_BECAUSE = re.compile(r"marked dead because ([^.(]{10,120})")
_NO_PMI = re.compile(r"was not (?:built|configured) with SLURM|mpi/pmi|Invalid MPI type")


# That MPI did not start, and nothing of why.
_ONLY_SAYS_THAT = re.compile(
    r"was unable to (?:reliably )?(?:start|launch)|An error occurred in (?:the MPI_)?MPI_Init|MPI_INIT has failed"
    r"|it looks like MPI_INIT failed|PML add procs failed|MPI_Init\w* (?:has )?failed"
)


def _without_pmi(events: list[LogEvent]) -> Finding:
    first = next(event for event in events if _NO_PMI.search(event.text))
    named = re.search(r"Invalid MPI type '(\w{1,20})'|mpi/(\w{1,20})", first.text)
    return cause(
        [first, *(event for event in events if event is not first)],
        f"srun has no plugin {named[1] or named[2]} for MPI" if named
        else "srun started an Open MPI that was built without Slurm's PMI: the processes do not find each other",
        why="Under srun the processes of MPI find each other by PMI, which srun and MPI must both know.",
        owner="job",
        fix=[
            you("Confirm: what srun offers, and what this MPI was built with.", "srun --mpi=list",
                "ompi_info | grep -iE 'pmix|slurm'"),
            you("Take one that both know.", "srun --mpi=pmix python train.py"),
            you("Or let mpirun start the processes within the allocation.",
                "mpirun -np $SLURM_NTASKS python train.py"),
            admin("Build Open MPI with Slurm's PMIx.", "./configure --with-slurm --with-pmix"),
        ],
    )  # fmt: skip


@log_rule("LOG124", "MPI starts on all nodes", asks_why=True)
def mpi_starts(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    mpirun could not start its processes, or MPI_Init failed in them: NCCL was never reached.

    ## Why it matters
    It looks like a failure of nccl-tests or NCCL, and is one of the launcher: another MPI on another node, no ssh
    between nodes, too few slots, a process manager that does not fit.

    ## How we know
    `Fatal error in PMPI_Init`, `ORTE was unable to reliably start one or more daemons`, `There are not enough
    slots available`, `PML add procs failed`.

    ## Fix
    - **you** run `mpirun ... hostname` first; the same MPI for building and running, on all nodes; `-H
      node1:8,node2:8`.
    - **admin** ssh between the nodes without a password; interfaces for MPI: `--mca btl_tcp_if_include`.

    ## Source
    Open MPI documentation, Launching MPI jobs (FAQ); MPICH documentation, Hydra; srun(1), --mpi.
    """
    if as_root := events_of(logs, "mpi-as-root"):
        launcher = as_root[0].fields["launcher"]
        yield cause(
            as_root,
            f"{launcher} does not run as root",
            why="Open MPI refuses it, as a precaution; in a container root is the usual user.",
            owner="job",
            fix=[you("Confirm: who runs it.", "id -un"),
                 you("Allow it, or run as another user.", f"{launcher} --allow-run-as-root ...")],
        )  # fmt: skip
    started = any(process.completed for process in logs.processes)  # then it is a complaint that MPI went on after
    events = [] if started else in_order(events_of(logs, "mpi-not-started"))
    if any(_NO_PMI.search(event.text) for event in events):
        yield _without_pmi(events)
    elif events:
        boxes = [event for event in events_of(logs, "mpi-box") if not _ONLY_SAYS_THAT.search(event.text)]
        vague = _ONLY_SAYS_THAT.search(events[0].text) is not None
        told = boxes[0] if vague and boxes else None
        unsaid = "; why is not in these lines" if vague and not (told or before(logs, events[0])) else ""
        yield cause(
            [events[0], told, *events[1:]] if told else events,
            f"MPI did not start{unsaid}: {quoted(told) if told else _in_short(events[0].text)}",
            why="The processes never came to NCCL.",
            owner="job",
            fix=[
                *(known.fix if told and (known := understood(told.text)) else ()),
                you(
                    "Confirm without NCCL.",
                    "mpirun -H node1:1,node2:1 hostname",
                    "which -a mpirun; mpirun --version",
                ),
                you(
                    "Give mpirun the slots, and the same MPI on all nodes.", "mpirun -H node1:8,node2:8 -np 16 ..."
                ),
                admin("Let the nodes reach each other by ssh.", "ssh -o BatchMode=yes node2 true"),
            ],
        )
