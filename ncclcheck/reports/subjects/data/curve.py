"""The curve of samples a second by number of workers: which setting is best, and whether beyond noise."""

from __future__ import annotations

from ncclcheck.probes.facts.data import Speed
from ncclcheck.probes.facts.data.speed import Point

# a setting must bring a tenth more samples a second to be advised: chosen, less is not worth memory for workers
_GAIN = 1.1
_DEFAULT_PREFETCH = 2  # DataLoader's prefetch_factor with workers. Source: torch.utils.data, 2.0 and later


def plain(speed: Speed) -> list[Point]:
    """By number of workers, with nothing else changed."""
    usual = speed.prefetch or _DEFAULT_PREFETCH
    points = [point for point in speed.points if not point.to_gpu and point.prefetch in (0, usual)]
    return sorted(points, key=lambda point: point.workers)


def most(speed: Speed) -> float:
    """Samples a second at its best."""
    return max(point.samples_s for point in plain(speed))


def best(points: list[Point], gain: float = _GAIN) -> Point | None:
    """The fewest workers that nothing beats beyond noise."""
    for point in sorted(points, key=lambda point: point.workers):
        if not any(beats(other, point, gain) for other in points):
            return point
    return max(points, key=lambda point: point.samples_s, default=None)


def beats(point: Point, other: Point, gain: float = _GAIN) -> bool:
    """Faster by a tenth, and its slowest quarter faster than the other's fastest."""
    return point.samples_s >= gain * other.samples_s and point.low > other.high


def own(speed: Speed) -> Point | None:
    """The loader's own setting, or torch's default of no workers."""
    return next((point for point in plain(speed) if point.workers == (speed.workers or 0)), None)


def by_workers(speed: Speed) -> str:
    """By workers: `0: 95, 1: 93, 2: 190`."""
    return ", ".join(f"{point.workers}: {rate(point.samples_s)}" for point in plain(speed))


def counted(workers: int) -> str:
    return f"{workers} worker{'' if workers == 1 else 's'}"


def gives(point: Point) -> str:
    """`2 workers give 190`."""
    return f"{counted(point.workers)} give{'s' if point.workers == 1 else ''} {rate(point.samples_s)}"


def rate(samples_s: float) -> str:
    """Three digits: 95.3, 12400."""
    return f"{samples_s:.3g}" if samples_s < 999.5 else f"{float(f'{samples_s:.3g}'):.0f}"
