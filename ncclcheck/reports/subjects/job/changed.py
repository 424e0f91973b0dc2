"""Who changes data on its way: exchanges of two nodes in which bytes did not arrive as they were sent."""

from __future__ import annotations

from dataclasses import dataclass

from ncclcheck.probes.facts import Cluster, PairTime
from ncclcheck.reports.judgement.findings import Evidence, Where, seen

_MOST_TOLD = 8  # exchanges that are evidence; chosen
_LEAST_PAIRS = 2  # that one node must have in common, and others be sound, before it is named


@dataclass(frozen=True)
class Guilty:
    """The node, or the two nodes with what is between them. way: in what it sends, receives, or both."""

    nodes: tuple[str, ...]
    way: str
    changed: list[PairTime]
    sound: list[PairTime]

    @property
    def where(self) -> Where:
        """The node, or one of the two with its peer."""
        return Where(node=self.nodes[0], peer=self.nodes[1] if len(self.nodes) > 1 else None)

    @property
    def words(self) -> str:
        """What the exchanges say."""
        if len(self.nodes) > 1:
            first, other = self.nodes
            return (
                f"data between {first} and {other} is changed in transit, and between either and others it is not"
            )
        many = f"each of {len(self.changed)} nodes" if len(self.changed) > 1 else "another node"
        away = " and not in what others exchange" if self.sound else ""
        return f"data is changed between nodes in what {self.nodes[0]} {self.way} {many}{away}"

    @property
    def evidence(self) -> list[Evidence]:
        """The exchanges."""
        return [*map(_told, self.changed[:_MOST_TOLD]), *map(_told, self.sound[: _MOST_TOLD // 2])]


def _told(pair: PairTime) -> Evidence:
    there, here = pair.a_to_b_changed or 0, pair.b_to_a_changed or 0
    return seen(
        f"exchange of {pair.a} and {pair.b}",
        f"{there or 'no'} bytes arrived changed at {pair.b}, {here or 'none'} at {pair.a}",
    )


def guilty(cluster: Cluster) -> Guilty | None:
    """The one node that all exchanges with changed data have in common, and no sound one; else the two of one."""
    times = [pair for pair in cluster.measurements.pairs if None not in (pair.a_to_b_changed, pair.b_to_a_changed)]
    bad = {(time.a, time.b): time for time in times if time.a_to_b_changed or time.b_to_a_changed}
    good = {(time.a, time.b): time for time in times if (time.a, time.b) not in bad}
    if not bad:
        return None
    common = set.intersection(*({*pair} for pair in bad))
    met = {node for pair in good for node in pair}
    if len(common) == 1 and len(bad) >= _LEAST_PAIRS and not common & met:
        (node,) = common
        return Guilty((node,), _way(node, [*bad.values()]), [*bad.values()], [*good.values()])
    if len(bad) == 1:
        (pair,) = bad
        only = [node for node in pair if node not in met]
        if len(only) == 1 and len(met) > 1:
            return Guilty((only[0],), _way(only[0], [*bad.values()]), [*bad.values()], [*good.values()])
        if not only:
            return Guilty(pair, "", [*bad.values()], [*good.values()])
    return None


def _way(node: str, bad: list[PairTime]) -> str:
    sends = any((time.a_to_b_changed if time.a == node else time.b_to_a_changed) for time in bad)
    takes = any((time.b_to_a_changed if time.a == node else time.a_to_b_changed) for time in bad)
    return "exchanges with" if sends and takes else "sends to" if sends else "receives from"
