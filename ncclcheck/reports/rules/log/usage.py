"""LOG160 to LOG164: commands that start something else than the person meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from shlex import quote

from ncclcheck.probes.facts import LogEvent, Logs
from ncclcheck.probes.facts.log.fields import first_named
from ncclcheck.reports.judgement.findings import Finding, Where, admin, you
from ncclcheck.reports.subjects.logs.logged import at_teller, cause, events_of, log_rule, own_exceptions

_ASSIGNED = re.compile(r"[A-Za-z_]\w{0,80}=.{0,120}")
_OURS = ("torchrun", "python", "python3", "accelerate", "deepspeed", "mpirun", "srun")
_ARGUMENTS = (
    *("nnodes", "nproc-per-node", "node-rank", "master-addr", "master-port", "local-addr", "standalone"),
    *("rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "max-restarts", "monitor-interval"),
    *("start-method", "role", "module", "no-python", "run-path", "log-dir", "redirects", "tee"),
)
_LOCAL_RANK = ("--local-rank", "--local_rank")


def _commands(logs: Logs) -> list[tuple[LogEvent, str]]:
    """What a shell, or a program that starts another, could not start."""
    fields = ("command", "execve", "shell", "zsh", "exec", "setsid", "wrapped", "script", "program")
    events = events_of(logs, "command-not-run", "executable-missing", "script-missing")
    return [(event, first_named(event.fields, *fields)) for event in events]


@log_rule("LOG160", "variables stand before the program name on the command line")
def assignment(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    `nohup VAR=1 torchrun ...`: the variable was taken for the name of a program.

    ## Why it matters
    Only a shell understands `VAR=value` before a command. nohup, srun, mpirun, timeout, setsid and others take
    their first argument for the program, and nothing starts.

    ## Seen as
    hangs

    ## How we know
    `nohup: failed to run command 'VAR=1': No such file or directory`, `execve(): VAR=1: No such file or
    directory`: the program that was not found has the form of an assignment.

    ## Fix
    - **you** `VAR=1 nohup torchrun ...`, or `nohup env VAR=1 torchrun ...`; with mpirun `-x VAR=1`, with srun
      `--export=ALL,VAR=1`.

    ## Source
    nohup(1), env(1), srun(1); GNU coreutils manual, nohup invocation; mpirun(1).
    """
    wrong = [(event, name) for event, name in _commands(logs) if _ASSIGNED.fullmatch(name)]
    if wrong:
        variable = wrong[0][1]
        name, _, value = variable.partition("=")
        yield cause(
            [event for event, _ in wrong],
            f"{variable} was taken for the name of a program, and nothing was started",
            why="Only a shell understands VAR=value before a command; nohup, srun and mpirun do not.",
            owner="job",
            fix=[
                you("Confirm: env prints it, so that a command behind env would see it.",
                    f"env {quote(variable)} sh -c 'echo ${name}'"),
                you("Put it before nohup, or put env between.",
                    f"{name}={quote(value)} nohup torchrun ...", f"nohup env {quote(variable)} torchrun ..."),
            ],
        )  # fmt: skip


@log_rule("LOG161", "the command is installed where the job runs")
def command(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    torchrun, Python or torch itself was not found on the node, or its name was mistyped.

    ## Why it matters
    The environment that has them was not activated in the job's shell, or not on all nodes; the step ends at once.

    ## Seen as
    dies

    ## How we know
    `torchrun: command not found`, `execve(): torchrun: No such file or directory`, `No module named torch`; a name
    that is one of theirs but for a letter (`torchrum`). Other names that a shell did not find (`module` in many
    job scripts) are nothing by themselves.

    ## Fix
    - **you** activate the environment in the job script, before srun; or name the whole path; `python -m
      torch.distributed.run` where only the short name is missing.
    - **admin** install the environment on all nodes, or on a file system that all have.

    ## Source
    execve(2), srun(1); PyTorch documentation, torchrun; CSCfi/pytorch-ddp-examples#1.
    """
    named = [(event, name) for event, name in _commands(logs) if "script" not in event.fields and _meant(name)]
    torch = [event for event in events_of(logs, "module-missing") if _module(event).partition(".")[0] == "torch"]
    if named or torch:
        name = named[0][1] if named else "torch"
        typo = named and (meant := _meant(name)) != name.rpartition("/")[2]
        yield cause(
            [*(event for event, _ in named), *torch],
            f"{name} was not found" + (f" ({meant} is meant?)" if typo else ""),
            why="The name is mistyped, or the environment that has it was not activated there, or is not on this "
            "node.",
            owner="job",
            fix=[
                you("Confirm, started as the job is.",
                    "srun --ntasks-per-node=1 bash -c 'hostname; command -v torchrun'"),
                you("Activate the environment in the job script, or name the whole path.",
                    "source VENV/bin/activate", "python -m torch.distributed.run --nproc-per-node=8 train.py"),
                admin("Put the environment where all nodes see it."),
            ],
        )  # fmt: skip


def _meant(name: str) -> str:
    """Which of the usual programs a name stands for, mistyped or not; empty: none."""
    own = name.rpartition("/")[2]
    return own if own in _OURS else next(iter(difflib.get_close_matches(own, _OURS, 1, 0.8)), "")


def _module(event: LogEvent) -> str:
    return first_named(event.fields, "module", "spec", "torch").strip("'")


@log_rule("LOG162", "the script exists")
def script(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    Python could not open the script, or find the module, that torchrun was given.

    ## Why it matters
    torchrun itself starts well and then reports `ChildFailedError` with exit code 2 (a script) or 1 (a module),
    far below the one line that matters. Mostly a typo, another working directory, or a node without the file
    system.

    ## Seen as
    dies

    ## How we know
    `can't open file '/home/ada/trian.py': [Errno 2]`, `python: No module named NAME`. Where some ranks only say
    it, it is their node.

    ## Fix
    - **you** give the whole path; look for the file on the node that says it; arguments of torchrun come before
      the script, for the first word that is no option is the script.
    - **admin** mount the file system on that node.

    ## Source
    PyTorch documentation, torchrun; Python documentation, Command line.
    """
    files = [
        event for event in events_of(logs, "script-missing") if not _ASSIGNED.fullmatch(event.fields["script"])
    ]
    modules = [event for event in events_of(logs, "module-missing") if _module(event).partition(".")[0] != "torch"]
    if events := [*files, *modules]:
        name = files[0].fields["script"] if files else _module(modules[0])
        where = at_teller(logs, events)
        yield cause(
            events,
            f"there is no {'file' if files else 'module'} {name}",
            why="torchrun's ChildFailedError below only repeats that its processes ended.",
            owner="job",
            at=Where(node=where.node) if where.node else where,
            fix=[
                you("Confirm on the node that says it.",
                    f"ls -l {quote(name)}" if files else f"python -c {quote('import ' + name)}"),
                you("Give the whole path, behind all options of torchrun.",
                    "torchrun --nproc-per-node=8 $PWD/train.py"),
                admin("Mount the file system on that node.", "df -h ."),
            ],
        )  # fmt: skip


@log_rule("LOG163", "torchrun accepts its arguments")
def arguments(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    torchrun rejected an option, a value or an endpoint.

    ## Why it matters
    It ends at once on the node that says it, and the other nodes wait for that one until their time-out.

    ## Seen as
    hangs, dies

    ## How we know
    `torchrun: error: ...` and what it says of --nnodes, --nproc-per-node and the endpoint. With the rendezvous
    `static` (the default) torchrun needs --master-addr, --master-port and --node-rank on each node; with `c10d` it
    needs --rdzv-endpoint, and does not look at --master-addr: the warning about that counts together with a
    rendezvous that failed, for each node then meets itself at localhost. Not where ranks have met: where one came
    through NCCL's start, worked, or waited in a collective.

    ## Fix
    - **you** correct the option; options with - or _ are both known from 1.x on, single letters of them are not.

    ## Source
    PyTorch documentation, torchrun, Usage; torch/distributed/run.py (1.9 to 2.13).
    """
    refused = events_of(logs, "torchrun-arguments", "torchrun-values", "no-endpoint")
    alone = events_of(logs, "master-not-used") if events_of(logs, *_NOT_MET) and not _met(logs) else []
    if not refused and not alone:
        return
    yield cause(
        [*refused, *alone],
        _refusal(refused[0]) if refused else "--master-addr was given, and c10d looks at --rdzv-endpoint only",
        why="torchrun ends there at once, and the other nodes wait for it." if refused
        else "Without an endpoint each node meets itself at localhost, and never the others.",
        owner="job",
        fix=[
            you("Confirm: see what this version knows.", "torchrun --help"),
            you("The form for several nodes, the same on each.",
                "torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=$HEAD:29500 train.py"),
        ],
    )  # fmt: skip


_NOT_MET = (
    "rendezvous-timeout",
    "rendezvous-unreachable",
    "store-unreachable",
    "clients-missing",
    "rendezvous-closed",
)


_WORKED = (
    *("training-goes-on", "work-goes-on", "profiled-goes-on", "ended-well", "nccl-tests-row"),
    *("watchdog-timeout", "watchdog-cut", "watchdog-stuck"),
)


def _met(logs: Logs) -> bool:
    """Whether ranks have met, whatever the end of the rendezvous then says."""
    return any(process.completed for process in logs.processes) or bool(events_of(logs, *_WORKED))


def _refusal(event: LogEvent) -> str:
    message = " ".join(event.fields.get("message", "").split())
    if event.sign == "no-endpoint":
        return "torchrun was given no endpoint: --master-addr, --master-port or --node-rank is missing"
    if event.sign == "torchrun-values":
        name, value = next((name, value) for name in _VALUES if (value := first_named(event.fields, name)))
        return f"torchrun does not take this value of {_VALUES[name]}: {value[:120].rstrip('.')}"
    option = re.search(r"unrecognized arguments: --?([\w-]{2,40})", message)
    near = difflib.get_close_matches(option[1].replace("_", "-"), _ARGUMENTS, 1, 0.75) if option else []
    return f"torchrun refused its arguments: {message[:160]}" + (f" (--{near[0]} is meant?)" if near else "")


_VALUES = {
    "processes": "--nproc-per-node",
    "nodes": "--nnodes",
    "bounds": "--nnodes",
    "backend": "--rdzv-backend",
    "endpoint": "--rdzv-endpoint (or --master-addr, --master-port)",
}


_SHELLS = re.compile(r"invalid \w{1,20} value: '(?:\$\{?\w{1,60}\}?)?'$")  # empty, or never replaced
_SET_IT = you(
    "Set the variable where this node starts the program, or leave the option away.",
    'echo "[$MACHINE_RANK] [$SLURM_NODEID]"',
    "export MACHINE_RANK=${SLURM_NODEID:-0}",
)
_REFUSED = ("message", "parsed", "click", "fire", "flags", "hydra")  # by whose parser


def _of_a_later_step(logs: Logs, event: LogEvent) -> bool:
    """Whether another program of the same script had failed before: nothing is there for this one to take up."""
    return any(
        own_exception.file == event.file and own_exception.line < event.line
        for own_exception in own_exceptions(logs)
    )


@log_rule("LOG164", "the script accepts its arguments")
def script_arguments(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    The script's own parser rejected an argument; the common one is --local-rank.

    ## Why it matters
    `python -m torch.distributed.launch` hands `--local-rank=N` to the script, up to torch 1.13 `--local_rank=N`: a
    parser that knows one form only ends all ranks with exit code 2. torchrun hands none, and sets LOCAL_RANK.

    ## How we know
    `train.py: error: unrecognized arguments: --local-rank=3`, or its usage message without the list of a help
    text, where the line with the error is cut off; argparse's words under the script's or program's
    name; those of click (`Error: No such option`), fire, absl and Hydra (`Could not override`).

    ## Fix
    - **you** start with torchrun and read `int(os.environ["LOCAL_RANK"])`; or let the parser know both forms:
      `add_argument("--local-rank", "--local_rank", type=int)`.

    ## Source
    PyTorch documentation, torch.distributed.launch (note of 2.0) and torchrun, Transitioning; Python
    documentation, argparse.
    """
    events = [event for event in events_of(logs, "script-arguments") if not _of_a_later_step(logs, event)]
    if not events:
        yield from _usage_alone(logs)
    else:
        first = events[0]
        name = first.fields.get("script") or first.fields.get("program") or "the program"
        message = " ".join(first_named(first.fields, *_REFUSED).split())
        hands = any(word in message for word in _LOCAL_RANK)
        script = first.fields.get("script")
        program = f"python {quote(script)}" if script else first.fields.get("program", "python train.py")
        program = "accelerate launch" if program.lower().startswith("accelerate") else program
        value = _SHELLS.search(message)
        yield cause(
            events,
            f"{name} refused its arguments: {message[:160]}",
            why="torch.distributed.launch hands it the local rank in a form that it does not know." if hands
            else "The variable of the shell behind this value was not set, or stood within single quotes." if value
            else "The script's own parser ended every rank before it began.",
            owner="job",
            at=at_teller(logs, events),
            fix=[
                you("Confirm: see what it knows.",
                    f"{program} --help"),
                you("Start with torchrun, and read LOCAL_RANK from the environment.",
                    "torchrun --nproc-per-node=8 train.py   # int(os.environ['LOCAL_RANK'])") if hands
                else _SET_IT if value
                else you("Correct the argument; what stands behind the script's name goes to the script."),
            ],
        )  # fmt: skip


def _usage_alone(logs: Logs) -> Iterator[Finding]:
    """argparse's usage message whose error is cut off; a help text lists the options below it."""
    shown = [event for event in events_of(logs, "script-usage") if not _of_a_later_step(logs, event)]
    if not shown or events_of(logs, "usage-help"):
        return
    script = shown[0].fields["script"]
    forms = {event.fields["form"] for event in events_of(logs, "usage-local-rank")}
    launch = events_of(logs, "launch-hands-rank") if forms == {"local_rank"} else []
    yield cause(
        [*shown, *launch],
        f"{script} refused its arguments: it printed its usage, and the error below it is not in these lines",
        why="torch.distributed.launch of torch 2 hands it --local-rank, and it knows --local_rank only." if launch
        else "argparse prints the usage and ends the rank with exit code 2.",
        owner="job",
        at=at_teller(logs, shown),
        fix=[
            you("Confirm: see what it knows.", f"python {quote(script)} --help"),
            you("Start with torchrun, and read LOCAL_RANK from the environment; or let the parser know both: "
                'add_argument("--local-rank", "--local_rank", type=int).',
                "torchrun --nproc-per-node=8 train.py   # int(os.environ['LOCAL_RANK'])") if launch
            else you("Correct the argument; what stands behind the script's name goes to the script."),
        ],
    )  # fmt: skip
