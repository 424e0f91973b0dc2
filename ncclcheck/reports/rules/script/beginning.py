"""SCR049, SCR050: ranks begin alike where they must, and one of them keeps the record."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ncclcheck.probes.facts.script import Call, Script
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, note, warn, you
from ncclcheck.reports.subjects.script.changes import at_line, changed, dist, rank_is_0, replaced
from ncclcheck.reports.subjects.script.processes import of_ranks
from ncclcheck.reports.subjects.script.scripts import (
    by_rank,
    here,
    of_any_start,
    of_many_ranks,
    script_rule,
    written,
)
from ncclcheck.reports.subjects.script.steps import shares_model
from ncclcheck.reports.subjects.script.traced import passes, tags

_SEEDS = re.compile(r"^torch\.(?:cuda\.|random\.)?manual_seed(?:_all)?$|seed_everything$|set_seed$")
_SENDS = re.compile(r"broadcast|scatter|_sync_params|sync_module_states|sync_model|load_state_dict")
_KEEPS = re.compile(r"^(?:wandb|swanlab)\.init$|(?:^|\.)SummaryWriter$|^mlflow\.start_run$")
_UNLIKE = {"rank", "local", "byrank"}


@script_rule("SCR049", "copies of the model begin alike", worst=State.WARN)
def begun(script: Script) -> Iterator[Finding]:
    """
    ## What
    A script that averages gradients by hand, `all_reduce(param.grad)`, and whose ranks make their models with
    seeds of their own.

    ## Why it matters
    DistributedDataParallel sends rank 0's parameters to all; without it nothing does. Gradients of different
    models are averaged, and the models never become one.

    ## How we know
    The script is followed from its first line: an `all_reduce` is given gradients, torch's seed is made of the
    rank, no model is wrapped, and nothing is broadcast or loaded.

    ## Fix
    - **you** `dist.broadcast(param.data, src=0)` for each parameter before the training, or one seed for all.

    ## Source
    PyTorch tutorial "Writing Distributed Applications with PyTorch"; torch.nn.parallel.DistributedDataParallel.
    """
    of_many_ranks(script)
    averaged = [
        call for call in script.trace if call.name.endswith("all_reduce") and "grad" in call.arguments.get("0", "")
    ]
    if (
        not averaged
        or shares_model(script)
        or any(_SENDS.search(call.name) for call in (*script.trace, *script.calls))
    ):
        return
    seeds = [call for call in script.trace if _SEEDS.search(call.name)]
    unlike = [call for call in seeds if _UNLIKE & (tags(call, "0") | tags(call, "seed"))]
    if unlike and passes(script):
        yield warn(
            here(unlike[0]),
            "ranks make their models with seeds of their own, and nothing sends one of them to all",
            why="Gradients of different models are averaged: the models never become one.",
            owner="job",
            evidence=[written(script, unlike[0]), written(script, averaged[0])],
            fix=[_sent(script, averaged[0])],
        )


def _sent(script: Script, averaged: Call) -> Remedy:
    """Rank 0's parameters to all, before the first loop around the averaging."""
    text = "Broadcast the parameters from rank 0 before the training, or give all ranks one seed."
    home = dist(script, averaged.file)
    loops = next((call.loops for call in script.calls if call.place == averaged.place and call.loops), [])
    model = re.fullmatch(r"(\w+)\.parameters\(\)", loops[-1].over) if loops[1:] else None
    if not home or model is None:
        return you(text)
    sent = [f"for parameter in {model.group(1)}.parameters():", f"    {home}.broadcast(parameter.data, src=0)"]
    return changed(script, text, averaged.file, at_line(script, averaged.file, loops[0].line, *sent))


def _by_one(script: Script, call: Call) -> Remedy:
    """wandb and swanlab have a mode in which a run keeps nothing."""
    text = "Call it on rank 0 only."
    if not call.name.endswith((".init",)) or not (rank_0 := rank_is_0(script, call)):
        return you(text)
    head = call.name.replace(".", r"\.")
    comma = ", " if len(call.arguments) else ""
    change = replaced(script, call, rf"\b{head}\(", f'{call.name}(mode=None if {rank_0} else "disabled"{comma}')
    needs = "os" if "os." in rank_0 else ""
    return changed(script, "Let rank 0 alone keep one.", call.file, change, needs=needs)


@script_rule("SCR050", "one rank keeps the record of a run", worst=State.NOTE)
def recorded(script: Script) -> Iterator[Finding]:
    """
    ## What
    `wandb.init()`, `SummaryWriter(...)` or `mlflow.start_run()` on all ranks.

    ## Why it matters
    A job of 64 ranks makes 64 runs, each with the numbers of one rank, or all write their curves into one folder,
    where they are drawn over each other.

    ## How we know
    The script is followed from its first line: the call stands under no condition on the rank, nothing that it is
    given differs by rank, and it names no group of runs. Scripts in which a library starts the run are not judged.

    ## Fix
    - **you** call it on rank 0 only, or give it `group=`. The diff lets the other ranks' runs of wandb and
      swanlab keep nothing (`mode="disabled"`). For TensorBoard and MLflow there is none: each use of the
      writer would have to stand under the condition, too.

    ## Source
    Weights & Biases documentation, "Log distributed training experiments"; PyTorch documentation,
    torch.utils.tensorboard.
    """
    of_any_start(script)
    for call in of_ranks(script, script.trace):
        given = set().union(*(tags(call, key) for key in call.values if key != "on"), set())
        if not _KEEPS.search(call.name) or by_rank(call) or _UNLIKE & given or "some" in given:
            continue
        if {"group", "mode", "*"} & {*call.arguments} or any(
            "rank" in guard.text.lower() for guard in call.guards
        ):
            continue
        yield note(
            here(call),
            f"{call.name} is called by all ranks: each keeps a record of its own samples",
            evidence=[written(script, call)],
            fix=[_by_one(script, call)],
        )
        return
