"""A stall in a real Slurm ends the job with its own exit code, and the batch script starts it without the node."""

from __future__ import annotations

import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from tests.conftest import environment
from tests.lab import Lab, Slurm
from tests.lab.tools import until
from tests.scenarios.watched_hosts import JOB, clean, quoted

# As docs/watch.md has it; h3 is where the job never goes on.
_SCRIPT = """\
#!/bin/sh
#SBATCH -N3 --ntasks-per-node=1
export {exports} BAD_HOST=h3
cd {folder}
scontrol show hostnames >nodes-$SLURM_JOB_ID
srun --kill-on-bad-exit=0 sh -c 'exec {python} -m ncclcheck watch --stall-after 8 --on-stall kill \
  --exclude-file bad.txt --box box-$SLURM_JOB_ID -- {python} -m torch.distributed.run --nnodes 3 \
  --node-rank $SLURM_NODEID --master-addr 10.77.0.11 --master-port 2341$((SLURM_JOB_ID % 10)) {job} deadlock 99'
code=$?
echo $code >code-$SLURM_JOB_ID
if [ $code = 75 ]; then sbatch --exclude="$(cat bad.txt)" "$0"; fi
"""


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_a_stall_is_started_again_without_the_node() -> None:
    folder = Path(tempfile.mkdtemp(prefix="ncw-", dir="/tmp"))
    with Lab(hosts=4) as lab:
        Slurm(lab)
        first = lab.hosts[0]
        try:
            env = environment(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="eth0", TMPDIR=str(folder))
            script = folder / "job.sh"
            script.write_text(
                _SCRIPT.format(exports=quoted(env), folder=folder, python=f'"{sys.executable}"', job=JOB)
            )
            first.check(["sbatch", "-o", f"{folder}/said-%j", str(script)])
            until("the second job ended", lambda: len([*folder.glob("code-*")]) == 2, seconds=300)
            nodes, codes = (
                [*map(Path.read_text, sorted(folder.glob(pattern)))] for pattern in ("nodes-*", "code-*")
            )
            output = "".join(path.read_text(errors="replace") for path in sorted(folder.glob("said-*")))
            assert [code.strip() for code in codes] == ["75", "0"], output
            assert (folder / "bad.txt").read_text().strip() == "h3", output
            assert [node.split() for node in nodes] == [["h1", "h2", "h3"], ["h1", "h2", "h4"]]
            assert output.count("ncclcheck watch:") == 1
        finally:
            with suppress(Exception):
                first.run(["scancel", "--signal=KILL", "--full", "-u", "root"])
            clean(lab)
            shutil.rmtree(folder, ignore_errors=True)
