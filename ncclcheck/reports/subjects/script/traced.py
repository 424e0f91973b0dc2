"""What a rank does from the first line on: which loaders it trains with, what is one rank's own."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ncclcheck.probes.facts.script import Call, Guard, Loop, Script
from ncclcheck.reports.subjects.script.scripts import SAMPLER, collective
from ncclcheck.reports.subjects.script.steps import shares_model

_FROM = re.compile(r"\bfrom:(loader@\S+)")
_LOADERS = re.compile(r"(?:^|\.)(?:\w*DataLoader\w*)$")
_STEPS = re.compile(r"per_epoch|len\(")  # of a loop that counts the steps of an epoch
_ONCE = re.compile(r"range\((?:0, )?1\)")


def tags(call: Call, key: str) -> set[str]:
    """What is known of an argument, of "on" or "path"."""
    return {*call.values.get(key, "").split()}


def objects(call: Call, key: str, *kinds: str) -> set[str]:
    """The objects of these kinds that it may be."""
    return {tag for tag in tags(call, key) if tag.partition("@")[0] in kinds}


def made_at(script: Script, thing: str) -> Call | None:
    """The call that made an object: KIND@FILE:LINE.COLUMN."""
    makers: dict[str, Call] = script.__dict__.setdefault("made_at", {})
    if not makers:
        for call in script.trace:
            kind = (
                "loader" if _LOADERS.search(call.name) else "sampler" if call.name in SAMPLER
                else "optimizer" if "0" in call.values and "params:" in call.values["0"] else ""
            )  # fmt: skip
            if kind:
                makers.setdefault(f"{kind}@{call.place}", call)
    return makers.get(thing.rpartition(".")[0])


def passes(script: Script) -> list[Call]:
    """Backward passes in loops."""
    return [call for call in script.trace if call.name == ".backward" and call.loops]


def training_loaders(script: Script) -> dict[str, list[Call]]:
    """Loaders whose samples a backward pass comes from -> those passes."""
    loaders: dict[str, list[Call]] | None = script.__dict__.get("training_loaders")
    if loaders is None:
        loaders = script.__dict__["training_loaders"] = {}
        for call in passes(script):
            sources = {*_FROM.findall(f"{call.values.get('on', '')} {call.values.get('0', '')}")}
            if not sources:
                sources = {source for source in call.loops[-1].of.split() if source.startswith("loader@")}
            for loader in sources:
                loaders.setdefault(loader, []).append(call)
    return loaders


def in_training(script: Script, call: Call) -> bool:
    """Whether it is done in the steps of a training."""
    loops: set[tuple[str, int]] | None = script.__dict__.get("training_loops")
    if loops is None:
        loops = {(loop.over, loop.line) for call in passes(script) for loop in call.loops[-1:]}
        script.__dict__["training_loops"] = loops
    return any((loop.over, loop.line) in loops for loop in call.loops)


def counts_epochs(loop: Loop) -> bool:
    """`for epoch in ...`, and `for ep in range(epochs)`; not the steps of an epoch."""
    several = re.search(r"epochs\b", loop.over, re.IGNORECASE) and loop.target.isidentifier()
    return bool(several or re.search("epoch", loop.target, re.IGNORECASE))


def begun_anew(script: Script, loader: str) -> tuple[Call, Loop] | None:
    """Where the loader is begun again and again, and the loop in which; not that in which it is made anew."""
    made = made_at(script, loader)
    around = {(loop.line, loop.over) for loop in made.loops if not counts_epochs(loop)} if made else set()
    for call in script.trace:
        if call.name not in ("iterate", "iter") or loader not in tags(call, "0"):
            continue
        outer = call.loops[:-1] if call.name == "iterate" else call.loops
        for loop in reversed(outer):
            steps = loop.target and _STEPS.search(loop.over)
            if steps or _ONCE.fullmatch(loop.over) or loader in loop.of:
                continue
            if (loop.line, loop.over) not in around:
                return call, loop
    return None


def entered(script: Script, call: Call) -> str:
    """What all ranks must enter there: a collective, or the backward pass of a model that they share."""
    if call.name == ".backward" and call.loops and shares_model(script):
        return "the backward pass, in which ranks average their gradients,"
    if call.name == "forward":
        return "the forward pass of a model in FSDP" if objects(call, "made", "fsdp") else ""
    return collective(script, call) if ":" not in call.name else ""


def apart(call: Call, other: Call) -> bool:
    """Whether they stand in two branches of one condition."""
    branches = {(guard.file, guard.line): guard.branch for guard in call.guards}
    return any(branches.get((guard.file, guard.line), guard.branch) != guard.branch for guard in other.guards)


def _leaves_both(script: Script, call: Call, guard: Guard) -> bool:
    """Whether the other ranks leave the loop too, in another branch."""
    other = [leaving for leaving in script.trace if leaving.name == "break" and leaving.loops == call.loops]
    return any(
        (mine.file, mine.line) == (guard.file, guard.line) and mine.branch != guard.branch
        for leaving in other
        for mine in leaving.guards
    )


def left_alone(script: Script) -> Iterator[tuple[Guard, Call, str, Call | None]]:
    """Where a rank leaves, or stays away: the condition, what it misses there, what that is called, and where it
    leaves.

    By its own samples; or by its number, where only its values tell so: `if writer is not None`.
    """
    places: set[tuple[str, int]] = set()
    met = [(call, name) for call in script.trace if (name := entered(script, call))]
    by_number = {(guard.file, guard.line, guard.branch) for call, _ in met for guard in call.guards}
    for call, name in met:
        for guard in call.guards:
            both = any(
                (guard.file, guard.line, branch) in by_number
                for branch in ("if", "else")
                if branch != guard.branch
            )
            if guard.kind in ("own", "rank") and (guard.file, guard.line) not in places and not both:
                places.add((guard.file, guard.line))
                yield guard, call, name, None
    for call in script.trace:
        if call.name != "break" or not call.loops or not call.guards:
            continue
        loop = call.loops[-1]
        guard = call.guards[-1]
        if guard.kind != "own":
            inner = [
                condition for condition in call.guards if condition.kind == "rank" and condition.line > loop.line
            ]
            guard = inner[0] if inner else guard
        if (guard.file, guard.line) in places or _leaves_both(script, call, guard):
            continue
        inside = next(
            ((call, name) for call, name in met if loop in call.loops and guard not in call.guards), None
        )
        if inside:
            places.add((guard.file, guard.line))
            yield guard, *inside, call
