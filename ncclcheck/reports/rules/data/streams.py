"""DAT009, DAT010 and DAT013: whether workers and epochs have random numbers of their own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TypeVar

from ncclcheck.probes.facts import Cluster, Unread, known
from ncclcheck.probes.facts.data import Streams
from ncclcheck.probes.facts.data.streams import Frozen, MadeAlike, NewEpoch, Repeated, ReseededGenerator, Shared
from ncclcheck.reports.judgement.findings import (
    Evidence,
    Finding,
    Remedy,
    State,
    Where,
    fail,
    fine,
    note,
    seen,
    warn,
    you,
)
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.data.streamed import (
    dependence,
    epochs,
    leaf_of,
    moved,
    numbers,
    private_made,
    streams,
)
from ncclcheck.reports.text.words.fold import many

_DATA = ("data",)
# samples that kept what they were in epoch 0; one label of ten is alike by chance in one case of ten; chosen
_LEAST_STALE = 3
G = TypeVar("G", bound=Shared | Repeated)
_GLOBAL = {
    "python": "random.seed(torch.initial_seed())",
    "numpy": "numpy.random.seed(torch.initial_seed() % 2**32)",
    "torch": "pass  # DataLoader has seeded torch for this worker",
}


@rule("DAT009", "workers use independent random streams", worst=State.FAIL, commands=_DATA)
def shared(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    The state of each random generator that your samples depend on, in each worker of a real DataLoader.

    ## Why it matters
    Workers are copies of the process that makes the loader, with copies of its generators. DataLoader gives each
    worker seeds of its own for python's, numpy's and torch's global generators, and for no other. A generator that
    the dataset holds, or one that `worker_init_fn` seeds with a constant, gives all workers the same numbers: the
    same crops, flips and noise, as many times as there are workers.

    ## Seen as
    wrong results

    ## How we know
    A generator matters where a sample, read in a fresh process with everything else unchanged, changes with the
    state of this generator. Of those the states after each worker's first samples are compared:
    equal states are equal streams. In an IterableDataset a generator that only decides the order does not count.

    ## Fix
    - **you** seed private generators from `get_worker_info().seed` in worker_init_fn.
    - **you** or make them for each sample: `numpy.random.default_rng([seed, epoch, index])`.

    ## Source
    PyTorch, Reproducibility, DataLoader; PyTorch, torch.utils.data, Randomness in multi-process data loading;
    pytorch/pytorch#5059.
    """
    for node, loading in epochs(cluster, 1):
        states = known(loading.shared)
        yield from (_shared(node, loading, *alike) for alike in _by_owner(states))
        if not states:
            yield fine(Where(node=node), _sound(loading, "workers"))


def _sound(loading: Streams, what: str) -> str:
    names = [dependency.generator for dependency in known(loading.depends) if not dependency.order]
    if not names:
        return "no sample depends on a random generator"
    return f"{what} have streams of their own: {', '.join(names)}"


def _by_owner(generators: Sequence[G]) -> list[list[G]]:
    """Generators of one object, such as the transforms of one Compose, in the same workers: one finding."""
    groups: dict[tuple[object, ...], list[G]] = {}
    for generator in generators:
        groups.setdefault((_owner(generator.generator), *generator.workers), []).append(generator)
    return [*groups.values()]


def _owner(generator: str) -> str:
    """`self.transform` of `self.transform.transforms[0].py_random`; a global generator is its own."""
    match = re.match(r"\w+\.\w+", generator)
    return match[0] if match else generator


def _named(first: Shared | Repeated, others: Sequence[object]) -> str:
    return first.generator + (f" (and {len(others)} more in {_owner(first.generator)})" if others else "")


def _shared(node: str, loading: Streams, first: Shared, *others: Shared) -> Finding:
    dependency = dependence(loading, first.generator)
    at = f"workers {numbers(first.workers)}"
    what = "give the same samples" if first.samples else "draw the same random numbers"
    return (warn if loading.asked in (0, 1) else fail)(
        Where(node=node),
        f"{at} {what}: {_named(first, others)} is in the same state in each ({leaf_of(dependency)} depends on it)",
        why="The augmentation is the same in all workers: fewer different samples than it seems."
        + (" It begins once num_workers is 2 or more." if loading.asked in (0, 1) else ""),
        owner="job",
        evidence=[
            seen(f"state after samples {', '.join(first.indices[:8])} of {at}", first.state),
            *moved(dependency),
        ],
        fix=[_own_stream(loading, first, others)],
    )


def _own_stream(loading: Streams, first: Shared | Repeated, others: Sequence[Shared | Repeated]) -> Remedy:
    dependency = dependence(loading, first.generator)
    if not dependency.private:
        return you(
            "Seed from what DataLoader gives each worker, not from a constant; or leave worker_init_fn out.",
            "def seed_worker(worker_id):",
            f"    {_GLOBAL.get(dependency.generator, _GLOBAL['torch'])}",
            "DataLoader(dataset, worker_init_fn=seed_worker)",
        )
    if lines := _of_albumentations(dependency.generator):
        return you("Seed albumentations in each worker: its transforms draw from generators of their own.", *lines)
    paths = [first.generator, *(other.generator for other in others)]
    return you(
        f"Give each worker {'generators' if others else 'a generator'} of its own.",
        "def seed_worker(worker_id):",
        "    info = torch.utils.data.get_worker_info()",
        *(f"    {_in_worker(path)} = {private_made(dependence(loading, path), 'info.seed')}" for path in paths),
        "DataLoader(dataset, worker_init_fn=seed_worker)",
    )


def _of_albumentations(path: str) -> list[str]:
    """Where a Compose of the dataset holds the generator: one call seeds all of its transforms."""
    match = re.fullmatch(r"(self\.\w+)(?:\.transforms\[.*)?\.(?:py_random|random_generator)", path)
    if match is None:
        return []
    return [
        "def seed_worker(worker_id):",
        "    info = torch.utils.data.get_worker_info()",
        f"    {_in_worker(match[1])}.set_random_seed(info.seed % 2**32)",
        "DataLoader(dataset, worker_init_fn=seed_worker)",
    ]


def _in_worker(path: str) -> str:
    """`info.dataset.rng`, of `self.rng`."""
    return path.replace("self.", "info.dataset.", 1) if path.startswith("self.") else path


@rule("DAT010", "each epoch uses a new random stream", worst=State.FAIL, commands=_DATA)
def repeated(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    Whether the second epoch over the same loader draws other random numbers than the first; whether samples seed
    the global generators; whether a cache keeps what was drawn.

    ## Why it matters
    Augmentation that is the same in every epoch is a larger dataset once, and then none. Nothing fails; the
    validation loss shows it weeks later. A dataset that seeds a global generator also does so in the training
    process where `num_workers=0`: dropout then draws the same masks at every step.

    ## Seen as
    wrong results

    ## How we know
    States of the generators that samples depend on, after the first samples of each worker, in two epochs over one
    loader. Seeded within: after a read the global generator is in the same state from whichever it was in before.
    Frozen: two processes with two seeds read two values, and one process that reads twice, under these seeds,
    keeps the first. A generator that a line of yours makes anew for each sample (or batch) with the same seed is a
    warning. `torch.random.fork_rng` restores the state and passes; so does `default_rng([seed, index])`.

    ## Fix
    - **you** in worker_init_fn use `torch.initial_seed()`, never a constant and never only the worker's id.
    - **you** cache what was decoded, and augment what comes out of the cache.
    - **you** in a dataset use a `torch.Generator` of its own instead of `torch.manual_seed`.

    ## Source
    PyTorch, Reproducibility, DataLoader; Lightning-AI/pytorch-lightning#20412; pytorch/pytorch#5059.
    """
    for node, loading in epochs(cluster, 2):
        again, seeded, kept = known(loading.repeated), loading.reseeded, loading.frozen
        yield from (_repeated(node, loading, *alike) for alike in _by_owner(again))
        yield from (_reseeded(node, reseeded) for reseeded in seeded)
        yield from (_frozen(node, loading, frozen) for frozen in kept)
        yield from (_made_alike(node, made) for made in loading.made_alike)
        if not (again or seeded or kept or loading.made_alike):
            yield fine(Where(node=node), _sound(loading, "epochs"))


def _repeated(node: str, loading: Streams, first: Repeated, *others: Repeated) -> Finding:
    dependency = dependence(loading, first.generator)
    at = f"worker{'s' if len(first.workers) > 1 else ''} {numbers(first.workers)}"
    return (warn if loading.asked == 0 else fail)(
        Where(node=node),
        f"the second epoch draws the random numbers of the first: {_named(first, others)} is in the same state in "
        f"{at} ({leaf_of(dependency)} depends on it)",
        why="Every epoch sees the same augmentation: it adds nothing after the first."
        + (" It begins once there are workers." if loading.asked == 0 else ""),
        owner="job",
        evidence=[seen(f"state of {first.generator} in epochs 0 and 1", first.state), *moved(dependency)],
        fix=[_own_stream(loading, first, others)],
    )


def _reseeded(node: str, reseeded: ReseededGenerator) -> Finding:
    name = "a constant" if reseeded.constant else "the index"
    how = "with the same number each time" if reseeded.constant else f"by the sample ({name} or the like)"
    return (fail if reseeded.constant else warn)(
        Where(node=node),
        f"reading a sample seeds the global generator of {reseeded.generator}, {how}",
        why="Each read sets all randomness back: that of the next samples, and without workers the model's too.",
        owner="job",
        evidence=[
            seen(
                f"state of {reseeded.generator} after sample {reseeded.index}",
                f"the same from two different states before, at {reseeded.count} of {reseeded.of} samples",
            )
        ],
        fix=[you("Draw from a generator of your own.", *_OWN.get(reseeded.generator, _OWN["torch"]))],
    )


def _made_alike(node: str, made: MadeAlike) -> Finding:
    each = "batch" if made.batch else "sample"
    return warn(
        Where(node=node),
        f"each {each} begins a random generator with seed {made.seed} anew: {made.call} at {made.place}",
        why=f"What is drawn is the same for every {each}, in every epoch, on every rank; right only for a fixed "
        "pattern, which is better made once.",
        owner="job",
        evidence=[seen(f"seed of {made.call} at {made.place}", f"{made.seed} for {made.count} of them")],
        fix=[
            you(
                "Seed it from torch's generator, which DataLoader seeds anew for each worker and epoch.",
                f"rng = {made.call}(int(torch.randint(2**31, ())))  # {made.place}",
            )
        ],
    )


_OWN = {
    "python": ["rng = random.Random(seed + index)", "x = rng.random()"],
    "numpy": ["rng = numpy.random.default_rng([seed, index])", "x = rng.normal()"],
    "torch": ["rng = torch.Generator().manual_seed(seed + index)", "x = torch.randn(3, generator=rng)"],
}


def _frozen(node: str, loading: Streams, frozen: Frozen) -> Finding:
    short = bool(loading.asked) and not loading.persistent
    leaf = f"part {frozen.leaf} of a sample" if frozen.leaf else "the sample"
    return (warn if short else fail)(
        Where(node=node),
        f"{leaf} is random, but sample {frozen.index} has the same value whenever it is read again",
        why="A cache keeps the augmented sample: every further epoch sees it again."
        + (" Workers that end with the epoch lose the cache: then it only costs memory." if short else ""),
        owner="job",
        evidence=[
            seen(f"sample {frozen.index}, first and again", frozen.value),
            seen("the same in a fresh process with the second seed", frozen.other),
            seen("samples of which that is so", f"{frozen.count} of {frozen.of}"),
        ],
        fix=[
            you(
                "Cache what is read, not what is drawn.",
                "@functools.lru_cache(None)",
                "def load(index): return read(index)",
                "def __getitem__(self, index): return augment(load(index))",
            )
        ],
    )


@rule("DAT013", "persistent workers see the new epoch", worst=State.FAIL, commands=_DATA)
def new_epoch(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    With `persistent_workers=True`: whether workers see the epoch that was set in the dataset.

    ## Why it matters
    `dataset.set_epoch(1)` changes the copy of the process that trains. Workers that live on keep theirs, with
    epoch 0: the order, the curriculum or the augmentation of the first epoch comes back in every epoch.

    ## Seen as
    wrong results

    ## How we know
    Samples that differ between epoch 0 and epoch 1, when the one or the other is set in a process before it
    reads; and the same samples, under the same seeds, as persistent workers read them in their second epoch after
    `set_epoch(1)`, or after the attribute `epoch` was set. Fewer than three such samples may be alike by chance: a
    note.

    ## Fix
    - **you** keep the epoch in shared memory: a property over `torch.zeros((), dtype=torch.long).share_memory_()`.
    - **you** or persistent_workers=False: workers that start anew get the dataset as it is.

    ## Source
    PyTorch, torch.utils.data.DataLoader, persistent_workers; huggingface/datasets#6673, pytorch/pytorch#97326.
    """
    judged = [(node, loading.new_epoch) for node, loading in streams(cluster)]
    unread = [fact for _, fact in judged if isinstance(fact, Unread)]
    if len(unread) == len(judged):
        raise NothingToJudge(unread[0].why)
    for node, epoches in judged:
        for epoch in [] if isinstance(epoches, Unread) else epoches:
            yield _stale(node, epoch) if epoch.count else fine(Where(node=node), f"workers see {epoch.told}")


def _stale(node: str, epoch: NewEpoch) -> Finding:
    if epoch.count < _LEAST_STALE:
        return note(
            Where(node=node),
            f"{many(epoch.count, 'sample')} of {epoch.of} kept that of epoch 0 after {epoch.told}: by chance?",
            evidence=_values(epoch),
        )
    leaf = f", part {epoch.leaf}," if epoch.leaf else ""
    return fail(
        Where(node=node),
        f"persistent workers do not see {epoch.told}: sample {epoch.index}{leaf} is still that of epoch 0",
        why="Each epoch repeats the first one's order, curriculum or augmentation.",
        owner="job",
        evidence=_values(epoch),
        fix=[
            you(
                "Keep the epoch where workers see it change.",
                *_epoch_in_shared_memory(epoch),
            ),
            you("Or let workers start anew with each epoch.", "persistent_workers=False"),
        ],
    )


def _epoch_in_shared_memory(epoch: NewEpoch) -> list[str]:
    """A property for the attribute that is set; the rest of the class stays as it is."""
    match = re.match(r"(\w+) = ", epoch.told)
    name = match[1] if match else "epoch"
    return [
        f"self._{name} = torch.zeros((), dtype=torch.long).share_memory_()  # the first line of __init__",
        "@property",
        f"def {name}(self): return int(self._{name})",
        f"@{name}.setter",
        f"def {name}(self, value): self._{name}.fill_(value)",
    ]


def _values(epoch: NewEpoch) -> list[Evidence]:
    return [
        seen(f"sample {epoch.index} in epoch 0", epoch.old),
        seen(f"sample {epoch.index} after {epoch.told}", epoch.new),
        seen("what the worker read after it", epoch.got),
        seen("samples that kept the old value", f"{epoch.count} of {epoch.of}"),
    ]
