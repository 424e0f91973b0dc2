"""Jobs on which nothing is wrong: the same bytes and exit code as without `watch`, nothing said, nothing left."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, environment
from tests.watch.test_wrapping import WATCH

_PYTHON = {
    "warnings": "import warnings, sys; warnings.warn('old'); print('x', file=sys.stderr)",
    "a progress bar": "import sys\nfor n in range(50): sys.stderr.write(f'\\r{n}/50'); sys.stderr.flush()",
    "a caught exception": "import traceback\ntry: [][0]\nexcept IndexError: traceback.print_exc()",
    "a thread that fails": "import threading; t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()",
    "a child that fails": "import subprocess; print(subprocess.run(['grep', 'x', '/dev/null']))",
    "a child that is killed": "import subprocess; print(subprocess.run(['sh', '-c', 'kill -9 $$']).returncode)",
    "a pool": "from multiprocessing import Pool\nif __name__ == '__main__': print(Pool(2).map(abs, [-1, -2]))",
    "a fork": "import os\npid = os.fork()\nif not pid: os._exit(3)\nprint(os.waitpid(pid, 0)[1])",
    "a signal of its own": (
        "import os, signal; signal.signal(signal.SIGUSR1, lambda *_: print('got')); os.kill(os.getpid(), 10)"
    ),
    "its own stacks": "import faulthandler; faulthandler.enable(); faulthandler.disable(); print(1)",
    "sys.exit(0)": "import sys; print('done'); sys.exit(0)",
    "three quiet seconds": "import time; time.sleep(3); print('on')",
    "another program": "import os; os.execvp('echo', ['echo', 'became'])",
    "its own hook": "import sys; sys.excepthook = lambda *_: print('mine'); sys.exit(None)",
    "closed descriptors": "import os; os.closerange(3, 300); open('a', 'w').write('x'); os.unlink('a')",
    "3 MB of output": "print('z' * 3_000_000)",
}


def _same(folder: Path, command: list[str], seconds: float, code: int = 0) -> None:
    ends = []
    for before in ([], [*WATCH, "--"]):
        done = subprocess.run(
            [*before, *command], cwd=folder, env=environment(OMP_NUM_THREADS="1"), capture_output=True,
            timeout=seconds, check=False,
        )  # fmt: skip
        ends.append((done.returncode, done.stdout, done.stderr))
    assert ends[0] == ends[1]
    assert ends[0][0] == code
    assert not [*folder.glob("ncclcheck-box*")]


@pytest.mark.parametrize("what", _PYTHON)
def test_a_sound_program(tmp_path: Path, what: str) -> None:
    (tmp_path / "job.py").write_text(_PYTHON[what])
    _same(tmp_path, [sys.executable, "job.py"], 60)


def test_a_script_that_chooses_its_exit_code_after_ranks_that_ended_well(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("import time; time.sleep(1.5); print('trained')")
    script = f"RANK=0 WORLD_SIZE=1 {shlex.quote(sys.executable)} job.py; echo again; exit 3"
    _same(tmp_path, ["sh", "-c", script], 60, code=3)


@pytest.mark.nightly
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_sound_job_of_torchrun(tmp_path: Path, ranks: int) -> None:
    job = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    _same(tmp_path, [*job, str(ROOT / "tests/jobs/watched_job.py"), "sound"], 110)
