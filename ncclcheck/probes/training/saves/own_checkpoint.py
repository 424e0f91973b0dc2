"""The user's own save and load: what a run that goes on from them has otherwise than the run that saved."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ncclcheck.probes.facts.training import Checks, LostState, OwnCheckpoint, Unchecked
from ncclcheck.probes.training import given
from ncclcheck.probes.training.course.optimizers import alive
from ncclcheck.probes.training.course.unreduced import UNREDUCED
from ncclcheck.probes.training.equal.alike import MOST, of_all_ranks
from ncclcheck.probes.training.equal.own import variables
from ncclcheck.probes.training.equal.own.own_state import Entry, entries, flat, prints
from ncclcheck.probes.training.equal.seeds import SEED, own_generators, seed_all, states
from ncclcheck.probes.training.equal.state import added, plain
from ncclcheck.probes.training.feed import Batch, moved
from ncclcheck.probes.training.loop import TrainingSetting, bare, stream, wrap
from ncclcheck.probes.training.saves import places

_BEFORE, _AFTER = 3, 3  # steps until it is saved, and from there on
_CLOSE = 1e-4  # of the norm: gradients may be added up in another order

State = dict[str, Any]


def seen(setting: TrainingSetting) -> Checks:
    """Train, save, go on; then load into what a new process makes, and go on from there on the same batches."""
    step, save, load = given.step(setting.plan), *given.checkpoint(setting.plan)
    if step is None or save is None or load is None:
        why = "it was not given: --step, --checkpoint-save and --checkpoint-load MODULE:FUNCTION"
        return Checks(unchecked=[Unchecked(check="own_checkpoint", why=why)])
    if problems := places.make(setting):
        return Checks(unchecked=[Unchecked(check="own_checkpoint", why=places.words(problems[0]))])
    path, batches = os.path.join(setting.plan.run_folder, "own"), stream(setting)
    before, after = ([next(batches) for _ in range(count)] for count in (_BEFORE, _AFTER))

    with variables.anew(setting.globals_begun):
        model, state = wrap(setting, setting.fresh_model()), State()
        begun = states(setting.device)["torch"]
        _steps(setting, step, model, state, before)
        with _written() as mine:
            save(model, state, path)
        files = of_all_ranks(setting.peers, sorted(mine))
        dist.barrier()
        saved, generators = _everything(setting, model, state), states(setting.device)
        wanted = _went_on(setting, step, model, state, after)
        moves = begun != generators["torch"]

    with variables.anew(setting.globals_begun):
        model, state = wrap(setting, setting.fresh_model()), State()
        _steps(
            setting, step, model, state, before[:1]
        )  # which makes the optimizer and whatever else is loaded into
        there, ties = [*model.parameters()], _ties(model)
        seed_all(SEED + 7 + setting.peers.rank)
        load(model, state, path)
        lost = _lost(setting, saved, _everything(setting, model, state))
        restored = states(setting.device)["torch"] == generators["torch"]
        new = [
            *dict.fromkeys(
                name for names in of_all_ranks(setting.peers, _new(setting, model, there)) for name in names
            )
        ]
        unheld, untied = _unheld(model, new), next((ties[name] for name in new if name in ties), "")
        off, name = 0.0, ""
        try:
            off, name = _apart(_went_on(setting, step, model, state, after), wanted)
        except RuntimeError as error:
            if not new or UNREDUCED not in str(error):
                raise
    everyone = of_all_ranks(setting.peers, [off, name, restored, moves])
    off, name = max((row[0], row[1]) for row in everyone)
    return Checks(
        own_checkpoint=OwnCheckpoint(
            steps=_AFTER,
            together=next((name for name in files[0] if sum(name in file for file in files) > 1), ""),
            lost=lost,
            off=off if off > _CLOSE else 0.0,
            parameter=name[:200] if off > _CLOSE else "",
            unseeded=any(row[3] and not row[2] for row in everyone),
            replaced=new[:MOST],
            unheld=unheld[:MOST],
            untied=untied,
        )
    )


def _new(setting: TrainingSetting, model: nn.Module, there: Sequence[Tensor]) -> list[str]:
    """Of sharded models parameters are made anew by design."""
    return added(model, there)[:MOST] if setting.plan.strategy == "ddp" else []


def _ties(model: nn.Module) -> dict[str, str]:
    """Names of parameters that are the same tensor: of each another one."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(plain(name))
    return {name: next(n for n in tied if n != name) for tied in names.values() if len(tied) > 1 for name in tied}


def _unheld(model: nn.Module, names: list[str]) -> list[str]:
    """Those of them that no optimizer of this process would change."""
    trained = {id(each) for optimizer in alive() for group in optimizer.param_groups for each in group["params"]}
    return [
        plain(name)
        for name, parameter in model.named_parameters()
        if plain(name) in names and id(parameter) not in trained
    ]


@contextlib.contextmanager
def _written() -> Iterator[set[str]]:
    """The names of the files that torch.save is given by name."""
    kept: Any = torch.save
    names = set[str]()

    def save(thing: Any, f: Any, *given: Any, **named: Any) -> None:
        if isinstance(f, str | os.PathLike):
            names.add(os.path.basename(os.fspath(f)))
        kept(thing, f, *given, **named)

    torch.save = save  # type: ignore[assignment]
    try:
        yield names
    finally:
        torch.save = kept


def _steps(setting: TrainingSetting, step: Any, model: nn.Module, state: State, batches: list[Batch]) -> None:
    for batch in batches:
        setting.context.tick()
        step(model, moved(batch, setting.device), state)


def _went_on(
    setting: TrainingSetting, step: Any, model: nn.Module, state: State, batches: list[Batch]
) -> dict[str, Tensor]:
    """The parameters after further steps, with generators that are the same in both runs."""
    with own_generators(setting.device, SEED + setting.peers.rank):
        _steps(setting, step, model, state, batches)
    return {plain(name): parameter.detach().clone() for name, parameter in model.named_parameters()}


def _everything(setting: TrainingSetting, model: nn.Module, state: Mapping[str, Any]) -> dict[str, Entry]:
    """By name."""
    everything = {entry.name: entry for entry in entries(model, state)}
    for name, digest in prints(bare(model)).items():
        everything[f"model{name}"] = Entry(f"model{name}", "weight", digest)
    for where, module in bare(model).named_modules():
        own = {name: value for name, value in vars(module).items() if _counts(name, value)}
        for name, value in own.items():
            path = f"model.{where}.{name}".replace("..", ".")
            everything[path] = Entry(path, "attribute", repr(value))
    for at, value in variables.variables().items():
        if at in setting.globals_begun:
            for where, digest in flat(value, ""):
                everything[f"{at}{where}"] = Entry(f"{at}{where}", "global", digest, at.name, "value")
    return everything


def _counts(name: str, value: Any) -> bool:
    return not name.startswith("_") and isinstance(value, int | float) and not isinstance(value, bool)


def _lost(setting: TrainingSetting, saved: Mapping[str, Entry], loaded: Mapping[str, Entry]) -> list[LostState]:
    """What is otherwise after loading, and on which ranks."""
    mine = {
        name: [entry.kind, entry.holder, entry.how]
        for name, entry in saved.items()
        if name not in loaded or loaded[name].digest != entry.digest
    }
    ranks = of_all_ranks(setting.peers, dict([*mine.items()][-200:]))
    kinds = {name: kind for rank in ranks for name, kind in rank.items()}
    names = sorted(kinds, key=lambda name: kinds[name][0] != "weight")  # of many the optimizer's would hide them
    return [
        LostState(
            name=name[:200],
            kind=kind,
            ranks=[rank for rank, names in enumerate(ranks) if name in names][:MOST],
            holder=holder[:120],
            how=way,
        )
        for name in names
        for kind, holder, way in [kinds[name]]
    ][:MOST]


def _apart(got: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> tuple[float, str]:
    """The largest difference of a parameter as a share of its norm, and which it is."""
    worst = (0.0, "")
    for name, tensor in wanted.items():
        other = got[name]
        norm = float(torch.linalg.vector_norm(tensor.float())) or 1.0
        off = float(torch.linalg.vector_norm((tensor - other).float())) / norm
        worst = max(worst, (off if math.isfinite(off) else 1e9, name))
    return worst
