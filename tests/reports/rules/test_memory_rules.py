"""MEM rules over GPUs on which the user's own job runs."""

from __future__ import annotations

from typing import Any

import pytest

from ncclcheck.probes.facts import Gpu
from tests.helpers.cards import GIB, MIB, card, gpu_node, process
from tests.helpers.clusters import DENIED, verdict

CODES = ("MEM001", "MEM002", "MEM003")


def ranks(*extra: Any, user: Any = "ada", used: tuple[int, ...] = (20, 20, 20, 20)) -> list[Gpu]:
    """Four ranks with 20 GiB on a GPU each; extra processes are on GPU 0."""
    return [
        card(
            index,
            processes=[process(100 + index, 20 * GIB, user), *(extra if index == 0 else ())],
            memory_used=used[index] * GIB,
        )
        for index in range(4)
    ]


def states(*gpus: Gpu, command: str = "env") -> list[str]:
    return [verdict(code, gpu_node("a", *gpus), command=command).state.value for code in CODES]


def test_a_sound_job() -> None:
    assert states(*ranks()) == ["ok", "ok", "ok"]


@pytest.mark.parametrize("user", ["ada", DENIED])
def test_contexts_of_all_ranks_on_gpu_0(user: Any) -> None:
    """pytorch/pytorch#49481."""
    guests = [process(100 + rank, 871 * MIB, user) for rank in (1, 2, 3)]
    judgement = verdict("MEM001", gpu_node("a", *ranks(*guests, user=user)))
    assert [(f.state.value, f.where.device) for f in judgement.findings] == [("warn", "GPU 0")]
    assert judgement.findings[0].what == "3 processes that compute on other GPUs hold 2.55 GiB on it"


def test_one_process_over_several_gpus_is_sound() -> None:
    spread = [
        card(index, processes=[process(7, (20 if index else 1) * GIB)], memory_used=20 * GIB) for index in range(4)
    ]
    assert states(*spread) == ["skipped", "skipped", "skipped"]


def test_two_processes_that_share_their_gpus_evenly_are_sound() -> None:
    both = [process(7, 20 * GIB), process(8, 20 * GIB)]
    assert states(card(0, processes=both), card(1, processes=both))[0] == "ok"


def test_gpu_0_is_fuller() -> None:
    judgement = verdict("MEM002", gpu_node("a", *ranks(used=(40, 20, 20, 21))))
    assert [(f.state.value, f.where.device) for f in judgement.findings] == [("warn", "GPU 0")]


@pytest.mark.parametrize("used", [(24, 20, 20, 20), (3, 2, 2, 2), (0, 20, 20, 20)])
def test_gpus_that_are_about_as_full(used: tuple[int, ...]) -> None:
    assert states(*ranks(used=used))[1] == "ok"


def test_ranks_that_all_took_gpu_0() -> None:
    taken = [process(pid, 18 * GIB) for pid in (7, 8, 9)]
    judgement = verdict("MEM003", gpu_node("a", card(0, processes=taken), card(1)))
    assert [(f.state.value, f.where.device) for f in judgement.findings] == [("warn", "GPU 0")]
    assert "nothing runs on GPU 1" in judgement.findings[0].what


def test_two_ranks_a_gpu_on_all_gpus_are_wanted() -> None:
    gpus = [card(index, processes=[process(10 + index, GIB), process(20 + index, GIB)]) for index in range(2)]
    assert states(*gpus)[2] == "ok"


def test_another_user_s_job_is_not_ours() -> None:
    assert states(*ranks(user="bob")) == ["skipped"] * 3


def test_memory_that_nvml_does_not_tell() -> None:
    hidden = [card(index, processes=[process(index + 7, DENIED)]) for index in range(2)]
    assert states(*hidden) == ["skipped"] * 3


def test_only_env_judges_a_job_that_runs_already() -> None:
    assert states(*ranks(), command="bench") == ["skipped"] * 3


@pytest.mark.parametrize("code", CODES)
def test_gpus_that_may_not_be_read(code: str) -> None:
    assert verdict(code, gpu_node("a", facts={"cards": DENIED})).state.value == "unknown"
