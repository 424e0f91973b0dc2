"""What NCCL would take beside the first interface, and the port at which the ranks meet."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster, at, known, variables
from ncclcheck.reports.judgement.findings import Finding, State, Where, admin, seen, warn, you
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.output.settings_forms import quoted
from ncclcheck.reports.subjects.nccl import lan

_TOLD_BY_TORCHRUN = "TORCHELASTIC_RUN_ID"
_TOLD_BY_RAY = frozenset(
    {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK"}
)  # torchrun: no NODE_RANK


@rule(
    "NET014",
    "no interface that NCCL would use has only a link-local address",
    worst=State.WARN,
    needs=("network.interfaces", "job.variables"),
    at_least=2,
    between_machines=True,
)
def link_local(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Interfaces that NCCL would use for its sockets and that have only an fe80:: address.

    ## Why it matters
    NCCL takes every interface of the winning group, not only the first, and spreads its connections over them. A
    link-local address is good on its own wire only: connections end in `Network is unreachable`, in init or when
    the second channel is opened. A second card that is cabled and not configured has such an address, and so
    have veth interfaces of containers.

    ## Seen as
    does not start, dies

    ## How we know
    NCCL's own choice, computed from the interfaces and variables of each node (as in NET001).

    ## Fix
    - **you** name the interface: `export NCCL_SOCKET_IFNAME==eth0`, or `NCCL_SOCKET_FAMILY=AF_INET`.

    ## Source
    pytorch/pytorch#68893; NVIDIA/nccl#697; NCCL user guide, NCCL_SOCKET_IFNAME; ipv6(7).
    """
    for node in cluster.nodes:
        choice = lan.choice_of_nccl(node)
        local = [chosen for chosen in choice.used if chosen.address.lower().startswith("fe80:")]
        others = [chosen for chosen in choice.used if chosen not in local]
        if local and others:
            listed = ", ".join(chosen.name for chosen in local)
            yield warn(
                Where(node=node.name, device=local[0].name),
                f"NCCL would also use {listed}, which other nodes cannot reach",
                why="It spreads its connections over all interfaces: some end in 'Network is unreachable'.",
                owner="job",
                evidence=[
                    seen("getifaddrs", ", ".join(f"{chosen.name} {chosen.address}" for chosen in choice.used))
                ],
                fix=[you("Name the right one.", f"export NCCL_SOCKET_IFNAME={quoted(f'={others[0].name}')}")],
            )


@rule(
    "NET015",
    "MASTER_PORT is outside the ephemeral port range",
    worst=State.WARN,
    needs=("system.ports", "job.variables"),
)
def master_port_range(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    MASTER_PORT within the ephemeral port range, from which the kernel assigns source ports.

    ## Why it matters
    Now and then another program, or the job's own download before it, already has that port: `Address already in
    use`, in one of a hundred starts, and never when somebody looks.

    ## Seen as
    does not start

    ## How we know
    /proc/sys/net/ipv4/ip_local_port_range, mostly 32768 to 60999. A port that torchrun itself has chosen
    (TORCHELASTIC_RUN_ID is set), or Ray Train (which sets NODE_RANK beside the four numbers of a rank), is held
    already and not judged.

    ## Fix
    - **you** take a port below the range: `export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))`.
    - **admin** `sysctl net.ipv4.ip_local_reserved_ports=29400,29500`.

    ## Source
    pytorch/pytorch#126510, meta-pytorch/torchtune#392; ip(7), ip_local_port_range.
    """
    judged = 0
    for node in cluster.nodes:
        env, ports = variables(node), known(at(node, "system.ports"))
        value = env.get("MASTER_PORT", "")
        if not value.isdecimal() or len(value) > 5:
            continue
        if _TOLD_BY_TORCHRUN in env or env.keys() >= _TOLD_BY_RAY:
            continue
        judged += 1
        if ports.first <= int(value) <= ports.last:
            yield warn(
                Where(node=node.name),
                f"MASTER_PORT={value} is a port that the kernel gives away ({ports.first} to {ports.last})",
                why="Another program may already have it: now and then the job cannot start.",
                owner="job",
                evidence=[seen("/proc/sys/net/ipv4/ip_local_port_range", f"{ports.first} {ports.last}")],
                fix=[
                    you("Take one below the range.", "export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))"),
                    admin("Or keep it free.", f"sysctl net.ipv4.ip_local_reserved_ports={value}"),
                ],
            )
    if not judged:
        raise NothingToJudge("MASTER_PORT is not set, or torchrun has chosen it")
