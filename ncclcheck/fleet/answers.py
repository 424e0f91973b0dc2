"""What a fleet's results answer: plain data, the same for text, JSON and the page."""

from __future__ import annotations

from msgspec import Struct


class RepeatedFailure(Struct, frozen=True, kw_only=True):
    """A node on which one check fails far more often than on the others. usual: the share of results elsewhere."""

    serial: str
    node: str
    code: str
    fails: int
    results: int
    usual: float
    last: str
    what: str


class SlowerNode(Struct, frozen=True, kw_only=True):
    """A node that became slower than its own past, against what its fleet did on the same days.

    since: the day of the change, or on which a slow one began. change: -0.08 is 8 % slower. trend: day and share
    of its own past, a point a week.
    """

    serial: str
    node: str
    metric: str
    since: str
    change: float
    slowly: bool
    recovered: bool
    before: float
    after: float
    trend: list[tuple[str, float]]


class Together(Struct, frozen=True, kw_only=True):
    """A check that fails on nodes which have something in common. shared: what else all of them have."""

    code: str
    attribute: str
    value: str
    failing: int
    of: int
    elsewhere: int
    of_elsewhere: int
    nodes: list[str]
    shared: list[str]


class Upgrade(Struct, frozen=True, kw_only=True):
    """What changed with a version: a figure (change, with its interval over nodes), or how often a check fails."""

    attribute: str
    before: str
    after: str
    nodes: int
    first: str
    last: str
    subject: str
    change: float
    low: float
    high: float


class Fleet(Struct, frozen=True, kw_only=True):
    """The whole answer."""

    schema: int = 1
    results: int
    nodes: int
    first: str
    last: str
    repeats: list[RepeatedFailure]
    slower: list[SlowerNode]
    together: list[Together]
    upgrades: list[Upgrade]
