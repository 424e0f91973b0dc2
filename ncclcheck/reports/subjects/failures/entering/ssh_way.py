"""A node whose ssh broke in mid-run while its kernel still answers the others on the job's network.

Either the network by which ssh goes is lost, and nothing else, or the machine stands still: its kernel answers,
and none of its processes does.
"""

from __future__ import annotations

from dataclasses import dataclass
from shlex import quote

from ncclcheck.probes.facts import Cluster, Dialled, Silence
from ncclcheck.reports.judgement.findings import Owner, Remedy, admin, you
from ncclcheck.reports.subjects.failures.entering import dialled
from ncclcheck.reports.subjects.nccl import lan

_FAILED_ITSELF = 255  # ssh(1): its own errors, a connection that broke among them


@dataclass(frozen=True)
class LostConnection:
    """Why nothing comes from it any more."""

    words: str
    owner: Owner
    fix: tuple[Remedy, ...]


def lost(cluster: Cluster, silence: Silence) -> LostConnection | None:
    """What the port of ssh there and the job's network tell together."""
    to = dialled.of(cluster, silence.node)
    answers = bool(silence.knocks) and all(knock.answered for knock in silence.knocks)
    if to is None or not to.port_now or not answers or not silence.last_step:
        return None
    if silence.via != "ssh" or silence.exit not in (None, _FAILED_ITSELF) or silence.detail:
        return None
    if silence.look is not None and silence.look.came != "no":
        return None
    if to.port_now == "open":
        return _stands_still()
    device = _held_by(cluster, silence.node, to)
    of_job = {knock.address for knock in silence.knocks}
    if to.port_now == "no answer" and of_job.isdisjoint(to.addresses):
        return _network(silence, to, device)
    return None


def _held_by(cluster: Cluster, node: str, to: Dialled) -> str:
    """The interface there that has the address by which ssh goes."""
    return next(
        (
            interface.name
            for each in cluster.nodes
            if each.name == node
            for interface in lan.interfaces(each)
            for address, _ in lan.global_networks(interface)
            if address.address in to.addresses
        ),
        "",
    )


def _network(silence: Silence, to: Dialled, device: str) -> LostConnection:
    address, job = to.addresses[0], silence.knocks[0].address
    by = f"{address}, its {device}" if device else address
    return LostConnection(
        f"the network by which ssh goes to it is lost ({by}: no answer at port {to.port}), and not the node: it "
        f"still answers on the job's network ({job})",
        "site",
        (
            admin(
                f"Look at the link of {device or 'that interface'} there, its cable and its switch.",
                f"ip -br link show {quote(device)}   # on {{node}}" if device else "ip -br link   # on {node}",
                f"ping -c 3 {address}   # here",
            ),
            you(
                "Until then let ssh go by the job's network.",
                f"ssh -o HostName={job} -o HostKeyAlias={{node}} {{node}} true",
            ),
        ),
    )


def _stands_still() -> LostConnection:
    return LostConnection(
        "the machine stands still: its kernel answers, also at the port of ssh, and none of its processes does. A "
        "virtual machine or its processes were suspended, or memory or a disk keeps all of them waiting",
        "node",
        (
            admin(
                "Look at it from outside: its console, and whether its hypervisor has paused or moved it.",
                "virsh domstate {node} --reason   # on the host of virtual machines",
                "journalctl -k --since -15min | grep -iE 'clocksource|soft lockup|hung_task|oom|blocked for'",
                "cat /proc/pressure/memory /proc/pressure/io",
            ),
            you("Leave it out until then.", "#SBATCH --exclude={node}"),
        ),
    )
