"""Rule about the buffers of TCP: what may be under way at once."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster, at, known
from ncclcheck.reports.judgement.findings import Finding, State, Where, admin, fail, seen, warn
from ncclcheck.reports.judgement.rule import rule
from ncclcheck.reports.subjects.failures import held_up
from ncclcheck.reports.text.words.fold import size

_USUAL = {"tcp_rmem": "4096 131072 6291456", "tcp_wmem": "4096 16384 4194304"}


@rule(
    "NET016",
    "TCP buffers cover the bandwidth-delay product",
    worst=State.FAIL,
    needs=("system.tcp_rmem", "system.tcp_wmem"),
)
def buffers(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The most bytes that a TCP socket may buffer, for receiving and for sending.

    ## Why it matters
    TCP has no more in flight than its buffers hold: with small ones the sender waits for the receiver in every
    round trip, however fast the link is. Nothing fails and no log says a word; gloo, and NCCL over sockets, are
    many times slower. Over RDMA it matters for the start of a job only.

    ## Seen as
    slow

    ## How we know
    The last number of net.ipv4.tcp_rmem and net.ipv4.tcp_wmem: 6 MiB and 4 MiB unless they were changed. Less
    than 256 KiB (NET016.kib), what is in flight on 10 Gb/s with a round trip of 0.2 ms, is a warning; a failure
    where bursts of that node in that direction were slower than those of its peers (NET008).

    ## Fix
    - **admin** `sysctl -w net.ipv4.tcp_rmem="4096 131072 6291456" net.ipv4.tcp_wmem="4096 16384 4194304"`, and the
      same in /etc/sysctl.d.

    ## Source
    tcp(7) (tcp_rmem, tcp_wmem); RFC 7323, section 1.1 (bandwidth times delay).
    """
    slow = _slow(cluster)
    least = cluster.policy.thresholds.get("NET016.kib", held_up.LEAST_KIB) * held_up.KIB
    for name, usual in _USUAL.items():
        most = {node.name: known(at(node, f"system.{name}")) for node in cluster.nodes}
        for node, limit in most.items():
            if limit >= least:
                continue
            others = sorted({size(other) for other in most.values() if other != limit})
            way = "take in" if name == "tcp_rmem" else "send"
            felt = slow.get((node, name), "")
            yield (fail if felt else warn)(
                Where(node=node),
                f"a TCP socket may buffer {size(limit)} at most of what it has to {way} (net.ipv4.{name}){felt}",
                why="The sender waits for the receiver in every round trip, so any link is slow over TCP.",
                owner="node",
                evidence=[
                    seen(f"/proc/sys/net/ipv4/{name}, the last number", str(limit)),
                    *([seen("the same on other nodes", ", ".join(others[:4]))] if others else []),
                ],
                fix=[
                    admin(
                        "Give it back its usual size, and keep it in /etc/sysctl.d.",
                        f'sysctl -w net.ipv4.{name}="{usual}"',
                    )
                ],
            )


def _slow(cluster: Cluster) -> dict[tuple[str, str], str]:
    """How slow nodes were in the bursts, by the buffers that can be the cause."""
    slowness = held_up.slowness(cluster)
    by_buffer = {
        (
            burst.node,
            "tcp_wmem" if burst.sends else "tcp_rmem",
        ): f": bursts carried {burst.best:.2g} Gb/s that way, {burst.others:.2g} between other nodes (median)"
        for burst in slowness.nodes
    }
    for a, b in slowness.pairs:
        words = (
            f": bursts from {a} to {b} carried {slowness.rates[a, b]:.2g} Gb/s, {slowness.rates[b, a]:.2g} "
            "the way back"
        )
        by_buffer |= {(a, "tcp_wmem"): words, (b, "tcp_rmem"): words}
    return by_buffer
