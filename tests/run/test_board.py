"""The notice board on the stores of every torch: 2.1 has no Store.check."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch.distributed as dist

from ncclcheck.probes.job.board import Board

every: Any = dist
_PREFIX_STORE = every.PrefixStore
_OF_2_1 = ("compare_set", "multi_set", "multi_get", "delete_key", "wait")


class _OldStore:
    """A PrefixStore with the methods that torch 2.1.0 has, of those that we use."""

    def __init__(self, prefix: str, store: Any) -> None:
        made = _PREFIX_STORE(prefix, store)
        self.__dict__.update({name: getattr(made, name) for name in _OF_2_1})


@pytest.fixture(params=["newest", "2.1"])
def board(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Board:
    """A board on a store of this process alone."""
    store = every.HashStore()
    monkeypatch.setattr(every.distributed_c10d, "_get_default_store", lambda: store)
    if request.param == "2.1":
        monkeypatch.setattr(every, "PrefixStore", _OldStore)
    return Board("test")


def test_a_note_is_asked_for_without_waiting(board: Board) -> None:
    begun = time.monotonic()
    assert not board.has("order")
    assert not board.has("order")  # asking wrote nothing
    assert board.read("order", 0.05) is None
    board.put({"order": b"1"})
    assert board.has("order")
    assert board.take("order", 1.0) == b"1"
    assert not board.has("order")
    assert time.monotonic() - begun < 5.0
