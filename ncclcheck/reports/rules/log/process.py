"""LOG069, LOG070: what the kernel gives to a rank: cores and a stack."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import LogEvent, Logs
from ncclcheck.reports.judgement.findings import Finding, State, Where, admin, seen, you
from ncclcheck.reports.subjects.logs.logged import cause, events_of, log_rule
from ncclcheck.reports.subjects.logs.logged_node import hosts, on, ranks
from ncclcheck.reports.subjects.logs.reported import starting, version, version_seen

# NCCL that starts its threads with a stack of its own size; before, `ulimit -s` decides
_SETS_ITS_OWN_STACK = (2, 28, 0)


@log_rule("LOG069", "NCCL's threads have more than one core", worst=State.WARN, slows=True)
def cores(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    NCCL bound a rank's threads to one core (or the two threads of one).

    ## Why it matters
    The rank's Python, its data loaders and NCCL's proxy threads then share one core, and where all ranks of a node
    got the same mask, all of them do: shared memory and network transfers reach a fraction of their speed.

    ## Seen as
    slow

    ## How we know
    `Setting affinity for GPU 0 to 01` (2.4 to 2.26: a hexadecimal mask of cores; 2.27: their numbers) and
    `Affinity for GPU 0 is 0.` (2.28 and later) show what is left of the job's cores near the GPU.

    ## Fix
    - **you** `srun --cpus-per-task=12 --cpu-bind=cores`, `mpirun --bind-to none`; in Kubernetes a larger CPU
      request.
    - **you** NCCL_IGNORE_CPU_AFFINITY=1 lets NCCL use all cores near the GPU, where the job's cpuset allows it.

    ## Source
    NCCL user guide, Environment variables, NCCL_IGNORE_CPU_AFFINITY, and Troubleshooting; srun(1), mpirun(1),
    taskset(1).
    """
    for where, events in hosts(events_of(logs, "affinity-narrow", "affinity-one-core")):
        masks, many = {event.fields["mask"] for event in events}, ranks(events)
        same = many != "1 rank" and len(masks) == 1
        yield cause(
            events,
            f"NCCL's threads of {many}{on(where)} have one core" + (", all the same" if same else " each"),
            why="Python, the data loaders and NCCL's threads of a rank take turns on it.",
            owner="job",
            state=State.WARN,
            fix=[
                you(
                    "Confirm: the cores of each rank.",
                    "taskset -pc $$",
                    "grep Cpus_allowed_list /proc/self/status",
                ),
                you(
                    "Give each rank its share of cores.",
                    "srun --cpus-per-task=12 --cpu-bind=cores ...",
                    "mpirun --bind-to none ...",
                ),
                you("Or let NCCL choose among all.", "export NCCL_IGNORE_CPU_AFFINITY=1"),
            ],
            at=Where(node=where.node),
            more=[seen("cores", ", ".join(sorted(masks)[:4]))],
        )


@log_rule("LOG070", "no rank crashes while NCCL initializes")
def crash(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A rank crashed (segmentation fault) in libnccl, or while NCCL started.

    ## Why it matters
    With `ulimit -s unlimited` the C library gives threads a stack of 2 MB only. On large jobs NCCL's threads need
    more, before 2.28, and run over it; nothing says so.

    ## Seen as
    setting without effect

    ## How we know
    `Segmentation fault`, signal 11 or exit code -11, and either libnccl in the trace or ranks whose init had
    not been completed. Before 2.28 the stack is the first thing to look at; another reason is two different
    libnccl or libcudart in one process, and of any version a plugin (libnccl-net.so, libnccl-tuner.so).

    ## Fix
    - **you** `ulimit -s 8192` in the job script, or NCCL 2.28 or later.
    - **you** `pip list | grep -E 'nccl|cuda-runtime'`: one of each; NCCL_NET_PLUGIN=none for a test.
    - **admin** no `stack unlimited` in /etc/security/limits.d or in slurmd's unit.

    ## Source
    NCCL user guide, Troubleshooting, Runtime issues; pthread_create(3), getrlimit(2).
    """
    if crashed_in_start(logs):
        yield _crashed(logs, [*events_of(logs, "segfault"), *events_of(logs, "segfault-in-nccl")])


def crashed_in_start(logs: Logs) -> bool:
    """Whether a rank crashed within libnccl, or before NCCL had come up."""
    within = events_of(logs, "segfault-in-nccl") or any(map(starting, logs.processes))
    return bool(events_of(logs, "segfault") and within)


def _crashed(logs: Logs, events: list[LogEvent]) -> Finding:
    where, own = next(hosts(events))
    known = version(logs, own[0])
    stack = known is None or known < _SETS_ITS_OWN_STACK
    blame = (
        "the stack may be too small (ulimit -s unlimited)"
        if stack
        else "it may be a plugin, or two libnccl in one process"
    )
    limit = you("Limit the stack in the job script.", "ulimit -s 8192")
    other = you(
        "Look for a second libnccl, and try without plugins.",
        "python -m pip list | grep -i nccl",
        "export NCCL_NET_PLUGIN=none NCCL_TUNER_PLUGIN=none",
    )
    return cause(
        own,
        f"a rank crashed (segmentation fault) as NCCL started{on(where)}; why is not in these lines: {blame}",
        why="A rank that crashes before the job is connected leaves all others waiting.",
        owner="node" if stack else "job",
        fix=[
            you("Confirm: inside of the job, on each node.", "ulimit -s", "dmesg | grep -i segfault"),
            *((limit, other) if stack else (other, limit)),
            admin("Take the unlimited stack out of the limits.", "grep -r stack /etc/security/limits.d"),
        ],
        at=where,
        more=version_seen(logs, own[0]),
    )
