"""RAS of NCCL as `hang` asks and reads it: answers of real processes of eight versions, of one in JSON, too."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclcheck.probes.facts import Ras, RasLook
from ncclcheck.probes.live import ras
from ncclcheck.probes.live.answers import ras_json, ras_text
from ncclcheck.reports.subjects.live import nccl_ras
from tests.nccl.ras_states import OTHERS, STATES, VERSIONS, WITH_JSON

FOLDER = Path(__file__).resolve().parents[2] / "data/ras"
ALL = sorted({*VERSIONS, *OTHERS, *WITH_JSON})
OLD = ("2.24.3", "2.25.1")  # one count for all collectives
_NOT_HAD = {  # 2.25.1: our kernels end its process in larger sums; 2.26: RAS does not answer in the start
    *((version, "starting") for version in ("2.26.2", "2.26.5")),
    *(("2.25.1", state) for state in ("killed", "stopped", "skipped")),
}


def _read(version: str, state: str) -> RasLook:
    file = FOLDER / f"{version}-{state}.txt"
    if not file.exists():
        assert (version, state) in _NOT_HAD
        pytest.skip("there is no answer of this version in this state")
    return ras_text.read(file.read_text())


def _read_json(version: str, state: str) -> RasLook:
    return ras_json.read((FOLDER / f"{version}-{state}.json").read_text())


def _twice(look: RasLook) -> Ras:
    return Ras(job="a:1", looks=[look, look])


@pytest.mark.parametrize("version", ALL)
@pytest.mark.parametrize("state", [state.name for state in STATES])
def test_every_line_of_a_real_answer_is_read(version: str, state: str) -> None:
    look = _read(version, state)
    assert look.version == version
    assert look.unread == 0


@pytest.mark.parametrize(
    ("version", "form"), [*((version, "text") for version in ALL), *((version, "json") for version in WITH_JSON)]
)
@pytest.mark.parametrize(
    ("state", "missing", "behind", "left"),
    [
        ("alive", [], None, []),
        ("killed", [3], None, []),
        ("stopped", [3], None, []),
        ("skipped", [], [3], []),
        ("other", [], [3], []),
        ("aborted", [], None, [3]),
    ],
)
def test_the_rank_is_named(
    version: str, state: str, missing: list[int], behind: list[int] | None, left: list[int], form: str
) -> None:
    communicators = nccl_ras.standing(_twice((_read_json if form == "json" else _read)(version, state)))
    if (version, state) == ("2.24.3", "killed"):
        missing = [0, 3]  # rank 0 was alive: what RAS says of a rank is held against /proc
    if version in OLD and state == "other":
        behind = None
    assert [rank.rank for comm in communicators for rank in comm.missing] == missing
    views = [view for comm in communicators if (view := nccl_ras.behind(comm))]
    assert [rank.rank for each in views for rank in each.ranks] == (behind or [])
    assert [(bool(view.fewer), bool(view.more)) for view in views] == (
        [(True, state == "other")] if behind else []
    )
    assert [rank.rank for comm in communicators for rank, _ in nccl_ras.left(comm)] == left


@pytest.mark.parametrize("version", ALL)
def test_quiet_is_only_that_all_launched_equally_often(version: str) -> None:
    assert nccl_ras.is_quiet(_twice(_read(version, "alive")))
    assert nccl_ras.is_quiet(_twice(_read(version, "other"))) == (version in OLD)
    assert not nccl_ras.is_quiet(_twice(_read(version, "aborted")))
    assert not nccl_ras.is_quiet(Ras(job="a:1"))


def test_what_changes_between_two_questions_does_not_stand() -> None:
    """A job that advances is uneven at any moment: another count the second time is no hang."""
    first = FOLDER / "2.27.7-skipped.txt"
    later = first.read_text().replace("operation 2", "operation 9").replace("operation 1 ", "operation 8 ")
    assert nccl_ras.standing(Ras(job="a", looks=[ras_text.read(first.read_text()), ras_text.read(later)])) == []
    assert nccl_ras.standing(Ras(job="a", looks=[ras_text.read(first.read_text())])) == []


@pytest.mark.parametrize("version", WITH_JSON)
@pytest.mark.parametrize("state", [state.name for state in STATES])
def test_json_of_a_real_process_says_what_its_text_says(version: str, state: str) -> None:
    """2.28.9 leaves out a comma in `missing_ranks`, which is put in."""
    text, as_json = _read(version, state), _read_json(version, state)
    assert as_json.version == version
    assert [(group.answered, group.ranks, group.errors) for group in as_json.groups] == [
        (group.answered, group.ranks, group.errors) for group in text.groups
    ]
    named = [[sorted(rank.rank for rank in comm.missing) for comm in look.troubled] for look in (text, as_json)]
    assert named[0] == named[1]


# --- JSON, as NVIDIA's manual of 2.28.7 to 2.32.3 shows it

_JSON = """{
  "nccl_version": "2.29.1", "cuda_runtime_version": 13000, "cuda_driver_version": 13000,
  "timestamp": "2025-12-19 13:06:53", "communicators_count": 1,
  "communicators": [{"hash": "0xae94423cfbb2ef4a", "secondary_hash": "0xb7:0xb8", "size": 4, "ranks_count": 3,
    "missing_ranks_count": 1, "ranks": [%s],
    "missing_ranks": [{"rank": 3, "host": "10.0.0.2", "pid": 45, "cuda_dev": 1, "nvml_dev": 3,
      "status": {"unresponsive": true, "considered_dead": false}}]}],
  "ras": {"collection_time_sec": 0.000, "timeouts_count": 2}
}"""
_RANK = """{"rank": %d, "host": "10.0.0.1", "pid": %d, "cuda_dev": 0, "nvml_dev": 0,
  "status": {"init_state": 0, "async_error": 0, "finalize_called": false, "destroy_flag": false, "abort_flag": %s},
  "collective_counts": {"Broadcast": 0, "Reduce": 0, "AllGather": %d, "ReduceScatter": 0, "AllReduce": %d}}"""


def _json(*ranks: tuple[str, int, int]) -> str:
    return _JSON % ", ".join(_RANK % (at, 100 + at, *rank) for at, rank in enumerate(ranks))


def test_json_says_the_same() -> None:
    look = ras_json.read(_json(("false", 0, 7), ("false", 0, 7), ("false", 1, 6)))
    assert (look.form, look.timeouts, look.launches) == ("json", 2, 21)
    assert [(group.answered, group.ranks, group.errors) for group in look.groups] == [
        (3, 4, ["INCOMPLETE", "MISMATCH"])
    ]
    assert look.processes == [("10.0.0.2", 45)]
    (comm,) = look.troubled
    assert [(rank.rank, rank.gpu) for rank in comm.missing] == [(3, "1 (NVML 3)")]
    view = nccl_ras.behind(comm)
    assert view is not None
    assert [rank.pid for rank in view.ranks] == [102]
    assert [(few.op, few.launched, most.launched) for few, most in view.fewer] == [("AllReduce", 6, 7)]
    assert [few.op for few, _ in view.more] == ["AllGather"]


def test_json_tells_that_a_job_advances() -> None:
    looks = [ras_json.read(_json(*[("false", 0, count)] * 3)) for count in (7, 8)]
    assert nccl_ras.advances(Ras(job="a", looks=looks))
    assert not nccl_ras.advances(Ras(job="a", looks=looks[:1] * 2))


def test_a_rank_that_aborted_is_told_by_json() -> None:
    (comm,) = ras_json.read(_json(("false", 0, 7), ("false", 0, 7), ("true", 0, 7))).troubled
    assert [(rank.rank, status) for rank, status in nccl_ras.left(comm)] == [(2, "ABORT")]


def test_a_rank_that_answers_and_is_no_member_is_one_that_left_in_json_too() -> None:
    """RAS lists it among `missing_ranks`, with "unresponsive": false (NCCL's src/ras/client_support.cc)."""
    text = _json(("false", 0, 7), ("false", 0, 7), ("false", 0, 7))
    look = ras_json.read(text.replace('"unresponsive": true', '"unresponsive": false'))
    (comm,) = look.troubled
    assert comm.missing == []
    assert look.groups[0].errors == ["MISMATCH"]
    assert [(rank.rank, status) for rank, status in nccl_ras.left(comm)] == [(3, "NOCOMM")]


def test_the_comma_that_one_version_leaves_out_is_no_harm() -> None:
    """2.28.9, by ray-project/ray#64928."""
    text = _json(("false", 0, 7), ("false", 0, 7), ("false", 0, 7)).replace('"nvml_dev": 3,', '"nvml_dev": 3')
    assert ras_json.read(text).processes == [("10.0.0.2", 45)]


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", '{"nccl_version": 3}', '{"nccl_version": "2", "communicators": [{}]}', "[" * 10**5]
)
def test_what_is_no_status_is_refused(text: str) -> None:
    for reader in (ras_json, ras_text):
        with pytest.raises(ras_text.NoStatus):
            reader.read(text)


# --- asking


@pytest.mark.parametrize(
    ("version", "lost", "young", "asked"),
    [
        (None, False, False, False),
        ((2, 23, 4), False, False, False),
        ((2, 24, 3), False, False, True),
        ((2, 25, 1), True, False, False),
        ((2, 26, 5), False, False, False),
        ((2, 27, 7), False, False, True),
        ((2, 27, 7), True, False, False),
        ((2, 29, 7), True, False, True),
        ((2, 29, 7), False, True, False),
        ((2, 32, 3), False, False, True),
    ],
)
def test_who_may_crash_is_not_asked(
    version: tuple[int, int, int] | None, lost: bool, young: bool, asked: bool
) -> None:
    assert (ras.refusal(version, lost, young) == "") == asked


@contextlib.contextmanager
def _server(*answers: bytes | None) -> Iterator[int]:
    """One RAS after the other on one port; None says nothing, as the kernel does for a stopped rank."""
    talks: list[socket.socket] = []

    def serve() -> None:
        for answer in answers:
            talk, _ = door.accept()
            talks.append(talk)
            if answer is None:
                continue
            lines = talk.makefile("rb")
            assert lines.readline() == b"CLIENT PROTOCOL 2\n"
            talk.sendall(b"SERVER PROTOCOL 2\n")
            assert lines.readline() == b"TIMEOUT 5\n"
            talk.sendall(b"OK\n")
            assert lines.readline() == b"VERBOSE STATUS\n"
            talk.sendall(answer)
            talk.shutdown(socket.SHUT_RDWR)

    with socket.create_server(("127.0.0.1", 0)) as door:
        threading.Thread(target=serve, daemon=True).start()
        yield door.getsockname()[1]
        for talk in talks:
            talk.close()


def test_where_a_stopped_rank_takes_the_question_another_is_asked() -> None:
    text = (FOLDER / "2.27.7-stopped.txt").read_bytes()
    with _server(None, None, text) as port:
        status = ras.status("127.0.0.1", port)
    assert (status["text"].encode(), status["tries"], status["problem"], status["cut"]) == (text, 3, "", False)


def test_a_long_answer_is_cut_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ras, "_MOST_TEXT", 1000)
    with _server(b"x" * 5000) as port:
        status = ras.status("127.0.0.1", port)
    assert (len(status["text"]), status["cut"]) == (1000, True)


def test_where_nobody_listens_it_is_over_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    status = ras.status("127.0.0.1", port)
    assert status["tries"] == 1
    assert "refused" in status["problem"]


def test_another_server_is_no_ras() -> None:
    def serve() -> None:
        for _ in range(20):
            with contextlib.suppress(OSError):
                talk, _ = door.accept()
                talk.sendall(b"SSH-2.0-OpenSSH_9.6\n")

    with socket.create_server(("127.0.0.1", 0)) as door:
        threading.Thread(target=serve, daemon=True).start()
        status = ras.status("127.0.0.1", door.getsockname()[1])
    assert (status["text"], status["problem"]) == ("", "what listens there is no RAS")


@pytest.mark.parametrize(
    ("address", "port"),
    [("", 28028), ("localhost:28100", 28100), ("[::1]:7", 7), ("a:99999", 28028), ("x", 28028)],
)
def test_only_the_port_of_the_variable_counts(address: str, port: int) -> None:
    assert ras.port_of(address) == port


def test_addresses_of_the_kernel_are_read() -> None:
    assert ras.address_of("0100007F") == "127.0.0.1"
    assert ras.address_of("00000000") == "127.0.0.1"
    assert ras.address_of("00000000000000000000000001000000") == "::1"
