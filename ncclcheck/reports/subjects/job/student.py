"""Student's distribution, for intervals of few values. Pure."""

from __future__ import annotations

import math


def quantile(share: float, freedom: int) -> float:
    """Student's t that encloses this share of the distribution around 0."""
    low, high = 0.0, 1.0
    while _enclosed(high, freedom) < share and high < 1e9:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _enclosed(middle, freedom) < share else (low, middle)
    return high


def _enclosed(t: float, freedom: int) -> float:
    """The probability of -t to t: a finite sum for whole degrees of freedom (Abramowitz and Stegun, 26.7.3-4)."""
    angle, odd = math.atan(t / math.sqrt(freedom)), freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for number in range(1, (freedom - odd) // 2 + 1):
        total += term
        term *= (2 * number - 1 + odd) / (2 * number + odd) * math.cos(angle) ** 2
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total
