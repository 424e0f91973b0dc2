"""The environment of a watched job: evidence on from the start, and nothing of the user's overwritten."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Mapping, Sequence

# One that no library is known to take: Go's runtime and Boehm's collector use others, glibc the first two.
SIGNAL = int(signal.SIGRTMIN) + 11
_ENTRIES = "2000"  # of the Flight Recorder, 800 bytes each: what torch's own examples have


def settings(node: str, given: Mapping[str, str], command: Sequence[str] = ()) -> dict[str, str]:
    """What is set for a job that writes into this node's folder, beside what is given."""
    wanted = {
        "NCCLCHECK_BOX": node,
        "NCCLCHECK_BOX_SIGNAL": str(SIGNAL),
        "PYTHONPATH": os.pathsep.join(filter(None, (os.path.join(node, "site"), given.get("PYTHONPATH", "")))),
        "TORCH_FR_BUFFER_SIZE": _ENTRIES,
        "TORCH_FR_DUMP_TEMP_FILE": os.path.join(node, "fr_"),
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": os.path.join(node, "pipe_"),
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_INCLUDE_STACK_TRACE": "0",  # a dump with stacks can wait for Python's lock, which the hang holds
        "TORCHELASTIC_ERROR_FILE": os.path.join(node, "elastic.json"),
        "NCCL_RAS_ADDR": f"localhost:{_free_port()}",  # jobs of one user would share the usual port
    }
    if "NCCL_DEBUG" not in given and "NCCL_DEBUG_FILE" not in given:
        wanted |= {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": os.path.join(node, "nccl.%h.%p")}
    if _starts_ranks_anew(command, given):
        # torchrun keeps one store over its restarts, which holds the addresses of the attempt before (torch 2.13):
        # a rank that comes some 50 ms before its peers reads these, and what we inject parts ranks a little.
        wanted["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    ours = {"NCCLCHECK_BOX", "NCCLCHECK_BOX_SIGNAL", "PYTHONPATH"}
    older = {
        "TORCH_FR_BUFFER_SIZE": "TORCH_NCCL_TRACE_BUFFER_SIZE",
        "TORCH_FR_DUMP_TEMP_FILE": "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
    }
    return {
        name: value
        for name, value in wanted.items()
        if name in ours or (name not in given and older.get(name, name) not in given)
    }


def _starts_ranks_anew(command: Sequence[str], given: Mapping[str, str]) -> bool:
    """Whether torchrun is to start ranks again after one has failed: --max-restarts above 0."""
    words = " ".join(command).replace("--max_restarts", "--max-restarts")
    asked = re.search(r"--max-restarts[ =](\d+)", words)
    return (asked[1] if asked else given.get("PET_MAX_RESTARTS", "0")).strip("0") != ""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
