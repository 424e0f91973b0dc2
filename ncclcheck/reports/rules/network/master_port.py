"""Rule about MASTER_PORT, or the port of the endpoint that was typed."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster, Node, PortHolder, Resolution, Unread, at, value_or, variables
from ncclcheck.reports.judgement.findings import Evidence, Finding, State, Where, admin, fail, not_read, seen, you
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.addresses.names.master import another_port, holders_of
from ncclcheck.reports.subjects.nccl import lan


@rule("RUN007", "MASTER_PORT is free on node 0", worst=State.FAIL, over="", between_machines=True)
def port_is_free(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Whether something else listens on the port of MASTER_PORT (or `--rdzv-endpoint`) on node 0.

    ## Why it matters
    torchrun ends with `EADDRINUSE` there, or, where the listener only accepts, all ranks wait in silence: more
    than 150 seconds without a word were measured. Two jobs on one machine with the same default port, and ranks
    of an earlier job that did not die, are the common cases.

    ## Seen as
    dies, setting without effect

    ## How we know
    The listeners of node 0 by /proc/net/tcp, without this tool and the torchrun that it runs in; and, in a join,
    whether the port could be opened. The holder's name is seen for processes of the same user only.

    ## Fix
    - **you** end the holder, or take another port: `export MASTER_PORT=29511`, `--rdzv-endpoint HOST:29511`.
    - **admin** end what an earlier job of another user left behind.

    ## Source
    pytorch/pytorch#126510, NVIDIA/Megatron-LM#1371, meta-pytorch/torchtune#392; bind(2), proc(5).
    """
    meeting, launcher = cluster.job.meeting, cluster.job.launcher
    if not cluster.nodes or (meeting is not None and meeting.node_rank != 0):
        raise NothingToJudge("the facts of node 0 are not here")
    node = cluster.nodes[0]
    holders = at(node, "job.port_holders")
    tried = meeting is not None and launcher != "torchrun" and meeting.outcome != "turned_away"  # RUN008 says why
    taken = meeting.detail if meeting is not None and tried else ""
    if isinstance(holders, Unread):
        if taken:
            yield _taken(cluster, node, taken, [seen("bind", taken)])
            return
        if "MASTER_PORT" not in variables(node) and not isinstance(at(node, "job.variables"), Unread):
            raise NothingToJudge("MASTER_PORT is not set")
        yield not_read(
            Where(node=node.name), "", holders, "who listens on MASTER_PORT was not read",
            why="If the port is taken, the job waits silently.",
        )  # fmt: skip
        return
    if not _is_here(cluster, node):
        raise NothingToJudge("MASTER_ADDR is another machine")
    if holders or taken:
        yield _taken(cluster, node, _shown(holders) or taken, _evidence(holders, taken))


def _is_here(cluster: Cluster, node: Node) -> bool:
    """Of one node alone it is not known that it is node 0, unless MASTER_ADDR is its own."""
    if cluster.job.nodes_asked > 1 or "MASTER_ADDR" not in variables(node):
        return True
    view = value_or(at(node, "job.master"), Resolution(name="", addresses=[]))
    return any(lan.is_loopback(address) for address in view.addresses) or bool(holders_of(cluster, view.addresses))


def _shown(holders: list[PortHolder]) -> str:
    names = [f"{holder.name}" + (f" (pid {holder.pid})" if holder.pid else "") for holder in holders]
    return f"port {holders[0].port} is held by {', '.join(dict.fromkeys(names))}" if holders else ""


def _evidence(holders: list[PortHolder], taken: str) -> list[Evidence]:
    listens = [seen("listens", f"{h.address}:{h.port} {h.name} pid {h.pid}") for h in holders]
    return listens + ([seen("bind", taken)] if taken else [])


def _taken(cluster: Cluster, node: Node, what: str, evidence: list[Evidence]) -> Finding:
    meeting = cluster.job.meeting
    port = meeting.endpoint.rpartition(":")[2] if meeting else variables(node).get("MASTER_PORT", "")
    on_port = f" 'sport = :{port}'" if port.isdecimal() else ""
    return fail(
        Where(node=node.name),
        f"the job's port is taken: {what}",
        why="torchrun ends with EADDRINUSE, or all ranks talk to the wrong program and wait.",
        owner="node",
        evidence=evidence,
        fix=[
            you("Take another port, on every node the same.", another_port(cluster, port)),
            admin(
                "See who holds it; if an earlier job left it, end that by its number.",
                f"ss -ltnp{on_port}   # on {node.name}",
            ),
        ],
    )
