"""The same samples in several orders, under several seeds: what the content of each leaf depends on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ncclcheck.probes.dataloader.samples.read.glance import LeafValue, Pass, ReadingOrder, SampleGlance
from ncclcheck.probes.dataloader.samples.read.reader import SampleReader
from ncclcheck.probes.facts.data.content import Differs, Kind, LeafKind

_NOTHING = LeafValue("nothing", "nothing", "", 0)


@dataclass(frozen=True)
class Oracle:
    """What a lone reader gets. truth: in `order`; judged: leaves that other workers may not change.

    complete: there was time for all orders. restarts: a stream that is begun again in one process gives the same.
    """

    order: ReadingOrder
    truth: Pass
    leaves: list[LeafKind]
    judged: frozenset[str]
    complete: bool
    restarts: bool = True

    @property
    def unsettled(self) -> list[str]:
        """Leaves that differ from process to process."""
        return [leaf.leaf for leaf in self.leaves if leaf.kind == "uncontrolled"]

    @property
    def is_in_order(self) -> bool:
        """Whether nothing that was seen depends on what was read before."""
        return not any(leaf.kind == "hidden" or leaf.reread for leaf in self.leaves)


@dataclass(frozen=True)
class _Passes:
    """Each but `first` has something else than it: the order, the seed, a second reading, another process."""

    first: Pass
    turned: Pass
    salted: Pass
    twice: list[Pass]
    reset: Pass
    reset_turned: Pass
    again: Pass


def ask(reader: SampleReader, indices: Sequence[int], salt: int) -> Oracle | None:
    """Read the samples alone, again and again. None where they cannot be read."""
    stream = reader.made.iterable
    plain = ReadingOrder(
        indices, salt, workers=reader.plan.workers, whole=stream, warm=None if stream else indices[0]
    )
    twice = reader.passes(replace(plain, passes=1 if stream else 2))
    if not twice or not twice[0]:
        return None
    first = twice[0]
    plain = reader.without_unreadable(replace(plain, indices=[index for index in indices if index in first]))
    passes = _in_orders(reader, plain, twice)
    depends = bool(_differing(first, passes.turned))
    order = replace(plain, reset=depends)
    other = passes.reset if stream else _once(reader, replace(order, worker=1))
    leaves = [_judge(leaf, passes) for leaf in _leaves_of(first)]
    judged = _settled(leaves) - _differing(passes.reset, other)
    complete = bool(passes.again and (stream or len(passes.twice) == 2))
    return Oracle(order, passes.reset, leaves, judged, complete, not stream or _restarts(reader, plain))


def _restarts(reader: SampleReader, plain: ReadingOrder) -> bool:
    """A stream that packs documents may keep the rest of one, and begin with it the next time."""
    both = reader.passes(replace(plain, passes=2))
    return len(both) == 2 and not _differing(*both)


def _in_orders(reader: SampleReader, plain: ReadingOrder, twice: list[Pass]) -> _Passes:
    """A stream has one order only, and may go on elsewhere when it is begun again."""
    stream, first = reader.made.iterable, twice[0]
    backwards = replace(plain, indices=plain.indices[::-1])
    turned = first if stream else _once(reader, backwards)
    depends = bool(_differing(first, turned))
    return _Passes(
        first=first,
        turned=turned,
        salted=_once(reader, replace(plain, salt=plain.salt + 1)),
        twice=twice,
        reset=_once(reader, replace(plain, reset=True)) if depends else first,
        reset_turned=_once(reader, replace(backwards, reset=True)) if depends else turned,
        again=_once(reader, plain),
    )


def _settled(leaves: Sequence[LeafKind]) -> frozenset[str]:
    """Leaves that are the same whenever they are read under the same seed."""
    return frozenset(
        leaf.leaf for leaf in leaves if leaf.kind in ("fixed", "random", "private") and not leaf.reread
    )


def _once(reader: SampleReader, order: ReadingOrder) -> Pass:
    return next(iter(reader.passes(order)), {})


def _judge(leaf: str, passes: _Passes) -> LeafKind:
    first = passes.first
    value = next(sample.leaves[leaf] for sample in first.values() if leaf in sample.leaves)
    kind: Kind
    reread = False
    if differing := _differences(leaf, first, passes.again):
        kind = "uncontrolled"
    elif differing := _differences(leaf, first, passes.turned):
        kind = "hidden" if _differences(leaf, passes.reset, passes.reset_turned) else "private"
    else:
        kind = "random" if _differences(leaf, first, passes.salted) else "fixed"
        differing = _differences(leaf, *passes.twice) if len(passes.twice) == 2 else []
        reread = bool(differing)
    return LeafKind(
        leaf=leaf,
        dtype=value.dtype,
        kind=kind,
        bytes=value.bytes,
        reread=reread,
        differing=len(differing),
        of=len(first),
        example=next(iter(differing), None),
    )


def _leaves_of(passed: Pass) -> list[str]:
    return list(dict.fromkeys(leaf for sample in passed.values() for leaf in sample.leaves))


def _differing(a: Pass, b: Pass) -> set[str]:
    return {leaf for leaf in _leaves_of(a) if _differences(leaf, a, b)}


def _differences(leaf: str, a: Pass, b: Pass) -> list[Differs]:
    return [
        Differs(index=index, first=value.brief, second=other.brief)
        for index, value, other in _pairs(leaf, a, b)
        if value.digest != other.digest
    ]


def _pairs(leaf: str, a: Pass, b: Pass) -> Iterator[tuple[int, LeafValue, LeafValue]]:
    for index, sample in a.items():
        if index in b and not (sample.error and b[index].error):
            yield index, _value(sample, leaf), _value(b[index], leaf)


def _value(sample: SampleGlance, leaf: str) -> LeafValue:
    if sample.error:
        return LeafValue("raised", sample.error[:60], "", 0)
    return sample.leaves.get(leaf, _NOTHING)
