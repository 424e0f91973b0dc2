"""The modules of the probe as one program for `python3 -`: nothing is installed where the ranks are."""

from __future__ import annotations

from pathlib import Path

from ncclcheck.probes.live import ask, evidence, look, present, processes, ras, records, unranked
from ncclcheck.probes.live.machine import cgroup, connections, gpus, proc, wires

# Each after those that it imports.
MODULES = (proc, cgroup, connections, present, unranked, processes, look, wires, gpus, ras, records, ask, evidence)
_PROGRAM = """\
import sys
import types

SOURCES = {sources!r}
for name in ("ncclcheck", "ncclcheck.probes", "ncclcheck.probes.live", "ncclcheck.probes.live.machine"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = []
for name, source in SOURCES.items():
    module = sys.modules[name] = types.ModuleType(name)
    setattr(sys.modules[name.rpartition(".")[0]], name.rpartition(".")[2], module)
    exec(compile(source, name, "exec"), module.__dict__)
sys.modules[{main!r}].SOURCES = SOURCES
sys.modules[{main!r}].main(sys.argv[1:])
"""


def program() -> bytes:
    """Python 3.6 and later, standard library only; its arguments are those of `evidence`."""
    sources = {module.__name__: Path(module.__file__ or "").read_text("utf-8") for module in MODULES}
    return _PROGRAM.format(sources=sources, main=evidence.__name__).encode()


def arguments(
    seconds: float, *, passive: bool = False, ras: str = "auto", signal: str = "", several: bool = False
) -> list[str]:
    """The arguments of the program. several: more than one host is looked at."""
    words = [f"{seconds:g}", f"ras={ras}"]
    words += [] if passive else ["stacks"]
    words += [f"signal={signal}"] if signal and not passive else []
    return [*words, *(["first"] if several else [])]
