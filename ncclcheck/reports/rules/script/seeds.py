"""SCR029, SCR030: what ranks do alike that they should not: random numbers of a step, downloads."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ncclcheck.probes.facts.script import Call, Script
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, note, you
from ncclcheck.reports.subjects.script.changes import after, before, changed, dist, is_started
from ncclcheck.reports.subjects.script.scripts import (
    DDP,
    LOADER,
    here,
    imports,
    in_function,
    of_many_ranks,
    of_own_steps,
    on_all_ranks,
    reached,
    script_rule,
    sure,
    written,
)
from ncclcheck.reports.subjects.script.steps import shares_model
from ncclcheck.reports.subjects.script.traced import in_training, tags

_DRAWS = re.compile(r"torch\.(?:rand|randn|randint|bernoulli|normal)(?:_like)?$")
_SEEDS = re.compile(r"(?:^|[.:_])(?:manual_seed(?:_all)?|\w*seed\w*)$", re.IGNORECASE)
_TORCH_SEEDS = (
    "torch.manual_seed",
    "torch.random.manual_seed",
    "lightning.seed_everything",
    "transformers.set_seed",
)
_APART = re.compile(r"drop|init|sampl|eval|val|test|generate", re.IGNORECASE)  # not of a training step
_DATASETS = re.compile(r"^torch(?:vision|audio)\.datasets\.")
_UNLIKE = {"rank", "local", "byrank", "chance"}  # of a seed that differs by rank
_DEEP = 4  # functions within functions


@script_rule("SCR029", "ranks draw other random numbers in a step", worst=State.NOTE)
def alike(script: Script) -> Iterator[Finding]:
    """
    ## What
    One seed for torch on all ranks, and a step that draws noise, masks or time steps of a diffusion.

    ## Why it matters
    All ranks draw the same numbers: with 8 ranks each is used for 8 samples, and the batch has less noise than its
    size says.

    ## How we know
    `torch.manual_seed`, reached by all ranks, is given nothing that differs by rank, nor is any other seed; a
    function with a backward pass, or a `forward`, or what these call, calls `torch.rand`, `randn`, `randint` or
    the like without a generator. The model is shared by DistributedDataParallel or FSDP. Layers that drop
    something, and functions for sampling or validation, are not looked at.

    ## Fix
    - **you** `torch.manual_seed(seed + rank)` after the model was made; DistributedDataParallel sends rank 0's
      parameters to all in any case.

    ## Source
    PyTorch documentation, "Reproducibility"; torch.nn.parallel.DistributedDataParallel.
    """
    calls, everywhere = of_own_steps(script), on_all_ranks(script)
    if finding := _workers(script):
        yield finding
    seeds = [call for call in script.calls if _SEEDS.search(call.name)]
    same = next((call for call in calls if call.name in _TORCH_SEEDS and call.function in everywhere), None)
    unlike = [call for call in script.trace if _SEEDS.search(call.name) and _UNLIKE & tags(call, "0")]
    if same is None or unlike or any(call.by_rank for call in seeds) or not shares_model(script):
        return
    followed = [call for call in script.trace if _is_drawn(call) and in_training(script, call)]
    drawn = followed[0] if followed else next((call for call in _in_steps(script) if _is_drawn(call)), None)
    if drawn:
        yield note(
            here(drawn),
            f"all ranks draw the same numbers here: the seed at {same.place} is one for all",
            evidence=[written(script, drawn), written(script, same)],
            fix=[_unlike(script)],
        )


def _unlike(script: Script) -> Remedy:
    """After the model was wrapped, which gives all ranks rank 0's parameters."""
    text = "Add the rank to the seed once the model is made: torch.manual_seed(seed + rank)."
    wraps = [call for call in reached(script) if call.name in DDP]
    home = dist(script, wraps[0].file) if wraps else ""
    if len(wraps) != 1 or wraps[0].loops or not home or not imports(script, wraps[0].file, "torch"):
        return you(text)
    line = f"torch.manual_seed(torch.initial_seed() + {home}.get_rank())"
    return changed(script, text, wraps[0].file, after(script, wraps[0], line))


def _workers(script: Script) -> Finding | None:
    """A loader whose workers are seeded by their own number, or by one number, alike on all ranks."""
    for loader in script.trace:
        given = tags(loader, "worker_init_fn")
        names = [tag.removeprefix("fn:") for tag in given if tag.startswith("fn:")]
        if loader.name not in LOADER or len(names) != 1:
            continue
        seeds = [call for call in in_function(script, names[0]) if _SEEDS.search(call.name)]
        words = " ".join(" ".join(call.arguments.values()) for call in seeds)
        known = any(call.by_rank or "initial_seed" in call.name for call in in_function(script, names[0]))
        if (
            seeds
            and not known
            and not re.search(r"initial_seed|worker_info|rank|epoch|time|urandom|random", words)
        ):
            return note(
                here(loader),
                f"{names[0].rpartition(':')[2]} seeds each worker alike on all ranks, and in all epochs",
                evidence=[written(script, loader), written(script, seeds[0])],
                fix=[you("Add torch.initial_seed() % 2**32, which differs by worker and epoch, and the rank.")],
            )
    return None


def _is_drawn(call: Call) -> bool:
    named = bool(_DRAWS.match(call.name)) and not {"generator", "*"} & {*call.arguments}
    return named and not any(guard.kind == "rank" for guard in call.guards)


def _any_barrier(script: Script) -> bool:
    return any(call.name.endswith(("barrier", "wait_for_everyone")) for call in script.calls)


def _in_steps(script: Script) -> Iterator[Call]:
    """What is done in functions with a backward pass, in `forward`, and in those that they call."""
    waiting = {call.function for call in script.calls if call.name == ".backward"}
    waiting |= {call.function for call in script.calls if call.function.endswith(".forward")}
    reached: set[str] = set()
    for _ in range(_DEEP):
        waiting = {name for name in waiting - reached if not _APART.search(name.rpartition(":")[2])}
        for function in sorted(waiting):
            inside = in_function(script, function)
            looped = any(
                call.name == ".backward" and call.loops for call in inside
            )  # what is before it is drawn once
            yield from (call for call in inside if call.loops or not looped)
        reached |= waiting
        waiting = {call.name for function in waiting for call in in_function(script, function) if ":" in call.name}


@script_rule("SCR030", "one rank downloads the data", worst=State.NOTE)
def downloads(script: Script) -> Iterator[Finding]:
    """
    ## What
    A dataset of torchvision or torchaudio built with `download=True` by all ranks.

    ## Why it matters
    Where the data is not there yet, ranks write and unpack the same files at once: one may read what another has
    half written, and ends with a checksum or an archive that cannot be read.

    ## Seen as
    dies

    ## How we know
    The argument as it is written, reached by all ranks under no condition on the rank, in a folder whose name is
    no rank's. Where a barrier lets one rank come first, as before and after the call, nothing is reported.

    ## Fix
    - **you** build it on rank 0 first, let the others wait in a barrier, and build it there with `download=False`.
      The diff puts the barriers around it where a group is there in any case, and what is built is not returned.

    ## Source
    torchvision documentation, torchvision.datasets, download; PyTorch documentation, torch.distributed.barrier.
    """
    calls, everywhere = of_many_ranks(script), on_all_ranks(script)
    for call in calls:
        built = _DATASETS.search(call.name) and call.arguments.get("download") == "True"
        if _DATASETS.search(call.name) and "download" in call.by_rank and not _any_barrier(script):
            yield note(
                here(call),
                "one rank downloads, and nothing lets the others wait for it",
                evidence=[written(script, call)],
                fix=[you("Call torch.distributed.barrier() on the others before they build it.")],
            )
            return
        if not built or call.function not in everywhere or not sure(call) or {"0", "root"} & {*call.by_rank}:
            continue
        around = [
            call for call in calls if call.name.endswith("barrier") and any(g.kind == "rank" for g in call.guards)
        ]
        if any(other.file == call.file for other in around):
            continue
        yield note(
            here(call),
            "all ranks download to one folder at once, if the data is not there yet",
            evidence=[written(script, call)],
            fix=[_first(script, call)],
        )
        return


def _first(script: Script, call: Call) -> Remedy:
    """The others wait in a barrier until rank 0 has it, and find it."""
    text = "Build it on rank 0 first, and on the others after a barrier."
    home, first = dist(script, call.file), call.first or call.line
    if not home or not is_started(script, call) or call.loops:
        return you(text)
    waits, goes = (
        [f"if {home}.get_rank() {sign} 0:", f"    {home}.barrier()"] for sign in ("!=", "==")
    )  # fmt: skip
    ahead, behind = before(script, call, *waits), after(script, call, *goes)
    if ahead and behind and first == (call.last or call.line):
        head, tail = ahead[first] or "", behind[first] or ""
        return changed(script, text, call.file, {first: f"{head}{tail[tail.index(chr(10)) :]}"})
    return changed(script, text, call.file, ahead, behind)
