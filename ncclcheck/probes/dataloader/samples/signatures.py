"""What samples look like, leaf by leaf, and where they do not look alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from ncclcheck.probes.facts.data.structure import Mixed, Shape

_MOST_LEAVES = 64  # of a sample, and items of one list: chosen, of more leaves the first tell its kind
_MOST_DEPTH = 6  # of containers: chosen; a cycle ends too
_MOST_MIXED = 12  # leaves in a finding: chosen
_MOST_INDICES = 8  # of samples of one kind, as examples: chosen
_NUMBERS = (bool, int, float, complex)


class LeafSignature(NamedTuple):
    """One leaf: the Python type, and of tensors and arrays dtype and shape. length: of a list of numbers."""

    type: str
    dtype: str = ""
    shape: tuple[int, ...] = ()

    def __str__(self) -> str:
        if self.dtype:
            return f"{'' if self.type == 'Tensor' else self.type + ' '}{self.dtype} {list(self.shape)}"
        return f"{self.type} of {self.shape[0]}" if self.shape else self.type


Signature = tuple[tuple[str, LeafSignature], ...]


def signature(sample: Any) -> Signature:
    """Equal for samples that look alike."""
    return tuple(pair for pair, _ in zip(_looks("", sample, 0), range(_MOST_LEAVES), strict=False))


def _looks(path: str, value: Any, depth: int) -> Iterator[tuple[str, LeafSignature]]:
    if depth < _MOST_DEPTH and (inner := _inner(value)) is not None:
        for name, item in inner:
            yield from _looks(f"{path}.{name}" if path else name, item, depth + 1)
    else:
        yield path, _look(value)


def _inner(value: Any) -> list[tuple[str, Any]] | None:
    if isinstance(value, Mapping):
        return [(str(key), item) for key, item in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=True))
    if isinstance(value, list | tuple) and not (value and all(isinstance(item, _NUMBERS) for item in value)):
        return [(str(position), item) for position, item in enumerate(value[:_MOST_LEAVES])]
    return None


def _look(value: Any) -> LeafSignature:
    kind = type(value).__name__
    if isinstance(value, torch.Tensor):
        return LeafSignature("Tensor", str(value.dtype).removeprefix("torch."), tuple(value.shape))
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return LeafSignature(kind, str(value.dtype), tuple(int(size) for size in value.shape))
    return LeafSignature(kind, "", (len(value),)) if isinstance(value, list | tuple) else LeafSignature(kind)


class Tally:
    """How many samples look how, with the first of each kind."""

    def __init__(self) -> None:
        self.counts: Counter[Signature] = Counter()
        self.indices: dict[Signature, list[int]] = {}

    def add(self, index: int, form: Signature) -> bool:
        """Count a sample; True for the first of its kind."""
        self.counts[form] += 1
        known = self.indices.setdefault(form, [])
        if len(known) < _MOST_INDICES:
            known.append(index)
        return self.counts[form] == 1

    @property
    def usual(self) -> Signature:
        """How most samples look."""
        return self.counts.most_common(1)[0][0]

    def shapes(self, most: int = 6) -> list[Shape]:
        """The commonest first."""
        return [
            Shape(
                leaves=[f"{path or 'sample'}: {look}"[:120] for path, look in kind[:12]],
                count=count,
                indices=self.indices[kind],
            )
            for kind, count in self.counts.most_common(most)
        ]

    def mixed(self) -> list[Mixed]:
        """Leaf by leaf what is not as in most samples."""
        looks: dict[str, Counter[LeafSignature | None]] = {
            path: Counter() for kind in self.counts for path, _ in kind
        }
        where: dict[tuple[str, LeafSignature | None], list[int]] = {}
        for kind, count in self.counts.items():
            own = dict(kind)
            for path, seen in looks.items():
                seen[own.get(path)] += count
                where.setdefault((path, own.get(path)), []).extend(self.indices[kind])
        mixtures = [
            _mixed(path, seen, other, where[path, other])
            for path, seen in looks.items()
            for other in _others(seen)
        ]
        return mixtures[:_MOST_MIXED]


def _others(seen: Counter[LeafSignature | None]) -> list[LeafSignature | None]:
    return [look for look, _ in seen.most_common(4)][1:]


def _mixed(path: str, seen: Counter[LeafSignature | None], other: LeafSignature | None, where: list[int]) -> Mixed:
    usual = seen.most_common(1)[0][0]
    return Mixed(
        leaf=path or "sample",
        kind=_kind(usual, other),
        usual=str(usual or "not there"),
        other=str(other or "not there"),
        count=seen[other],
        indices=sorted(where)[:_MOST_INDICES],
    )


def _kind(usual: LeafSignature | None, other: LeafSignature | None) -> Any:
    if usual is None or other is None:
        return "missing"
    if usual.type != other.type:
        return "type"
    if len(usual.shape) != len(other.shape):
        return "dimensions"
    return "dtype" if usual.dtype != other.dtype else "shape"
