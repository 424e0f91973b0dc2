"""The lines of docs/stacks.md, on small projects of Lightning and Accelerate, where these are installed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from ncclcheck.cli import cli
from ncclcheck.reports.judgement.findings import State
from tests.conftest import ROOT, Command

_DATA = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def samples():
    torch.manual_seed(0)
    wide = torch.randn(96, 8)
    return TensorDataset(wide, (wide.sum(1) > 0).long())
"""
_LIGHTNING = (
    _DATA
    + """
import lightning

class DataModule(lightning.LightningDataModule):
    def __init__(self, batch_size=8):
        super().__init__()
        self.batch_size = batch_size
    def setup(self, stage):
        self.samples = samples()
    def train_dataloader(self):
        return DataLoader(self.samples, batch_size=self.batch_size, shuffle=True)

class LitModel(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
    def training_step(self, batch, index):
        wide, wanted = batch
        loss = nn.functional.cross_entropy(self.layers(wide), wanted)
        self.log("loss", loss)
        return loss

if __name__ == "__main__":
    lightning.Trainer().fit(LitModel(), DataModule())
"""
)
_ACCELERATE = (
    _DATA
    + """
from accelerate import Accelerator

def make_loader():
    return DataLoader(samples(), batch_size=8, shuffle=True)

def make_model():
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))

if __name__ == "__main__":
    model, loader = Accelerator().prepare(make_model(), make_loader())
"""
)
# By stack: the project, the model, the data.
STACKS = {
    "lightning": (_LIGHTNING, "train:LitModel", "train:DataModule"),
    "accelerate": (_ACCELERATE, "train:make_model", "train:make_loader"),
}


@pytest.fixture(params=[*STACKS])
def stack(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    name = str(request.param)
    pytest.importorskip(name)
    (tmp_path / "train.py").write_text(STACKS[name][0])
    return name


@pytest.mark.timeout(150)
def test_data_is_examined(stack: str, ncclcheck: Command) -> None:
    ran = ncclcheck("data", STACKS[stack][2], "-o", "json", seconds=140)
    assert ran.code == 0, ran.err
    states = {verdict.code: verdict.state for verdict in ran.document.verdicts}
    assert states["DAT001"] is State.OK
    assert State.FAIL not in states.values()


@pytest.mark.timeout(200)
def test_a_model_is_trained(stack: str, ncclcheck: Command) -> None:
    _, model, data = STACKS[stack]
    ran = ncclcheck(
        "smoke", "--model", model, "--data", data, "--nproc-per-node", "2", "--steps", "4", "--no-kill",
        "--time-budget", "40", "-o", "json", seconds=190,
    )  # fmt: skip
    states = {verdict.code: verdict.state for verdict in ran.document.verdicts}
    assert {code: states[code] for code in ("TRN001", "TRN003", "TRN012")} == dict.fromkeys(
        ("TRN001", "TRN003", "TRN012"), State.OK
    )
    assert states["TRN006"] is State.OK
    assert ran.document.run.ranks[0].error == ""


@pytest.mark.parametrize("name", [*STACKS])
def test_the_page_has_these_lines(name: str) -> None:
    page = (ROOT / "docs/stacks.md").read_text()
    _, model, data = STACKS[name]
    assert f"ncclcheck data {data}" in page
    assert f"ncclcheck smoke --model {model} --data {data}\n" in page


def test_the_options_of_the_page_exist() -> None:
    lines = re.findall(r"^ncclcheck (\w+) (.*)$", (ROOT / "docs/stacks.md").read_text(), re.MULTILINE)
    assert len(lines) == 8
    for command, given in lines:
        shown = CliRunner().invoke(cli, [command, "--help"]).output
        assert [option for option in re.findall(r"--[a-z][a-z-]+", given) if option not in shown] == []
