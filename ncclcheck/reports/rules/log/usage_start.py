"""LOG168, LOG169: a shell or Slurm that does not start the job at all."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from ncclcheck.probes.facts import LogEvent, Logs
from ncclcheck.probes.facts.log.fields import first_named
from ncclcheck.reports.judgement.findings import Finding, Where, admin, you
from ncclcheck.reports.subjects.logs.logged import at_teller, cause, events_of, log_rule


@log_rule("LOG168", "the script is executable")
def executable(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A shell was not allowed to execute the script that starts the job.

    ## Why it matters
    Nothing starts on that node. The file has no x bit, or lies on a file system that is mounted with noexec; that
    the file can be read is not enough.

    ## How we know
    `bash: line 1: ./run.sh: Permission denied` for a file that ends in .sh, .py or .bash, or lies in a folder bin;
    `zsh: permission denied: ./run.sh`. Of other files a shell says the same when it may not write to them.

    ## Fix
    - **you** `chmod +x run.sh`, or name the interpreter: `bash run.sh`, `python train.py`.
    - **admin** mount the file system without noexec.

    ## Source
    execve(2), chmod(1), mount(8).
    """
    if events := events_of(logs, "command-denied"):
        name = first_named(events[0].fields, "command", "zsh", "execve")
        with_ = "python" if name.endswith(".py") else "bash"
        yield cause(
            events,
            f"{name} may not be executed",
            why="It has no x bit, or its file system is mounted with noexec.",
            owner="job",
            at=at_teller(logs, events),
            fix=[
                you("Confirm: the first must show an x, the second no noexec.",
                    f"ls -l {quote(name)}", f"findmnt -T {quote(name)} -o TARGET,OPTIONS"),
                you("Make it executable, or name the interpreter.",
                    f"chmod +x {quote(name)}", f"{with_} {quote(name)}"),
                admin("Mount the file system without noexec."),
            ],
        )  # fmt: skip


@log_rule("LOG169", "Slurm accepts the job and its steps", asks_why=True)
def slurm(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    srun, sbatch or salloc failed before it started anything.

    ## Why it matters
    No rank is started, and all that stands below in the script runs without it.

    ## How we know
    `srun: fatal: ...` (such as `Could not establish a configuration source`: this machine does not know the
    cluster's slurm.conf), `Unable to allocate resources: ...`, `Batch job submission failed: ...`. What Slurm says
    behind it is the reason. `Task launch ... failed on node`, `Application launch failed`, `Prolog failed`: a node
    did not start its tasks.

    ## Fix
    - **you** start from a login node of the cluster, or without srun on one machine; ask only for what the
      partition has, under an account that may use it.
    - **admin** slurm.conf, or `slurmd --conf-server`, on this machine.

    ## Source
    srun(1), sbatch(1), slurm.conf(5), sinfo(1).
    """
    if events := events_of(logs, "slurm-refused"):
        fields = events[0].fields
        reason = (fields.get("fatal") or fields["refused"]).strip()
        yield cause(
            events,
            f"Slurm did not start it: {reason[:160]}",
            why="No rank was started." if "fatal" in fields
            else "It refused what the step asks of the job's nodes: their names, number, GPUs or cores."
            if "configuration is not available" in reason else "It refused what was asked for.",
            owner="site" if "configuration source" in reason else "job",
            fix=_ASKED_TOO_MUCH if "configuration is not available" in reason else [
                you("Confirm: see whether this machine reaches Slurm, and what it has.",
                    "scontrol ping", "sinfo -o '%P %a %l %D %G'"),
                you("On one machine without Slurm start it with torchrun.",
                    "torchrun --standalone --nproc-per-node=8 train.py"),
                admin("Give this machine the cluster's configuration.", "scontrol show config"),
            ],
        )  # fmt: skip
    elif launches := events_of(logs, "slurm-launch-failed"):
        yield _not_launched(launches)


_FOLLOWED = "No such process"  # of nodes whose tasks another one's failure had ended before
_ASKED_TOO_MUCH = [
    you("Confirm: compare what was asked for with what the job's nodes, or the partition's, have.",
        "scontrol show job $SLURM_JOB_ID | grep -E 'NodeList|TRES|NumCPUs'", "sinfo -N -o '%N %c %G %f'"),
    you("Ask for no more: leave --nodelist, --constraint, --gres and --cpus-per-task out one by one; names in "
        "--nodelist must be of the job's own nodes.", "srun --nodes=1 --ntasks=1 hostname"),
]  # fmt: skip


def _not_bound(first: LogEvent, launches: list[LogEvent], reason: str, node: str) -> Finding:
    """The step asks for cores that are not the job's."""
    return cause(
        [first, *(event for event in launches if event is not first)],
        f"Slurm did not start the tasks: {reason}",
        why="The step is to be bound to cores that it was not given: by --cpu-bind, or by SLURM_CPU_BIND variables"
        " that a step within another job or an interactive shell inherits.",
        owner="job",
        at=Where(node=node or None),
        fix=[
            you("Confirm: what is inherited, and which cores the step may use.",
                "env | grep SLURM_CPU_BIND; taskset -cp $$"),
            you("Take the variables back, or bind to nothing.",
                "unset ${!SLURM_CPU_BIND*}; srun --cpu-bind=none ..."),
        ],
    )  # fmt: skip


def _not_launched(launches: list[LogEvent]) -> Finding:
    """Slurm had the nodes, and one of them did not start its tasks."""
    first = min(launches, key=lambda event: _FOLLOWED in event.text)
    reason = first_named(first.fields, "why", "launch", "munge", "allocation").strip()
    node = first.host or first.fields.get("node", "")
    clock = "credential" in reason.lower() or "munge" in reason.lower()
    if "bind" in reason.lower():
        return _not_bound(first, launches, reason, node)
    return cause(
        [first, *(event for event in launches if event is not first)],
        f"Slurm did not start the tasks: {reason}" if reason else "Slurm's prolog failed, and no task was started",
        why="The node refused the credential: its clock, or its munge key, differs from the controller's."
        if clock
        else "The node was given to the job, and did not come so far as to start its tasks.",
        owner="node",
        at=Where(node=node or None),
        fix=[
            admin("Confirm on that node: its clock, munge, and slurmd's own log.", "chronyc tracking",
                  "munge -n | ssh CONTROLLER unmunge", "journalctl -u slurmd -e"),
            you("Start again without it.", f"sbatch --exclude={node or 'NODE'} job.sh"),
        ],
    )  # fmt: skip
