"""The table of communicators: which process began which of them as which rank, of those that are not whole."""

from __future__ import annotations

from ncclcheck.probes.facts import LogCommunicator, Logs
from ncclcheck.reports.subjects.logs.start.communicators import apart, hanging
from tests.helpers.logs import parsed, raised


def _line(host: str, comm: str, rank: int, ranks: int, identity: str, state: str = "Init START") -> str:
    return (
        f"{host}:{host[-1]}0:{host[-1]}0 [0] NCCL INFO ncclCommInitRank comm 0x{comm} rank {rank} nranks {ranks} "
        f"cudaDev 0 nvmlDev 0 busId 1b000 {identity} - {state}\n"
    )


def _began(host: str, comm: str, rank: int, ranks: int = 2, id: str = "0x7") -> str:
    return _line(host, comm, rank, ranks, f"commId {id}")


def _came(host: str, comm: str, rank: int, ranks: int = 2, id: str = "0x7") -> str:
    return _began(host, comm, rank, ranks, id) + _line(host, comm, rank, ranks, f"commId {id}", "Init COMPLETE")


def _table(text: str) -> list[LogCommunicator]:
    return parsed(text.encode()).communicators


def _ranks(communicator: LogCommunicator) -> list[tuple[str, int, bool]]:
    return [(member.host, member.rank, member.complete) for member in communicator.members]


WHOLE = _came("oak1", "a1", 0) + _came("oak2", "b1", 1)


def test_what_is_whole_is_not_kept() -> None:
    assert _table(WHOLE) == []


def test_a_later_communicator_that_a_rank_never_began_is_kept_with_who_began_it() -> None:
    (communicator,) = _table(WHOLE + _began("oak2", "b2", 1, id="0x8"))
    assert (communicator.id, _ranks(communicator), communicator.members[0].line) == (
        "0x8",
        [("oak2", 1, False)],
        5,
    )


def test_an_id_that_is_begun_again_has_both_of_a_rank() -> None:
    (communicator,) = _table(WHOLE + _began("oak1", "a2", 0))
    assert _ranks(communicator) == [("oak1", 0, True), ("oak1", 0, False), ("oak2", 1, True)]
    assert raised(WHOLE + _began("oak1", "a2", 0))["LOG192"] == "fail"


def test_an_address_that_is_used_again_without_a_word_of_its_end_is_another_communicator() -> None:
    (communicator,) = _table(WHOLE + _began("oak1", "a1", 0, id="0x9"))
    assert (communicator.id, len(communicator.members)) == ("0x9", 1)


def test_a_split_is_named_by_its_parent_its_number_and_its_colour() -> None:
    numbered = WHOLE + _line("oak1", "a2", 0, 2, "parent 0xa1 splitCount 3 color 5 key 0-")
    counted = WHOLE + _line("oak1", "a2", 0, 2, "parent 0xa1 color 5 key 0-")
    assert [communicator.id for communicator in _table(numbered)] == ["0x7/3/5"]
    assert [communicator.id for communicator in _table(counted)] == ["0x7/1/5"]


def test_two_processes_of_one_number_are_named_though_nccl_says_nothing() -> None:
    """Two of the four came through; both hosts count themselves as ranks 0 and 1 of 2."""
    text = _came("oak1", "a1", 0) + _began("oak2", "b1", 1) + _began("oak3", "c1", 0) + _came("oak4", "d1", 1)
    assert raised(text)["LOG022"] == "fail"


def test_under_nccl_comm_id_every_communicator_has_the_same_id() -> None:
    line = "oak1:10:10 [0] NCCL INFO NCCL_COMM_ID set by environment to 10.44.7.3:29600\n"
    twice = line + WHOLE + _came("oak1", "a2", 0) + _came("oak2", "b2", 1)
    assert {"LOG022", "LOG192"}.isdisjoint(raised(twice))


def test_ranks_of_two_versions_make_two_ids_of_one() -> None:
    """Each version hashes the id in its own way."""
    versions = "".join(
        f"{host}:{host[-1]}0:{host[-1]}0 [0] NCCL INFO NCCL version {version}+cuda12.4\n"
        for host, version in (("oak1", "2.25.1"), ("oak2", "2.26.5"))
    )
    states = raised(versions + _began("oak1", "a1", 0) + _began("oak2", "b1", 1, id="0x8"))
    assert "LOG192" not in states
    assert states["LOG018"] == "fail"


def test_two_jobs_in_one_log_share_nothing() -> None:
    other = WHOLE.replace("oak1", "elm3").replace("oak2", "elm4").replace("0x7", "0x8")
    assert _table(WHOLE + other) == []
    assert {"LOG022", "LOG192", "LOG002"}.isdisjoint(raised(WHOLE + other))


def test_a_communicator_of_a_saved_result_may_have_no_members() -> None:
    """No log gives one; a result that somebody else wrote may."""
    (member,) = _table(_began("oak1", "a1", 0))[0].members
    communicators = [LogCommunicator(id="0x7", members=[member]), LogCommunicator(id="0x8")]
    assert apart(Logs(communicators=communicators)) == []
    assert hanging(Logs(communicators=communicators)) == [[member]]
