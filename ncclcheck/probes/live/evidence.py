"""The program that is streamed to `python3 -` beside the ranks: all that can be seen of the jobs of one host.

    SECONDS [stacks] [job=ID] [ras=auto|always|never] [signal=USR1|USR2] [first]

Two looks at /proc (look), beside them NVML (gpus) and the counters of the network (wires); then, for jobs that
move no data, what they wrote themselves (records) and NCCL's RAS (ras); with `stacks` what has to be asked (ask).
`first`: RAS is asked only beside rank 0, since any rank answers for the whole job.
"""

import json
import os
import sys
from typing import Any, Dict, List, Tuple

from ncclcheck.probes.live import ask, look, ras, records, unranked
from ncclcheck.probes.live.machine import gpus, wires
from ncclcheck.probes.live.machine.proc import Proc, fields

Raw = Dict[str, Any]

_MOVED = 8192  # bytes of one rank: with more the job goes on, and NCCL is left alone
_YOUNG_S = 60.0  # a process that begins makes communicators
_LOST = ("gone", "Z", "X", "T", "t")
_MOST_JOBS, _MOST_PROBLEMS = 4, 16  # of a host: jobs that are asked, and reasons of what could not be had: chosen


def collect(argv: List[str], proc: Proc) -> Raw:
    """Everything of this host."""
    seconds, words = float(argv[0]), argv[1:]
    beside = BesideProcesses(proc, seconds)
    job = next((word[4:] for word in words if word.startswith("job=")), "")
    evidence = look.look(seconds, proc, "stacks" in words, job, beside.first, inside="stacks" in words)
    evidence.update(beside.last())
    evidence.update(further(proc, evidence, words))
    return evidence


class BesideProcesses:
    """What is looked at twice beside the processes."""

    def __init__(self, proc: Proc, seconds: float) -> None:
        self.proc, self.pid, self.counted = proc, "", {}  # type: Proc, str, Dict[str, Raw]
        source = SOURCES.get("ncclcheck.probes.live.machine.gpus", "")
        self.gpus = gpus.GpuChild(source, seconds) if source and proc.live else None

    def first(self, processes: List[Raw]) -> None:
        """The first look at the network."""
        own = self.proc.link("self", "ns", "net")
        pids = [str(process["pid"]) for process in processes]
        self.pid = next(
            (pid for pid in pids if self.proc.link(pid, "ns", "net") == own), pids[0] if pids else "self"
        )
        self.counted = wires.counters(self.proc, self.pid)

    def last(self) -> Raw:
        """The last one, and what NVML said."""
        nvml_answer = self.gpus.answer() if self.gpus else {"gpus": [], "problem": ""}
        return {
            "addresses": wires.addresses(self.proc, self.pid),
            "nics": wires.between(self.counted, wires.counters(self.proc, self.pid)),
            "gpus": nvml_answer["gpus"],
            "gpu_problem": nvml_answer["problem"],
        }


def further(proc: Proc, raw: Raw, words: List[str]) -> Raw:
    """Job by job, where it moves no data."""
    taken, answers, not_had = records.Taken(), [], []
    jobs: Dict[Tuple[str, str], List[Raw]] = {}
    for process in raw["processes"]:
        process["inside"] = records.pids_inside(proc, process["pid"])[1]
        if not process["helper"] and process["job"] != unranked.ADRIFT:
            start = fields(proc.text(str(process["pid"]), "stat"))[19]
            known = dict(process, env=records.environment(proc, process["pid"]), start=start)
            jobs.setdefault((process["job"], process["scope"]), []).append(known)
    still = [
        (key, ranks)
        for key, ranks in sorted(jobs.items())
        if not any(rank["moved"] and rank["moved"] >= _MOVED for rank in ranks)
    ]
    why = "{} jobs stand still on this host, and {} of them were asked".format(len(still), _MOST_JOBS)
    not_had += [{"job": job, "scope": scope, "why": why} for (job, scope), _ in still[_MOST_JOBS:]]
    for (job, scope), ranks in still[:_MOST_JOBS]:
        answers += _ras(proc, ranks, words)
        records.files(proc, ranks, taken)
        records.servers(proc, ranks, taken)
        problems = _asked(proc, raw, ranks, words, taken) if "stacks" in words else []
        problems += taken.skipped
        taken.skipped = []
        not_had += [{"job": job, "scope": scope, "why": why} for why in problems[:_MOST_PROBLEMS]]
    for answer in answers:
        ras.asked_again(answer, "stacks" in words)
    return {"ras": answers, "records": taken.pieces, "not_had": not_had}


def _asked(proc: Proc, evidence: Raw, ranks: List[Raw], words: List[str], taken: records.Taken) -> List[str]:
    """What has to be asked of ranks; why it was not had."""
    some = ask.chosen([rank for rank in ranks if rank["state"] not in _LOST])
    return ask.dumps(proc, some, taken) + _stacks(proc, evidence, some, words)


def _ras(proc: Proc, ranks: List[Raw], words: List[str]) -> List[Raw]:
    here = any(rank["rank"] == 0 for rank in ranks) or "first" not in words
    if not here or "ras=never" in words or not any("nccl" in rank["libraries"] for rank in ranks):
        return []
    lost = any(rank["state"] in _LOST or rank["was"] in _LOST for rank in ranks)
    young = min(rank["age_s"] for rank in ranks) < _YOUNG_S
    return [ras.asked(proc, ranks, lost, young, "ras=always" in words)]


def _stacks(proc: Proc, raw: Raw, ranks: List[Raw], words: List[str]) -> List[str]:
    word = next((word[7:] for word in words if word.startswith("signal=")), "")
    if word not in ask.SIGNALS:
        return []
    problems = ask.stacks(proc, ranks, word)
    stacks = {rank["pid"]: rank["stack"] for rank in ranks if rank["stack"]}
    for process in raw["processes"]:
        process["stack"] = stacks.get(process["pid"]) or process["stack"]
    return problems


SOURCES: Dict[str, str] = {}  # of all modules of this program, by their names; set where it is streamed


def main(argv: List[str]) -> None:
    """One line of JSON."""
    evidence = collect(argv, Proc())
    evidence["cpu_s"] = round(sum(os.times()[:4]), 3)
    print(json.dumps(evidence))


if __name__ == "__main__":
    main(sys.argv[1:])
