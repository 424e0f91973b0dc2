"""DAT001, DAT005 and DAT028: what the factory gives, and what it leaves open or running at the fork."""

from __future__ import annotations

import re
from collections.abc import Iterator
from shlex import quote

from ncclcheck.probes.facts import Cluster
from ncclcheck.probes.facts.data import Content, Made
from ncclcheck.probes.facts.data.content import Inherited, UnreadableSample
from ncclcheck.probes.facts.data.made import FactoryFailure
from ncclcheck.reports.judgement.findings import (
    Evidence,
    Finding,
    Remedy,
    State,
    Where,
    fail,
    fine,
    note,
    seen,
    unknown,
    warn,
    you,
)
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.data import examined
from ncclcheck.reports.subjects.data.opened import class_of, opened_by_each

_DATA = ("data",)
_LACKING = re.compile(r"missing \d+ required .*arguments?: (.+)")
_BUSY = 0.5  # of a hang: a process that waits for something does not compute meanwhile

_HELD = re.compile(r"\b\w*(Executor|Pool|Queue|Lock|Condition|Semaphore|Event)\(")  # what threads wait for


@rule("DAT001", "the factory returns a dataset that can be examined", worst=State.FAIL, commands=_DATA)
def factory(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Whether the module can be imported and what it names returns a Dataset, an IterableDataset, a DataLoader, a
    pair `(dataset, loader_kwargs)`, or an object with `train_dataloader()`.

    ## Why it matters
    Nothing else can be examined, and every rank of the job would end at the same line.

    ## Seen as
    wrong results, dies

    ## How we know
    It was imported and called in a process of its own, with its folder on sys.path. What it raised, the signal
    that ended it or the stack in which it hung is shown, with the last line of your own code.

    ## Fix
    - **you** run the command where training runs: same folder, same environment; `--kwargs` hands over arguments.
    - **you** a factory that takes minutes needs `--factory-limit`. One that reads the command line finds none: let
      it take arguments, and keep what a script does below `if __name__ == "__main__":`.

    ## Source
    PyTorch, torch.utils.data, Dataset Types.
    """
    reports = [
        (report.node, report.factory, report.made)
        for report in cluster.measurements.data
        if report.made is not None
    ]
    if not reports:
        raise NothingToJudge("no dataset was asked for")
    for node, name, made in reports:
        if made.failure is None and made.length == 0:
            yield _empty(node, name)
            continue
        if made.failure is None:
            yield fine(Where(node=node), _described(name, made), seen("factory", f"{made.seconds:.1f} s"))
            continue
        if made.failure.killed:
            yield _killed(node, name, made.failure.killed)
            continue
        at = f" at {made.failure.place}" if made.failure.place else ""
        yield fail(
            Where(node=node),
            f"{name} gives no dataset: {made.failure.error}{at}",
            why="Without a dataset nothing can be examined, and training would end here too.",
            owner="job",
            evidence=[seen("calling the factory", made.failure.stacks[:1500] or made.failure.error)],
            fix=_mends(name, made.failure)
            or [you("See whether it works by hand.", f"python -c {quote(_by_hand(name))}")],
        )


def _killed(node: str, name: str, held: int) -> Finding:
    """The kernel takes this process first where memory is short, whoever has taken it."""
    return unknown(
        Where(node=node),
        f"{name} was not examined: the kernel ended its process (SIGKILL), which held {held >> 20} MiB",
        why="Memory was short on this node, and others had taken it.",
        owner="node",
        fix=[you("Free memory, /dev/shm included, and run it again.", "free -m; df -h /dev/shm")],
    )


def _mends(name: str, failure: FactoryFailure) -> list[Remedy]:
    """What is known of how factories fail that work in training."""
    if (lacking := _LACKING.search(failure.error)) is not None:
        given = ", ".join(f'"{argument}": ...' for argument in re.findall(r"'(\w+)'", lacking[1]))
        return [you("Hand its arguments over.", f"ncclcheck data {quote(name)} --kwargs '{{{given}}}'")]
    if "no DataLoader can read it" in failure.error:
        return [
            you(
                "Examine it as a stream: name a function that returns Batches().",
                "class Batches(torch.utils.data.IterableDataset):",
                "    def __iter__(self):",
                f"        source = {name.rpartition(':')[2]}()",
                "        while True:",
                "            yield source.next_batch()",
            )
        ]
    if failure.error == "SystemExit: 2":
        return [you("Let it take arguments by --kwargs: argparse ends it, for there is no command line.")]
    if failure.error.startswith("gave no answer"):
        return [
            you(
                "Where it is slow and does not hang, give it more time.",
                f"ncclcheck data {quote(name)} --factory-limit 1800",
            )
        ]
    return []


def _empty(node: str, name: str) -> Finding:
    return warn(
        Where(node=node),
        f"{name} gives a dataset without a sample",
        why="An epoch of nothing ends at once, or never begins.",
        owner="job",
        evidence=[seen("len(dataset)", 0)],
        fix=[
            you("Check the paths of its files: a relative one begins in the folder in which you type the command.")
        ],
    )


def _described(name: str, made: Made) -> str:
    kind = "a stream" if made.iterable else f"{made.length} samples" if made.length is not None else "no length"
    return f"{name} gives {made.dataset}: {kind}"


def _by_hand(name: str) -> str:
    module, _, attribute = name.rpartition(":")
    if module.endswith(".py"):
        return f'import runpy; runpy.run_path("{module}")["{attribute}"]()'
    return f"import {module}; {module}.{attribute}()"


@rule("DAT005", "workers share no handle opened before the fork", worst=State.FAIL, commands=_DATA)
def handles(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Files, sockets and library handles that the factory opened and that `__getitem__` uses in the workers.

    ## Why it matters
    A forked worker gets the same open file, not a copy: one worker's `seek` moves the place where another reads,
    and samples come with the content of others, without any error. On a shared socket one worker reads the answer
    to another's question. HDF5, LMDB and SQLite forbid it; their damage depends on the version. CUDA that is
    initialised before the fork cannot be used in workers.

    ## Seen as
    wrong results

    ## How we know
    The offset of a file that was open before (`/proc/self/fdinfo`) moves while a worker reads. A socket, or the
    pipes of a `subprocess.Popen`, are replaced by /dev/null, a library's handle is closed, in a worker of its own:
    if samples then fail or differ, they come through it. `os.pread`, memmap and files that workers open themselves
    pass. With a lock of multiprocessing in the dataset, and no wrong read, it is a note.

    ## Fix
    - **you** open lazily in `__getitem__`, or in worker_init_fn; or read with `os.pread` or `numpy.memmap`.

    ## Source
    fork(2), open(2) (open file descriptions), proc_pid_fdinfo(5); pytorch/pytorch#11929, mehta-lab/VisCy#417,
    HannesStark/boltzgen#40; "How To Corrupt An SQLite Database File", 2.6; LMDB, Caveats.
    """
    for node, made, content in examined.contents(cluster):
        yield from (_shared(node, made, content, inherited) for inherited in content.inherited)
        if made.cuda:
            yield _cuda(node)
        if not content.inherited and not made.cuda:
            yield fine(Where(node=node), "workers use nothing that was opened before the fork")


def _shared(node: str, made: Made, content: Content, inherited: Inherited) -> Finding:
    wrong = content.stress.wrong if content.stress else 0
    where = Where(node=node, device=inherited.path or None)
    if made.locks and not wrong and inherited.how != "library":
        return note(
            where, f"workers share {_thing(inherited)}; a lock guards it ({made.locks[0]}) and no read was wrong"
        )
    make = warn if inherited.how == "library" else fail
    return make(
        where,
        f"workers share {_thing(inherited)}, opened before they were forked",
        why=_WHY[inherited.how],
        owner="job",
        evidence=[seen(_HOW[inherited.how], f"{inherited.what} {inherited.path}".strip()), *_examples(content)],
        fix=[opened_by_each(made, inherited)],
    )


_WHY = {
    "offset": "Two workers move the same offset: a sample comes with the bytes of another, and nothing fails.",
    "socket": "Two workers write to and read from one connection: answers go to whoever reads first.",
    "process": "Two workers write to and read from the same pipes: answers go to whoever reads first, in pieces.",
    "library": "Its library forbids use on both sides of a fork, and it cannot be sent to spawned workers.",
}
_HOW = {
    "offset": "/proc/self/fdinfo: moved by reading",
    "socket": "workers read through it (without it, samples fail or differ)",
    "process": "workers read through its pipes (without them, samples fail or differ)",
    "library": "workers read through it (with it closed, samples fail or differ)",
}


def _thing(inherited: Inherited) -> str:
    if inherited.how == "offset":
        return f"the offset of {inherited.what} (it moves with index {inherited.index})"
    if inherited.how == "process":
        return f"the pipes to one child process, {inherited.what} ({inherited.path})"
    return (
        f"the connection {inherited.what}"
        if inherited.how == "socket"
        else f"a {inherited.what} ({inherited.path})"
    )


def _examples(content: Content) -> list[Evidence]:
    if content.stress is None or not content.stress.wrong:
        return []
    return [seen("wrong reads with other workers", f"{content.stress.wrong} of {content.stress.reads}")]


def _cuda(node: str) -> Finding:
    return warn(
        Where(node=node),
        "the factory initialised CUDA in the process that forks the workers",
        why="CUDA cannot be used in a forked worker, and workers keep the device open after their rank has died.",
        owner="job",
        evidence=[seen("torch.cuda.is_initialized()", "True after the factory")],
        fix=[
            you("Keep tensors of the dataset on the CPU; move the batch.", 'batch.to("cuda", non_blocking=True)')
        ],
    )


@rule("DAT028", "the dataset's threads and locks are fork-safe", worst=State.FAIL, commands=_DATA)
def threads(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Threads that the factory started, and workers that wait for ever for a lock or a queue.

    ## Why it matters
    Only the thread that forks lives on in a worker. A lock that another thread held at that moment stays locked
    for ever, and a queue that it filled stays empty: training hangs before the first batch, and a timeout of
    DataLoader says neither where nor why.

    ## Seen as
    hangs, wrong results

    ## How we know
    A sample was read in a forked process: no answer within seconds, and no processor time used meanwhile. The
    stack shows where it waits. Threads that run but are not missed are a note.

    ## Fix
    - **you** start threads and take locks in the worker: lazily, or in worker_init_fn.

    ## Source
    fork(2); pytorch/pytorch#1355, pytorch/pytorch#96629; POSIX, fork, Rationale.
    """
    for node, made, content in examined.contents(cluster):
        names = ", ".join(made.threads)
        if content.stuck is None or content.stuck.kind != "hung":
            text = f"the thread {names} of the factory does not exist in workers; no sample waits for it"
            yield note(Where(node=node), text) if names else fine(Where(node=node), "no thread at the fork")
        elif content.stuck.busy_s > _BUSY:
            yield _slow(node, content.stuck)
        else:
            yield _hung(node, made, content.stuck)


def _hung(node: str, made: Made, stuck: UnreadableSample) -> Finding:
    names = ", ".join(made.threads)
    after = f"; the factory had started {names}" if names else ""
    return fail(
        Where(node=node),
        f"a worker waits for ever at index {stuck.index}{after}",
        why="All workers hang at their first batches: what they wait for belongs to a thread they do not have.",
        owner="job",
        evidence=[seen("stack of the worker", stuck.stacks[:1500] or stuck.error)],
        fix=[
            _in_worker(made),
        ],
    )


def _in_worker(made: Made) -> Remedy:
    """A thread has the name of the function that it runs: `Thread-1 (_work)`."""
    target = next((match[1] for name in made.threads if (match := re.search(r"\((\w+)\)", name))), "")
    owner, name = "self.started_in", class_of(made)
    holder = next((path for path in made.thread_owners if path), "self")
    if target:
        return you(
            f"Start the thread in each worker, at its first read, and not in {name}.__init__.",
            f"{owner} = None  # in {name}.__init__, instead of starting it",
            f"if {owner} != os.getpid():  # the first lines of {name}.__getitem__",
            f"    {owner} = os.getpid()",
            f"    threading.Thread(target={holder}.{target}, daemon=True).start()",
        )
    for made_there in made.code.assigned if made.code else []:
        if _HELD.search(made_there.value) and not made_there.needs:
            return you(
                f"Make self.{made_there.name} anew in each worker, at its first read.",
                f"{owner} = None  # in {name}.__init__",
                f"if {owner} != os.getpid():  # the first lines of {name}.__getitem__",
                f"    {owner}, self.{made_there.name} = os.getpid(), {made_there.value}",
            )
    return you(
        f"Make the lock, the queue or the pool in each worker, at its first read, and not in {name}.__init__.",
        f"if {owner} != os.getpid():  # the first lines of {name}.__getitem__; {owner} = None in __init__",
        f"    {owner}, self.lock = os.getpid(), threading.Lock()",
    )


def _slow(node: str, stuck: UnreadableSample) -> Finding:
    return unknown(
        Where(node=node),
        f"no sample came within the time that it was given (index {stuck.index}: {stuck.error})",
        why="It was computing, not waiting: the first read may only be slow.",
        owner="job",
        evidence=[seen("stack of the worker", stuck.stacks[:1500])],
        fix=[you("Give it more time.", "ncclcheck data MODULE:FACTORY --time-budget 300")],
    )
