"""TRN: the user's own model, data and loss run on every rank without an exception."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ncclcheck.probes.facts import Cluster, RankState
from ncclcheck.reports.judgement.findings import Finding, Remedy, State, Where, fail, seen, unknown, you
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.failures import lost
from ncclcheck.reports.text.words.fold import fold_ranks

_MOST_KINDS = 4  # of exceptions, and lines of evidence of each: chosen; usually all ranks raise one
_UNFIT = "FactoryError: "  # what was given cannot be used as it is; raised by the training run itself
_MAKES_DATA = "make the data"


@rule(
    "TRN026", "the given model, data and loss raise no exception", worst=State.FAIL, over="", commands=("smoke",)
)
def raise_no_exception(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    What the model, the dataset, the loss or the step that were given raised in the training run, on which rank, at
    which line and for which sample.

    ## Why it matters
    One rank meets a bad sample and ends; all others then print "Connection closed by peer" or wait until the
    timeout, and their words are the ones that are found in the log.

    ## Seen as
    hangs, wrong results

    ## How we know
    Each rank reports the exception that ended it with the innermost line outside of Python, torch and other
    packages; the index is the argument of the dataset's `__getitem__` there, which a loader's worker process does
    not hand over. Words of a rank that only lost its peer are a consequence and accuse nobody. A LightningModule
    that asks for its Trainer is unknown: there is none here.

    ## Fix
    - **you** open the named line; one rank alone: read the named sample, `dataset[INDEX]`.
    - **you** arguments that a class wants: `--model-kwargs`, `--data-kwargs`.

    ## Source
    facebookresearch/detectron2#143; PyTorch documentation, torchrun (Error Propagation).
    """
    smoke, run = cluster.measurements.smoke, cluster.run
    states = lost.raised(run)
    if not states and (smoke is None or smoke.setup is None):
        raise NothingToJudge("no training was begun")
    kinds: dict[str, list[RankState]] = {}
    for rank in states:
        kinds.setdefault(f"{rank.error.partition(':')[0]} {rank.at.partition(',')[0]}", []).append(rank)
    for ranks in [*kinds.values()][:_MOST_KINDS]:
        yield _raised(cluster, ranks)


def _raised(cluster: Cluster, ranks: list[RankState]) -> Finding:
    first, everywhere = ranks[0], len(ranks) == len(cluster.run.ranks)
    who = "all ranks" if everywhere and len(ranks) > 1 else fold_ranks([rank.rank for rank in ranks])
    text, verb = lost.headline(first.error), " raised"
    if "cannot be imported" in text:
        who, verb, text = "the given file", ":", text.removeprefix(_UNFIT)
    elif text.startswith(_UNFIT):
        who, verb, text = "model, data and loss do not fit", ":", text.removeprefix(_UNFIT)
    what = f"{who}{verb} {text}" + (f", at {first.at}" if first.at else f", in {first.last_step!r}")
    evidence = [
        seen(f"rank {rank.rank} on {rank.node}", f"{lost.headline(rank.error)}; {rank.at}") for rank in ranks
    ]
    others = [rank for rank in cluster.run.ranks if rank.error and lost.in_vain(rank)]
    evidence += [seen(f"rank {state.rank}, a consequence", lost.headline(state.error)) for state in others[:2]]
    where = Where() if everywhere else Where(node=first.node, rank=first.rank)
    known = next((kind for kind in _KINDS if re.search(kind.pattern, first.error)), None)
    if known and known.ours:
        return unknown(where, f"{known.ours}: {what}", why="It was not trained, so nothing is known of it.",
                       owner="job", evidence=evidence[:_MOST_KINDS], fix=[you(known.fix)])  # fmt: skip
    return fail(
        where,
        what,
        why="Every rank raises it, so the training ends there." if everywhere
        else "The other ranks lose their peer by that; what they print is a consequence.",
        owner="job",
        evidence=evidence[:_MOST_KINDS],
        fix=[_fix(first, known)],
    )  # fmt: skip


@dataclass(frozen=True)
class _ExceptionKind:
    """Words of an exception, and what to do. ours: the reason why it is no fault of the code."""

    pattern: str
    fix: str
    command: str = ""
    ours: str = ""


_KINDS = (
    _ExceptionKind(
        r"Torch not compiled with CUDA|Found no NVIDIA driver|No CUDA GPUs are available",
        "This line asks for CUDA, and the run is on CPUs: take the device of what is there.",
        "x = x.to(next(self.parameters()).device)  # not .cuda()",
    ),
    _ExceptionKind(
        r"not attached to a [`'\"]?Trainer",
        "Give a module that asks for no Trainer, or check the loader alone: ncclcheck data.",
        ours="the module asks for its Trainer, which does not run here",
    ),
    _ExceptionKind(
        r"marked (?:as )?ready (?:only )?(?:once|twice)",
        "A layer that is used twice in reentrant checkpoints: take the other kind.",
        "torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)",
    ),
    _ExceptionKind(
        r"backward through the graph a second time|modified by an inplace operation",
        "A tensor of an earlier step goes into this one with its graph, or is changed in place: cut it off first.",
        "hidden = hidden.detach()  # before the next step; x = x + y, not x += y",
    ),
    _ExceptionKind(
        r"does not require grad and does not have a grad_fn",
        "The loss is cut off from the parameters: by .item(), .detach(), .data, argmax, torch.no_grad, or all of "
        "them are frozen.",
        "print(loss.requires_grad, [name for name, p in model.named_parameters() if p.requires_grad])",
    ),
    _ExceptionKind(
        r"Expected to have finished reduction",
        "Parameters get no gradient in this step, and DDP waits for them: use or freeze them, or let it search.",
        "DistributedDataParallel(model, find_unused_parameters=True)",
    ),
    _ExceptionKind(
        r"Tried to step \d+ times",
        "The schedule was made for fewer steps: total_steps counts calls of scheduler.step(), here each batch.",
        "torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr, epochs=epochs, steps_per_epoch=len(loader))",
    ),
    _ExceptionKind(
        r"stack expects each tensor to be equal size",
        "Samples have different shapes: pad or crop them, or give the loader a collate_fn.",
    ),
)
_A_LOSS = (
    "def loss(model, batch):\n    out = model(batch[0])\n"
    "    return torch.nn.functional.cross_entropy(out[0] if isinstance(out, tuple) else out, batch[1])",
    "ncclcheck smoke --loss FILE.py:loss",
)
_LACKS = re.compile(r"missing \d+ required (?:positional|keyword-only) arguments?: (.{1,200})")


_LABEL = re.compile(
    r"(label|number) (-?\d+)\b.*: the (?:scores have|embedding has) (\d+) \w+, .* go from (-?\d+) to (-?\d+)"
)


def _in_range(value: int, size: int, least: int, most: int, *, label: bool) -> Remedy:
    """By how the labels of the batch lie: from 1 on, below 0, or more of them than classes."""
    if not label:
        return you(
            "Give the embedding as many rows as the tokenizer has numbers.",
            f"torch.nn.Embedding({most + 1}, width)  # or len(tokenizer)"
            if value >= size
            else "assert (ids >= 0).all()",
        )
    if value < 0:
        return you(
            "Leave such labels out of the loss, or the samples out of the dataset.",
            f"torch.nn.functional.cross_entropy(scores, labels, ignore_index={value})",
        )
    if least >= 1 and most == size:
        return you("Let labels begin at 0.", "labels = labels - 1")
    return you(
        "Give the last layer as many outputs as there are classes, or repair the label.",
        f"torch.nn.Linear(width, {most + 1})",
    )


def _fix(rank: RankState, known: _ExceptionKind | None) -> Remedy:
    if match := _LABEL.search(rank.error):
        return _in_range(*map(int, match.groups()[1:]), label=match[1] == "label")
    return you(known.fix, *([known.command] if known.command else [])) if known else _fix_unknown(rank)


def _fix_unknown(rank: RankState) -> Remedy:
    if absent := re.search(r"No module named '([\w.-]{1,100})'", rank.error):
        name = absent[1].partition(".")[0]
        return you(f"Install {name} where the job runs, or start it in the folder that has it.",
                   f"python -m pip install {name}")  # fmt: skip
    if "gave None for a batch" in rank.error:
        return you("Let collate_fn return the batch.", "def collate_fn(samples):\n    ...\n    return batch")
    if "training_step returned None" in rank.error:
        return you(
            "Lightning trains on while the other ranks wait for this one's gradients: return a loss of 0 instead.",
            "return 0.0 * sum(p.sum() for p in self.parameters() if p.requires_grad)  # instead of None",
        )
    if "name a loss" in rank.error:
        return you("Write the loss as the loop has it, and name it.", *_A_LOSS)
    if (lacks := _LACKS.search(rank.error)) and not rank.at:
        names = re.findall(r"'(\w+)'", lacks[1])
        option = "--data-kwargs" if _MAKES_DATA in rank.last_step else "--model-kwargs"
        given = ", ".join(f'"{name}": ...' for name in names)
        return you(f"Give what it wants: {', '.join(names)}.", f"ncclcheck smoke {option} '{{{given}}}'")
    if not rank.at:
        return you("Change what was given to --model, --data or --loss as it says.")
    index = re.search(r", index (-?\d+)$", rank.at)
    if index:
        return you(f"Read sample {index[1]}: dataset[{index[1]}] raises it without ncclcheck too.")
    return you(f"Open {rank.at}.")
