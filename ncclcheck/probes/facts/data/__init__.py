"""What was seen of the user's dataset and loader, by node and by aspect."""

from __future__ import annotations

from ncclcheck.probes.facts.data.content import Content
from ncclcheck.probes.facts.data.made import Made
from ncclcheck.probes.facts.data.report import DataReport, by_node
from ncclcheck.probes.facts.data.resources import DataResources
from ncclcheck.probes.facts.data.sharding import Sharding
from ncclcheck.probes.facts.data.speed import Speed
from ncclcheck.probes.facts.data.streams import Streams
from ncclcheck.probes.facts.data.structure import Structure

__all__ = [
    "Content",
    "DataReport",
    "DataResources",
    "Made",
    "Sharding",
    "Speed",
    "Streams",
    "Structure",
    "by_node",
]
