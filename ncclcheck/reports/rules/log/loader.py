"""LOG100 to LOG105: workers of data loaders that end, or stop, a rank."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import LogEvent, Logs
from ncclcheck.probes.facts.log.fields import LogFields
from ncclcheck.reports.judgement.findings import Finding, Where, admin, note, you
from ncclcheck.reports.subjects.logs.logged import (
    at_teller,
    by_known_host,
    cause,
    events_of,
    lines,
    log_rule,
    where,
)
from ncclcheck.reports.subjects.logs.words.meanings import ends_nothing

_FULL = {
    "write to file": ("No space left on device", ""),
    "allocate shared memory(shm) for file": ("No space left on device", "Success", ""),
    "resize file": ("No space left on device", ""),
}
_OPEN = {"open shared memory object": ("Too many open files", ""), "open file": ("Too many open files",)}
_CRASHES = ("Segmentation fault", "Aborted", "Illegal instruction", "Floating point exception")


def _killed(logs: Logs, *signals: str) -> list[LogEvent]:
    """Workers that ended by one of these signals: torch tells strsignal(3), with or without "(core dumped)"."""
    return [event for event in events_of(logs, "worker-killed") if event.fields["signal"].startswith(signals)]


def _files(logs: Logs, wanted: dict[str, tuple[str, ...]]) -> list[LogEvent]:
    """Tensors that a worker could not hand over: calls, and errors of each; older versions tell no error."""
    return [
        event
        for event in events_of(logs, "tensor-file")
        if event.fields.get("error", "") in wanted.get(event.fields["call"], ())
    ]


def _on(host: str) -> str:
    return f" on {host}" if host else ""


@log_rule("LOG100", "/dev/shm has room for the loader's workers")
def shared_memory(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A worker wrote a batch into /dev/shm and there was no room.

    ## Why it matters
    Workers hand batches over in /dev/shm. A full tmpfs shows as a bus error at the first write to a page that is
    not there, and kills the worker; the rank ends with it. Containers have 64 MB unless told otherwise.

    ## Seen as
    dies

    ## How we know
    `killed by signal: Bus error`, `Unexpected bus error encountered in worker`, `unable to write to file
    </torch_...>: No space left on device`. A bus error in a worker that reads memory-mapped files can also be a
    file that was cut short meanwhile, or an input/output error of the storage: look at df first.

    ## Fix
    - **you** `docker run --shm-size=16g` or `--ipc=host`; in Kubernetes an emptyDir of medium Memory at /dev/shm;
      fewer workers, a smaller prefetch_factor.
    - **admin** a larger tmpfs at /dev/shm.

    ## Source
    bytedance/Protenix#2, nianticlabs/simplerecon#3, fastai/docker-containers#21; tmpfs(5); Docker documentation,
    docker run.
    """
    events = [*_killed(logs, "Bus error"), *events_of(logs, "worker-bus-error"), *_files(logs, _FULL)]
    for host, own in by_known_host(events).items():
        yield cause(
            own,
            f"/dev/shm is too small for the loader's workers{_on(host)}",
            why="Workers hand batches over in shared memory; a write without room ends worker and rank.",
            owner="node",
            at=at_teller(logs, own),
            fix=[
                you("Confirm, in the container, while it runs.", "df -h /dev/shm"),
                you("Start the container with more.",
                    "docker run --shm-size=16g ...", "docker run --ipc=host ..."),
                you("Until then hand over fewer batches at once.",
                    "grep -rnE 'num_workers|prefetch_factor' train.py   # num_workers=2, prefetch_factor=1"),
                admin("Make the tmpfs larger.", "mount -o remount,size=50% /dev/shm"),
            ],
        )  # fmt: skip


@log_rule("LOG101", "the open-file limit is high enough for the loader's workers")
def open_files(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A rank or its workers reached the limit of open files.

    ## Why it matters
    Each tensor that a worker hands over is an open file of both until it is freed. At the limit the kernel hands
    over none: `received 0 items of ancdata`, and the rank ends, often after hours.

    ## How we know
    `received 0 items of ancdata`, `unable to open shared memory object ...: Too many open files (24)`, `[Errno
    24]`. In the lines of NCCL's own sockets it is LOG025.

    ## Fix
    - **you** `ulimit -n 65536` before the ranks start; or
      `torch.multiprocessing.set_sharing_strategy("file_system")`; do not keep tensors of workers in lists: copy
      them (`.clone()`); close the files that a dataset opens.
    - **admin** raise the hard limit, also in the unit of slurmd or docker.

    ## Source
    pytorch/pytorch#973, pytorch/pytorch#34768, pytorch/pytorch#14768, pytorch/pytorch#11201; PyTorch
    documentation, Multiprocessing package, Sharing strategies; getrlimit(2), unix(7).
    """
    events = [*events_of(logs, "ancdata", "too-many-files"), *_files(logs, _OPEN)]
    for host, own in by_known_host(events).items():
        yield cause(
            own,
            f"the limit of open files was reached{_on(host)}",
            why="Tensors that workers hand over are open files until they are freed.",
            owner="job",
            at=at_teller(logs, own),
            fix=[
                you("Confirm: compare what a rank holds with its limit, while it runs.",
                    "for p in $(pgrep -f train.py); do ls /proc/$p/fd | wc -l; done", "ulimit -Sn; ulimit -Hn"),
                you("Raise it before the ranks start, or share by name.", "ulimit -n 65536",
                    "python -c \"import torch.multiprocessing as m; m.set_sharing_strategy('file_system')\""),
                admin("Raise the hard limit of the service that starts jobs.",
                      "systemctl show slurmd docker -p LimitNOFILE"),
            ],
        )  # fmt: skip


@log_rule("LOG102", "the samples of a batch have the same shape")
def ragged(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    Samples of one batch have different shapes, and the default collate function cannot stack them.

    ## Why it matters
    One image with one channel, or a text of another length, ends the rank that meets it, after any number of
    steps. The others then wait in a collective for it until its time-out.

    ## Seen as
    hangs

    ## How we know
    `stack expects each tensor to be equal size, but got [3, 224, 224] at entry 0 and [1, 224, 224] at entry 5`.

    ## Fix
    - **you** convert (`.convert("RGB")`), resize or pad in the dataset, or give `collate_fn`; `ncclcheck data
      MODULE:FACTORY` names the samples.

    ## Source
    PyTorch documentation, torch.utils.data, Working with collate_fn.
    """
    for host, events in by_known_host(events_of(logs, "batch-ragged")).items():
        fields = next((event.fields for event in events if "first" in event.fields), LogFields())
        shapes = f": {fields['first']} and {fields['other']}" if fields else ""
        yield cause(
            events,
            f"samples of one batch have different shapes{shapes}{_on(host)}",
            why="The rank that meets such a batch ends, and the others wait for it in a collective.",
            owner="job",
            at=at_teller(logs, events),
            fix=[
                you(
                    "Confirm: let ncclcheck read the dataset; it names the samples.",
                    "ncclcheck data MODULE:FACTORY",
                ),
                you("Bring samples to one shape in the dataset, or pad in collate_fn."),
            ],
        )


@log_rule("LOG103", "workers have enough host memory")
def memory(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A worker was killed, or could not be started, for lack of host memory; or ended without a reason in the log.

    ## Why it matters
    Each worker is a process with a copy of what it touches of the dataset. At the limit of the cgroup, or of the
    host, the kernel kills one, and its rank ends.

    ## Seen as
    dies

    ## How we know
    `killed by signal: Killed` is SIGKILL, which the kernel's OOM killer sends, or a person; `Cannot allocate
    memory` at a fork; `exited unexpectedly` alone names no signal: a crash is as likely.

    ## Fix
    - **you** fewer workers; hold the dataset in arrays rather than in lists of Python objects; ask Slurm for more
      `--mem`.
    - **admin** look at the kernel's log for the kill.

    ## Source
    PyTorch documentation, torch.utils.data, Multi-process data loading; proc(5), cgroups(7).
    """
    killed, shared = _killed(logs, "Killed"), _no_memory(logs)
    forks = events_of(logs, "no-memory-to-fork")
    silent = [] if events_of(logs, "worker-killed", "worker-bus-error") else events_of(logs, "worker-died")
    for host, events in by_known_host([*killed, *shared, *forks, *silent]).items():
        sure = any(event in events for event in (*killed, *shared, *forks))
        if all(event in forks for event in events):
            yield _no_process(host, at_teller(logs, events), events)
            continue
        yield cause(
            events,
            f"a worker of the data loader was killed or found no memory{_on(host)}" if sure
            else f"a worker of the data loader ended by itself{_on(host)}",
            why="The kernel kills it where the cgroup or the host has no memory left." if sure
            else "Killed for lack of memory, or a crash in a library: the line names no signal.",
            owner="job",
            at=at_teller(logs, events),
            fix=[
                you("Confirm: look for the kernel's kill.", "dmesg -T | grep -iE 'oom|killed process'",
                    "sacct -j $SLURM_JOB_ID --format=JobID,State,MaxRSS,ReqMem"),
                you("Use fewer workers, or ask for more memory.", "sbatch --mem=0 job.sh"),
                *([] if sure else [you("See a crash's stack.", "PYTHONFAULTHANDLER=1 python train.py")]),
            ],
        )  # fmt: skip


def _no_process(host: str, at: Where, events: list[LogEvent]) -> Finding:
    """The kernel refused memory or another process; whose child it was to be, the line does not say."""
    memory = "memory" in events[0].fields["error"]
    what = "memory for a child process (ENOMEM)" if memory else "another process or thread (EAGAIN)"
    limits = (
        ("free -g", "cat /sys/fs/cgroup/memory.events") if memory else ("ulimit -u", "cat /sys/fs/cgroup/pids.max")
    )
    return cause(
        events,
        f"the host refused {what}{_on(host)}",
        why="A limit of the host, the user or the cgroup was reached when a process was to be started; the "
        "program's own process goes no further.",
        owner="job",
        at=at,
        fix=[
            you("Confirm, on that host and in that container.", *limits),
            you("Ask for more memory, or start fewer processes beside each other.", "sbatch --mem=0 job.sh")
            if memory
            else you("Start fewer processes and threads, or raise the limit."),
        ],
    )  # fmt: skip


def _no_memory(logs: Logs) -> list[LogEvent]:
    return [
        event for event in events_of(logs, "tensor-file") if event.fields.get("error") == "Cannot allocate memory"
    ]


@log_rule("LOG104", "no worker crashes in a library")
def crash(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A worker of the data loader ended by a segmentation fault or a signal of its kind.

    ## Why it matters
    Workers are forked from a process that may have threads, CUDA and open libraries: OpenCV, HDF5, gRPC and some
    decoders do not stand that. The rank ends with its worker.

    ## Seen as
    dies

    ## How we know
    `killed by signal: Segmentation fault`, `Aborted`, `Illegal instruction`. Under "Exception ignored in" (the
    loader's `__del__`) the loader was being taken down: a note.

    ## Fix
    - **you** `multiprocessing_context="spawn"` (or "forkserver"); `cv2.setNumThreads(0)`; open files in the
      worker, not before the fork; get the stack with `PYTHONFAULTHANDLER=1`.

    ## Source
    PyTorch documentation, Multiprocessing best practices; Python documentation, faulthandler; fork(2).
    """
    crashed = _killed(logs, *_CRASHES)
    if left := [event for event in crashed if ends_nothing(event)]:
        yield note(
            where(left[0]),
            f"a worker of the data loader ended as its loader was taken down: {left[0].fields['signal']}",
            why="Python ignores what __del__ raises: nothing ended by it. Why the loader went away is not logged.",
            evidence=lines(left),
        )
    for host, events in by_known_host([event for event in crashed if not ends_nothing(event)]).items():
        yield cause(
            events,
            f"a worker of the data loader crashed{_on(host)}: {events[0].fields['signal']}",
            why="A library that is not fork-safe, or a broken sample in a decoder; its rank ends with it.",
            owner="job",
            at=at_teller(logs, events),
            fix=[
                you("Confirm: get the stack of the crash.",
                    "PYTHONFAULTHANDLER=1 torchrun --nproc-per-node=8 train.py"),
                you("Start workers fresh instead of forking them, and open files in the worker.",
                    "ncclcheck data MODULE:FACTORY   # shows what is shared over the fork"),
            ],
        )  # fmt: skip


@log_rule("LOG105", "workers deliver their batches in time")
def late(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    No worker gave a batch within the loader's own time-out.

    ## Why it matters
    A worker that hangs (a lock held over the fork) or a file system that does not answer ends the rank; without
    `timeout=` the rank would wait for ever, and the others in a collective.

    ## Seen as
    hangs

    ## How we know
    `DataLoader timed out after 120 seconds`.

    ## Fix
    - **you** get the stack of a worker: `py-spy dump --pid PID`; start workers by spawn; test the storage.
    - **admin** look after the file system.

    ## Source
    PyTorch documentation, torch.utils.data.DataLoader (timeout), Multiprocessing best practices.
    """
    for host, events in by_known_host(events_of(logs, "batch-late")).items():
        yield cause(
            events,
            f"no worker gave a batch within {events[0].fields['seconds']} s{_on(host)}",
            why="The storage does not answer, or a worker waits for a lock that was held when it was forked.",
            owner="job",
            at=at_teller(logs, events),
            fix=[
                you("Confirm: see where the workers are.", "py-spy dump --pid PID_OF_A_WORKER"),
                you("Test the dataset alone.", "ncclcheck data MODULE:FACTORY"),
                admin("Look after the file system of the data.", "nfsiostat 1 5"),
            ],
        )
