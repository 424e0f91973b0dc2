"""GPUs as rules look at them: those that the job may use, with what NVML tells of each."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from ncclcheck.probes.facts import Cluster, Gpu, GpuPeer, Node, at, known, value_or, variables
from ncclcheck.reports.judgement.derived import derived, derived_from
from ncclcheck.reports.judgement.findings import Evidence, Remedy, Where, admin, seen, you

T = TypeVar("T", bound=Hashable)


class Card(NamedTuple):
    """A GPU that the job may use, and its node."""

    node: Node
    gpu: Gpu

    @property
    def where(self) -> Where:
        """The node and the GPU."""
        return Where(node=self.node.name, device=self.gpu.name)

    @property
    def model(self) -> str:
        """The model, or nothing where it was not read."""
        return value_or(self.gpu.model, "")

    def seen(self, fact: str, value: object) -> Evidence:
        """Evidence from NVML, with the model and the PCI address to find it by."""
        place = " ".join(part for part in (self.model, value_or(self.gpu.pci, "")) if part)
        return seen(f"NVML, {place}: {fact}" if place else f"NVML: {fact}", value)


def cards(cluster: Cluster) -> Iterator[Card]:
    """All GPUs that a rule may judge."""
    for node in cluster.nodes:
        yield from _cards(node)


@derived
def _cards(node: Node) -> list[Card]:
    return [Card(node, gpu) for gpu in known(at(node, "gpus.cards"))]


@derived_from("gpus")
def peers(node: Node) -> Mapping[str, Sequence[GpuPeer]]:
    """How each GPU of the job reaches the job's others of its node; NVML also names those of other jobs."""
    mine = value_or(at(node, "gpus.cards"), [])
    names = {gpu.name for gpu in mine}
    return {gpu.name: [peer for peer in value_or(gpu.peers, []) if peer.name in names] for gpu in mine}


def busy(card: Card, least: float) -> bool:
    """Whether it was computing when it was looked at; what is not known is no evidence."""
    return value_or(card.gpu.utilization, 0) >= least


def odd_ones(gpus: list[Card], value: Callable[[Card], T]) -> Iterator[tuple[Card, T, T]]:
    """GPUs whose value is not that of most GPUs of their model, with theirs and that of most.

    Says nothing of a model on whose value there is no majority, or that there is one GPU of.
    """
    models: dict[str, list[Card]] = {}
    for card in gpus:
        models.setdefault(card.model, []).append(card)
    for alike in models.values():
        counts: dict[T, int] = {}
        for card in alike:
            counts[value(card)] = counts.get(value(card), 0) + 1
        most, times = max(counts.items(), key=lambda item: item[1])
        if times * 2 > len(alike):
            yield from ((card, value(card), most) for card in alike if value(card) != most)


def leave_out() -> Remedy:
    """What a user can do about a node that is not well."""
    return you("Exclude the node until it is repaired, and inform its administrator.", "#SBATCH --exclude=NODE")


def reset(
    text: str = "Drain the node, then reset the GPU; if that does not help, reboot.",
) -> Remedy:
    """What an administrator does first about a GPU that is not well."""
    return admin(text, "nvidia-smi --gpu-reset -i N")


def given_by_slurm(node: Node) -> int:
    """How many GPUs Slurm gave the job on this node; 0 where it says nothing."""
    text = variables(node).get("SLURM_GPUS_ON_NODE", "")
    return int(text) if text.isdecimal() and len(text) < 4 else 0
