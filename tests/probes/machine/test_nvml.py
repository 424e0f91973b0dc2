"""The GPU probe and the whole command, unchanged, against a fake NVML that says what a file tells it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ncclcheck.base.errors import UsageError
from ncclcheck.probes.facts import Gpu, Gpus, Unread, unread_in
from ncclcheck.reports.judgement.jsondoc import Document
from ncclcheck.run.plan.bench_plan import JobOptions, JobShape, shape
from tests.conftest import Command, Ran
from tests.helpers import fake_nvml

pytestmark = fake_nvml.needs_gcc
GIB = 2**30
PROBE = """
import sys, msgspec
from ncclcheck.probes.machine import gpu, access as machine
from ncclcheck.probes.machine.gpu import nvml
nvml.LONGEST_ANSWER_S = float(sys.argv[1])
sys.stdout.buffer.write(msgspec.json.encode(gpu.probe(machine.Machine())))
"""


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_nvml.built(tmp_path_factory.mktemp("nvml"))


def probed(libraries: Path, folder: Path, *lines: str, seconds: float = 10) -> Gpus:
    """What the probe finds in a process of its own: LD_LIBRARY_PATH counts from the start of a process."""
    env = fake_nvml.environment(libraries, folder / "told", *lines)
    ran = subprocess.run(
        [sys.executable, "-c", PROBE, str(seconds)], env={"PATH": os.environ["PATH"], **env},
        cwd=Path(__file__).parents[3], capture_output=True, timeout=60, check=True,
    )  # fmt: skip
    return msgspec.json.decode(ran.stdout, type=Gpus)


def cards(gpus: Gpus) -> list[Gpu]:
    assert not isinstance(gpus.cards, Unread), gpus.cards
    return gpus.cards


def unread(fact: object) -> tuple[str, str]:
    assert isinstance(fact, Unread)
    return fact.kind, fact.why


@pytest.mark.parametrize("count", [0, 1, 8, 16])
def test_every_gpu_is_read_whole(libraries: Path, tmp_path: Path, count: int) -> None:
    gpus = probed(libraries, tmp_path, f"gpus = {count}")
    assert [card.name for card in cards(gpus)] == [f"GPU {index}" for index in range(count)]
    assert (gpus.nvml, gpus.nvml_driver, gpus.usable) == ("", "570.124.06", count)
    facts = {
        "trouble",
        "processes",
        "ecc",
        "remapped",
        "throttle",
        "nvlinks",
        "fabric",
        "peers",
        "margin",
        "recovery",
    }
    for card in cards(gpus):
        absent = {path.split(".")[0] for path, _ in unread_in(card)}
        assert not absent & facts
        assert absent <= {"numa", "mig_instances", "retired", "slowdown_at"}
        assert card.peers is not None
        assert len(card.peers) == count - 1  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("lines", "fact", "kind"),
    [
        (["0 temperature = !3"], "temperature", "absent"),
        (["0 temperature = !4"], "temperature", "denied"),
        (["0 power_cap = !999"], "power_cap", "broken"),
        (["0 compute_mode = 77"], "compute_mode", "broken"),
        (["0 nvlinks = 0"], "nvlinks", "absent"),
        (["0 fabric = 0"], "fabric", "absent"),
        (["0 recovery = !3"], "recovery", "absent"),
        (["0 spare_few = !3"], "spare_rows", "absent"),
        (["0 inforom = !3"], "inforom", "absent"),
        (["0 inforom = !999"], "inforom", "broken"),
        (["0 vbios = \udcff"], "vbios", "broken"),
    ],
)
def test_one_refused_call_is_one_unread_fact(
    libraries: Path, tmp_path: Path, lines: list[str], fact: str, kind: str
) -> None:
    whole, first = (cards(probed(libraries, tmp_path, "gpus = 1", *more))[0] for more in ([], lines))
    assert unread(getattr(first, fact))[0] == kind
    assert {path for path, _ in unread_in(first)} - {path for path, _ in unread_in(whole)} == {fact}


@pytest.mark.parametrize(
    ("line", "word"), [("1 lost = 1", "GPU is lost"), ("1 lost = 16", "GPU requires restart")]
)
def test_a_lost_gpu_is_one_fact_and_not_forty(libraries: Path, tmp_path: Path, line: str, word: str) -> None:
    sound, lost = cards(probed(libraries, tmp_path, "gpus = 2", line))
    assert sound.trouble == ""
    assert word in str(lost.trouble)
    assert {fact.kind for _, fact in unread_in(lost)} == {"absent"}


def test_a_gpu_without_a_handle(libraries: Path, tmp_path: Path) -> None:
    _, lost = cards(probed(libraries, tmp_path, "gpus = 2", "1 handle = 15"))
    assert "GPU is lost" in str(lost.trouble)


def test_a_gpu_that_hangs_is_named_and_the_others_are_read(libraries: Path, tmp_path: Path) -> None:
    gpus = probed(libraries, tmp_path, "gpus = 4", "hang = nvmlDeviceGetTemperature 2", seconds=1.5)
    assert [card.trouble == "" for card in cards(gpus)] == [True, True, False, True]
    assert unread(cards(gpus)[2].trouble) == ("timed_out", "nvmlDeviceGetTemperature gave no answer in 1.5 s")
    assert cards(gpus)[2].model == "NVIDIA H100 80GB HBM3"
    assert unread(cards(gpus)[2].margin)[0] == "absent"


def test_an_nvml_that_hangs_at_once(libraries: Path, tmp_path: Path) -> None:
    gpus = probed(libraries, tmp_path, "hang = nvmlInitWithFlags", seconds=1)
    assert unread(gpus.nvml) == ("timed_out", "nvmlInit of NVML gave no answer in 1 s")
    assert unread(gpus.cards)[0] == "absent"
    assert gpus.usable == 8


def test_an_nvml_that_crashes(libraries: Path, tmp_path: Path) -> None:
    gpus = probed(libraries, tmp_path, "crash = nvmlDeviceGetName 0")
    assert unread(gpus.nvml)[0] == "broken"
    assert "status -6" in unread(gpus.nvml)[1]


def test_versions_that_do_not_fit(libraries: Path, tmp_path: Path) -> None:
    assert probed(libraries, tmp_path, "init = 18").nvml == "Driver/library version mismatch"


def test_processes(libraries: Path, tmp_path: Path) -> None:
    us = os.getpid()
    gpus = probed(libraries, tmp_path, "gpus = 1", f"0 processes = {us}:{GIB} 1:na 4194303:{2 * GIB}")
    processes = cards(gpus)[0].processes
    assert not isinstance(processes, Unread)
    assert [process.pid for process in processes] == [us, 1, 4194303]
    assert [process.memory for process in processes][::2] == [GIB, 2 * GIB]
    assert unread(processes[1].memory)[0] == "denied"
    if os.readlink("/proc/self/ns/pid") == "pid:[4026531836]":
        assert (processes[0].user, processes[2].state) == (gpus.user, "gone")
    else:
        assert {unread(process.state)[0] for process in processes} == {"denied"}


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.binary(max_size=400),
    key=st.sampled_from(["model", "processes", "nvlinks", "mig", "fabric", "path"]),
    value=st.one_of(st.integers(-(2**70), 2**70).map(str), st.text(max_size=30)),
)
def test_nothing_that_nvml_says_makes_the_probe_raise(
    libraries: Path, tmp_path: Path, content: bytes, key: str, value: str
) -> None:
    env = fake_nvml.environment(libraries, tmp_path / "told")
    line = f"\ngpus = 2\n* {key} = {value}\n".encode(errors="surrogatepass")
    (tmp_path / "told").write_bytes(content + line)
    ran = subprocess.run(
        [sys.executable, "-c", PROBE, "3"], env={"PATH": os.environ["PATH"], **env},
        cwd=Path(__file__).parents[3], capture_output=True, timeout=60, check=True,
    )  # fmt: skip
    assert isinstance(msgspec.json.decode(ran.stdout, type=Gpus), Gpus)


@pytest.fixture
def env_command(ncclcheck: Command, libraries: Path, tmp_path: Path) -> Command:
    """`ncclcheck env -o json` on a machine with the GPUs that these lines tell of."""

    def run(*lines: str, **env: str) -> Ran:
        variables = fake_nvml.environment(libraries, tmp_path / "told", *lines)
        return ncclcheck("env", "-o", "json", **variables, **env)

    return run


def gpu_states(document: Document) -> dict[str, str]:
    """GPU and MEM verdicts that are neither well nor skipped; but for GPU001, which wants a torch for CUDA."""
    wanted = [v for v in document.verdicts if v.code.startswith(("GPU", "MEM")) and v.code != "GPU001"]
    return {v.code: v.state.value for v in wanted if v.state.value not in ("ok", "skipped")}


@pytest.mark.parametrize("count", [0, 1, 8, 16])
def test_env_finds_nothing_wrong_with_sound_gpus(env_command: Command, count: int) -> None:
    states = gpu_states(env_command(f"gpus = {count}").document)
    assert set(states.items()) <= {("GPU005", "unknown"), ("GPU006", "unknown")}, (
        "the kernel log may be closed to us"
    )


# What is wrong with one GPU (@ is its number), and what must be said of it; seven of them to a run of the command.
FAULTS = [
    ("GPU004", "fail", "@ lost = 1"),
    ("GPU004", "fail", "@ recovery = 2"),
    ("GPU007", "fail", "@ ecc_uncorrected = 2"),
    ("GPU007", "fail", "@ sram_exceeded = 1"),
    ("GPU008", "fail", "@ remap_failed = 1"),
    ("GPU008", "warn", "@ remap_pending = 1"),
    ("GPU009", "fail", "@ retired_single = 60; @ retired_double = 5; @ retired_pending = 0"),
    ("GPU009", "warn", "@ retired_single = 6; @ retired_double = 0; @ retired_pending = 1"),
    ("GPU010", "warn", "@ ecc = 0"),
    ("GPU011", "warn", "@ throttle = 0x48"),
    ("GPU012", "warn", "@ utilization = 99; @ throttle = 2"),
    ("GPU013", "warn", "@ power_cap = 400000"),
    ("GPU014", "warn", "@ margin = 2"),
    ("GPU014", "warn", "@ margin = !3; @ temperature = 88; @ slowdown_at = 90"),
    ("GPU015", "warn", "@ pcie_width = 8"),
    ("GPU016", "warn", "@ pcie_gen = 3; @ utilization = 80; @ clock = 1980"),
    ("GPU017", "warn", "@ pcie_replays = 40000"),
    ("GPU018", "fail", "@ nvlinks_down = all"),
    ("GPU018", "warn", "@ nvlinks_down = 4,7"),
    ("GPU019", "warn", "@ nvlink_recoveries = 2"),
    ("GPU020", "fail", "@ fabric = 2"),
    ("GPU020", "warn", "@ fabric_health = 2"),
    ("GPU021", "warn", "@ p2p = 1"),
    ("GPU022", "warn", "@ mig = 1"),
    ("GPU023", "fail", "@ compute_mode = 2"),
    ("GPU027", "warn", f"@ memory_used = {8 * GIB}"),
    ("GPU028", "note", "@ vbios = 96.00.74.00.01"),
    ("GPU040", "warn", "@ spare_none = 2"),
    ("GPU040", "note", "@ spare_few = 1"),
    ("GPU041", "warn", "@ inforom = !14"),
]


@pytest.mark.parametrize("faults", [FAULTS[start : start + 7] for start in range(0, len(FAULTS), 7)])
def test_env_finds_each_fault_where_it_is_and_nothing_else(
    env_command: Command, faults: list[tuple[str, str, str]]
) -> None:
    lines = [
        line.replace("@", str(gpu))
        for gpu, (*_, fault_lines) in enumerate(faults, 1)
        for line in fault_lines.split("; ")
    ]
    document = env_command("gpus = 8", *lines).document
    alarms = [
        (verdict.code, finding.state.value, finding.where.device)
        for verdict in document.verdicts
        for finding in verdict.findings
        if verdict.code in gpu_states(document) and finding.state.value not in ("ok", "unknown")
    ]
    expected = [(code, state, f"GPU {gpu}") for gpu, (code, state, _) in enumerate(faults, 1)]
    assert sorted(alarms) == sorted(expected)


@pytest.mark.parametrize(
    ("code", "state", "line"),
    [
        ("GPU003", "fail", "init = 18"),
        ("GPU024", "note", "* persistence = 0"),
        ("GPU028", "warn", "3 model = NVIDIA A100-SXM4-80GB"),
    ],
)
def test_env_finds_what_is_wrong_with_a_node(env_command: Command, code: str, state: str, line: str) -> None:
    states = gpu_states(env_command("gpus = 8", line).document)
    assert {name: word for name, word in states.items() if word != "unknown"} == {code: state}


@pytest.mark.nightly
def test_env_with_an_nvml_that_hangs_is_not_finished(env_command: Command) -> None:
    ran = env_command("gpus = 8", "hang = nvmlDeviceGetTemperature 5", NCCLCHECK_DEADLINE="30")
    states = {v.code: v for v in ran.document.verdicts}
    assert (states["GPU004"].state.value, states["RUN004"].state.value) == ("unknown", "unknown")
    assert "nvmlDeviceGetTemperature" in states["RUN004"].findings[0].what


def test_env_says_what_the_user_s_own_job_does_wrong(env_command: Command) -> None:
    """pytorch/pytorch#49481: seven ranks hold 871 MiB each on GPU 0."""
    ranks = [subprocess.Popen(["sleep", "60"]) for _ in range(8)]
    try:
        guests = " ".join(f"{rank.pid}:{871 * 2**20}" for rank in ranks[1:])
        lines = [f"{index} processes = {rank.pid}:{20 * GIB}" for index, rank in enumerate(ranks)]
        lines += [f"0 processes = {ranks[0].pid}:{20 * GIB} {guests}", f"* memory_used = {20 * GIB}"]
        states = gpu_states(env_command("gpus = 8", *lines).document)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert {code: state for code, state in states.items() if state != "unknown"} == {"MEM001": "warn"}


@pytest.mark.parametrize(("ranks", "fit"), [(2, True), (3, False)])
def test_more_ranks_than_gpus_are_refused_and_as_many_fit(env_command: Command, ranks: int, fit: bool) -> None:
    nodes = [node.facts for node in env_command("gpus = 2").document.nodes]
    wishes = JobOptions(nproc_per_node=ranks)
    if fit:
        assert shape(wishes, nodes, simulated=False) == JobShape("nccl", ranks)
        return
    with pytest.raises(UsageError, match="3 ranks do not fit, each node has 2 GPUs for nccl"):
        shape(wishes, nodes, simulated=False)
