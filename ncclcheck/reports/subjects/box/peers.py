"""Nodes that did not answer what was sent to them: which one was cut off, as far as that can be told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ncclcheck.probes.facts import Box

# Seconds before the first failure: what did not answer has been asked for so long at most, for torch's timeouts
# are minutes; after it, for the watcher to look; and between the end of a connection and its failure being said.
_BEFORE_S, _AFTER_S, _CLOSED_S = 1800.0, 3.0, 5.0


class CutOffBox(NamedTuple):
    """box: of the node; None where only an address is known. name: of it. by: who got no answer, and from when."""

    box: Box | None
    name: str
    by: list[str]
    t: float


def cut_off(boxes: Sequence[Box], failed: float) -> CutOffBox | None:
    """The one node that all broken pairs have in common."""
    hosts = {address: box.host for box in boxes for address in box.addresses}
    pairs = [(box.host, hosts.get(address, address), t) for box in boxes for address, t in _mute(box, failed)]
    pairs = [(a, b, t) for a, b, t in pairs if a != b]
    if not pairs:
        return None
    common = set.intersection(*({a, b} for a, b, _ in pairs))
    if len(common) > 1:  # one pair: the end that got no answer from the other one, where only it asked
        common = {b for _, b, _ in pairs} if len({b for _, b, _ in pairs}) == 1 else common
    if len(common) != 1:
        return None
    [name] = common
    box = next((box for box in boxes if box.host == name), None)
    by = sorted({a if b == name else b for a, b, _ in pairs})
    return CutOffBox(box, name, by, min(t for _, _, t in pairs))


def _mute(box: Box, failed: float) -> Iterator[tuple[str, float]]:
    """Addresses that did not answer this node when the job failed, and since when."""
    since: dict[str, float] = {}
    for row in box.peers:
        if row.t > failed + _AFTER_S:
            break
        closing = since if row.t > failed - _CLOSED_S else {}  # who gives up closes what had no answer
        since = {address: since.get(address, row.t) for address in [*closing, *row.by]}
    yield from ((address, t) for address, t in since.items() if failed - t < _BEFORE_S)
