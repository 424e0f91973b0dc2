"""RDM021: the partition of InfiniBand ports."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster, Node, Unread
from ncclcheck.reports.judgement.findings import Finding, State, Where, admin, fail, fine, seen, warn, you
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.nccl import carrying
from ncclcheck.reports.subjects.nccl.hca import UsedPort
from ncclcheck.reports.subjects.nccl.variables import parse_int, values

_FULL_MEMBER = 0x8000  # the membership bit of a partition key


@rule(
    "RDM021",
    "the partition key that NCCL would use exists, with full membership",
    worst=State.FAIL,
    needs=("rdma.devices",),
)
def partition(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The entry of the partition table that NCCL takes (index 0, or NCCL_IB_PKEY) holds a key, and the port is a full
    member of that partition.

    ## Why it matters
    On a fabric with partitions (tenants, virtual functions) index 0 may be empty or another's. NCCL then fails in
    `ibv_modify_qp`, or sends packets that the fabric drops. Limited members reach full members only, and so not
    each other.

    ## How we know
    /sys/class/infiniband/HCA/ports/N/pkeys of each InfiniBand port that NCCL would use; the highest bit of a key
    is full membership. NCCL_IB_PKEY is an index, not a key.

    ## Fix
    - **you** `export NCCL_IB_PKEY=1`, the index of your partition in the table.
    - **admin** make the ports full members in the subnet manager's partitions.conf (`=full`).

    ## Source
    NVIDIA/nccl#1323; NCCL user guide, NCCL_IB_PKEY; opensm(8), partition configuration.
    """
    ports = [
        (node, used, used.port.pkeys)
        for node, taken in carrying.using(cluster)
        for used in taken.used
        if not used.is_roce and not isinstance(used.port.pkeys, Unread)
    ]
    if not ports:
        raise NothingToJudge("no InfiniBand port whose partition table was read")
    for node, port, keys in ports:
        asked = parse_int(values(node).get("NCCL_IB_PKEY", "")).value
        index = asked if isinstance(asked, int) and asked >= 0 else 0
        if index >= len(keys) and len(keys) < 8:
            yield _wrong_key(node, port, keys, index, "does not exist")
        elif index < len(keys) and keys[index] == 0:
            yield _wrong_key(node, port, keys, index, "is empty")
        elif index < len(keys) and not keys[index] & _FULL_MEMBER:
            yield _limited(node, port, keys, index)
    if len({key for _, _, keys in ports for key in keys[:1]}) == 1:
        yield fine(Where(), f"partition {ports[0][2][0]:#06x} on all ports")


def _table(keys: list[int]) -> str:
    return ", ".join(f"{index}: {key:#06x}" for index, key in enumerate(keys))


def _wrong_key(node: Node, port: UsedPort, keys: list[int], index: int, state: str) -> Finding:
    other = next((i for i, key in enumerate(keys) if key & _FULL_MEMBER), None)
    command = "cat /sys/class/infiniband/*/ports/1/pkeys/0" if other is None else f"export NCCL_IB_PKEY={other}"
    return fail(
        Where(node=node.name, device=port.name),
        f"entry {index} of its partition table, which NCCL would use, {state}",
        why="NCCL cannot connect over this port.",
        owner="job" if other is not None else "site",
        evidence=[seen("pkeys", _table(keys))],
        fix=[you("Name the entry of your partition.", command)],
    )


def _limited(node: Node, port: UsedPort, keys: list[int], index: int) -> Finding:
    return warn(
        Where(node=node.name, device=port.name),
        f"it is a limited member of its partition (key {keys[index]:#06x})",
        why="Limited members cannot reach each other, only full members.",
        owner="site",
        evidence=[seen("pkeys", _table(keys))],
        fix=[admin("Make it a full member in the subnet manager's partitions.conf.", "smpquery pkeys -D 0")],
    )
