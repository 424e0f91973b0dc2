"""What stands in a command to paste is one word, whatever it is called: remedies, settings and lists of nodes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ncclcheck.probes.facts import Cluster, Measurements, replace
from ncclcheck.probes.facts.guard.walk import Place, changed
from ncclcheck.reports.judgement import selection
from ncclcheck.reports.judgement.jsondoc import Recommendation
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.output import settings_forms
from ncclcheck.reports.recommend import recommend
from ncclcheck.results import safe
from tests.helpers import clusters, stories
from tests.helpers.logs import parsed
from tests.helpers.shell import Unbalanced, exposed
from tests.reports.rules.log.test_log_stories import FOLDER

EVIL = ";touch X;$(touch Y)`touch Z`'\"\n-z touch W"
_NAMES = {
    *("name", "hostname", "node", "peer", "interface", "device", "host", "missing", "a", "b", "hcas", "seen"),
    *("members", "devices"),
}
_PATHS = {
    *("path", "point", "source", "folder", "file", "executable", "torch_path", "target", "files", "command"),
    *("library", "plugin", "user"),
}
_VALUES = {"value", "settings"}
_OF_LOGS = {"fields", "host", "file", "name", "devices", "settings"}
_PASSES = {
    "names": lambda place: place[1] in _NAMES,
    "paths": lambda place: place[1] in _PATHS,
    "values": lambda place: place[1] in _VALUES,
}


def _poisoned(cluster: Cluster, where: Callable[[Place], bool]) -> Cluster:
    """As it comes out of the seam, after somebody wrote his own names into it."""

    def change(place: Place, text: str) -> str:
        return text + EVIL if text and not text.isdecimal() and where(place) else text

    return safe.cluster(changed(cluster, change))


def _commands(cluster: Cluster) -> Iterator[tuple[str, str]]:
    verdicts = judge(cluster)
    for verdict in verdicts:
        for finding in verdict.findings:
            for remedy in finding.remedies:
                yield from ((verdict.code, command) for command in remedy.commands)
    recommended = recommend(cluster, verdicts)
    for form in (settings_forms.env_file, settings_forms.sbatch, settings_forms.torchrun, settings_forms.revert):
        yield from ((form.__name__, line) for line in form(recommended).splitlines() if line[:1] != "#")


def _runs(command: str) -> bool:
    """Whether a shell would run what was only a name, or read it as words or options of their own."""
    try:
        return re.search(r"[;`(]touch|\n-z", exposed(command)) is not None
    except Unbalanced:
        return True


def _wrong(cluster: Cluster) -> list[tuple[str, str]]:
    return [(code, command) for code, command in _commands(cluster) if _runs(command)]


@pytest.mark.parametrize("name", stories.NAMES)
def test_names_and_paths(name: str) -> None:
    cluster = stories.load(name).cluster
    assert _wrong(_poisoned(cluster, lambda place: place[1] in _NAMES | _PATHS)) == []


@pytest.mark.nightly
@pytest.mark.parametrize("where", _PASSES.values(), ids=_PASSES)
@pytest.mark.parametrize("name", stories.NAMES)
def test_each_alone(name: str, where: Callable[[Place], bool]) -> None:
    assert _wrong(_poisoned(stories.load(name).cluster, where)) == []


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.log")), ids=lambda path: path.stem)
def test_what_logs_name(path: Path) -> None:
    logs = parsed(path.read_bytes())
    cluster = Cluster(command="logs", measurements=Measurements(logs=logs))
    poisoned = _poisoned(cluster, lambda place: place[0].startswith("Log") and place[1] in _OF_LOGS)
    assert _wrong(poisoned) == []


def test_the_lines_that_take_nodes_out_of_service() -> None:
    lines = selection.out_of_service({f"a{EVIL}": "NET001", f"b{EVIL}": "NET001"})
    assert lines
    assert not [line for line in lines if _runs(line)]


def test_the_settings_of_a_hostile_value() -> None:
    recommendation = Recommendation(
        variable="NCCL_SOCKET_IFNAME", action="set", value=f"eth0{EVIL}", why=EVIL, evidence=[], source=EVIL,
        basis="rule", gain="", risk="", valid_for="", set_in=[EVIL],
    )  # fmt: skip
    two = replace(recommendation, variable=f"NCCL_X{EVIL}")
    for form in (settings_forms.env_file, settings_forms.sbatch, settings_forms.torchrun, settings_forms.docker):
        words = form([recommendation, two])
        kept = "\n".join(line for line in words.splitlines() if not line.startswith("#"))
        assert not _runs(kept)
    conf = settings_forms.nccl_conf([recommendation, two])
    assert all(line.startswith(("#", "NCCL_SOCKET_IFNAME=")) for line in conf.splitlines())
    assert not _runs(settings_forms.measure(recommendation))


def test_a_name_that_no_host_has_is_made_one_and_stays_its_own() -> None:
    cluster = Cluster(
        nodes=[clusters.node("a;x"), clusters.node("a x"), clusters.node("-rf"), clusters.node("a_x")]
    )
    names = [node.name for node in safe.cluster(cluster).nodes]
    assert names == ["a_x_", "a_x__", "_rf", "a_x"]


@pytest.mark.parametrize("name", ["gpu-a17", "gpu-a17#2", "a.b.c", "ip-10-0-0-1.internal", "fe80::1%eth0", "ñode"])
def test_a_true_name_stays(name: str) -> None:
    cluster = Cluster(nodes=[clusters.node(name)])
    assert safe.cluster(cluster).nodes[0].name == name


@pytest.mark.parametrize(
    ("line", "kept"),
    [("a 'b;c' d", "a  d"), ('a "$(b)"', 'a "$(b)"'), (r"a\;b", "ab"), ("a 'b'\"'\"'c'", 'a "\'"')],
)
def test_what_a_shell_reads(line: str, kept: str) -> None:
    assert exposed(line) == kept
