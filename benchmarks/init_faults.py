"""Faulty init methods on two hosts, a bare script beside ncclcheck: `python -m benchmarks.init_faults`, as root.

The script is the tutorial's: one process a node, init_process_group with a time-out of 8 s, which is 30 minutes
where nobody sets it. Prints what each node's process said last, and what ncclcheck names.
"""

from __future__ import annotations

import subprocess
import sys

from ncclcheck.reports.judgement.findings import State
from tests.lab import PYTHON
from tests.scenarios.scenario import Scenario, Scene
from tests.scenarios.scenario_run import Labs, once
from tests.scenarios.scenarios_of_init import OF_INIT, url

_LIMIT_S = 100.0  # s until a bare script that does not heed its own time-out is killed
_BARE = """import sys, time
from datetime import timedelta
import torch, torch.distributed as dist
begun, words = time.monotonic(), "ran"
try:
    dist.init_process_group("gloo", init_method=sys.argv[1], rank=int(sys.argv[2]), world_size=2,
                            timeout=timedelta(seconds=8))
    dist.all_reduce(torch.ones(1))
except Exception as error:
    words = f"{type(error).__name__}: {str(error).splitlines()[0][:150]}"
print(f"{words} ({time.monotonic() - begun:.1f} s)", flush=True)
import os
os._exit(0)
"""


def bare(scenario: Scenario, scene: Scene) -> str:
    """What the script said on both hosts."""
    env = {"GLOO_SOCKET_IFNAME": "eth0"}
    hosts = [scene["h1"], scene["h2"]]
    running = [
        host.start([*PYTHON, "-c", _BARE, url(scenario), str(rank)], env=env) for rank, host in enumerate(hosts)
    ]
    said = []
    for host, process in zip(hosts, running, strict=True):
        try:
            out, _ = process.communicate(timeout=_LIMIT_S)
        except subprocess.TimeoutExpired:
            out = "no word"
        finally:
            process.kill()
        said.append(f"{host.name}: {out.strip().splitlines()[-1] if out.strip() else 'no word'}")
    return "; ".join(said)


def main() -> None:
    """All scenarios, or those whose names have a word of the command line."""
    words = sys.argv[1:]
    print("| fault | the script | ncclcheck | as expected |\n| --- | --- | --- | --- |")
    with Labs() as labs:
        for scenario in OF_INIT:
            if words and not any(word in scenario.name for word in words):
                continue
            scene = labs.scene(scenario)
            with scenario.fault(scene):
                outcome = once(scenario, scene)
                told = bare(scenario, scene)
            found = {
                f"{verdict.code}: {finding.what}"
                for document in outcome.documents.values()
                for verdict in document.verdicts
                for finding in verdict.findings
                if finding.state is State.FAIL
            }
            problems = "; ".join(outcome.problems(scenario)) or "yes"
            row = [scenario.name, told, f"{'; '.join(sorted(found))} ({outcome.seconds:.1f} s)", problems]
            print("| " + " | ".join(one.replace("|", "/").replace("\n", " ") for one in row) + " |", flush=True)


if __name__ == "__main__":
    main()
