"""DAT030: a second epoch has samples."""

from __future__ import annotations

from collections.abc import Iterator

from ncclcheck.probes.facts import Cluster
from ncclcheck.probes.facts.data import DataReport
from ncclcheck.probes.facts.data.sharding import Dry, Sharding
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, Where, fail, fine, note, seen, you
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.data.examined import why_not


@rule("DAT030", "a second epoch has samples", worst=State.FAIL, commands=("data",))
def second_epoch(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Streams (IterableDataset) and samplers, iterated to their end and then once more.

    ## Why it matters
    A generator, a file or a `map` that is made once in `__init__` is used up after the first epoch. Those that
    follow have no batch and raise no error: training ends at once, or the loop divides by zero batches.

    ## Seen as
    wrong results, dies

    ## How we know
    Both readings are in one process, as with num_workers=0. One whose `iter` gives the same iterator again and
    again is read on for a few seconds where the first reading did not come to its end; what is longer is not
    judged. Workers that start anew with each epoch have a copy that nobody has read: then this is a note.

    ## Fix
    - **you** make the iterator in `__iter__`, from what `__init__` was given; or keep a list.

    ## Source
    PyTorch, torch.utils.data.IterableDataset; Python, Glossary, iterator; pytorch/text#1282.
    """
    judged = False
    for report in cluster.measurements.data:
        sharding = report.sharding
        if sharding is None or (sharding.stream is None and sharding.order is None):
            continue
        judged = True
        if sharding.stream is not None and sharding.stream.dry is not None:
            yield _stream(report, sharding, sharding.stream.dry)
        elif sharding.order is not None and sharding.order.dry is not None:
            yield _sampler(report.node, sharding.order.dry)
        else:
            yield fine(Where(node=report.node), "the second epoch has samples")
    if not judged:
        raise NothingToJudge(why_not(cluster.measurements.data, "sharding"))


def _stream(report: DataReport, sharding: Sharding, dry: Dry) -> Finding:
    name = report.made.dataset.rpartition(".")[2] if report.made else "the stream"
    kept = f": {dry.source} is used up" if dry.source else ""
    anew = bool(sharding.stream and sharding.stream.workers) and not (report.streams and report.streams.persistent)
    text = f"{name} gives no sample in a second epoch{kept}"
    if anew:
        return note(
            Where(node=report.node),
            f"{text} with num_workers=0 or persistent_workers=True",
            why="The workers of this loader start anew with each epoch, each with a copy that nobody has read.",
            evidence=[seen("samples of the second reading in one process", "none")],
            fix=_fix(name, dry),
        )
    return fail(
        Where(node=report.node),
        text,
        why="Every epoch but the first has no batch, without an error: nothing more is learned.",
        owner="job",
        evidence=[
            seen("samples of the first reading", max(sharding.stream.items, default=0) if sharding.stream else 0),
            seen("samples of the second reading", "none"),
        ],
        fix=_fix(name, dry),
    )


def _fix(name: str, dry: Dry) -> list[Remedy]:
    if dry.function:
        caller = f"self.{dry.function}" if dry.method else dry.function
        given = [f"self.{argument}" for argument in dry.arguments]
        if not given:
            return [
                you(
                    f"Call {dry.function} in __iter__, for each epoch anew, and not in __init__.",
                    f"def __iter__(self):  # of {name}",
                    f"    return {caller}()",
                )
            ]
        keep = [f"    self.{argument} = {argument}" for argument in dry.arguments]
        return [
            you(
                f"Keep what {dry.function} is given in __init__, and call it in __iter__, for each epoch anew.",
                f"def __init__(self, {', '.join(dry.arguments)}):  # of {name}",
                "    super().__init__()",
                *keep,
                "def __iter__(self):",
                f"    return {caller}({', '.join(given)})",
            )
        ]
    if dry.source:
        attribute = dry.source.removeprefix("self.")
        return [
            you(
                f"Keep a list, which can be read again; or make the iterator in __iter__ of {name}.",
                f"{dry.source} = list({dry.source})  # last in __init__, where {attribute} fits into memory",
            )
        ]
    return [
        you(
            f"Let __iter__ of {name} begin anew, or let it be a generator of its own.",
            "def __iter__(self):",
            *(f"    self.{counter} = {value}" for counter, value in dry.counters.items()),
            "    return self",
        )
    ]


def _sampler(node: str, dry: Dry) -> Finding:
    return fail(
        Where(node=node),
        f"the loader's sampler, a {dry.source}, gives no index in a second epoch: it can be read once",
        why="Every epoch but the first has no batch, without an error: nothing more is learned.",
        owner="job",
        evidence=[seen("indices of the second epoch", "none")],
        fix=[
            you(
                "Give an object whose __iter__ begins anew: a list, or a class.",
                "DataLoader(dataset, batch_sampler=list(batches))  # sampler=list(indices)",
            )
        ],
    )
