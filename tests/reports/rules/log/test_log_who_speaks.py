"""What is said of a log follows from who speaks in it: MPI, ssh, a launcher, a program's own line of code."""

from __future__ import annotations

import pytest

from tests.helpers.logs import judged, parsed, raised


def _what(text: str, code: str) -> str:
    return judged(text)[code].findings[0].what


def _commands(text: str, code: str) -> str:
    return " ".join(line for fix in judged(text)[code].findings[0].remedies for line in fix.commands)


_SILENT = "Using device: cuda\nLoad weight end. type=Qwen2ForCausalLM, rank 0\n[rank0]: waiting for the others\n"


def test_nobody_complains_is_said_only_where_no_line_has_a_word_of_complaint() -> None:
    assert "nobody complains" in _what(_SILENT, "LOG007")
    harmless = "gpu-a17:1:1 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal net plugin.\n"
    assert "nobody complains" not in _what(_SILENT + harmless, "LOG007")
    assert "these lines do not show that the job ended" in _what(_SILENT + harmless, "LOG007")


def test_tries_in_vain_at_the_end_of_a_log_are_quoted() -> None:
    dialled = (
        "gpu-a17:7:7 [0] NCCL INFO NET/Socket : Using [0]eno1:10.0.3.17<0> "
        "[1]veth25f2e72:fe80::380d:bfff:fe5b:54d2%veth25f2e72<0>\n"
        "gpu-a17:7:7 [0] NCCL INFO Using network Socket\n"
        "gpu-a17:7:9 [0] NCCL INFO Call to connect returned Connection timed out, retrying\n"
    )
    assert _what(dialled, "LOG007").startswith("NCCL also sends over veth25f2e72, link-local")
    assert "Call to connect returned Connection timed out" in _what(dialled, "LOG007")
    assert "NCCL_SOCKET_IFNAME" in _commands(dialled, "LOG007")


def test_nccls_ras_is_asked_only_of_an_nccl_that_has_it() -> None:
    assert "py-spy" in _commands(_SILENT, "LOG007")
    began = "gpu-a17:7:7 [0] NCCL INFO NCCL version {}+cuda12.4\n"
    assert "28028" in _commands(began.format("2.25.1"), "LOG007")
    assert "28028" not in _commands(began.format("2.21.5"), "LOG007")


def test_a_name_that_ray_counts_as_asked_in_vain_has_no_address() -> None:
    line = (
        "(Worker pid=2) [W socket.cpp:601] [c10d] The IPv6 network addresses of (head, 16516) cannot be retrieved "
        "(gai error: -2 - Name or service not known).{}\n"
    )
    folded = line.format("") + 2 * line.format(" [repeated 10x across cluster]")
    assert "the name head has no address" in _what(folded, "LOG020")
    assert "LOG020" not in raised(line.format(""))


_LOST = """\
ORTE has lost communication with a remote daemon.

  HNP daemon   : [[43015,0],0] on node launcher-gdqv7
  Remote daemon: [[43015,0],20] on node worker-19

This is usually due to either a failure of the TCP network
connection to the node, or possibly an internal failure of
the daemon itself. We cannot recover from this failure, and
therefore will terminate the job.
"""


def test_a_text_of_mpi_whose_rules_were_cut_off_is_told_with_its_details() -> None:
    what = _what(_LOST, "LOG001")
    assert "lost communication with a remote daemon" in what
    assert "on node worker-19" in what
    assert "usually" not in what
    assert "plm_base_verbose" in _commands(_LOST, "LOG001")
    assert "NCCL_DEBUG" not in _commands(_LOST, "LOG001")


def test_what_stands_above_mpis_general_words_is_why_it_did_not_start() -> None:
    rule, general = 60 * "-", "ORTE was unable to reliably start one or more daemons.\n"
    box = (
        f"{rule}\nA process or daemon was unable to complete a TCP connection\nto another process:\n"
        "  Local host:    node-a\n  Remote host:   node-b\nThis is usually caused by a firewall on the remote. "
        f"Please\ncheck that any firewall (e.g., iptables) has been disabled and\ntry again.\n{rule}\n"
    )
    assert "TCP connection to another process; Remote host: node-b" in _what(box + general, "LOG124")
    assert "why is not in these lines" in _what(general, "LOG124")


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("Error executing job with overrides: ['data.train_batch_size=32']\n", "HYDRA_FULL_ERROR"),
        ("[mpiexec@node-a] HYDU_sock_connect failed\n", "mpiexec -verbose"),
        (
            "libfabric:507:1741::cxi:fabric:cxip_nic_get_rgroup_vni():253<warn> : Failed to find vni\n",
            "FI_LOG_LEVEL",
        ),
        ("ncclSystemError: failed\n", "NCCL_DEBUG"),
    ],
)
def test_who_speaks_is_asked_to_say_more(line: str, command: str) -> None:
    assert command in _commands("[rank0]: starting\n" + line, "LOG001")


def test_a_launcher_that_hands_on_a_hangup_was_ended_by_it() -> None:
    line = "WARNING:torch.distributed.elastic.multiprocessing.api:Sending process {} closing signal SIG{}\n"
    hung_up = "".join(line.format(pid, "HUP") for pid in (10, 11))
    assert "SIGHUP: the session that started it was lost" in _what(hung_up, "LOG006")
    assert "LOG006" not in raised("".join(line.format(pid, "TERM") for pid in (10, 11)))
    assert "Ctrl-C" in _what("[rank0]: starting\n" + 3 * "Killed by signal 2.\n", "LOG006")


def test_the_line_of_code_says_what_the_exception_does_not() -> None:
    text = (
        "[1,1]<stderr>:Traceback (most recent call last):\n"
        '[1,1]<stderr>:  File "bench.py", line 62, in <module>\n'
        "[1,1]<stderr>:    tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], 'GPU')\n"
        "[1,1]<stderr>:IndexError: list index out of range\n"
    )
    finding = judged(text)["LOG004"].findings[0]
    assert "gpus[hvd.local_rank()]" in finding.what
    assert "more processes were started on the node than GPUs" in finding.why
    event = next(event for event in parsed(text).events if event.sign == "python-error")
    assert event.fields.get("code_line", "").startswith("tf.config")


def test_more_processes_than_the_world_has_are_no_time_out_of_the_program() -> None:
    text = (
        "RuntimeError: Timed out initializing process group in store based barrier on rank: 0, for key: "
        "store_based_barrier_key:1 (world_size=4, worker_count=16, timeout=0:30:00)\n"
    )
    assert "16 processes came to a start of 4" in _what(text, "LOG021")
    assert "LOG004" not in raised(text)


def test_a_rank_that_broke_the_connection_is_gone_and_did_not_fail_to_come() -> None:
    text = (
        "RuntimeError: [3] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key "
        "store "
        "by key '0', but store->get('0') got error: {}. This may indicate a possible application crash on rank 0\n"
    )
    assert "rank 0 went away" in _what(text.format("Connection reset by peer"), "LOG021")
    assert "waited in vain for rank 0" in _what(text.format("Socket Timeout"), "LOG021")


def test_rows_of_the_first_nccl_tests_are_work() -> None:
    rows = (
        "# Using devices\n#   Rank  0 uses device  0 [0x04] GeForce GTX TITAN X\n"
        "         100          100   char    sum    0.038   0.00   0.00    0e+00   0.046   0.00   0.00   0e+00\n"
    )
    assert not {code for code, state in raised(rows).items() if state in ("fail", "unknown")}


_TESTS = (
    "# nThread 1 nGpus 8 minBytes 8 maxBytes 16 step: 2(factor) warmup iters: 5 iters: 20\n#\n# Using devices\n"
)
_ROW_OF = "    {0}  {0}  float  sum  6391.1  5.25  7.88  2e-07  6407.6  5.24  7.86  2e-07\n"
_SUMMARY = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 3.4115\n#\n"


def test_tables_of_nccl_tests_that_stand_twice_are_two_runs_without_mpi() -> None:
    rows = "".join(2 * _ROW_OF.format(size) for size in (33554432, 67108864)) + 2 * _SUMMARY
    assert "built without MPI" in _what(rows, "LOG022")
    assert "built without MPI" in _what(2 * _TESTS, "LOG022")
    one = "".join(map(_ROW_OF.format, (33554432, 67108864))) + _SUMMARY
    assert "LOG022" not in raised(2 * one)  # one after the other
    assert "LOG022" not in raised(2 * (_TESTS + one))


def test_of_what_a_container_engine_says_the_line_that_names_what_is_missing_stands_out() -> None:
    head = "slurmstepd: error: pyxis: container start failed with error code: 1\n"
    engine = "slurmstepd: error: pyxis:     {}\n"
    missing = "[ERROR] Command not found: nvidia-container-cli, see https://github.com/NVIDIA/libnvidia-container"
    text = head + engine.format("/usr/bin/enroot: line 44: HOME: unbound variable") + engine.format(missing)
    assert "Command not found: nvidia-container-cli" in _what(text, "LOG181")
    start = "slurmstepd: error: pyxis: {}\n"
    refused = start.format("seccomp filter failed: Function not implemented") + start.format(
        "couldn't start container"
    )
    assert "seccomp filter failed: Function not implemented" in _what(refused, "LOG181")


def test_that_neither_of_two_is_there_says_more_than_that_something_failed() -> None:
    text = (
        "[rank0]: starting\nibgda.cpp:nvshmemt_init:3626: neither nv_peer_mem, or nvidia_peermem detected.\n"
        "transport.cpp:275: init failed for transport: IBGDA\n"
    )
    assert "neither nv_peer_mem" in _what(text, "LOG001")
