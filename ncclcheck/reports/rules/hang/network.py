"""HNG011: a host of a running job whose connections do not get through."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.reports.judgement.findings import Finding, admin, fail, seen, you
from ncclcheck.reports.subjects.live import words
from ncclcheck.reports.subjects.live.running import Judged
from ncclcheck.reports.subjects.live.words import hang_rule
from ncclcheck.reports.text.words.fold import fold_names


@hang_rule("HNG011", "what the ranks of a running job send over TCP arrives", "network")
def what_is_sent_arrives(judged: Judged) -> Iterator[Finding]:
    """
    ## What
    The kernel sends the same data of a rank again and again, and the other side does not acknowledge it.

    ## Why it matters
    All ranks wait, and none is at fault: a cable, a switch port, a firewall, or a host that is gone. TCP gives up
    after about 15 minutes.

    ## How we know
    Retransmissions in a row of every connection between ranks, by sock_diag(7): three and more. A process that is
    stopped is no such case: its kernel acknowledges. The host that is an end of every such connection is named;
    of two hosts both. RDMA has no such connections: there HNG024 reports the HCAs' own counters.

    ## Fix
    - **admin** look at that host's link and switch port; `ncclcheck env --hosts` tests ports and paths.

    ## Source
    tcp(7), tcpi_retransmits; made with real jobs of torch and gloo over hosts whose packets were dropped.
    """
    hosts = sorted({process.host for process in judged.who})
    lost = [(rank, link) for rank in judged.job.ranks for link in rank.connections if link.retries]
    name = fold_names(hosts)
    paths = "to and from" if len(hosts) == 1 else "between"
    yield fail(
        words.where(judged.who),
        f"what is sent {paths} {name} does not arrive ({words.ranks(judged.who)}): "
        f"{len(lost)} connections wait for an acknowledgement",
        why="All ranks wait for data that was sent and is lost.",
        owner="node",
        evidence=[
            *(
                seen(
                    f"{words.rank(process)} on {process.host}",
                    f"{link.near} -> {link.far}: {link.unsent:,} bytes sent anew {link.retries} times, "
                    f"no answer for {link.received_s:.0f} s",
                )
                for process, link in lost[:3]
            ),
            *words.after(judged),
        ],
        fix=[
            admin(f"Look at the link, the switch port and the firewall of {name}."),
            you("Test ports and paths between the hosts.", "ncclcheck env --hosts A,B"),
        ],
    )
