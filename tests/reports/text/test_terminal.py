"""How a result is printed: widths, colour, the short form, folding, numbers as people write them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncclcheck.probes.facts import Collective, Job, JobFacts, Measurements, Times, Unread, replace
from ncclcheck.reports.judgement.findings import Finding, State, Verdict, Where, fail, not_read, seen, you
from ncclcheck.reports.judgement.jsondoc import Document, encode
from ncclcheck.reports.output import terminal
from ncclcheck.reports.output.terminal import Style
from ncclcheck.reports.text import closing, groups, table
from ncclcheck.reports.text.words.fold import duration, fold_names, size
from tests.conftest import Command
from tests.helpers import stories

ANSI = re.compile(r"\x1b\[[0-9;]*m")
SUBNET, SIMULATED, STOPPED = "one-node-in-another-subnet", "laptop-simulates-two-nodes", "stopped-by-a-debugger"


def _saved(name: str, folder: Path) -> str:
    path = folder / "saved.json"
    path.write_bytes(encode(stories.document(name)))
    return str(path)


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("verbose", [False, True])
def test_the_width_is_used_and_kept(width: int, verbose: bool) -> None:
    document = stories.document(SUBNET)
    report = terminal.text(document, Style(width=width, verbose=verbose))
    findings = [finding for verdict in document.verdicts for finding in verdict.findings]
    pasted = {line for finding in findings for remedy in finding.remedies for line in remedy.commands}
    kept_whole = {line for line in report.splitlines() if line.strip() in pasted or "/libnccl.so" in line}
    longest = max(len(line) for line in report.splitlines() if line not in kept_whole)
    assert width - 15 <= longest <= width


def test_colour_only_doubles_the_words() -> None:
    plain = terminal.text(stories.document(SUBNET), Style())
    coloured = terminal.text(stories.document(SUBNET), Style(colour=True))
    assert "\x1b" not in plain
    assert "\x1b[1;31mFAIL" in coloured
    assert ANSI.sub("", coloured) == plain


def test_verbose_lists_every_check_and_what_was_found() -> None:
    document = stories.document(SUBNET)
    report = terminal.text(document, Style(verbose=True))
    assert all(re.search(rf"^  {v.state.word} +{v.code}  ", report, re.MULTILINE) for v in document.verdicts)
    assert "gpu-b01 eno1: NCCL would use eno1 (10.41.8.1)" in report
    assert "eno1: NCCL would use" not in terminal.text(document, Style())


def test_short_is_a_few_lines_with_the_culprit() -> None:
    lines = terminal.short(stories.document(STOPPED), Style()).splitlines()
    assert re.fullmatch(
        r"ncclcheck \S+   bench   gpu-a\[17-18\]: 2 nodes asked, 2 answered: 1 failed, .*", lines[0]
    )
    assert lines[1].startswith("FAIL    RUN003  gpu-a18 rank 3: pid 71203 is stopped")
    assert lines[-2].startswith("Culprit: rank gpu-a18/rank 3 (confidence 0.97): pid 71203 is stopped")
    assert lines[-1] == "Not ready: fix RUN003 on gpu-a18 first."
    assert all(line.startswith("unknown") and len(line) < 300 for line in lines[2:-2])


def _failing(*places: Where) -> Document:
    def slow(where: Where) -> Finding:
        return fail(where, "it is slow", why="w", owner="site", evidence=[seen("a", "b")], fix=[you("mend it")])

    verdict = Verdict(code="BEN004", title="all is well", state=State.FAIL, findings=[*map(slow, places)])
    return replace(stories.document("healthy"), verdicts=[verdict], exit_code=1)


@pytest.mark.parametrize(
    ("places", "words"),
    [
        ([Where(node="sim0", peer="sim1")], "on the link sim0 - sim1 first"),
        ([Where(node="b", peer="a"), Where(node="a", peer="b")], "on the link a - b first"),
        ([Where(node="a", peer=p) for p in "bc"], "on the links a - b, a - c first"),
        ([Where(node="a", peer=p) for p in "bcdef"], "on the links a - b, a - c, a - d and 2 more first"),
        ([Where(node="a", peer="b"), Where(node="c")], "on a, c first"),
        ([Where(node="a", rank=1, peer="b")], "on a first"),
        ([Where()], "fix BEN004 first"),
    ],
)
def test_the_last_line_names_both_ends_of_a_link(places: list[Where], words: str) -> None:
    assert words in closing.decision(_failing(*places))


def _on_a_login_node() -> Document:
    healthy = stories.document("healthy")
    none = Unread(kind="absent", why="not here")
    job = JobFacts(variables=[], launcher_programs=["srun"], master=none, port_holders=none)
    nodes = [replace(node, facts=replace(node.facts, gpus=none, job=job)) for node in healthy.nodes]
    return replace(healthy, command="smoke", job=replace(healthy.job, launcher="local"), nodes=nodes)


def test_the_first_warning_comes_before_any_other_advice() -> None:
    assert closing.decision(replace(_on_a_login_node(), verdicts=[])) == (
        "Ready. This looks like a login node: no GPU node was judged. "
        "Type: salloc -N 2 --gpus-per-node=8 ncclcheck smoke"
    )
    warned = [Verdict(code=code, title="all is well", state=State.WARN) for code in ("TRN031", "HST008")]
    for verdicts, words in (
        (warned[:1], "Ready, with a warning: see TRN031."),
        (warned, "Ready, with 2 warnings: see TRN031 first."),
    ):
        decision = closing.decision(replace(_on_a_login_node(), verdicts=verdicts))
        assert decision == f"{words} This looks like a login node: no GPU node was judged."


@pytest.mark.parametrize("style", [Style(), Style(verbose=True)])
def test_the_last_line_is_the_decision(style: Style) -> None:
    for name, words in ((SUBNET, "Not ready: fix NET003 on gpu-b03 first."), ("healthy", "Ready.")):
        assert words in terminal.text(stories.document(name), style).splitlines()[-1]


def test_the_command_line_says_it_in_each_form(ncclcheck: Command, tmp_path: Path) -> None:
    saved = _saved(SUBNET, tmp_path)
    text = ncclcheck("env", "--from", saved)
    assert (text.code, text.out) == (1, terminal.text(stories.document(SUBNET), Style()))
    assert ncclcheck("env", "--from", saved, "-o", "short").out == terminal.short(
        stories.document(SUBNET), Style()
    )
    assert ANSI.search(ncclcheck("env", "--from", saved, "--color", "always").out)
    assert not ANSI.search(ncclcheck("env", "--from", saved, "--color", "never", FORCE_COLOR="1").out)


def test_quiet_is_silent_when_all_is_well_only(ncclcheck: Command, tmp_path: Path) -> None:
    assert ncclcheck("bench", "-q", "--from", _saved("healthy", tmp_path)).out == ""
    assert "NET003" in ncclcheck("env", "-q", "--from", _saved(SUBNET, tmp_path)).out


def test_skipped_rows_are_one_row_an_operation() -> None:
    lines = table.collectives(stories.document(SIMULATED), 80).splitlines()
    assert [line.split() for line in lines if line.startswith("  reduce_scatter")] == [
        ["reduce_scatter", "all", "5", "sizes", "-", "-", "-", "skipped"]
    ]
    assert sum(line.startswith("  sendrecv") for line in lines) == 3
    assert sum("the time budget was used up" in line for line in lines) == 1
    assert max(map(len, lines)) <= 80


def test_a_table_too_wide_for_the_terminal_loses_its_p95_not_its_verdict() -> None:
    narrow = table.collectives(stories.document(SIMULATED), 66)
    assert "p95" not in narrow
    assert re.search(r"broadcast_object_list .* skipped", narrow)


def test_one_rank_has_no_bandwidth_and_nothing_is_called_skipped_for_it() -> None:
    times = Times(p50=1.0, p95=1.0, p99=1.0, min=1.0, max=1.0, mean=1.0)
    shape = Collective(op="all_reduce", bytes=1024, dtype="float32", nodes=1, ranks=1)
    row = replace(shape, time_us=times, correct=True, reason="one rank: nothing crosses a link")
    measured = Measurements(collectives=[row])
    document = replace(stories.document("healthy"), job=Job(backend="gloo"), measurements=measured)
    text = table.collectives(document, 80)
    assert "skipped" not in text
    assert "1 rank on 1 node" in text


def _verdicts(*findings: object, code: str = "NET001") -> Verdict:
    return Verdict(code=code, title="all is well", state=State.FAIL, findings=list(findings))  # type: ignore[arg-type]


def _told(*verdicts: Verdict) -> list[groups.FindingBlock]:
    return list(groups.blocks(replace(stories.document("healthy"), verdicts=list(verdicts)), list(State)))


def _small(node: str, what: str) -> object:
    return fail(
        Where(node=node), what, why="it fills up", owner="job", evidence=[seen("df", what)], fix=[you("More")]
    )


def test_nodes_with_one_remedy_are_told_together() -> None:
    (block,) = _told(_verdicts(_small("a1", "64 MiB"), _small("a2", "64 MiB"), _small("a3", "61 MiB")))
    assert [str(place) for place in block.places] == ["a[1-2]: 64 MiB", "a3: 61 MiB"]
    assert len(block.evidence) == 2


def test_a_long_list_of_places_is_cut_and_says_so() -> None:
    verdict = _verdicts(*(_small(f"a{i}", f"{i} MiB") for i in range(40)))
    document = replace(stories.document("healthy"), verdicts=[verdict])
    report = terminal.text(document, Style())
    assert "a2: 2 MiB\n        and 37 more like these: a[3-39]" in report
    assert "and 32 more (-v shows all)" in report  # of the evidence
    assert "a39: 39 MiB" in terminal.text(document, Style(verbose=True))


def test_a_fact_that_was_not_read_is_said_once_for_all_its_rules() -> None:
    def unread(fact: str, why: str) -> object:
        return not_read(Where(node="a"), fact, Unread("denied", why))

    blocks = _told(
        _verdicts(unread("host.shm", "no right"), code="HST003"),
        _verdicts(unread("host.tmp", "no right"), code="HST004"),
        _verdicts(unread("job.variables", "too late"), code="NCC003"),
    )
    assert [(block.codes, str(block.places[0])) for block in blocks] == [
        (["HST003", "HST004"], "a: host.shm, host.tmp could not be read: no right"),
        (["NCC003"], "a: job.variables could not be read: too late"),
    ]


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        (["a1", "a2", "a3", "b"], "a[1-3], b"),
        (["gpu-b08", "gpu-b09", "gpu-b10", "gpu-b12"], "gpu-b[08-10,12]"),
        (["sim0", "sim1"], "sim[0-1]"),
        (["n9", "n10", "n09"], "n9, n[09-10]"),
        (["10.0.0.1", "10.0.0.2"], "10.0.0.[1-2]"),
        (["r1n1.site", "r1n2.site", "r2n1.site"], "r1n[1-2].site, r2n1.site"),
        (["a2", "a1", "a2"], "a[1-2]"),
        (["oak", "birch"], "oak, birch"),
        ([], ""),
    ],
)
def test_names_are_folded_as_slurm_writes_them(names: list[str], folded: str) -> None:
    assert fold_names(names) == folded


@settings(max_examples=50, deadline=None)
@given(st.lists(st.from_regex(r"[a-c٣-]{0,3}[0-9]{0,17}[a-z.]{0,2}", fullmatch=True).filter(bool)), st.randoms())
def test_no_name_is_lost_or_made_up_by_folding(names: list[str], random: object) -> None:
    folded = list(_unfolded(fold_names(names)))
    assert sorted(folded) == sorted(set(names))
    shuffled = list(names)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert set(_unfolded(fold_names(shuffled))) == set(names)


def _unfolded(text: str) -> Iterator[str]:
    """Every name again."""
    for piece in text.split(", ") if text else []:
        match = re.fullmatch(r"(.*)\[([0-9,-]+)\](.*)", piece)
        if match is None:
            yield piece
            continue
        for span in match[2].split(","):
            first, _, last = span.partition("-")
            for number in range(int(first), int(last or first) + 1):
                yield f"{match[1]}{number:0{len(first) if first.startswith('0') else 0}d}{match[3]}"


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"), (1, "1 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (65536, "64 KiB"),
        (2**20, "1 MiB"), (1007 * 2**30, "1007 GiB"), (2**40, "1 TiB"), (2**50, "1024 TiB"), (2**20 - 1, "1 MiB"),
    ],
)  # fmt: skip
def test_sizes(number: int, text: str) -> None:
    assert size(number) == text


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0.04, "0.0 us"), (38.42, "38.4 us"), (999.9, "999.9 us"), (999.96, "1.00 ms"), (1234.5, "1.23 ms"),
        (99_990, "99.99 ms"), (104_580, "104.6 ms"), (999_940, "999.9 ms"), (1_000_000, "1.00 s"),
        (62_000_000, "62.00 s"),
    ],
)  # fmt: skip
def test_durations(us: float, text: str) -> None:
    assert duration(us) == text


@given(st.integers(0, 10**8))
def test_durations_and_sizes_stay_short(number: int) -> None:
    assert len(duration(number)) <= 8
    assert len(size(number)) <= 9
    assert "e" not in duration(number)


def test_an_empty_result_can_be_printed() -> None:
    document = stories.Told(about="", source="", expect={}, nodes=[]).document
    assert document.nodes == []
    assert terminal.text(document, Style()).splitlines()[-1]
