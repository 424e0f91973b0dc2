"""SCR023 to SCR025, SCR027: models and samplers that are built for all ranks are used by all ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ncclcheck.probes.facts.script import Call, Script
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, fail, note, warn, you
from ncclcheck.reports.subjects.script.scripts import (
    DDP,
    LOADER,
    SAMPLER,
    SHARDED,
    by_rank,
    edited,
    given_to,
    here,
    in_function,
    line_of,
    of_many_ranks,
    on_all_ranks,
    reached,
    says,
    script_rule,
    spelled_out,
    splits_model,
    sure,
    with_argument,
    written,
)
from ncclcheck.reports.subjects.script.sides import numbers
from ncclcheck.reports.subjects.script.traced import made_at, tags, training_loaders

_WITH_BUFFERS = (
    "register_buffer", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm", "convert_sync_batchnorm",
    "resnet18", "resnet34", "resnet50", "resnet101", "mobilenet_v2",
)  # fmt: skip
_NO_GRADIENTS = ("torch.no_grad", "torch.inference_mode", "torch.set_grad_enabled", "torch.autograd.no_grad")
_DEEP = 3  # functions within functions that a model is handed on to
_BUILDS_DATA = re.compile(r"Dataset$|ImageFolder$|^torchvision\.datasets\.|load_dataset$")
_SPLITS = re.compile(r"permutation$|random_split$|train_test_split$|random\.shuffle$")
_ALL_CORES = re.compile(r"(?:[\w.]+\.)?cpu_count\(\)")
_TORCH_SEEDS = ("torch.manual_seed", "torch.random.manual_seed")
_SEEDS = (
    "manual_seed",
    "manual_seed_all",
    "seed_everything",
    "set_seed",
    "seed_all",
    "fix_seed",
    "setup_seed",
    "seed",
)


@script_rule("SCR023", "a model for all ranks is called by all ranks", worst=State.WARN)
def forward(script: Script) -> Iterator[Finding]:
    """
    ## What
    The forward pass of a model inside DistributedDataParallel under a condition on the rank, mostly an evaluation
    on rank 0.

    ## Why it matters
    With buffers, as BatchNorm has them, each forward pass broadcasts them from rank 0, in evaluation too: the
    calls of rank 0 are matched with later ones of the others, and the job hangs. With a backward pass it
    always hangs.

    ## Seen as
    hangs

    ## How we know
    The name that was given to DistributedDataParallel is called there, or handed to a function of the script that
    calls it by that name. It is a warning where the script speaks of BatchNorm, of register_buffer or of a
    ResNet, a note where no buffers are seen or the calls stand under `torch.no_grad()`, and nothing with
    broadcast_buffers=False. Without gradients one forward pass broadcasts, and the next training step of that rank
    does not: over NCCL the others take it then, unless they enter another collective first (read in
    DistributedDataParallel, not run over NCCL). Tried with torch 2.13 over gloo: with BatchNorm it hangs until the
    timeout, with Linear alone it goes on.

    ## Fix
    - **you** evaluate `model.module` on one rank, or evaluate on all ranks.

    ## Source
    PyTorch documentation, DistributedDataParallel, broadcast_buffers; pytorch/pytorch#30718.
    """
    seen: set[tuple[str, int]] = set()
    if any(call.name in DDP and call.arguments.get("broadcast_buffers") == "False" for call in script.calls):
        return
    for call in of_many_ranks(script):
        guard = by_rank(call)
        if (
            guard is None
            or guard.branch == "rest"
            or (call.file, guard.line) in seen
            or _other_branch(script, call)
        ):
            continue
        inner = next(
            (nested for name in call.shared if (nested := _forward(script, call.name, name, _DEEP))), None
        )
        if call.wrapped or inner:
            seen.add((call.file, guard.line))
            line, name = line_of(script, call.file, call.line), inner.name if inner else call.on
            old = f"{name}(" if call.wrapped else name
            new = line.replace(old, old.replace(name, f"{name}.module")) if line.count(old) == 1 else ""
            text = f"{name}, which all ranks share, is called by those ranks only for which {guard.text} holds"
            evidence = [written(script, call), *([written(script, inner)] if inner else [])]
            fix = [edited(script, "Call the model inside, .module.", call.file, {call.line: new} if new else None)]
            if says(script, *_WITH_BUFFERS) and _without_gradients(script, inner or call):
                text += "; in torch.no_grad it broadcasts its buffers, which the others take in a later step"
                yield note(here(call), text, evidence=evidence, fix=fix)
            elif says(script, *_WITH_BUFFERS):
                why = "A model with buffers broadcasts them in each forward pass: the job hangs."
                yield warn(here(call), text, why=why, owner="job", evidence=evidence, fix=fix)
            else:
                yield note(here(call), f"{text}; if it has buffers, it hangs", evidence=evidence, fix=fix)


def _forward(script: Script, function: str, model: str, deep: int) -> Call | None:
    """Where a function of the script calls the model that it is handed, under the same name."""
    for inner in in_function(script, function) if deep else []:
        if any(guard.kind == "rank" for guard in inner.guards):
            continue
        if inner.name == model and (inner.wrapped or not inner.on):
            return inner
        if model in inner.arguments.values() and (call := _forward(script, inner.name, model, deep - 1)):
            return call
    return None


def _without_gradients(script: Script, forward: Call) -> bool:
    """Whether its function asks for no gradients before it: then only the first forward pass broadcasts."""
    return any(
        call.name in _NO_GRADIENTS and call.line < forward.line for call in in_function(script, forward.function)
    )


def _other_branch(script: Script, call: Call) -> bool:
    mine = by_rank(call)
    others = [by_rank(call) for call in in_function(script, call.function) if call.wrapped]
    return any(guard and mine and (guard.line, guard.branch) != (mine.line, mine.branch) for guard in others)


@script_rule("SCR024", "the loader is given the sampler that was built", worst=State.WARN)
def used(script: Script) -> Iterator[Finding]:
    """
    ## What
    A DistributedSampler that nothing is given.

    ## Why it matters
    The loader goes through the whole dataset on every rank: an epoch takes as long as on one GPU.

    ## How we know
    Nothing in the file reads the variable that holds it, but for `set_epoch`. It is a note where another
    DistributedSampler of the same dataset is read. Scripts that split the model by
    pipeline or tensor parallelism are not judged: their ranks share samples.

    ## Fix
    - **you** `DataLoader(..., sampler=sampler)` in place of `shuffle=True`.

    ## Source
    PyTorch documentation, torch.utils.data.distributed.DistributedSampler.
    """
    calls = of_many_ranks(script)
    if splits_model(script):
        return
    for call in calls:
        unread = next((file.unread for file in script.files if file.name == call.file), [])
        if call.name in SAMPLER and call.target in unread and call.target.isidentifier():
            if other := _in_its_place(script, call, unread):
                text = f"no loader is given {call.target}; {other.target}, of the same data, is used"
                yield note(here(call), text, evidence=[written(script, call), written(script, other)])
                continue
            yield warn(
                here(call),
                f"no loader is given {call.target}",
                why="Every rank goes through the whole dataset.",
                owner="job",
                evidence=[written(script, call)],
                fix=[_given(script, call)],
            )


def _in_its_place(script: Script, sampler: Call, unread: list[str]) -> Call | None:
    """Another one that shares the same dataset out, and is read."""
    data = sampler.arguments.get("0", sampler.arguments.get("dataset", ""))
    return next(
        (
            other
            for other in in_function(script, sampler.function)
            if other.name in SAMPLER and other.target not in unread and other.target
            and other.arguments.get("0", other.arguments.get("dataset", "")) == data
        ),
        None,
    )  # fmt: skip


def _given(script: Script, sampler: Call) -> Remedy:
    text = f"Give the loader sampler={sampler.target}."
    for call in in_function(script, sampler.function):
        if call.name in LOADER and call.arguments.get("0") == sampler.arguments.get("0"):
            for at in range(call.first, call.last + 1):
                line = line_of(script, call.file, at)
                if line.count("shuffle=True") == 1:
                    new = line.replace("shuffle=True", f"sampler={sampler.target}")
                    return edited(script, text, call.file, {at: new})
    return edited(script, text, sampler.file, None)


@script_rule("SCR025", "all ranks cut the dataset in the same places", worst=State.FAIL)
def one_cut(script: Script) -> Iterator[Finding]:
    """
    ## What
    `DistributedSampler(seed=...)` with a seed that differs by rank; `random_split` on all ranks without any seed,
    or after `torch.manual_seed` of one that differs by rank.

    ## Why it matters
    Each rank draws its share from another order: some samples come several times, others never. With random_split
    one rank trains on what another one validates with, and the accuracy that is reported is too good.

    ## How we know
    A rank stands in the sampler's seed. Or random_split, reached by all ranks, is given no generator, and no file
    sets any seed, or a rank stands in all of torch's. Or a sampler is given what `random.shuffle` or numpy has
    put in order after a seed that differs by rank.

    ## Fix
    - **you** one seed for all ranks: `DistributedSampler(dataset, seed=0)`,
      `random_split(dataset, lengths, generator=torch.Generator().manual_seed(0))`.

    ## Source
    PyTorch documentation, torch.utils.data.distributed.DistributedSampler, seed; torch.utils.data.random_split.
    """
    split = [call for call in reached(script) if _SPLITS.search(call.name)]
    apart = [call for call in reached(script) if call.arguments.get("device_specific") == "True"]
    if split and apart and split[0].function == apart[0].function and apart[0].line < split[0].line:
        yield note(
            here(apart[0]),
            f"ranks draw other numbers from here on, and the samples are cut by them at {split[0].place}",
            evidence=[written(script, apart[0]), written(script, split[0])],
            fix=[you("Cut the samples by one seed for all ranks.")],
        )
    calls, everywhere = of_many_ranks(script), on_all_ranks(script)
    if ordered := _ordered(script):
        yield warn(
            here(ordered),
            "the sampler shares out samples that each rank has shuffled from a seed of its own",
            why="Ranks deal samples out from different orders: some come twice in an epoch, others never.",
            owner="job",
            evidence=[written(script, ordered)],
            fix=[you("Shuffle by one seed for all ranks, and add the rank to the seed after it.")],
        )
    for call in script.calls:
        if call.name.endswith(".manual_seed") and call.by_rank and re.search(r"Sampler\.__iter__$", call.function):
            yield warn(
                here(call),
                f"the sampler's order is drawn from a seed that differs by rank: {call.arguments.get('0', '')}",
                why="Each rank draws from another order: some samples come several times, others never.",
                owner="job",
                evidence=[written(script, call)],
                fix=[you("Draw one order from one seed on all ranks, and take the rank's part of it.")],
            )
    for call in calls:
        if call.name in SAMPLER and {"seed", "4"} & {*call.by_rank}:
            seed = call.arguments.get("seed", "")
            line = line_of(script, call.file, call.line)
            new = line.replace(f"seed={seed}", "seed=0") if line.count(f"seed={seed}") == 1 else ""
            yield fail(
                here(call),
                f"the sampler's seed differs by rank: {seed}",
                why="Each rank draws from another order: some samples come several times, others never.",
                owner="job",
                evidence=[written(script, call)],
                fix=[edited(script, "Give all ranks one seed.", call.file, {call.line: new} if new else None)],
            )
        random = call.name == "torch.utils.data.random_split" and not {"generator", "2", "*"} & {*call.arguments}
        unlike = _seeded_by_rank(calls) or _seeded_by_chance(script) if random else None
        if random and call.function in everywhere and sure(call) and (unlike or not says(script, *_SEEDS)):
            cause = f"the seed at {unlike.place} differs by rank" if unlike else "no seed is set"
            new = with_argument(
                line_of(script, call.file, call.line),
                "random_split(",
                "generator=torch.Generator().manual_seed(0)",
            )
            yield warn(
                here(call),
                f"every rank splits the dataset at other places: {cause}",
                why="One rank trains on what another one validates with.",
                owner="job",
                evidence=[written(script, call), *([written(script, unlike)] if unlike else [])],
                fix=[
                    edited(
                        script, "Give it a generator with one seed.", call.file, {call.line: new} if new else None
                    )
                ],
            )


def _ordered(script: Script) -> Call | None:
    """A sampler of all ranks that is given samples which each rank has shuffled in its own way."""
    return next(
        (
            call
            for call in script.trace
            if call.name in SAMPLER and "ordered" in tags(call, "0") | tags(call, "dataset")
        ),
        None,
    )


def _seeded_by_chance(script: Script) -> Call | None:
    """A seed of torch that each rank draws for itself, if there is no other."""
    seeds = [call for call in script.trace if call.name in _TORCH_SEEDS]
    return seeds[0] if seeds and all("chance" in tags(call, "0") for call in seeds) else None


def _seeded_by_rank(calls: list[Call]) -> Call | None:
    """Where torch is seeded, if a rank stands in each of its seeds."""
    seeding = None
    for seed in calls:
        if seed.name in _TORCH_SEEDS:
            ways = [seed] if seed.by_rank else [call for call in calls if call.name == seed.function]
            if not ways or not all(way.by_rank for way in ways):
                return None
            seeding = seeding or ways[0]
    return seeding


@script_rule("SCR027", "samples are loaded beside the training", worst=State.NOTE)
def workers(script: Script) -> Iterator[Finding]:
    """
    ## What
    The training DataLoader has no `num_workers`, or no `pin_memory`.

    ## Why it matters
    The process that drives the GPU reads and transforms all samples itself: the GPU waits for each batch. From
    memory that is not pinned each batch is copied twice, and the CPU waits for it.

    ## How we know
    The call has no `num_workers`, or that of an option whose default is 0 and which is not given; and its model is
    inside DistributedDataParallel on GPUs. Loaders for validation are not looked at, nor datasets in memory: a
    TensorDataset, or a class of the script whose `__getitem__` calls nothing. How long a sample takes is what
    `ncclcheck data` measures.

    ## Fix
    - **you** `num_workers=4, pin_memory=True`, and measure with `ncclcheck data`.

    ## Source
    PyTorch tutorial "Performance Tuning Guide", "Enable asynchronous data loading and augmentation".
    """
    for call in reached(script):
        if call.name.endswith("TrainingArguments"):
            pinned = call.arguments.get("dataloader_pin_memory") == "False"
            workers = call.arguments.get("dataloader_num_workers") == "0"
            if pinned or workers:
                text = (
                    "samples are copied to the GPU from memory that is not pinned"
                    if pinned
                    else ("the loader has no workers: the GPU waits while each batch is made")
                )
                yield note(here(call), text, evidence=[written(script, call)])
    calls = of_many_ranks(script)
    if not says(script, "cuda", "nccl") or not any(
        call.name in DDP or SHARDED.search(call.name) for call in calls
    ):
        return
    copied = [*_copied(script)]
    yield from copied or _not_pinned(script)
    for written_call in calls:
        call = spelled_out(script, written_call)
        given = {"num_workers", "5", "*"} & {*call.arguments}
        none = given_to(script, call, "num_workers", "5") == "0"
        if call.name not in LOADER or (given and not none):
            continue
        validates = any(
            word in f"{call.target} {call.arguments.get('0', '')}".lower() for word in ("val", "test", "eval")
        )
        if not validates and not _is_in_memory(script, call):
            new = with_argument(
                line_of(script, call.file, call.last), "DataLoader(", "num_workers=4, pin_memory=True"
            )
            if none:
                words = call.arguments.get("num_workers", call.arguments.get("5", "0"))
                how = "" if words == "0" else f" by default ({words})"
                text = f"the loader has no workers{how}: the GPU waits while each batch is made"
                yield note(here(call), text, evidence=[written(script, call)])
                return
            if "pin_memory" in call.arguments:
                new = with_argument(line_of(script, call.file, call.last), "DataLoader(", "num_workers=4")
            yield note(
                here(call),
                "the loader has no workers: the GPU waits while each batch is made",
                evidence=[written(script, call)],
                fix=[
                    edited(
                        script, "Give it some, and measure them with ncclcheck data.", call.file,
                        {call.last: new} if new and call.first == call.last else None,
                    )
                ],
            )  # fmt: skip
            return


def _not_pinned(script: Script) -> Iterator[Finding]:
    """A loader of the training whose batches are copied to a GPU from memory that may be swapped out."""
    for tag in training_loaders(script):
        made = made_at(script, tag)
        if made is None or made.name not in LOADER or "*" in made.arguments:
            continue
        given = made.arguments.get("pin_memory", made.arguments.get("6", "False"))
        if given != "False" and {*numbers(made, "pin_memory", "6")} != {"False"}:
            continue
        if "prepared" in tags(made, "0") or any(call.name.endswith("pin_memory") for call in script.calls):
            continue
        yield note(
            here(made),
            "the loader's batches are not in pinned memory: each copy to the GPU is made twice",
            evidence=[written(script, made)],
            fix=[you("Give the loader pin_memory=True.")],
        )
        return


def _copied(script: Script) -> Iterator[Finding]:
    """Batches that are to be copied beside the work from memory that is not pinned; as many workers as cores."""
    for call in script.trace:
        if call.name in LOADER and _ALL_CORES.fullmatch(call.arguments.get("num_workers", "")):
            text = f"each rank starts as many workers as the node has cores: {call.arguments['num_workers']}"
            yield note(here(call), text, evidence=[written(script, call)],
                       fix=[you("Divide the cores by the ranks of the node.")])  # fmt: skip
            break
    for call in script.trace:
        if call.name not in (".to", ".cuda") or call.arguments.get("non_blocking") != "True":
            continue
        for tag in sorted(tags(call, "on")):
            made = made_at(script, tag.removeprefix("from:")) if tag.startswith("from:loader@") else None
            if made and made.name in LOADER and not {"pin_memory", "6", "*"} & {*made.arguments}:
                text = "non_blocking=True copies as without: the loader's batches are not in pinned memory"
                yield note(here(made), text, evidence=[written(script, made), written(script, call)],
                           fix=[you("Give the loader pin_memory=True.")])  # fmt: skip
                return


def _is_in_memory(script: Script, loader: Call) -> bool:
    """Whether all that is seen of its dataset says that the samples are ready."""
    data = loader.arguments.get("0", loader.arguments.get("dataset", ""))
    ready = {f"{file.name}:{name}" for file in script.files for name in file.in_memory}
    built = [call.name for call in script.calls if call.target == data and not call.inner]
    classes = [name for name in built if name.endswith("Dataset") or ":" in name]
    if not built and data.isidentifier():  # handed on: what datasets does the script build at all?
        classes = [call.name for call in script.calls if call.name in ready or _BUILDS_DATA.search(call.name)]
    if classes:
        return all(name in ready or name.endswith(".TensorDataset") for name in classes)
    return bool(re.match(r"(?:[\w.]+\.)?TensorDataset\(", data))
