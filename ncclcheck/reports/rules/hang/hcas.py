"""HNG024: HCAs of a running job that lose or repeat what ranks send."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import LiveNic
from ncclcheck.reports.judgement.findings import Evidence, Finding, State, Where, admin, seen, warn, you
from ncclcheck.reports.subjects.live.witnesses import SeenJob, witness_rule

# of a host, and lines of evidence: chosen; a host has up to 8 HCAs, four show whether it is one rail or all
_MOST = 4


@witness_rule("HNG024", "the HCAs of a running job lose and repeat nothing", worst=State.WARN)
def hcas_lose_nothing(seen_job: SeenJob) -> Iterator[Finding]:
    """
    ## What
    While the job waits, a port of an HCA counted retries, time-outs or errors, or is not active.

    ## Why it matters
    A rank whose packets are lost waits without an error until the HCA gives up, minutes later. The ranks are sound
    then: what is between them is not, and this port is one end of it.

    ## How we know
    Counters below /sys/class/infiniband (local_ack_timeout_err, packet_seq_err, rnr_nak_retry_err, link_downed,
    port_xmit_discards...) at both looks; the state of the port. Ports without a cable are not named. TCP is judged
    by itself: the kernel says which connection sends the same again and again.

    ## Fix
    - **you** exclude the node, or the HCA by NCCL_IB_HCA.
    - **admin** the port, its cable, its switch port; `ncclcheck env --only RDM`.

    ## Source
    Linux kernel documentation, sysfs-class-infiniband; NVIDIA, "Understanding mlx5 ethtool counters".
    """
    for host in seen_job.hosts:
        troubled = [nic for nic in host.nics if nic.kind == "HCA" and _is_used(nic) and nic.trouble]
        for nic in troubled[:_MOST]:
            counters = ", ".join(f"{name} +{count}" for name, count in sorted(nic.trouble.items()))
            yield warn(
                Where(node=host.host, device=nic.name),
                f"{nic.name} counted trouble in {host.seconds:.0f} s while the job waits: {counters}",
                why="What is lost there is sent again, until the HCA gives up after minutes.",
                owner="node",
                evidence=[_told(nic), *(_told(other) for other in host.nics if other not in troubled)][:_MOST],
                fix=[
                    admin("Look at that port, its cable and its switch port.", "ncclcheck env --only RDM"),
                    you("Exclude the node, or this HCA, from the next start.",
                        f"export NCCL_IB_HCA=^{nic.name.partition(':')[0]}"),
                ],
            )  # fmt: skip


def _is_used(nic: LiveNic) -> bool:
    return "DOWN" not in nic.state or bool(nic.sent + nic.received)


def _told(nic: LiveNic) -> Evidence:
    state = f"{nic.state}; " if nic.state else ""
    return seen(f"{nic.name} between the looks", f"{state}sent {nic.sent:,}, received {nic.received:,} bytes")
