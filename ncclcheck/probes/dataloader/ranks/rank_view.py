"""What one emulated rank sees: it calls the user's factory itself, under its own rank."""

from __future__ import annotations

import inspect
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from msgspec import convert

from ncclcheck.probes.dataloader import ours
from ncclcheck.probes.dataloader.children.inside import in_words, place_of
from ncclcheck.probes.dataloader.factory import FactoryLoader, find, made_by
from ncclcheck.probes.dataloader.randomness.draws import at_start
from ncclcheck.probes.dataloader.ranks import emulated
from ncclcheck.probes.dataloader.ranks.contents import read_contents
from ncclcheck.probes.dataloader.ranks.orders import sample_orders
from ncclcheck.probes.dataloader.ranks.streams.streams_read import read_stream
from ncclcheck.probes.dataloader.views import EmulatedRank, RankView
from ncclcheck.probes.facts.data.sharding import Given


def view(asked: EmulatedRank) -> RankView:
    """Be the rank, call the factory, look at what it gives."""
    try:
        return _view(asked)
    except BaseException as error:
        if trace := ours.trace_of(error):
            return RankView(rank=asked.rank, defect=trace)
        raise


def _view(asked: EmulatedRank) -> RankView:
    seen, env = RankView(rank=asked.rank, group=emulated.become(asked)), emulated.environment(asked)
    with emulated.watched() as ways:
        started = time.monotonic()
        try:
            factory = _factory(asked, env, ways)
            made = factory.make(0)
        except BaseException as error:  # SystemExit of the user's code too
            seen.place, seen.asked = place_of(error), [*ways]
            if seen.group:
                seen.cut = f"it has no process group: {seen.group}"
            elif emulated.is_cut_off(error):
                seen.cut = in_words(error)
            else:
                seen.error = in_words(error)
            return seen
        seen.seconds = time.monotonic() - started
        seen.given = convert(made.given, Given)
        seen.iterable, seen.length = made.iterable, made.length
        seen.workers = None if made.given == "dataset" else int(made.loader.get("num_workers") or 0)
        if seen.group and any(way.startswith("dist.") for way in ways):
            seen.cut = f"it has no process group: {seen.group}"
            return seen
        _look(made, factory, asked, seen, ways)
    return seen


@dataclass(frozen=True)
class _Factory:
    """The user's factory. takes_epoch: it asks for the epoch, and makes a loader for it."""

    target: Any
    kwargs: dict[str, Any]
    env: dict[str, str]
    takes_epoch: bool

    def make(self, epoch: int) -> FactoryLoader:
        kwargs = {**self.kwargs, "epoch": epoch} if self.takes_epoch else self.kwargs
        return made_by(self.target, kwargs, self.env)


def _factory(asked: EmulatedRank, env: dict[str, str], ways: list[str]) -> _Factory:
    target = find(asked.plan.factory, asked.plan.directory)
    names = _parameters(target)
    ways += [f"{name}=" for name in ("rank", "world_size") if name in names]
    takes_epoch = "epoch" in names and "epoch" not in asked.plan.kwargs
    return _Factory(target, asked.plan.kwargs, env, takes_epoch)


def _parameters(target: Any) -> list[str]:
    with suppress(TypeError, ValueError):
        return [*inspect.signature(target).parameters] if callable(target) else []
    return []


def _look(made: FactoryLoader, factory: _Factory, asked: EmulatedRank, seen: RankView, ways: list[str]) -> None:
    """Each look on its own: what one cannot see, the next may."""
    seen.asked = [*ways]

    def starts() -> None:
        seen.where, seen.starts = at_start(made)

    def order() -> None:
        if made.iterable:
            seen.batch = made.loader.get("batch_size", 1) if made.given != "dataset" else None
            seen.drop_last = bool(made.loader.get("drop_last"))
            read_stream(made, asked, seen)
        elif made.given != "dataset":
            sample_orders(made, seen, asked.folder, factory.make if factory.takes_epoch else None)

    def content() -> None:
        if not made.iterable:
            read_contents(made, asked, seen)

    for name, look in (("starts", starts), ("order", order), ("content", content)):
        try:
            look()
        except Exception as error:
            seen.unseen[name] = f"{in_words(error)} ({place_of(error)})"
    seen.asked = [*ways]
