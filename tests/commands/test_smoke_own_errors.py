"""An exception of ncclcheck in the training of the user's own model is internal, and never the user's: exit 3.

Each part of the training is made to raise in turn, by a file of the user's that breaks it when it is imported.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ncclcheck.reports.judgement.findings import State
from ncclcheck.reports.text.closing import decision
from tests.conftest import Command

MINE = """
import os, torch, ncclcheck
import ncclcheck.probes.training.MODULE as part

names = {}
file = os.path.join(os.path.dirname(ncclcheck.__file__), "probes", "training", "broken.py")
exec(compile("def broken(*_, **__):\\n    return {}['a defect']", file, "exec"), names)
part.NAME = names["broken"]

def model():
    return torch.nn.Linear(4, 2)

def data():
    rows = torch.arange(256.0).reshape(64, 4)
    return torch.utils.data.TensorDataset(rows, rows[:, :2])

def loss():
    return torch.nn.functional.mse_loss

def step(model, batch, state):
    if not state:
        state["optimizer"] = torch.optim.SGD(model.parameters(), lr=1e-6)
    loss = torch.nn.functional.mse_loss(model(batch[0]), batch[1])
    loss.backward()
    state["optimizer"].step()
    state["optimizer"].zero_grad()

def save(model, state, path):
    if torch.distributed.get_rank() == 0:
        torch.save({"model": model.module.state_dict(), "optimizer": state["optimizer"].state_dict()}, path)
    torch.distributed.barrier()

def load(model, state, path):
    saved = torch.load(path)
    model.module.load_state_dict(saved["model"])
    step(model, next(iter(torch.utils.data.DataLoader(data(), batch_size=8))), state)
    state["optimizer"].load_state_dict(saved["optimizer"])
"""
NIGHTLY = [pytest.mark.nightly]
STEPS: list[Any] = [
    "equal.rows.lengths",
    *(
        pytest.param(name, marks=NIGHTLY)
        for name in (
            "equal.equality.before_wrap", "equal.rows.samples", "equal.streams.unused",
            "equal.reference.one_batch", "equal.equality.agreement", "equal.own_step.Optimizers",
            "equal.own_step.agreed", "course.calls.Calls", "saves.own_checkpoint.seen",
            "equal.reference.accumulation", "equal.streams.generators", "equal.equality.fixed_batch",
            "saves.checkpoint.run", "saves.merge.run", "times.attribution.run", "times.side.run",
            "saves.sharded.run",
        )
    ),
]  # fmt: skip


@pytest.mark.timeout(200)
@pytest.mark.parametrize("broken", STEPS)
def test_a_defect_in_a_part_of_the_training_is_ours(ncclcheck: Command, tmp_path: Path, broken: str) -> None:
    module, _, name = broken.rpartition(".")
    (tmp_path / "mine.py").write_text(MINE.replace("MODULE", module).replace("NAME", name))
    own = [f"--{option}" for option in ("model", "data", "loss", "step", "checkpoint-save", "checkpoint-load")]
    given = [word for option in own for word in (option, f"mine:{option.rpartition('-')[2]}")]
    ran = ncclcheck(
        "smoke", *given, "--nproc-per-node", "2", "--steps", "4", "--no-kill", "--save-mib", "1", "-o", "json",
        seconds=190,
    )  # fmt: skip
    verdicts = {verdict.code: verdict for verdict in ran.document.verdicts}
    assert [code for code, verdict in verdicts.items() if verdict.state is State.FAIL] == []
    (finding,) = verdicts["RUN004"].findings
    assert "KeyError: 'a defect'" in finding.what
    assert (finding.owner, ran.code, ran.document.culprits) == ("tool", 3, [])
    assert decision(ran.document).startswith("Not finished. RUN004")
