"""Where `hang` looks: what is started for it, what comes back, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ncclcheck.base.errors import UsageError
from ncclcheck.launch import beside
from tests.conftest import Command

_PROGRAM = b'import json\nprint(json.dumps({"host": "x", "text": "a b" * 2000}))\n'


def _tool(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose programs stand for srun, squeue and kubectl."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("docker exec C", ["docker", "exec", "-i", "C"]),
        ("/usr/bin/podman exec -i C", ["/usr/bin/podman", "exec", "-i", "C"]),
        ("nsenter -t 7", ["nsenter", "-t", "7"]),
        ("", []),
        (None, []),
    ],
)
def test_a_container_is_given_stdin(given: str | None, words: list[str]) -> None:
    assert beside.entering(given) == words


def test_a_quote_that_does_not_end_is_refused() -> None:
    with pytest.raises(UsageError, match="--via"):
        beside.entering("docker exec 'C")


@pytest.mark.parametrize("given", ["x", "4711;reboot", "-1", "", "4711 4712"])
def test_what_is_no_job_is_refused(given: str) -> None:
    with pytest.raises(UsageError, match="not a job number"):
        beside.job_of(given)


@pytest.mark.parametrize(
    ("rows", "nodes"),
    [
        ("echo '4711|RUNNING|h[1-2]'", ("4711", ("h1", "h2"))),
        ("echo '4711|PENDING|'", "PENDING"),
        ("printf '4711|RUNNING|h1\\n4712|RUNNING|h2\\n'", "name one"),
        ("echo Invalid job id specified >&2; exit 1", "Invalid job id"),
    ],
)
def test_the_nodes_of_a_job_are_asked_of_slurm(tools: Path, rows: str, nodes: object) -> None:
    _tool(tools, "squeue", rows)
    if isinstance(nodes, str):
        with pytest.raises(UsageError, match=nodes):
            beside.job_of("4711")
    else:
        assert beside.job_of("4711") == nodes


def test_pieces_of_several_nodes_are_put_together_again(tools: Path) -> None:
    both = 'for n in h2 h1; do SLURMD_NODENAME=$n sh "$@" < "$P" > "$P.$n"; done; paste -d "\\n" "$P.h2" "$P.h1"'
    _tool(tools, "srun", f'while [ "$1" != sh ]; do shift; done; shift; P={tools}/p; cat > "$P"; {both}')
    pieces = beside.in_job(beside.SlurmJob("7", ["h1", "h2"]), [], None, _PROGRAM, 60)
    assert [(piece.host, json.loads(piece.line)["text"], piece.problem) for piece in pieces] == [
        ("h1", "a b" * 2000, ""),
        ("h2", "a b" * 2000, ""),
    ]


def test_a_step_that_fails_is_begun_on_each_node(tools: Path) -> None:
    down = 'cat >/dev/null; echo "srun: error: h2 is down" >&2; exit 1'
    each = f'case " $* " in *--nodes=2*) {down};; *h2*) exit 3;; esac'
    _tool(tools, "srun", f'{each}\nwhile [ "$1" != sh ]; do shift; done; SLURMD_NODENAME=h1 exec "$@"')
    answers = beside.in_job(beside.SlurmJob("7", ["h1", "h2"]), [], None, _PROGRAM, 60)
    assert [(answer.host, bool(answer.line), answer.problem) for answer in answers] == [
        ("h1", True, ""),
        ("h2", False, "srun ended with status 3"),
    ]


def test_pods_are_those_of_the_selector(tools: Path) -> None:
    items = [
        {"metadata": {"name": f"t-{n}"}, "status": {"phase": phase}}
        for n, phase in enumerate(["Running", "Pending"])
    ]
    (tools / "pods.json").write_text(json.dumps({"items": items}))
    enters = 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"'
    _tool(tools, "kubectl", f'if [ "$1" = get ]; then cat {tools}/pods.json; exit; fi\n{enters}')
    first, second = beside.answers(beside.in_pods("app=t", "", "main", []), _PROGRAM, 60)
    assert (first.host, bool(first.line)) == ("t-0", True)
    assert second == beside.HostAnswer("t-1", problem="the pod is Pending")


@pytest.mark.parametrize("listed", ["[]", "no json", '{"items": []}', '{"items": [{"metadata": {"name": "-x"}}]}'])
def test_what_is_no_list_of_pods_is_refused(tools: Path, listed: str) -> None:
    (tools / "pods.json").write_text(listed)
    _tool(tools, "kubectl", f"cat {tools}/pods.json")
    with pytest.raises(UsageError, match="--pods"):
        beside.in_pods("app=t", "", "", [])


@pytest.mark.parametrize("option", ["--job", "--pods", "--hosts"])
def test_an_empty_place_is_not_this_host(ncclcheck: Command, option: str) -> None:
    """As --job "$JOB" gives where the variable is not set."""
    done = ncclcheck("hang", option, "")
    assert (done.code, f"{option}: it is empty" in done.err) == (2, True)


def test_a_process_that_handles_no_signal_lives_through_a_look() -> None:
    env = {**os.environ, "RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9"}
    with subprocess.Popen(["sleep", "60"], env=env) as rank:
        subprocess.run(
            [sys.executable, "-m", "ncclcheck", "hang", "--seconds", "2"],
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert rank.poll() is None
        rank.kill()
