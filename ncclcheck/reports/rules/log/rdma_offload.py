"""LOG049, LOG075: what the cloud's network (EFA) and the switches (SHARP) refuse."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Logs
from ncclcheck.reports.judgement.findings import Finding, State, admin, you
from ncclcheck.reports.subjects.logs.logged import at_host, by_known_host, cause, events_of, in_order, log_rule
from ncclcheck.reports.subjects.logs.reported import settings_seen, version_seen


@log_rule("LOG049", "EFA devices can reach each other")
def efa_peers_are_reached(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    aws-ofi-nccl could not take a peer's EFA address, or the peer's EFA device never answered.

    ## Why it matters
    NCCL ends with ncclInternalError while it connects the first two nodes; TCP between them works, so every other
    test of the network is fine.

    ## Seen as
    dies

    ## How we know
    `NET/OFI Unable to insert remote address into address vector`, `Failed call to fi_av_insert`, or `Unresponsive
    receiver (reachable by EFA device but handshake failed)`. EFA's addresses are neither IPv4 nor IPv6: a rule
    0.0.0.0/0 of a security group does not let them out, only a rule that names the group itself does, for both
    directions. EFA does not leave its subnet's availability zone either.

    ## Fix
    - **admin** let the security group send everything to itself and receive everything from itself, on all nodes;
      put all nodes into one availability zone.
    - **you** confirm by `fi_pingpong -p efa` between two nodes.

    ## Source
    aws/aws-ofi-nccl#663, awslabs/awsome-distributed-ai#546, gardener/gardener-extension-provider-aws#1832; Amazon
    EC2 user guide, Get started with EFA (security group).
    """
    for host, events in [*by_known_host(events_of(logs, "ofi-address")).items()][:1]:
        yield cause(
            events,
            "the EFA address of a peer cannot be reached: the security group, or another availability zone",
            why="EFA traffic passes only where a security group allows all traffic to and from "
                "itself; 0.0.0.0/0 does "
            "not cover it.",
            owner="site",
            at=at_host(host, events),
            fix=[
                you("Confirm between two nodes.", "fi_pingpong -p efa", "fi_pingpong -p efa OTHER_NODE"),
                admin("Look for a rule to itself in both directions, inbound and outbound, and add what lacks.",
                      "aws ec2 describe-security-group-rules --filters Name=group-id,Values=SECURITY_GROUP"),
                admin("See that all nodes are in one availability zone.",
                      "aws ec2 describe-instances --query "
                      "'Reservations[].Instances[].Placement.AvailabilityZone'"),
            ],
            more=version_seen(logs, events[0]),
        )  # fmt: skip


@log_rule("LOG075", "in-network reduction (SHARP) works where it is requested", worst=State.WARN, risk=True)
def sharp_is_used(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    NCCL was to let the InfiniBand switches reduce (SHARP, CollNet), and the fabric refused.

    ## Why it matters
    NCCL goes on by rings and trees, so the job is slower than expected, not dead. What ends a job after these
    lines is something else.

    ## Seen as
    slow

    ## How we know
    `SHARP coll init error: Cannot create SHARP job`, `No Aggregation Manager (sharp_am) detected`, `No resource`.

    ## Fix
    - **admin** run sharp_am beside the subnet manager, and allow the job its share of the switches' resources.
    - **you** unset NCCL_COLLNET_ENABLE where SHARP is not meant to be used.

    ## Source
    NVIDIA SHARP documentation, Aggregation Manager; NCCL user guide, NCCL_COLLNET_ENABLE.
    """
    if events := in_order(events_of(logs, "sharp-refused")):
        none = any("Aggregation Manager" in event.text for event in events)
        blame = (
            "no aggregation manager (sharp_am) answers" if none else "its aggregation manager gave the job nothing"
        )
        yield cause(
            events,
            f"the switches do not reduce for this job (SHARP): {blame}",
            why="NCCL continues without it, with rings and trees: slower than expected, but not a failure.",
            owner="site",
            state=State.WARN,
            fix=[
                you("Where SHARP is not meant, turn it off.", "unset NCCL_COLLNET_ENABLE"),
                admin("See whether the aggregation manager runs and has room.", "systemctl status sharp_am",
                      "sharp_hello -d mlx5_0:1"),
            ],
            more=settings_seen(logs, "NCCL_COLLNET_ENABLE", "NCCL_ALGO"),
        )  # fmt: skip
