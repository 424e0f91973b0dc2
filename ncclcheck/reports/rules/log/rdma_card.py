"""LOG046, LOG047, LOG048: by the log, RDMA cards keep up, and none has failed or refused a request."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote
from typing import NamedTuple

from ncclcheck.probes.facts import LogEvent, Logs
from ncclcheck.reports.judgement.findings import Finding, State, Where, admin, seen, you
from ncclcheck.reports.subjects.logs.logged import by_host, cause, events_of, log_rule
from ncclcheck.reports.subjects.logs.network import link, of_status, values_of
from ncclcheck.reports.subjects.logs.reported import owner_of, processes_by_host, version_seen


@log_rule("LOG046", "receivers keep up, and all hosts use the same traffic class")
def traffic_class(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A completion with status 13 (IBV_WC_RNR_RETRY_EXC_ERR), or NCCL_IB_TC, NCCL_IB_SL or NCCL_IB_PKEY with
    different values in the processes of one job.

    ## Why it matters
    On RoCE the traffic class decides whether a switch queues a packet without loss. A host with another class has
    its packets dropped when the network is busy: bandwidth collapses, and receivers are `not ready` too long.

    ## Seen as
    slow

    ## How we know
    The status of the completion; the variables as each process prints them (a value that only some have counts
    too).

    ## Fix
    - **you** give all hosts the site's value: `export NCCL_IB_TC=106` is what many RoCE sites use. Confirm by the
      pause and ECN counters while the job runs.
    - **admin** tell users the class of the lossless queue, and put it into /etc/nccl.conf.

    ## Source
    NCCL user guide, NCCL_IB_TC, NCCL_IB_SL; NCCL user guide, Troubleshooting, Networking; ibv_poll_cq(3).
    """
    events = of_status(logs, "13")
    differing = _differing(logs)
    settings = [event for event in events_of(logs, "nic-setting") if event.fields["name"] in differing]
    if not events and not settings:
        return
    value = differing and f"{next(iter(differing))} differs between hosts"
    yield cause(
        events or settings,
        value or "a receiver was not ready for too long, and the sender gave up",
        why="A packet of another class has no lossless queue in switches: a busy network drops it."
        if differing
        else "Its process had no buffer ready: it stands still or is overloaded, or what announced one was lost.",
        owner="job" if differing else "site",
        fix=[
            *(
                []
                if differing
                else [
                    you(
                        "Look at the peer first: whether its process goes on, and what it logged.",
                        "py-spy dump --pid PID",
                    )
                ]
            ),
            you(
                "Confirm by the pause and ECN counters during a run.",
                "ethtool -S IFACE | grep -E 'pause|ecn|discard'",
            ),
            you("Give all hosts the traffic class of the site's lossless queue.", "export NCCL_IB_TC=106"),
        ],
        state=State.FAIL if events else State.WARN,
        more=[seen("environment", f"{name}: {values}") for name, values in differing.items()],
    )


def _differing(logs: Logs) -> dict[str, str]:
    """Name -> its values by host, where they are not the same.

    NCCL prints one as it uses it: a process that opens no connection of the network prints none.
    """
    by_name = {}
    for name in ("NCCL_IB_TC", "NCCL_IB_SL", "NCCL_IB_PKEY"):
        values = {
            host: "; ".join(sorted({process.settings[name] for process in all_of_it if name in process.settings}))
            or "not set"
            for host, all_of_it in processes_by_host(logs).items()
            if any(process.settings for process in all_of_it)
        }
        if len(set(values.values())) > 1:
            by_name[name] = ", ".join(f"{value} on {host}" for host, value in [*values.items()][:4])
    return by_name


@log_rule("LOG047", "no HCA reported a fatal error")
def card_alive(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    `local catastrophic error`, `CQ error` or `async fatal event`: the driver says that the card, or a queue of it,
    is lost. `local access violation` on InfiniBand: a queue touched memory that is not registered for it.

    ## Why it matters
    All connections of that card are gone. The other hosts see time-outs (status 12) and flushed requests (status
    5) a little later, which are consequences.

    ## Seen as
    hangs

    ## How we know
    The event of the verbs library as NCCL prints it: `Got async event` up to NCCL 2.22, `async fatal event` since.

    ## Fix
    - **admin** confirm with `dmesg` (mlx5: health, firmware), reset or replace the card, update its firmware.
    - **you** leave the host out.

    ## Source
    ibv_get_async_event(3); NCCL user guide, Troubleshooting, Networking.
    """
    violated = [event for event in events_of(logs, "ib-access-violation") if link(logs, event) == "IB"]
    for events in by_host(violated).values():
        card = ", ".join(values_of(events, "device")) or "an RDMA card"
        yield cause(
            events,
            f"{card} reports a local access violation: a request touched memory that its queue may not use",
            why="Its registration is gone or does not cover it: memory that was freed or remapped under NCCL, a "
            "fork, or the card's driver. The queue is lost with its connection.",
            owner="job",
            fix=[
                admin("Confirm: look what the card's driver says.", "dmesg -T | grep -iE 'mlx5|rdma'"),
                you("Try without registered user memory, without cuMem and without GPUDirect RDMA, each alone.",
                    "export NCCL_LOCAL_REGISTER=0", "export NCCL_CUMEM_ENABLE=0",
                    "export NCCL_NET_GDR_LEVEL=LOC"),
                you("Where the program forks after NCCL's start, let it spawn."),
            ],
        )  # fmt: skip
    for host, events in by_host(events_of(logs, "ib-device-fatal")).items():
        cards = ", ".join(values_of(events, "device"))
        yield cause(
            events,
            f"{cards or 'an RDMA card'} reports {events[0].fields['event']}",
            why="The card or a queue of it is lost with its connections; errors on other hosts follow.",
            owner="node",
            fix=[
                admin(
                    "Confirm, then reset or replace the card.",
                    "dmesg -T | grep -i mlx5",
                    "mlxfwreset -d DEVICE reset",
                ),
                you("Leave the host out.", f"srun --exclude={quote(host or 'HOST')} ..."),
            ],
        )


class _CompletionStatus(NamedTuple):
    """A status of a completion. words: of the verbs library; far: whether the other end is the one to look at."""

    words: str
    means: str
    far: bool = False


_OWN_REQUEST = "the card refused a request of this process: its queue was not ready for it or is lost"
_REGISTRATION = (
    "its memory was freed or registered anew under NCCL, its process ended, or an IOMMU or ACS is in the way"
)
# enum ibv_wc_status, without those that other checks know: 1, 4, 5, 12 and 13. Source: ibv_poll_cq(3)
_STATUS = {
    "2": _CompletionStatus("local queue pair operation error", _OWN_REQUEST),
    "3": _CompletionStatus("local EE context operation error", _OWN_REQUEST),
    "6": _CompletionStatus("memory window bind error", _OWN_REQUEST),
    "7": _CompletionStatus(
        "bad response", "the peer's card answered with what does not belong to the request", far=True
    ),
    "8": _CompletionStatus(
        "local access error", f"the card may not reach the memory of this process: {_REGISTRATION}"
    ),
    "9": _CompletionStatus(
        "remote invalid request",
        "the peer's card does not take the request: its buffer is too small or its queue does not allow it, as "
        "where the two ends have different builds or settings",
        far=True,
    ),
    "10": _CompletionStatus(
        "remote access error", f"the peer's card may not reach its memory: {_REGISTRATION}", far=True
    ),
    "11": _CompletionStatus(
        "remote operation error",
        "the peer's card could not carry it out: its memory, GPU or PCIe failed it",
        far=True,
    ),
    "14": _CompletionStatus("local RDD violation", _OWN_REQUEST),
    "15": _CompletionStatus("remote invalid RD request", "the peer's card does not take the request", far=True),
    "16": _CompletionStatus("remote abort", "the peer's card gave the request up: its queue was reset", far=True),
    "17": _CompletionStatus("invalid EE context number", _OWN_REQUEST),
    "18": _CompletionStatus("invalid EE context state", _OWN_REQUEST),
    "19": _CompletionStatus("fatal error", "the card failed in a way from which its queue does not recover"),
    "20": _CompletionStatus("response timeout", "the peer's card did not answer in time", far=True),
    "21": _CompletionStatus("general error", "the card failed in a way that it has no status for"),
    "22": _CompletionStatus("tag matching error", _OWN_REQUEST),
    "23": _CompletionStatus("incomplete tag matching rendezvous", "the peer did not complete it", far=True),
}


@log_rule("LOG048", "HCAs complete NCCL's requests")
def carried_out(logs: Logs) -> Iterator[Finding]:
    """
    ## What
    A completion with another error than those that are known better (LOG036, LOG041, LOG042, LOG046): remote
    invalid request (9), remote access error (10), remote operation error (11) and their like.

    ## Why it matters
    The connection is lost with it, and the job ends.

    ## How we know
    The status of the completion (enum ibv_wc_status). Where it says "remote", the other end refused the request:
    the host that wrote the line was refused, and the peer that it names is the one to look at. Where several peers
    refused what one host alone asked for, that host is what they have in common.

    ## Fix
    - **admin** compare firmware and driver of both cards, and look into the kernel's log of the peer.
    - **you** try without GPUDirect RDMA: `export NCCL_NET_GDR_LEVEL=LOC`.

    ## Source
    ibv_poll_cq(3); NVIDIA/nccl src/transport/net_ib.cc; libnccl 2.23.4 to 2.27.7, run with such completions.
    """
    for status, known in _STATUS.items():
        for events in by_host(lines := of_status(logs, status)).values():
            peer = events[0].fields.get("peer", "")
            there = owner_of(logs, peer) if peer else ""
            refusers = _refused_by_several(logs, lines) if known.far else []
            end = f" {there} ({peer})" if there else f" {peer}" if peer else ""
            far = f", the peer is{end}" if end else ""
            yield cause(
                events,
                f"requests of RDMA ended with {known.words} (status {status}) at {len(refusers)} peers "
                f"({', '.join(refusers)}), all of one host: its own card or memory is the likelier fault"
                if refusers
                else f"a request of RDMA ended with {known.words} (status {status}){far}: {known.means}",
                why="The connection is lost with it, and the job ends.",
                owner="node",
                at=Where(node=there) if known.far and there and not refusers else None,
                fix=[
                    admin(
                        f"Read the kernel's log{f' of{end} first' if known.far and end and not refusers else ''}, "
                        "and compare both "
                        "ends.",
                        "ibv_devinfo | grep -E 'hca_id|fw_ver|state'",
                        "dmesg -T | grep -i mlx5",
                    ),
                    you("Confirm: whether it works without GPUDirect RDMA.", "export NCCL_NET_GDR_LEVEL=LOC"),
                ],
                more=version_seen(logs, events[0]),
            )


def _refused_by_several(logs: Logs, events: list[LogEvent]) -> list[str]:
    """The peers that refused one host's requests, where no other host was refused any."""
    peers = {owner_of(logs, peer) or peer for event in events if (peer := event.fields.get("peer", ""))}
    writers = {event.host for event in events}
    return sorted(peers) if len(peers) > 1 and len(writers) == 1 and not peers & writers else []
