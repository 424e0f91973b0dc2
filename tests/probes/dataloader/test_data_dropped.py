"""Samples that are None after an error was swallowed are counted; None without an error is the user's choice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ncclcheck.probes.dataloader.factory import FactoryLoader
from ncclcheck.probes.dataloader.samples.read import sweep
from ncclcheck.probes.dataloader.samples.read.reader import SampleReader
from ncclcheck.probes.job.context import DataPlan


class Scans:
    """Each fourth file is damaged."""

    def __init__(self, raises: bool) -> None:
        self.raises = raises

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        try:
            if self.raises and index % 4 == 0:
                raise ValueError("bad file")
        except ValueError:
            return None
        return None if index % 4 == 0 else float(index)


@pytest.mark.parametrize(("raises", "dropped"), [(True, 10), (False, 0)])
def test_samples_behind_a_swallowed_error_are_counted(raises: bool, dropped: int, tmp_path: Path) -> None:
    plan = DataPlan(factory="x:y", directory=str(tmp_path), node="a", workers=2, ranks=1, ranks_per_node=1)
    swept = sweep.sweep(SampleReader(FactoryLoader(Scans(raises), iterable=False, length=40), plan, 30.0), 5.0)
    assert (swept.count, swept.dropped) == (40, dropped)
    assert (swept.dropped_first is not None) is raises
