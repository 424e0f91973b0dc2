"""What torch 2.9.0 and NCCL 2.27.5 themselves printed and dumped in trouble: tests/data/logs/torch/NAME.

Made by tests/nccl/trouble.py on a machine without a GPU (tests/nccl/torch_cuda.py). Each folder has `log.txt`, all
ranks as torchrun prints them, the ranks' dumps of the Flight Recorder, where they left any, and `truth.json`: the
kind of trouble, the rank that caused it, how many ranks there were. Half of them, by their names' hashes, were put
aside before a rule was looked at for them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from ncclcheck.probes.facts import Cluster, Flight, Logs, Measurements
from ncclcheck.probes.logs import flight
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules
from ncclcheck.reports.subjects.logs.answer.story import LogDiagnosis, diagnosis
from tests.helpers.logs import parsed

FOLDER = Path(__file__).resolve().parents[1] / "data/logs/torch"

# What names the cause of each kind, by the log and by the dumps. Nothing: nothing is wrong.
_AWAY = ("LOG080", "LOG131", "LOG132")
_DIFFERS = ("LOG084", "LOG134", "LOG135")
_PROGRAM, _GPU = ("LOG091",), ("LOG067",)
_NAMED = {
    "sound": (),
    "away": _AWAY,
    "subgroup": _AWAY,
    "stopped": _AWAY,
    "no-receive": _AWAY,
    "skipped": (*_AWAY, *_DIFFERS),
    "other-operation": (*_AWAY, *_DIFFERS),
    "other-size": (*_AWAY, *_DIFFERS),
    "killed": ("LOG093",),
    "exception": ("LOG004",),
    "leaves": ("LOG004",),
    "abort": (*_AWAY, "LOG099"),  # it uses its group after that
    "out-of-memory": ("LOG063",),
    "out-of-memory-in-nccl": ("LOG063",),
    "one-gpu-for-two": ("LOG057",),
    "late-to-the-rendezvous": ("LOG021", "LOG027"),
    "illegal-address": _PROGRAM,
    "device-assert": _PROGRAM,
    "ecc": _GPU,
    "nvlink": _GPU,
    "launch-failure": _GPU,
}


class Truth(Struct, frozen=True, kw_only=True):
    """What was done. rank: who caused it."""

    kind: str
    rank: int
    world: int


class Recorded(Struct, frozen=True, kw_only=True):
    """One run. dumps: files of the Flight Recorder."""

    name: str
    truth: Truth
    log: bytes
    dumps: tuple[str, ...]

    @property
    def unseen(self) -> bool:
        """Put aside before a rule was looked at."""
        return hashlib.sha256(self.name.encode()).digest()[0] % 2 == 0

    @property
    def named(self) -> tuple[str, ...]:
        """Codes, one of which has to stand first."""
        return _NAMED[self.truth.kind]


def recorded(folder: Path = FOLDER) -> list[Recorded]:
    """All of them."""
    return [
        Recorded(
            name=place.name,
            truth=msgspec.json.decode((place / "truth.json").read_bytes(), type=Truth),
            log=(place / "log.txt").read_bytes(),
            dumps=tuple(sorted(str(path) for path in place.glob("rank_*"))),
        )
        for place in sorted(folder.iterdir())
    ]


def dumped(record: Recorded) -> Flight | None:
    """What the ranks' Flight Recorders left."""
    return flight.read(record.dumps) if record.dumps else None


def diagnosed(log: Sequence[bytes], dumps: Flight | None) -> LogDiagnosis:
    """What `ncclcheck logs` says of them."""
    logs: Logs = msgspec.structs.replace(parsed(*log), flight=dumps)
    cluster = Cluster(command="logs", measurements=Measurements(logs=logs))
    verdicts = judge(cluster, [rule for rule in all_rules() if rule.code.startswith("LOG")])
    story = diagnosis(logs, verdicts)
    assert story is not None
    return story
