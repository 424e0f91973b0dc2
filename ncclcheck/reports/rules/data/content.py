"""DAT002, DAT006, DAT007, DAT012 and DAT027: what samples contain, read by one process alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from shlex import quote

from ncclcheck.probes.facts import Cluster, value_or
from ncclcheck.probes.facts.data import Content, Made, Structure
from ncclcheck.probes.facts.data.content import Beyond, Fallback, LeafKind, NotFinite, UnreadableSample
from ncclcheck.reports.judgement.findings import (
    Finding,
    Remedy,
    State,
    Where,
    fail,
    fine,
    note,
    seen,
    unknown,
    warn,
    you,
)
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.data import examined, own_names

_DATA = ("data",)
_RARE = 0.05  # of samples: what is missing on purpose is so in more of them, a division by 0 is rare
_SOME = 0.5  # of the samples; a mask of -inf is in all of them: chosen
_COUNTERS = ("count", "counter", "calls", "reads", "step", "steps", "n", "i", "epoch")


@rule(
    "DAT002", "every index below len() can be read", worst=State.FAIL, over="", ground=("DAT028",), commands=_DATA
)
def readable(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Samples that raise, crash or hang whoever reads them, those that hold NaN or infinite values, and a `len()`
    that says too many or too few.

    ## Why it matters
    One such sample ends the job, hours after its start, on the rank that drew it. With a length that is too
    short some samples are never used, and nothing says so.

    ## Seen as
    wrong results, dies, setting without effect

    ## How we know
    The first, the middle, the last and random samples were read in a process that may die, then as many others
    as time allowed. Behind the end: where `dataset[len]` gives a sample and a later index raises, the true end
    is reported; a warning unless an attribute of the dataset holds that length, as one that is limited on
    purpose has. NaN in up to one in 20 of the samples read is a warning, and so are infinite values in up to half
    of them; in more, or where the file of the dataset's class asks for such values itself, they can be meant so: a
    note.

    ## Fix
    - **you** repair or leave out the samples named; make `__len__` the number that `__getitem__` serves.

    ## Source
    PyTorch, torch.utils.data, Map-style datasets; signal(7).
    """
    factories = {report.node: report.factory for report in cluster.measurements.data}
    for node, made, content in examined.contents(cluster):
        kinds = dict.fromkeys(
            (unreadable.kind, unreadable.error.partition(":")[0]) for unreadable in content.unreadable
        )
        if content.in_worker is not None and made.length:
            yield _cut_in_worker(node, made, made.length, content.in_worker, content)
            continue
        for kind, error in kinds:
            same = [
                unreadable
                for unreadable in content.unreadable
                if (unreadable.kind, unreadable.error.partition(":")[0]) == (kind, error)
            ]
            yield _unreadable(node, factories.get(node, ""), made, same, content)
        if content.beyond is not None:
            yield _beyond(node, made, content.beyond)
        for finite in content.not_finite:
            yield _not_finite(node, factories.get(node, ""), made, finite, content)
        if not content.unreadable and not content.not_finite and content.indices:
            yield fine(Where(node=node), f"{max(content.swept, content.indices)} samples can be read")


def _cut_in_worker(node: str, made: Made, length: int, rest: int, content: Content) -> Finding:
    first = content.unreadable[0]
    return fail(
        Where(node=node),
        f"worker_init_fn leaves each worker {rest} of the {length} samples of {own_names.owner(made)}, and the "
        f"sampler asks workers for all of them: index {first.index} raises {first.error}",
        why="DataLoader shares out indices among the workers itself, whichever worker an index comes to: what a "
        "worker cuts off raises, or gives another sample.",
        owner="job",
        evidence=[
            seen("len(dataset) before worker_init_fn, and in a worker after it", f"{length}, {rest}"),
            seen(f"dataset[{first.index}] in a worker", first.error),
        ],
        fix=[
            you(
                "Let worker_init_fn leave the dataset as it is: only an IterableDataset is cut by the worker.",
                "DataLoader(dataset)  # without worker_init_fn",
            )
        ],
    )


def _unreadable(node: str, factory: str, made: Made, same: list[UnreadableSample], content: Content) -> Finding:
    first = same[0]
    indices = ", ".join(str(unreadable.index) for unreadable in same[:6])
    count = content.unreadable_count if len(same) == len(content.unreadable) else len(same)
    what = (
        f"index {indices} cannot be read ({count} of {max(content.swept, content.indices, count)}): {first.error}"
    )
    last = (made.length or 0) - 1
    if first.error.startswith("IndexError") and any(unreadable.index == last >= 0 for unreadable in same):
        what = f"len() says {made.length}, but index {indices} is not there: {first.error}"
    return fail(
        Where(node=node),
        f"{what}{f' at {first.place}' if first.place else ''}",
        why="The epoch ends at this sample, on the rank that draws it, and the other ranks wait for it.",
        owner="job",
        evidence=[seen(f"dataset[{first.index}]", first.stacks[:1500] or first.error)],
        fix=[
            *_shorter(made, same, content),
            you("Read this sample alone, by hand.", _by_hand(factory, made, first.index)),
        ],
    )


def _shorter(made: Made, same: list[UnreadableSample], content: Content) -> list[Remedy]:
    """Where all samples were read, and those at the end alone are not there."""
    length, count = made.length or 0, content.unreadable_count
    ends = all(
        unreadable.error.startswith("IndexError") and unreadable.index >= length - count for unreadable in same
    )
    if not ends or len(same) != len(content.unreadable) or content.swept < length:
        return []
    text = own_names.longer(made.code.length if made.code else None, -count)
    return [_another_length(made, text)] if text else []


def _another_length(made: Made, text: str) -> Remedy:
    advice = f"Let __len__ of {own_names.owner(made)} count what __getitem__ serves."
    return you(advice, f"def __len__(self): return {text}") if text else you(advice)


def _not_finite(node: str, factory: str, made: Made, finite: NotFinite, content: Content) -> Finding:
    share = _RARE if finite.nan else _SOME
    rare = not finite.meant and finite.count <= share * content.swept
    indices = ", ".join(map(str, sorted(finite.examples)))
    what = "NaN" if finite.nan else "infinite values"
    part = f"part {finite.leaf} of " if finite.leaf else ""
    summary = f"{part}sample {indices} holds {what}: {finite.count} of the {content.swept} samples that were read"
    first = min(finite.examples, default=0)
    return (warn if rare else note)(
        Where(node=node, device=finite.leaf or None),
        summary,
        why="The loss of its batch is NaN, and with the next optimizer step every weight of every rank.",
        owner="job",
        evidence=[seen(f"dataset[{first}]", summary)],
        fix=[
            you(
                "Divide by nothing that can be 0 (a deviation, a count, a norm), and take no logarithm of it.",
                "x = (x - x.mean(0)) / (x.std(0) + 1e-6)",
            ),
            you("Read this sample alone, by hand.", _by_hand(factory, made, first)),
        ],
    )


def _by_hand(factory: str, made: Made, index: int) -> str:
    """One line for the shell: what the factory gives, and this sample of it."""
    module, _, name = factory.rpartition(":")
    dataset = {"loader": ".dataset", "tuple": "[0]"}.get(made.given, "")
    if made.given == "module" or not name:
        return f"print(dataset[{index}])  # dataset: that of train_dataloader()"
    file = module.endswith(".py")
    given = f'runpy.run_path("{module}")["{name}"]' if file else f"{module}.{name}"
    code = f"import {'runpy' if file else module}; print({given}(){dataset}[{index}])"
    return f"python -c {quote(code)}"


def _beyond(node: str, made: Made, beyond: Beyond) -> Finding:
    text = f"len() says {beyond.length}, but samples up to index {beyond.end - 1} can be read"
    if beyond.told:
        return note(Where(node=node), text)
    return warn(
        Where(node=node),
        text,
        why=f"{beyond.end - beyond.length} samples are never seen in training.",
        owner="job",
        evidence=[seen(f"dataset[{beyond.end - 1}]", "gives a sample"), seen(f"dataset[{beyond.end}]", "raises")],
        fix=[_another_length(made, f"len({beyond.holder})" if beyond.holder else _longer(made, beyond))],
    )


def _longer(made: Made, beyond: Beyond) -> str:
    return own_names.longer(made.code.length if made.code else None, beyond.end - beyond.length)


@rule("DAT006", "a sample's content does not depend on earlier reads", worst=State.FAIL, commands=_DATA)
def hidden_state(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Samples that change when they are read in another order, or a second time.

    ## Why it matters
    Counters, curricula and in-place changes in `__getitem__` live in each worker's own copy: their values depend
    on the number of workers, and are lost when an epoch ends. Results cannot be repeated.

    ## Seen as
    wrong results

    ## How we know
    The same samples, every generator seeded by index, forwards and backwards in fresh processes, and twice in
    one. The dataset's own generators are put back before each read, so that they do not count here (DAT009
    judges them); one inside a C extension cannot be, and cannot be distinguished from hidden state. Caches
    that give equal content pass. Reading a stream again is not compared. Where a part of the sample is random
    anyway, and reading changed nothing that the dataset held before, it mixes in samples that were read
    earlier, as mosaic from a buffer does: that is meant so, and a note.

    ## Fix
    - **you** compute from the index and an epoch that is set from outside; copy before changing in place.

    ## Source
    PyTorch, torch.utils.data, Multi-process data loading: each worker has a copy of the dataset.
    """
    for node, made, content in examined.samples(cluster):
        hidden = [leaf for leaf in content.leaves if leaf.kind == "hidden" or leaf.reread]
        if hidden and not content.altered and {leaf.leaf for leaf in hidden} <= _random(cluster, node):
            yield _mixed(node, hidden)
        elif hidden:
            yield _hidden(node, made, content, hidden)
        else:
            yield _whole(node, content, f"{content.indices} samples are the same in every order")


def _random(cluster: Cluster, node: str) -> set[str]:
    """Leaves that a random generator changes."""
    streams = [report.streams for report in cluster.measurements.data if report.node == node and report.streams]
    return {
        leaf for stream in streams for dependence in value_or(stream.depends, []) for leaf in dependence.leaves
    }


def _mixed(node: str, leaves: list[LeafKind]) -> Finding:
    first = leaves[0]
    return note(
        Where(node=node, device=first.leaf or None),
        f"a random sample is mixed with what its worker read before it: {_values(first)}",
        why="Meant so by mosaic and mixup from a buffer; runs are alike only with as many workers in one order.",
        owner="job",
        evidence=[seen("what the dataset held before its first read", "not changed by reading")],
    )


def _whole(node: str, content: Content, text: str) -> Finding:
    """`text`, where there was time for all orders."""
    if content.complete:
        return fine(Where(node=node), text)
    return unknown(
        Where(node=node),
        f"there was no time to read {content.indices} samples in every order",
        why="What was not compared is unknown.",
        owner="job",
        evidence=[seen("seconds of a read", f"{content.read_s:.2g}")],
        fix=[you("Give it more time.", "ncclcheck data MODULE:FACTORY --time-budget 300")],
    )


def _hidden(node: str, made: Made, content: Content, leaves: list[LeafKind]) -> Finding:
    first = leaves[0]
    how = "read a second time in one process" if first.reread else "read in another order"
    shared = [seen("memory shared by all workers, changed by reading", path) for path in content.shared[:3]]
    shared += [seen("held by the dataset, changed by reading", path) for path in content.altered]
    return fail(
        Where(node=node, device=first.leaf or None),
        f"{first.differing} of {first.of} samples change when they are {how}: {_values(first)}",
        why="What a worker reads depends on what it read before: on workers, ranks and the order of the epoch.",
        owner="job",
        evidence=[seen("parts of a sample", ", ".join(leaf.leaf or "all" for leaf in leaves[:6])), *shared],
        fix=_without_change(made, content.altered),
    )


def _without_change(made: Made, altered: list[str]) -> list[Remedy]:
    """With the name of what reading changed: a record in a list is copied, a counter is replaced."""
    name = next((path for path in altered if path.startswith("self.")), "")
    index, place = own_names.index(made), f"in {own_names.owner(made)}.__getitem__"
    record = re.sub(r"\[\d+\].*", f"[{index}]", name) if re.search(r"\[\d+\]", name) else ""
    record = record or (f"{name}[{index}]" if name else own_names.read(made))
    what = "Change a copy of what the dataset holds, not the thing itself."
    if lines := own_names.rewritten(made, "changed"):
        return [you(what, *lines)]
    copied = you(what, f"value = copy.deepcopy({record})  # {place}: change value alone") if record else you(what)
    if not name:
        return [copied]
    counted = you(
        f"Compute it from the index and from an epoch that the training loop sets, without {name}.",
        "def set_epoch(self, epoch): self.epoch = epoch  # dataset.set_epoch(epoch) before each epoch",
    )
    return [copied] if "[" in name else [counted] if name.endswith(_COUNTERS) else [copied, counted]


def _values(leaf: LeafKind) -> str:
    if leaf.example is None:
        return "they differ"
    of_leaf = f", part {leaf.leaf}," if leaf.leaf else ""
    return (
        f"sample {leaf.example.index}{of_leaf} is {leaf.example.first} once and {leaf.example.second} another time"
    )


@rule("DAT007", "a returned sample is not overwritten later", worst=State.FAIL, commands=_DATA)
def overwritten(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Samples, and batches of a collate function of your own, that change while their reader still uses them.

    ## Why it matters
    `self.buffer.fill_(x); return self.buffer` gives the same memory for every sample. A batch is collated after
    all of its samples were read: it holds the last one, several times.

    ## Seen as
    hangs, wrong results

    ## How we know
    Six samples were read and kept; when all were read, the bytes of the first ones were compared with what they
    had been. Where the loader takes
    one sample at a time (`batch_size` 1 or None) it is a warning. A batch of a collate function is kept while the
    next one is made; a warning where the loader has no workers, since the step is done with it by then.

    ## Fix
    - **you** return a copy: `return self.buffer.clone()`.
    - **you** in a collate function make a new tensor for each batch: `torch.stack(...)`.

    ## Source
    PyTorch, torch.utils.data, Working with collate_fn.
    """
    structures = {report.node: report.structure for report in cluster.measurements.data if report.structure}
    for node, made, content in examined.samples(cluster):
        structure = structures.get(node)
        if not content.overwritten and structure is not None and structure.overwritten:
            yield _batch_overwritten(node, made, structure)
            continue
        if not content.overwritten:
            yield fine(Where(node=node), "samples stay what they were")
            continue
        first, *_ = examples = content.overwritten[:4]
        make = warn if made.options.get("batch_size") in ("None", "1") else fail
        yield make(
            Where(node=node, device=first.leaf or None),
            f"sample {first.index} was {first.before} when returned, and {first.after} after others were read",
            why="All samples of a batch share one buffer, and the batch holds the last one several times.",
            owner="job",
            evidence=[
                seen(f"index {example.index}", f"{example.before}, then {example.after}") for example in examples
            ],
            fix=[
                you(
                    f"Return a copy, in {own_names.owner(made)}.__getitem__.",
                    *own_names.returned(made.code.item if made.code else None, "copy.deepcopy({})"),
                )
            ],
        )


def _batch_overwritten(node: str, made: Made, structure: Structure) -> Finding:
    names = ", ".join(structure.overwritten[:4])
    return (warn if made.options.get("num_workers") == "0" else fail)(
        Where(node=node, device=structure.overwritten[0]),
        f"part {names} of a batch changes when {structure.collate} makes the next one",
        why="It fills the same memory each time. A worker's batch is shared with the training process, where the "
        "next one overwrites it while it waits or is in use: data of one batch under labels of another.",
        owner="job",
        evidence=[
            seen(f"two batches of {structure.collate}, the first one kept", f"{names} of the first changed")
        ],
        fix=[
            you(
                f"Make new tensors for each batch in {structure.collate}, or return a copy.",
                *own_names.returned(made.code.collate if made.code else None, "copy.deepcopy({})"),
            )
        ],
    )


@rule("DAT012", "random samples are reproducible from the seed", worst=State.UNKNOWN, commands=_DATA)
def uncontrolled(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Parts of a sample that differ between two processes that start equal, under the same seeds and in the same
    order.

    ## Why it matters
    Clocks, process ids, `os.urandom`, `uuid4` and generators that are seeded by them cannot be repeated: neither
    can a run be. It is legitimate for a timestamp; for all of a sample it hides every race, so none is judged.

    ## Seen as
    wrong results

    ## How we know
    Two processes forked from one parent read the same samples after the same seeds, and the content differs. The
    calls named were seen below your code while it was read. A note, where other parts of the sample can be judged.

    ## Fix
    - **you** seed generators from `torch.initial_seed()` or from (seed, epoch, index), not from the system.

    ## Source
    random(4); PyTorch, Reproducibility; NumPy, SeedSequence.
    """
    for node, made, content in examined.samples(cluster):
        loose = [leaf for leaf in content.leaves if leaf.kind == "uncontrolled" and leaf.leaf not in content.raced]
        if not loose:
            yield _whole(node, content, "equal processes read equal samples under the same seeds")
            continue
        text = f"{_parts(loose)} changes under the same seeds{_calls(content)}: {_values(loose[0])}"
        clock = bool(content.entropy) and all(call.startswith("time.") for call in content.entropy)
        judged = [
            leaf for leaf in content.leaves if leaf not in loose and not leaf.reread and leaf.kind != "hidden"
        ]
        few = 2 * sum(leaf.bytes for leaf in loose) < sum(leaf.bytes for leaf in content.leaves)
        if few or (clock and judged):
            yield note(Where(node=node), text)
        else:
            yield _uncontrolled(node, made, content, loose, text)


def _parts(leaves: list[LeafKind]) -> str:
    """`part t of the samples`."""
    names = ", ".join(leaf.leaf for leaf in leaves[:6] if leaf.leaf)
    return f"part {names} of the samples" if names else "the sample"


def _calls(content: Content) -> str:
    return f" ({', '.join(content.entropy)})" if content.entropy else ""


def _uncontrolled(node: str, made: Made, content: Content, loose: list[LeafKind], text: str) -> Finding:
    web = "webdataset" in made.dataset or made.dataset.startswith("wids.")
    fix = you(
        "Give it a generator that each worker seeds; seeded in __init__ it would be the same in all workers.",
        "def seed_worker(worker_id):",
        "    info = torch.utils.data.get_worker_info()",
        "    info.dataset.rng = numpy.random.default_rng(info.seed)  # draw from self.rng in __getitem__",
        "DataLoader(dataset, worker_init_fn=seed_worker)",
    )
    clock = any(call.startswith("time.") for call in content.entropy)
    if lines := own_names.rewritten(made, "entropy", lambda call: call.startswith("time.") == clock):
        fix = you(
            "Seed it from what DataLoader seeds in each worker: torch.manual_seed() repeats a run then.",
            *lines,
        )
    if web:
        fix = you(
            "webdataset seeds its shuffle by process id and time, on purpose. To have the rest judged, examine "
            "the pipeline once without it.",
            "wds.WebDataset(urls, shardshuffle=False)  # and without .shuffle(...)",
        )
    return unknown(
        Where(node=node),
        f"{text}; whether workers disturb each other cannot be judged",
        why="A sample that changes by itself cannot be distinguished from one that another worker changed.",
        owner="job",
        evidence=[seen("two equal processes", _values(leaf)) for leaf in loose[:3]],
        fix=[fix],
    )


@rule("DAT027", "a read error is not hidden behind another sample", worst=State.WARN, commands=_DATA)
def fallback(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Samples whose reading fails inside, and that are silently replaced by another sample.

    ## Why it matters
    `except Exception: return self[random.randrange(len(self))]` trains on: after a quota is full or a mount is
    gone, on the same few samples, and no log says so.

    ## Seen as
    wrong results, out of memory, setting without effect

    ## How we know
    While samples were read, errors raised and caught in your code were recorded, and reads in which `__getitem__`
    calls itself. Where that happens to a minority of the samples, and their content is that of another index, or
    changes with the seed while that of others does not, it is named; and so are samples that are None then, or
    all hold the same (zeros). Mixing samples on purpose passes.

    ## Fix
    - **you** count and log replaced samples, and raise once they are more than a few.

    ## Source
    PyTorch, torch.utils.data, Map-style datasets.
    """
    swept = [(node, made, content) for node, made, content in examined.samples(cluster) if content.swept]
    if not swept:
        raise NothingToJudge("samples of a stream have no index")
    for node, made, content in swept:
        if content.dropped_first is not None:
            yield _dropped(node, content, content.dropped_first)
        if not content.fallbacks and content.dropped_first is None:
            yield fine(Where(node=node), f"{content.swept} samples are their own")
        if not content.fallbacks:
            continue
        first = content.fallbacks[0]
        other = "a random sample" if first.of_index is None else f"the content of index {first.of_index}"
        if first.placeholder:
            other = f"the same placeholder as index {first.of_index}"
        yield warn(
            Where(node=node),
            f"index {first.index} gives {other} {_after(first)} ({first.place})",
            why="Training silently continues with fewer samples than it seems.",
            owner="job",
            evidence=[
                seen(f"index {fault.index}", f"{_after(fault)}, {fault.place}") for fault in content.fallbacks[:4]
            ],
            fix=[
                you(
                    "Raise there, and leave samples that are known to be broken out of the index that "
                    f"{own_names.owner(made)}.__init__ makes.",
                    f'raise RuntimeError(f"sample {{index}} cannot be read")  # {first.place}, not another sample',
                )
            ],
        )


def _dropped(node: str, content: Content, first: Fallback) -> Finding:
    summary = f"{content.dropped} of {content.swept} samples that were read are None after an error was swallowed"
    return warn(
        Where(node=node),
        f"{summary}, such as index {first.index}: {first.error} ({first.place})",
        why="They are never trained on, batches are smaller than they seem, and no log says so.",
        owner="job",
        evidence=[seen(f"dataset[{first.index}]", f"None, after {first.error}, {first.place}")],
        fix=[
            you(
                "Repair what raises there; leave samples that are known to be broken out of the index.",
                f"raise  # {first.place}, not None",
            )
        ],
    )


def _after(fault: Fallback) -> str:
    return f"after {fault.error} was swallowed" if fault.error else "by reading that one itself"
