"""Faulty init methods on two hosts, a bare script beside ncclcheck: `python -m benchmarks.init_faults`, as root.

The script is the tutorial's: one process a node, init_process_group with a time-out of 8 s, which is 30 minutes
where nobody sets it. Prints what each node's process said last, and what ncclcheck names.
"""

from __future__ import annotations

import os
import subprocess
import sys

from ncclcheck.reports.judgement.findings import State
from tests.lab import PYTHON
from tests.scenarios.scenario import Scene
from tests.scenarios.scenario_run import Labs
from tests.scenarios.scenarios_of_init import OF_INIT, SCRIPT, InitScenario

_LIMIT_S = 100.0  # s until a bare script that does not heed its own time-out is killed


def bare(scenario: InitScenario, scene: Scene) -> str:
    """What the script said on both hosts."""
    hosts, words = scene.lab.hosts, []
    running = [
        host.start(
            [*scenario.under.get(host.name, ()), *PYTHON, "-c", SCRIPT, scenario.url, rank],
            env={"GLOO_SOCKET_IFNAME": "eth0", **more},
        )
        for host, rank, more in zip(hosts, scenario.script, scenario.variables, strict=True)
    ]
    for host, process in zip(hosts, running, strict=True):
        try:
            out, _ = process.communicate(timeout=_LIMIT_S)
        except subprocess.TimeoutExpired:
            out = "no word"
        finally:
            process.kill()
        host.run(["rm", "-f", scenario.url.removeprefix("file://")])
        words.append(f"{host.name}: {out.strip().splitlines()[-1] if out.strip() else 'no word'}")
    return "; ".join(words)


def main() -> None:
    """All scenarios, or those whose names have a word of the command line."""
    words = sys.argv[1:]
    print("| fault | the script | ncclcheck | as expected, and cured where a fix was typed |")
    print("| --- | --- | --- | --- |")
    with Labs() as labs:
        for scenario in OF_INIT:
            if words and not any(word in scenario.name for word in words):
                continue
            scene = labs.scene(scenario)
            with scenario.fault(scene):
                bare_words = bare(scenario, scene)
            outcome = labs.run(scenario)
            findings = {
                f"{verdict.code}: {finding.what}"
                for document in outcome.documents.values()
                for verdict in document.verdicts
                for finding in verdict.findings
                if verdict.code.startswith(("INI", "RUN")) and finding.state in (State.FAIL, State.WARN)
            }
            problems = "; ".join(outcome.problems(scenario)) or ("yes, cured" if outcome.cured else "yes")
            row = [scenario.name, bare_words, f"{'; '.join(sorted(findings))} ({outcome.seconds:.1f} s)", problems]
            print("| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in row) + " |", flush=True)
    print(f"\nLoad at the end: {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores.")


if __name__ == "__main__":
    main()
