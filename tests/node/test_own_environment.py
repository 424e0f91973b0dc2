"""What one node alone has, beside how it failed: named first with its fix, and not without a failure."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ncclcheck.node.ranks.running import explain_end
from ncclcheck.probes.facts import (
    Cluster,
    Hiding,
    Host,
    Job,
    JobEnd,
    JobFacts,
    Lateness,
    Measurements,
    Node,
    RankState,
    Run,
    Silence,
    Space,
    Stack,
    Times,
    Unread,
    Variable,
)
from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.host import modules
from ncclcheck.probes.machine.software import stack
from ncclcheck.reports.culprit import culprits
from ncclcheck.reports.judgement.findings import Finding, State
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.subjects.failures import last_words
from tests.conftest import ROOT, Command

_VAIN = "torch.distributed.DistNetworkError: Connection closed by peer"
_GLOO = "RuntimeError: makeDeviceForHostname(): unsupported gloo device"
_SYMBOL = "ImportError: /opt/torch/lib/libc10.so: undefined symbol: _ZTVNSt, version GLIBCXX_3.4.21"
_ENCODINGS = "ModuleNotFoundError: No module named 'encodings'"


def _node(name: str, env: dict[str, str] | None = None, **stack: Any) -> Node:
    given: dict[str, Any] = {"python": "3.11.7", "torch": "2.8.0", "executable": "/opt/env/bin/python", **stack}
    variables = [Variable(name=key, value=value) for key, value in (env or {}).items()]
    return Node(name=name, job=JobFacts(variables=variables), stack=Stack(**given))


def _died(nodes: list[Node], exit_: int | None, detail: str = "", ranks: list[RankState] | None = None) -> Cluster:
    """The torchrun of the second node ended like this; the others say that they waited in vain."""
    ends = [JobEnd(node=node.name, exit=1, detail=_VAIN) for node in nodes]
    ends[1] = JobEnd(node=nodes[1].name, exit=exit_, detail=detail)
    run = Run(started_job=True, ends=ends, ranks=ranks or [], stopped_by="early end")
    job = Job(launcher="join", nodes_asked=len(nodes), nodes_answered=len(nodes), ranks=len(nodes), backend="gloo")
    return Cluster(command="bench", nodes=nodes, job=job, run=run)


def _three(env: dict[str, str], others: dict[str, str] | None = None, **stack: Any) -> list[Node]:
    return [_node("h1", others), _node("h2", env, **stack), _node("h3", others)]


def _found(cluster: Cluster, code: str) -> list[Finding]:
    return next(verdict for verdict in judge(cluster) if verdict.code == code).findings


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize(
    ("name", "value", "exit_", "detail"),
    [
        ("LD_PRELOAD", "/opt/x/libtrace.so", -6, ""),
        ("LD_PRELOAD", "/opt/x/libtrace.so", -11, ""),
        ("LD_LIBRARY_PATH", "/opt/old/lib", 1, _SYMBOL),
        ("LD_LIBRARY_PATH", "/opt/old", 1, "ImportError: libc10.so: cannot open shared object file: No such file"),
        ("GLOO_DEVICE_TRANSPORT", "TCP_TLS", 1, _GLOO),
        (
            "TORCH_DISTRIBUTED_DEBUG",
            "YES",
            1,
            "ValueError: The value of TORCH_DISTRIBUTED_DEBUG must be OFF, INFO",
        ),
        ("PYTHONHOME", "/opt/other", 1, _ENCODINGS),
        ("MALLOC_CHECK_", "3", -6, ""),
        ("GLIBC_TUNABLES", "glibc.malloc.check=3", -6, "free(): invalid pointer"),
        ("PYTHONMALLOC", "debug", -6, "Fatal Python error: _PyMem_DebugRawFree: bad ID"),
        ("OMP_NUM_THREADS", "100000", 1, "libgomp: Thread creation failed: Resource temporarily unavailable"),
        (
            "TMPDIR",
            "/scratch/gone",
            1,
            "FileNotFoundError: [Errno 2] No such file or directory: '/scratch/gone/x'",
        ),
    ],
)
def test_the_variable_of_the_node_that_fails_is_the_cause(
    name: str, value: str, exit_: int, detail: str, count: int
) -> None:
    cluster = _died(_three({name: value})[:count], exit_, detail)
    (finding,) = _found(cluster, "VER017")
    assert (finding.state, finding.where.node) == (State.FAIL, "h2")
    assert f"{name}={value}" in finding.what
    assert finding.remedies[0].commands == [f"unset {name}  # on h2"]
    assert [culprit.names for culprit in culprits(cluster)] == [["h2"]]
    assert "VER017" in culprits(cluster)[0].explains
    assert not [difference for difference in _found(cluster, "VER013") if difference.where.node == "h2"]


def test_what_the_others_have_is_given_back() -> None:
    cluster = _died(_three({"LD_LIBRARY_PATH": "/opt/old/lib"}, {"LD_LIBRARY_PATH": "/opt/new/lib"}), 1, _SYMBOL)
    (finding,) = _found(cluster, "VER017")
    assert finding.remedies[0].commands == ["export LD_LIBRARY_PATH=/opt/new/lib  # on h2"]


@pytest.mark.parametrize(
    ("exit_", "detail"),
    [
        (-9, ""),  # from outside
        (-15, ""),
        (1, _VAIN),  # who waited is not to blame
        (1, "RuntimeError: CUDA out of memory"),  # tells its own reason
        (1, "ImportError: /a.so: version `GLIBC_2.34' not found (required by /a.so)"),
        (0, ""),
    ],
)
def test_another_reason_accuses_no_variable(exit_: int, detail: str) -> None:
    env = {"LD_PRELOAD": "/opt/libjemalloc.so"} if "GLIBC" not in detail else {"OMP_NUM_THREADS": "4"}
    assert not _found(_died(_three(env), exit_, detail), "VER017")


def test_harmless_differences_are_never_accused() -> None:
    env = {
        "PYTHONHASHSEED": "0",
        "PYTHON_VERSION": "3.11",
        "SLURM_PROCID": "1",
        "CUDA_HOME": "/opt/cuda",
        "RANK": "1",
    }
    assert not _found(_died(_three(env), -6), "VER017")


def test_a_preload_that_all_have_or_that_harms_nobody_is_not_accused() -> None:
    jemalloc = {"LD_PRELOAD": "/usr/lib/libjemalloc.so.2"}
    assert not _found(_died(_three(jemalloc, jemalloc), -6), "VER017")
    sound = _died(_three(jemalloc), 0)
    assert not _found(sound, "VER017")
    alone = [finding for finding in _found(sound, "VER013") if finding.where.node == "h2"]
    assert alone[0].state is State.WARN
    assert alone[0].remedies[0].commands == ["unset LD_PRELOAD  # on h2"]


def test_where_all_fail_nobody_is_odd() -> None:
    nodes = _three({"LD_PRELOAD": "/x.so"})
    ends = [JobEnd(node=node.name, exit=-6) for node in nodes]
    run = Run(started_job=True, ends=ends, stopped_by="early end")
    assert not _found(Cluster(command="bench", nodes=nodes, run=run), "VER017")


def test_a_rank_that_raised_names_the_variable_and_not_who_followed() -> None:
    ranks = [
        RankState(rank=0, node="h1", pid=1, proc_state="gone", exit=1, error=f"RuntimeError: {_VAIN}"),
        RankState(rank=1, node="h2", pid=2, proc_state="gone", exit=1, error=_GLOO, first=True),
    ]
    nodes = [_node("h1"), _node("h2", {"GLOO_DEVICE_TRANSPORT": "IBVERBS"})]
    (finding,) = _found(_died(nodes, 1, _GLOO, ranks), "VER017")
    assert finding.where.node == "h2"


def test_a_late_rank_and_the_library_that_slows_it() -> None:
    def late(rank: int, mean: float) -> Lateness:
        spread = Times(p50=mean, p95=mean, p99=mean, min=mean, max=mean, mean=mean)
        return Lateness(
            rank=rank, node=f"h{rank + 1}", iterations=100, last=95 if mean > 1e4 else 3, late_us=spread,
            wall_s=3.0, cpu_s=0.2, runqueue_s=0.01,
        )  # fmt: skip

    nodes = _three({"LD_PRELOAD": "/opt/libslow.so", "PYTHONHASHSEED": "1"})
    measurements = Measurements(lateness=[late(0, 10.0), late(1, 20_000.0), late(2, 12.0)])
    run = Run(started_job=True, ranks=[])
    (finding,) = _found(Cluster(command="bench", nodes=nodes, run=run, measurements=measurements), "VER017")
    assert finding.where.node == "h2"
    assert "LD_PRELOAD=/opt/libslow.so" in finding.what


@pytest.mark.parametrize(
    ("stack", "detail", "words"),
    [
        ({"numpy": "2.3.1"}, "ImportError: numpy.core.multiarray failed to import", "numpy 2.3.1"),
        ({"torch_libraries": 8}, "ImportError: /opt/torch/lib/libtorch_cpu.so: file too short", "of 8 bytes"),
        ({"customised": ["/opt/sitecustomize.py"]}, "Fatal Python error: Failed to import the site module",
         "/opt/sitecustomize.py"),
        ({"preloaded": "/opt/x.so"}, "ERROR: ld.so: object '/opt/x.so' from /etc/ld.so.preload", "/opt/x.so"),
    ],
)  # fmt: skip
def test_what_is_installed_on_one_node_alone(stack: dict[str, Any], detail: str, words: str) -> None:
    sound: dict[str, Any] = {"numpy": "1.26.4", "torch_libraries": 9, "customised": []}
    sound["preloaded"] = Unread("absent", "no such file")
    nodes = [_node("h1", **sound), _node("h2", **{**sound, **stack}), _node("h3", **sound)]
    (finding,) = _found(_died(nodes, 1, detail), "VER017")
    assert words in finding.what


@pytest.mark.parametrize(
    ("text", "means", "command"),
    [
        ("python: symbol lookup error: /a/b.so: undefined symbol: x", "another version", "unset LD_LIBRARY_PATH"),
        ("python: error while loading shared libraries: libpython3.11.so.1.0: cannot open shared object file: No",
         "libpython3.11.so.1.0 is needed", "ldconfig -p"),
        ("ImportError: /lib/libstdc++.so.6: version `GLIBCXX_3.4.30' not found (required by /a/b.so)",
         "libstdc++ that was loaded is older", "unset LD_"),
        (f"Fatal Python error: init_fs_encoding: failed\n{_ENCODINGS}\n\nCurrent thread 0x0 (most recent call "
         "first):\n  <no Python frame>", "its own standard library", "unset PYTHONHOME"),
        ("ImportError: cannot import name '_x' from 'torch.a' (/opt/lib/python3.11/site-packages/torch/a.py)",
         "/opt/lib/python3.11/site-packages/torch/a.py lacks what the rest of its package imports",
         "--no-deps torch==VERSION"),
        ("ImportError: cannot import name 'Queue' from 'queue' (/home/kim/queue.py)", "in place of Python's own",
         "mv /home/kim/queue.py"),
        ("ImportError: /a/libtorch_cpu.so: file too short", "not complete", "--force-reinstall"),
        ("RuntimeError: \n        An attempt has been made to start a new process before the\n        current "
         "process has finished its bootstrapping phase.", "while it is imported", "__name__ == '__main__'"),
        ("RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you "
         "must use the 'spawn' start method", "does not survive a fork", "set_start_method('spawn')"),
        ("OverflowError: cannot serialize a bytes object larger than 4 GiB", "2 or 4 GiB", "args=(path,)"),
    ],
)  # fmt: skip
def test_last_words_and_what_they_mean(text: str, means: str, command: str) -> None:
    meaning = last_words.meaning(text)
    assert meaning is not None
    assert means in meaning.means
    assert "no Python frame" not in meaning.line
    assert any(command in line for fix in meaning.fix for line in fix.commands)


@pytest.mark.parametrize(
    ("word", "means"),
    [
        ("Killed", "lack of memory"),
        ("Bus error (core dumped)", "/dev/shm"),
        ("sh: line 1: 42 Illegal instruction     python train.py", "another processor"),
        ("File size limit exceeded", "ulimit -f"),
        ("CPU time limit exceeded", "ulimit -t"),
        ("Fatal Python error: Segmentation fault", "crashed"),
    ],
)
def test_a_shells_word_for_a_signal(word: str, means: str) -> None:
    meaning = last_words.by_shell(f"starting\n{word}\n")
    assert meaning is not None
    assert means in meaning.means


def test_an_own_module_of_python_is_not_taken_for_the_users() -> None:
    line = "ImportError: cannot import name 'X' from 'queue' (/usr/lib/python3.11/queue.py)"
    assert last_words.meaning(line) is None
    assert last_words.by_shell("the Killed list is empty, 3 jobs") is None


@pytest.mark.parametrize(
    ("status", "means"), [(-24, "ulimit -t"), (-25, "ulimit -f"), (-7, "/dev/shm"), (-31, "seccomp")]
)
def test_a_signal_has_its_usual_meaning(status: int, means: str) -> None:
    rank = RankState(rank=1, node="h2", pid=7, proc_state="gone", exit=status, phase="world", last_step="soak, 1")
    cluster = _died(_three({}), 1, "ChildFailedError", [rank])
    (finding,) = _found(cluster, "RUN003")
    assert means in finding.what
    assert "is dead" not in finding.what


def test_what_ends_python_at_a_login_is_told_with_its_fix() -> None:
    output = f"Python path configuration:\nFatal Python error: init_fs_encoding: x\n{_ENCODINGS}\n" \
        "\nCurrent thread 0x0 (most recent call first):\n  <no Python frame>"  # fmt: skip
    silent = Silence(node="h2", last_step="", since_s=1.0, detail=output, via="ssh", exit=1)
    run = Run(silent=[silent])
    (finding,) = _found(Cluster(command="env", nodes=[], run=run), "RUN001")
    assert "its own standard library" in finding.what
    assert "no Python frame" not in finding.what
    assert "unset PYTHONHOME PYTHONPATH" in finding.remedies[0].commands


def test_a_file_that_hides_a_module() -> None:
    mine = Hiding(module="queue", path="/home/kim/queue.py", by="the working directory")
    other = Hiding(module="this", path="/home/kim/this.py", by="the working directory")  # torch imports none of it
    nodes = [_node("h1", hiding=[mine, other]), _node("h2", hiding=[mine])]
    (finding,) = _found(Cluster(command="env", nodes=nodes), "VER018")
    assert (finding.state, finding.where.node) == (State.WARN, None)
    assert finding.remedies[0].commands == ["mv /home/kim/queue.py /home/kim/my_queue.py"]


def test_a_file_that_hides_a_module_and_ended_a_rank() -> None:
    mine = Hiding(module="queue", path="/opt/x/queue.py", by="PYTHONPATH")
    nodes = [_node("h1", hiding=[]), _node("h2", hiding=[mine])]
    words = "ImportError: cannot import name 'Queue' from 'queue' (/opt/x/queue.py)"
    (finding,) = _found(_died(nodes, 1, words), "VER018")
    assert (finding.state, finding.where.node) == (State.FAIL, "h2")


def test_files_of_torch_and_numpy_that_differ() -> None:
    nodes = [
        _node("h1", torch_libraries=9, numpy="1.26.4"),
        _node("h2", torch_libraries=8, numpy="2.1.0", torch="2.1.0"),
    ]
    assert not [
        finding for finding in _found(Cluster(command="env", nodes=nodes), "VER019") if finding.state is State.WARN
    ]
    nodes = [_node("h1", torch_libraries=9, numpy="2.0.1"), _node("h2", torch_libraries=9, numpy="2.3.1")]
    assert not [
        finding for finding in _found(Cluster(command="env", nodes=nodes), "VER019") if finding.state is State.WARN
    ]
    lacks = Unread("absent", "numpy is not installed")
    nodes = [_node("h1", numpy="2.0.1"), _node("h2", numpy=lacks, torch_libraries=7), _node("h3", numpy="2.0.2")]
    findings = [
        finding for finding in _found(Cluster(command="env", nodes=nodes), "VER019") if finding.state is State.WARN
    ]
    assert [finding.where.node for finding in findings] == ["h2"]
    old = [_node("h1", torch="2.1.0", numpy="2.0.1"), _node("h2", torch="2.1.0", numpy="2.0.1")]
    findings = [
        finding for finding in _found(Cluster(command="env", nodes=old), "VER019") if finding.state is State.WARN
    ]
    assert "was built for numpy 1" in findings[0].what


def test_a_tmpdir_that_is_passed_over() -> None:
    space = Space(size=2**40, free=2**39, path="/tmp")
    nodes = [
        _node("h1", {"TMPDIR": "/tmp/"}),
        msgspec.structs.replace(_node("h2", {"TMPDIR": "/scratch/gone"}), host=Host(tmp=space)),
    ]
    nodes[0] = msgspec.structs.replace(nodes[0], host=Host(tmp=space))
    (finding,) = _found(Cluster(command="env", nodes=nodes), "HST004")
    assert (finding.state, finding.where.node) == (State.WARN, "h2")
    assert finding.remedies[0].commands == ["mkdir -p /scratch/gone  # on h2", "unset TMPDIR  # on h2"]


def test_files_beside_the_job_are_found_as_python_finds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("torch", "token", "logging"):
        (tmp_path / "beside" / folder).mkdir(parents=True)
    (tmp_path / "beside/logging/__init__.py").touch()
    (tmp_path / "beside/torch/__init__.py").touch()
    (tmp_path / "on_path").mkdir()
    for file in ("beside/queue.py", "beside/queue.txt", "beside/os.py", "on_path/types.py", "on_path/numpy.py"):
        (tmp_path / file).touch()
    monkeypatch.chdir(tmp_path / "beside")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}/on_path")
    hidden = [(hiding.module, hiding.path.removeprefix(f"{tmp_path}/"), hiding.by) for hiding in modules.hiding()]
    assert hidden == [
        ("numpy", "on_path/numpy.py", "PYTHONPATH"),
        ("types", "on_path/types.py", "PYTHONPATH"),
        *((name, f"beside/{path}", "the working directory") for name, path in [
            ("logging", "logging"), ("queue", "queue.py"), ("torch", "torch"),
        ]),
    ]  # fmt: skip


def test_ncclcheck_is_not_misled_by_a_queue_py(ncclcheck: Command, tmp_path: Path) -> None:
    """Neither beside it nor in PYTHONPATH, here and in its agents."""
    (tmp_path / "old").mkdir()
    for file in ("queue.py", "old/logging.py", "old/queue.py", "old/subprocess.py"):
        (tmp_path / file).write_text("raise SystemExit('mine')\n")
    ran = ncclcheck("env", "-o", "json", PYTHONPATH=f"{tmp_path}/old:{ROOT}")
    assert ran.code == 0
    assert "mine" not in ran.err
    (verdict,) = (verdict for verdict in ran.document.verdicts if verdict.code == "VER018")
    text = " ".join(finding.what for finding in verdict.findings)
    assert all(f"{tmp_path}/{file}" in text for file in ("queue.py", "old/logging.py", "old/queue.py"))


def test_a_log_that_ends_in_a_stack_tells_what_happened(tmp_path: Path) -> None:
    log = tmp_path / "torchrun.log"
    log.write_text("begun\nValueError:\n  Invalid log settings: nonsense\n  valid: all\n\nx.ChildFailedError:\n")
    assert explain_end(str(log)) == "ValueError: Invalid log settings: nonsense valid: all"
    log.write_text("Fatal Python error: none_dealloc\n\nCurrent thread 0x0 (most recent call first):\n"
                   "  <no Python frame>\n")  # fmt: skip
    assert explain_end(str(log)) == "Fatal Python error: none_dealloc"
    log.write_text("a\nqemu: no\n\nCurrent thread 0x0 (most recent call first):\n  <no Python frame>\n")
    assert explain_end(str(log)).splitlines()[-1] == "qemu: no"


@pytest.mark.parametrize(
    ("metadata", "version"),
    [
        (["numpy-1.26.4.dist-info"], "1.26.4"),
        (["numpy-1.21.5-py3.8.egg-info", "numpy-stubs-0.1.dist-info"], "1.21.5"),
        (["numpy-1.26.4.dist-info", "numpy-2.0.0rc1.dist-info"], None),
        ([], None),
    ],
)
def test_the_version_of_numpy_is_read_without_importing_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, metadata: list[str], version: str | None
) -> None:
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy" / "__init__.py").write_text("raise SystemExit('imported')")
    for name in metadata:
        (tmp_path / name).mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "numpy", raising=False)
    numpy = stack.probe(Machine()).numpy
    assert numpy == version if version else isinstance(numpy, Unread)
