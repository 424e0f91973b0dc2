"""Starts this node's ranks as `torch.multiprocessing.spawn` does in scripts that need no torchrun.

It prints exit statuses in torchrun's form, so that the agent reads one kind of log.
"""

from __future__ import annotations

import os
import sys

import msgspec

from ncclcheck.node.agent_socket import RUN_VARIABLE
from ncclcheck.node.ranks.worker import WorkerPlan
from ncclcheck.probes.facts.run.init import host_and_port
from ncclcheck.probes.machine.process import die_with_parent

_WAIT_S = 0.2  # s between two looks at the ranks; torchrun is told to look as often (--monitor-interval)


def main() -> int:
    """Start the ranks and wait for them; 1 where one of them failed."""
    from torch.multiprocessing.spawn import (  # noqa: PLC0415 - torch takes seconds
        ProcessExitedException,
        ProcessRaisedException,
        start_processes,
    )

    die_with_parent()
    with open(f"{os.environ[RUN_VARIABLE]}/plan.json", "rb") as file:
        plan = msgspec.json.decode(file.read(), type=WorkerPlan)
    ranks = start_processes(  # type: ignore[no-untyped-call]
        _rank, args=(plan.node_index, plan.nodes, plan.ranks_per_node, plan.endpoint),
        nprocs=plan.ranks_per_node, join=False, start_method="spawn",
    )  # fmt: skip
    failed = ""
    try:
        while not ranks.join(timeout=_WAIT_S):
            pass
    except (ProcessRaisedException, ProcessExitedException) as error:
        failed = str(error)
    for process in ranks.processes:
        print(f"exitcode : {process.exitcode} (pid: {process.pid})")
    if failed:
        print(failed, file=sys.stderr)
    return int(bool(failed))


def _rank(local_rank: int, node_index: int, nodes: int, ranks_per_node: int, where: str) -> None:
    """One rank, with the variables that torchrun would give it."""
    from ncclcheck.node.ranks import worker  # noqa: PLC0415

    host, port = host_and_port(where)
    os.environ |= {
        "RANK": str(node_index * ranks_per_node + local_rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(nodes * ranks_per_node),
        "LOCAL_WORLD_SIZE": str(ranks_per_node),
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
    }
    worker.main()


if __name__ == "__main__":
    sys.exit(main())
