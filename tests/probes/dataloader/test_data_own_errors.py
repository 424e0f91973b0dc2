"""An exception of ncclcheck is never reported as the user's: each step is made to raise, the report is read."""

from __future__ import annotations

import importlib
import os
import pkgutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import ncclcheck
from ncclcheck.probes import dataloader
from ncclcheck.probes.dataloader import ours, phases
from ncclcheck.probes.dataloader.children import child
from ncclcheck.probes.dataloader.factory import FactoryLoader
from ncclcheck.probes.dataloader.samples.read import glance
from ncclcheck.probes.facts import Cluster, Job, Measurements, Node, Run, Unread, replace
from ncclcheck.probes.facts.data import DataReport, DataResources
from ncclcheck.probes.facts.data.report import Unseen, by_node
from ncclcheck.probes.job.context import DataPlan
from ncclcheck.reports.judgement.decision import outcome
from ncclcheck.reports.judgement.findings import State, Verdict
from ncclcheck.reports.judgement.jsondoc import Document
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules
from ncclcheck.reports.subjects.data import dataset_text
from ncclcheck.reports.text import closing
from ncclcheck.results import finish
from ncclcheck.run.plan.options import Options

HERE = str(Path(__file__).parent)
SAMPLES = str(Path(__file__).parents[2] / "samples")
RULES = [rule for rule in all_rules() if rule.code.startswith("DAT") or rule.code == "RUN004"]
PLAN = DataPlan(
    factory="test_data_own_errors:Scaled", directory=HERE, node="sim0", workers=2, ranks=2, budget_s=12
)
# A function of ours in each step, and the aspect that calls it: in this process, in children, and in workers.
STEPS = {
    "content": ["content.chosen", "glance.leaves", "seeds.reseed", "sweep._try", "beyond._is_there"],
    "streams": ["loaded.as_given", "visit.leaves", "watched.unsendable", "notes.now", "twins.shared"],
    "structure": ["structure.become_worker", "stacking.attempt"],
    "resources": ["resources._batch", "footprint.measure", "weigh.pickled"],
    "speed": ["speed._warm", "pace.point"],
    "sharding": ["rank_view._look", "accounting.by_index", "rank_view.sample_orders"],
}
SLOW = (
    "beyond._is_there",
    "twins.shared",
    "notes.now",
    "pace.point",
    "accounting.by_index",
    "rank_view.sample_orders",
)


class Scaled(torch.utils.data.Dataset[Any]):
    """Sound; every third sample is longer, and the loader's collate function cuts it."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        if not 0 <= index < 40:
            raise IndexError(index)
        return torch.full((3 + (index % 3 == 0),), float(index))


def cut(samples: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack([sample[:3] for sample in samples])


_MODULES = {
    walk_package.name.rpartition(".")[2]: walk_package.name
    for walk_package in pkgutil.walk_packages(dataloader.__path__, f"{dataloader.__name__}.")
}


def broken() -> Any:
    """A function that raises in a file of ncclcheck's."""
    file = os.path.join(os.path.dirname(ncclcheck.__file__), "probes", "dataloader", "broken.py")
    names: dict[str, Any] = {}
    exec(compile("def broken(*_, **__):\n    return {}['a defect']", file, "exec"), names)
    return names["broken"]


def look(aspect: str) -> DataReport:
    """What one aspect gives of the healthy loader."""
    reports: list[DataReport] = []
    host = phases._HostProcess(PLAN, lambda _: None, reports.append)
    given = {"batch_size": 4, "num_workers": 2, "shuffle": True, "collate_fn": cut}
    if aspect == "sharding":
        host.plan = replace(PLAN, factory="popular_loaders:infinite", directory=SAMPLES, budget_s=40)
        phases._ranks(host, None)
        return reports[0]
    return host.look(aspect, FactoryLoader(Scaled(), False, 40, given, "loader"), 10.0)


def document(reports: list[DataReport]) -> tuple[Document, dict[str, Verdict]]:
    measured = Measurements(data=by_node(reports))
    verdicts = judge(Cluster(command="data", nodes=[Node(name="sim0")], measurements=measured), RULES)
    made = Document(
        version="1", command="data", state=outcome(verdicts), exit_code=0, started="", seconds=1.0, counts={},
        job=Job(), stages=[], run=Run(), nodes=[], verdicts=verdicts, measurements=measured,
    )  # fmt: skip
    return made, {verdict.code: verdict for verdict in verdicts}


def _steps() -> list[Any]:
    pairs = [(aspect, step) for aspect, steps in STEPS.items() for step in steps]
    marks = {True: [pytest.mark.nightly], False: []}
    return [pytest.param(*pair, marks=marks[pair[1] in SLOW], id=f"{pair[0]}-{pair[1]}") for pair in pairs]


@pytest.mark.parametrize(("aspect", "step"), _steps())
def test_a_defect_of_ours_is_reported_as_ours(monkeypatch: pytest.MonkeyPatch, aspect: str, step: str) -> None:
    module, name = step.split(".")
    monkeypatch.setattr(importlib.import_module(_MODULES[module]), name, broken())
    report = look(aspect)
    assert getattr(report, aspect) is None, "what was seen until then says nothing"
    made, verdicts = document([report])
    assert not [code for code, verdict in verdicts.items() if verdict.state in (State.FAIL, State.WARN)]
    finding = verdicts["RUN004"].findings[0]
    assert finding.what == "internal error of ncclcheck: KeyError: 'a defect'"
    assert "broken.py" in {evidence.source: evidence.value for evidence in finding.evidence}["traceback"]
    assert made.state == "incomplete"
    assert closing.decision(made).startswith("Not finished. RUN004")


def test_a_defect_while_the_factory_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ncclcheck.probes.dataloader.children.surroundings.compare", broken())
    reports: list[DataReport] = []
    phases.examine(PLAN, lambda _: None, reports.append)
    _, verdicts = document(reports)
    assert verdicts["DAT001"].state is State.SKIPPED
    assert "KeyError: 'a defect'" in verdicts["RUN004"].findings[0].what


@pytest.mark.parametrize("aspect", STEPS)
def test_without_a_defect_each_aspect_is_seen(aspect: str) -> None:
    report = look(aspect)
    assert getattr(report, aspect) is not None
    assert report.unseen == []


def raised_by(call: Any) -> BaseException:
    try:
        call()
    except BaseException as error:
        return error
    raise AssertionError("it did not raise")


def test_what_the_users_code_raises_is_the_users() -> None:
    items: list[int] = []
    made = FactoryLoader(items, False, 0)
    assert ours.trace_of(raised_by(lambda: glance.SampleSource(made).read(3))) == "", (
        "a list has no frame of its own"
    )
    assert ours.trace_of(raised_by(lambda: Scaled()[99])) == ""
    assert ours.trace_of(MemoryError()) == ""


def test_a_child_gives_the_traceback_of_a_defect() -> None:
    with pytest.raises(ours.Defect, match="a defect"):
        child.run(broken(), dict, 5.0)
    work: Any = lambda: Scaled()[99]  # noqa: E731 - what it gives has no JSON, and it gives nothing
    ended = child.run(work, list, 5.0)
    assert ended.error == "IndexError: 99"


def test_the_last_line_names_what_was_not_examined() -> None:
    reports = [DataReport(node="sim0", factory="a:b", unseen=[Unseen(aspect="structure", why=closing._NO_TIME)])]
    stand_in: Any = SimpleNamespace(measurements=Measurements(data=reports))
    assert closing._unseen(stand_in) == "not shapes and batches (the time budget was used up)"


def test_memory_that_was_not_looked_at_is_named_in_the_last_line() -> None:
    """The process that looks gave no answer in time: neither `examined` nor a last line without a word of it."""
    resources = DataResources(again=Unread("absent", "the process that looked gave no answer in 3.67 s"))
    reports = [DataReport(node="sim0", factory="a:b", resources=resources)]
    document = finish.make(
        Cluster(command="data", nodes=[Node(name="sim0")], measurements=Measurements(data=reports)),
        Options(command="data"),
        finish.Story(started="2026-01-01T00:00:00+00:00", seconds=1.0, signal=None),
    )
    assert closing._unseen(document) == "not memory (the process that looked gave no answer in 3.67 s)"
    words = dataset_text.text(document, 200)
    assert "examined" not in words
    assert "not seen   memory: the process that looked gave no answer" in words
    assert closing._decision(document).endswith("not memory (the process that looked gave no answer in 3.67 s).")
