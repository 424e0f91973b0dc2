"""LOG038, LOG040: by the log, RDMA cards get the memory they need, that of GPUs too."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import LogEvent, LogProcess, Logs
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, Where, admin, seen, you
from ncclcheck.reports.subjects.logs.logged import by_host, cause, events_of, lines, log_rule, process_of
from ncclcheck.reports.subjects.logs.network import over_sockets
from ncclcheck.reports.subjects.logs.reported import processes_by_host, version, version_seen, within_a_host
from ncclcheck.reports.text.words.fold import fold_names

_LARGE = 512  # ranks from which the number of connections can exhaust a card
# NCCL that also looks for the name nvidia_peermem; before, only for nv_peer_mem's files
_SEES_PEERMEM = (2, 23, 0)
_COPIED = (
    "What goes over the network is copied through the host's memory: 10 GB/s instead of 180 were measured so."
)


@log_rule("LOG038", "HCAs can register (pin) the memory that they need")
def memory_pinned(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    `Call to ibv_reg_mr failed with error Cannot allocate memory`, `ibv_create_cq failed`, `ibv_create_qp failed`.

    ## Why it matters
    RDMA needs memory that stays in place. Where the process may lock only some kilobytes, no connection can be
    made and the job ends while it starts.

    ## How we know
    The call and its error. The limit (memlock) is that of the process: daemons that start it (slurmd, sshd,
    docker) hand on their own, and not that of a login shell. Only in jobs of 512 ranks and more, and only for
    queues (ibv_create_cq, ibv_create_qp), the card itself may have run out: the finding says so then, for
    all_to_all over so many connections does it.

    ## Fix
    - **you** confirm with `ulimit -l` inside of the launcher: `srun bash -c 'ulimit -l'`; in Docker
      `--ulimit memlock=-1`.
    - **admin** memlock unlimited in /etc/security/limits.d, `LimitMEMLOCK=infinity` for slurmd.

    ## Source
    NVIDIA/nccl-tests#206, NVIDIA/nccl#1191; NCCL user guide, Troubleshooting, Networking; getrlimit(2).
    """
    memory = events_of(logs, "ib-memory")
    events = [event for event in memory if event.fields.get("error", "Cannot allocate memory")
              .startswith("Cannot allocate memory")]  # fmt: skip
    registered = any(event.fields["call"].startswith("ibv_reg") for event in events)
    ranks = max((process.nranks or 0 for process in logs.processes), default=0)
    if events and not registered and ranks >= _LARGE:
        yield _queues(logs, events, ranks)
        return
    for own in by_host(events).values():
        yield cause(
            own,
            f"{own[0].fields['call']} gets no memory: too little may be locked",
            why="RDMA pins the memory that it uses, and the process may pin too little.",
            owner="node",
            fix=[
                you("Confirm inside of the launcher or container: it must say unlimited.",
                    "srun bash -c 'ulimit -l'", "docker run --ulimit memlock=-1 --cap-add=IPC_LOCK IMAGE"),
                admin("Lift it for users and for the daemons that start jobs.",
                      "echo '* - memlock unlimited' > /etc/security/limits.d/memlock.conf",
                      "systemctl edit slurmd  # [Service] LimitMEMLOCK=infinity"),
            ],
            more=version_seen(logs, own[0]),
        )  # fmt: skip


def _queues(logs: Logs, events: list[LogEvent], ranks: int) -> Finding:
    return cause(
        events,
        f"an RDMA card has no room for the connections of {ranks} ranks, or the process may pin too little memory",
        why="all_to_all needs a queue for each pair of ranks and channel, and a card has room for some of them.",
        owner="job",
        fix=[
            you("Confirm that the limit is not the reason: it must say unlimited.", "srun bash -c 'ulimit -l'"),
            you("Fewer connections for each pair.", "export NCCL_NCHANNELS_PER_NET_PEER=1"),
        ],
        more=[seen("ranks", ranks), *version_seen(logs, events[0])],
    )


@log_rule("LOG040", "GPUDirect RDMA is in use")
def gpudirect(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    `GPU Direct RDMA Disabled for HCA` for all cards of a host that sends over them, or connections `via NET/IB/0`
    without `/GDRDMA` while other hosts have it; or GPU memory that cannot be registered (`Bad address`), by NCCL
    or by the UCX below MPI.

    ## Why it matters
    Each byte is copied through the host's memory: a tenth of the speed. One such host slows all.

    ## Seen as
    slow

    ## How we know
    NCCL's own lines. Disabled has two reasons that a log does not distinguish with NCCL up to 2.22: the kernel
    module nvidia-peermem is not loaded, or it is loaded and this NCCL only looks for its predecessor
    nv_peer_mem. From 2.23 on only the first is left. GeForce cards cannot do it at all: then nothing is wrong.

    ## Fix
    - **admin** confirm with `lsmod | grep peermem`; `modprobe nvidia-peermem` and a line in /etc/modules-load.d.
    - **you** where it is loaded: NCCL 2.23 or later.

    ## Source
    NVIDIA/nccl#1343, NVIDIA/nccl#897, NVIDIA/nccl#1676; NCCL user guide, Troubleshooting, GPU Direct RDMA.
    """
    if refused := [
        event for event in events_of(logs, "ib-memory") if event.fields.get("error", "").startswith("Bad address")
    ]:
        of_host = [event for event in refused if _copies(logs, event)]
        if of_host:
            yield _refused_of_host(logs, of_host)
        if rest := [event for event in refused if event not in of_host]:
            yield _refused(logs, rest)
    by_name = processes_by_host(logs)
    without = {host: processes for host, processes in by_name.items() if _without(processes)}
    disabled = [
        event for event in events_of(logs, "ib-gdr-disabled") if event.host in without or not logs.processes
    ]
    if disabled and not within_a_host(logs) and not events_of(logs, "gpu-geforce"):
        having = [host for host, processes in by_name.items() if _direct(processes)]
        yield _disabled(logs, disabled, [*without], having)
    elif odd := _odd_ones(logs):
        yield _odd(logs, odd)


def _without(processes: list[LogProcess]) -> bool:
    """Whether no card of a host reaches GPU memory; over TCP that does not matter."""
    cards = {card: able for process in processes for card, able in process.direct.items()}
    plain = all(not kind.endswith("GDRDMA") for process in processes for kind in process.vias)
    return (
        bool(cards)
        and not any(cards.values())
        and plain
        and not any(over_sockets(process) for process in processes)
    )


def _disabled(logs: Logs, events: list[LogEvent], without: list[str], having: list[str]) -> Finding:
    known, fix = version(logs, events[0]), _load()
    reason = "nvidia-peermem is not loaded"
    if known is None or known < _SEES_PEERMEM:
        reason += ", or this NCCL does not see it"
        fix.append(you("Where it is loaded already: NCCL before 2.23 does not see it.",
                       "python -m pip install --upgrade nvidia-nccl-cu12"))  # fmt: skip
    elsewhere = f"; {fold_names(having)} has it" if having else ""
    return cause(
        events,
        f"{fold_names(without) or 'a host'}: no GPUDirect RDMA: {reason}{elsewhere}",
        why=_COPIED,
        owner="node",
        fix=fix,
        state=State.WARN,
        more=[*lines(events_of(logs, "no-peermem-banner"))[:1], *version_seen(logs, events[0])],
    )


def _direct(processes: list[LogProcess]) -> bool:
    return any(kind.endswith("GDRDMA") for process in processes for kind in process.vias) or any(
        able for process in processes for able in process.direct.values()
    )


def _odd_ones(logs: Logs) -> list[LogProcess]:
    """Processes that go over NET/IB without GDRDMA: those of another host have it, or their GPUs have NVLinks."""
    having = {process.host for process in logs.processes if any("GDRDMA" in kind for kind in process.vias)}
    plain = [process for process in logs.processes if "NET/IB" in process.vias and process.host not in having]
    return (
        plain
        if having
        else [
            process for process in plain if process.nvls or process.host in by_host(events_of(logs, "nvlink-seen"))
        ]
    )


def _odd(logs: Logs, odd: list[LogProcess]) -> Finding:
    names = fold_names(process.host for process in odd)
    others = any("GDRDMA" in kind for process in logs.processes for kind in process.vias)
    return Finding(
        state=State.WARN,
        where=Where(node=odd[0].host, rank=odd[0].rank),
        what=f"{names}: RDMA without GPUDirect, though {'other hosts' if others else 'data centre GPUs'} have it",
        why=_COPIED,
        owner="node",
        evidence=[
            seen(f"{odd[0].file}:{odd[0].first_line}", "via NET/IB without /GDRDMA"),
            *lines(_about(logs, odd)),
        ],
        remedies=_load(),
    )


def _about(logs: Logs, odd: list[LogProcess]) -> list[LogEvent]:
    return [
        event
        for event in events_of(logs, "ib-gdr-disabled", "gdr-far", "no-peermem-banner")
        if process_of(logs, event) in odd
    ]


_NOT_BY_MPI = you(
    "Send tensors by NCCL, or take them to the CPU before MPI sends them.", 'dist.init_process_group("nccl")'
)


def _refused(logs: Logs, events: list[LogEvent]) -> Finding:
    ucx = "ucx" in events[0].fields
    return cause(
        events,
        f"an RDMA card cannot register the memory of a GPU{' that MPI was given (UCX)' if ucx else ''}",
        why="UCX took the GPU's memory for memory of the host, or the card's driver does not know memory of GPUs."
        if ucx
        else "NCCL saw a module for GPUDirect RDMA, and the card's driver does not know memory of GPUs.",
        owner="node",
        fix=[
            you("Confirm: this UCX must list cuda_copy, and MPI say true.",
                "ucx_info -d | grep -i cuda",
                "ompi_info --parsable --all | grep mpi_built_with_cuda_support:value") if ucx
            else you("Confirm: without GPUDirect RDMA the job works.", "export NCCL_NET_GDR_LEVEL=LOC"),
            *([_NOT_BY_MPI] if ucx else []),
            admin("Load nvidia-peermem again, after the card's driver.",
                  "modprobe -r nvidia-peermem", "modprobe nvidia-peermem", "dmesg | grep -i peer"),
        ],
        more=version_seen(logs, events[0]),
    )  # fmt: skip


def _copies(logs: Logs, event: LogEvent) -> bool:
    """Whether that process is seen to send over cards, and nothing of it straight from a GPU."""
    process = process_of(logs, event)
    return (
        "ucx" not in event.fields
        and process is not None
        and any(kind.startswith("NET/IB") for kind in process.vias)
        and not _direct([process])
    )


def _refused_of_host(logs: Logs, events: list[LogEvent]) -> Finding:
    return cause(
        events,
        "an RDMA card cannot register memory of the host (Bad address): GPUDirect RDMA is not in use here",
        why="The memory is no longer mapped in this process, or is of a kind that the card cannot hold in place: "
        "a fork after NCCL's start, memory that the program unmapped, a filter or sandbox around the process.",
        owner="job",
        fix=[
            you("Confirm: what the card's driver says, and whether it works without buffers of the program.",
                "dmesg -T | grep -iE 'mlx5|infiniband'", "export NCCL_LOCAL_REGISTER=0"),
            you("Where the program forks after NCCL's start, let it spawn; or tell verbs of it.",
                "export RDMAV_FORK_SAFE=1"),
        ],
        more=version_seen(logs, events[0]),
    )  # fmt: skip


def _load() -> list[Remedy]:
    return [
        admin("Confirm that it is not loaded; load it, now and at boot.", "lsmod | grep peermem",
              "modprobe nvidia-peermem", "echo nvidia-peermem > /etc/modules-load.d/nvidia-peermem.conf"),
    ]  # fmt: skip
