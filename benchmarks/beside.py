"""Other tools on the same hangs: `python -m benchmarks.beside [FAULT...]`, as root. A few minutes.

Four gloo ranks of an ordinary user on one host of the lab, each fault one of rank 1. What is asked of every tool:
which rank it names, and after how many seconds. torch's debug server and the dumps of Flight Recorder are there
because the job was changed for them (tests/jobs/served_training.py); `ncclcheck hang` and py-spy need no change.

py-spy and /stacks name nobody by themselves. A rank counts as named where its innermost lines alone differ from
those of all others, which a person who compares four stacks can see.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tabulate import tabulate

from tests.conftest import ROOT
from tests.lab import PYTHON, Host
from tests.lab.tools import LabError, until
from tests.scenarios import hang_runs
from tests.scenarios.hang_runs import PLAIN, Site, site
from tests.scenarios.hang_table import Run

_JOB = str(ROOT / "tests/jobs/served_training.py")
_FAULTS = [
    Run("plain", "stopped", "stopped", hosts=1, a_host=4),
    Run("plain", "killed", "gone", hosts=1, a_host=4),
    Run("plain", "sleeps", "sleeping", hosts=1, a_host=4),
    Run("plain", "spins", "computing", hosts=1, a_host=4),
    Run("plain", "gil sleeps", "gil", hosts=1, a_host=4),
    Run("plain", "reads pipe", "storage", hosts=1, a_host=4),
    Run("plain", "broadcast", "all wait", hosts=1, a_host=4),
    Run("plain", "size", "all wait", hosts=1, a_host=4),
    Run("plain", "not started", "never started", hosts=1, a_host=4),
]
_LIMIT_S = 90.0  # the debug server gives up on a rank after 60 s
_PAGE = "http://127.0.0.1:25999"
_FETCH = "import sys, urllib.request as u; sys.stdout.write(u.urlopen(sys.argv[1], timeout=80).read().decode())"
_FRAMES = 3  # the innermost; below them all ranks are in the same loop


class Told(NamedTuple):
    """What a tool made of it. ranks: those that it names or shows."""

    ranks: list[int]
    seconds: float
    text: str

    def cell(self, run: Run) -> str:
        """For a table."""
        if self.ranks == [run.culprit]:
            return f"rank {run.culprit}, {self.seconds:.0f} s"
        named = f"ranks {self.ranks}" if self.ranks else "nobody"
        return f"{named}, {self.seconds:.0f} s"


class Scene(NamedTuple):
    """A job that hangs: its host, the pids of its ranks, the folder of its dumps."""

    host: Host
    pids: dict[int, int]
    folder: Path

    def run(self, *argv: str, limit: float = _LIMIT_S) -> str:
        """A command of the user on that host; its output."""
        env = {"HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1"}
        done = self.host.run(["timeout", f"{limit:g}", *PLAIN, *argv], seconds=limit + 10, env=env, cwd=str(ROOT))
        return done.stdout + done.stderr


def _hang(scene: Scene) -> tuple[list[int], str]:
    output = scene.run(*PYTHON, "-m", "ncclcheck", "hang", "-q", "-o", "json")
    named = hang_runs.accused(json.loads(output[output.index("{") : output.rindex("}") + 1]))
    return sorted({culprit.rank for culprit in named if culprit.rank is not None}), "\n".join(
        culprit.what for culprit in named
    )


def _py_spy(scene: Scene) -> tuple[list[int], str]:
    tool = shutil.which("py-spy", path=f"{Path(sys.executable).parent}:/usr/bin:/usr/local/bin") or "py-spy"
    dumps = {rank: scene.run(tool, "dump", "--pid", str(pid), limit=20) for rank, pid in scene.pids.items()}
    return _odd({rank: _main_of(text) for rank, text in dumps.items()}), json.dumps(dumps, indent=1)


def _main_of(text: str) -> str:
    """The innermost frames of MainThread in py-spy's words."""
    main = text.partition('"MainThread"')[2]
    return "\n".join(re.findall(r"^    (\S+ \(\S+)", main, re.MULTILINE)[:_FRAMES]) or "no stack"


def _odd(of_ranks: dict[int, str]) -> list[int]:
    """The one whose text is no other's, where all the others have one text."""
    texts = [*of_ranks.values()]
    alone = [rank for rank, text in of_ranks.items() if texts.count(text) == 1]
    return alone if len(alone) == 1 and len({*texts}) == 2 and len(texts) > 2 else []


def _page(scene: Scene, path: str) -> str:
    return scene.run(*PYTHON, "-c", _FETCH, f"{_PAGE}{path}")


def _stacks(scene: Scene) -> tuple[list[int], str]:
    page = _page(scene, "/stacks")
    return _odd(_main_threads(page)), page


def _main_threads(page: str) -> dict[int, str]:
    """Rank -> the innermost frames of the thread that began the program, in faulthandler's words."""
    stacks: dict[int, str] = {}
    for rank, block in re.findall(r"Rank (\d+): http(.*?)(?=Rank \d+: http|\Z)", html.unescape(page), re.DOTALL):
        threads = [
            re.findall(r'File "([^"]*)", line (\d+) in (\S+)', thread) for thread in block.split("hread 0x")
        ]
        main = next((frames for frames in threads if frames and frames[-1][2] == "<module>"), [])
        stacks[int(rank)] = "\n".join(map(":".join, main[:_FRAMES])) or "no stack"
    return stacks


def _trace_page(scene: Scene) -> tuple[list[int], str]:
    page = _page(scene, "/fr_trace")
    return _accused(page), page


def _torchfrtrace(scene: Scene) -> tuple[list[int], str]:
    output = scene.run(*PYTHON, "-m", "torch.distributed.flight_recorder.fr_trace", str(scene.folder / "dumps"))
    return _accused(output), output


def _accused(text: str) -> list[int]:
    """Ranks that its words hold responsible: missing, or culprit."""
    matches = re.findall(r"(?:missing ranks?|[Cc]ulprit rank)\D{0,12}([\d, ]+)", text)
    return sorted({int(number) for numbers in matches for number in re.findall(r"\d+", numbers)})


_TOOLS: dict[str, Callable[[Scene], tuple[list[int], str]]] = {
    "ncclcheck hang": _hang,
    "py-spy dump, all ranks": _py_spy,
    "debug server, /stacks": _stacks,
    "debug server, /fr_trace": _trace_page,
    "torchfrtrace": _torchfrtrace,
}


@contextmanager
def _scene(place: Site, run: Run) -> Iterator[Scene]:
    with ExitStack() as stack:
        folder = stack.enter_context(hang_runs._folder())
        hang_runs._prepare(place, run, folder, stack)
        pids = hang_runs._by_agents(place, run, folder, next(hang_runs._ports), stack)
        hang_runs._settle(place, run, folder, pids, stack)
        scene = Scene(place.lab.hosts[0], pids, folder)
        with suppress(LabError):  # where a rank was never started it does not come
            until("the debug server's page", lambda: "URLError" not in _page(scene, "/"), seconds=_LIMIT_S)
        yield scene


def _asked(scene: Scene, tool: Callable[[Scene], tuple[list[int], str]]) -> Told:
    begun = time.monotonic()
    try:
        ranks, text = tool(scene)
    except (ValueError, OSError) as error:
        ranks, text = [], repr(error)
    return Told(ranks, time.monotonic() - begun, text)


def main() -> None:
    """A row a fault."""
    keep = Path("build/beside")
    keep.mkdir(parents=True, exist_ok=True)
    hang_runs._JOB = _JOB
    rows = []
    with site(hosts=1) as place:
        for run in _FAULTS:
            if sys.argv[1:] and run.fault not in sys.argv[1:]:
                continue
            with _scene(place, run) as scene:
                answers = {name: _asked(scene, tool) for name, tool in _TOOLS.items()}
            for name, answer in answers.items():
                (keep / f"{run.fault}, {name.replace('/', '')}.txt".replace(" ", "_")).write_text(answer.text)
            rows.append([run.fault, *(answer.cell(run) for answer in answers.values())])
            print(*rows[-1], sep=" | ", flush=True)
    print(tabulate(rows, ["rank 1", *_TOOLS], tablefmt="github"))


if __name__ == "__main__":
    main()
