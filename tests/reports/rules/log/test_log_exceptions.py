"""Exceptions of Python in logs: who raised what and where, what stands behind its words, and what ends a chain."""

from __future__ import annotations

import pytest

from ncclcheck.probes.facts import LogEvent
from ncclcheck.reports.judgement.findings import Finding, State
from ncclcheck.reports.subjects.logs.words.exceptions import family
from tests.helpers.logs import judged, parsed

_TORCHRUN = (
    "E1109 22:40:05.000000 700 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) "
    "local_rank: 3 (pid: 773) of binary: /opt/venv/bin/python\n"
)
_IN_DATA = """[rank3]: Traceback (most recent call last):
[rank3]:   File "/w/train.py", line 120, in <module>
[rank3]:     main()
[rank3]:   File "/w/data.py", line 14, in __getitem__
[rank3]:     return self.items[key]
[rank3]:   File "/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataset.py", line 9, in get
[rank3]:     raise KeyError(key)
[rank3]: KeyError: 'foo'
"""


def _told(text: str) -> Finding:
    return judged(text)["LOG004"].findings[0]


def _exceptions(text: str) -> list[LogEvent]:
    return [event for event in parsed(text).events if event.sign == "python-error"]


def test_the_heading_says_who_raised_what_and_where() -> None:
    finding = _told(_IN_DATA + _TORCHRUN)
    assert finding.what == "rank 3 raised KeyError: 'foo' at /w/data.py:14 (__getitem__): return self.items[key]"
    assert finding.remedies[0].text.startswith("Look at /w/data.py:14")


def test_a_long_message_keeps_the_place_as_evidence() -> None:
    finding = _told(_IN_DATA.replace("KeyError: 'foo'", "KeyError: " + "foo " * 40))
    assert "data.py" not in finding.what
    assert [evidence.value for evidence in finding.evidence if evidence.source == "raised at"] == [
        "/w/data.py:14 (__getitem__)"
    ]


def test_the_place_is_the_one_of_its_own_rank() -> None:
    """Two ranks write by turns: each has a traceback of its own."""
    other = _IN_DATA.replace("[rank3]", "[rank5]").replace("data.py", "other.py")
    mixed = "".join(f"{a}\n{b}\n" for a, b in zip(_IN_DATA.splitlines(), other.splitlines(), strict=True))
    assert {exception.rank: exception.fields["raised_at"] for exception in _exceptions(mixed)} == {
        3: "/w/data.py:14 (__getitem__)",
        5: "/w/other.py:14 (__getitem__)",
    }


def test_where_all_frames_are_of_libraries_the_last_one_is_the_place() -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "/opt/venv/bin/torchrun", line 8, in <module>\n'
        '  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/run.py", line 883, in run\n'
        "ValueError: bad\n"
    )
    assert _exceptions(text)[0].fields["raised_at"] == "torch/distributed/run.py:883 (run)"


def test_what_was_raised_while_another_was_dealt_with_goes_with_that() -> None:
    text = _IN_DATA + (
        "[rank3]: \n[rank3]: During handling of the above exception, another exception occurred:\n[rank3]: \n"
        "[rank3]: Traceback (most recent call last):\n"
        '[rank3]:   File "/w/train.py", line 130, in main\n'
        "[rank3]: RuntimeError: could not read the sample\n"
    )
    findings = judged(text)["LOG004"].findings
    assert [finding.what for finding in findings] == [
        "rank 3 raised KeyError: 'foo' at /w/data.py:14 (__getitem__): return self.items[key]"
    ]
    assert len([evidence for evidence in findings[0].evidence if evidence.source.startswith("log:")]) == 2


@pytest.mark.parametrize(
    ("text", "end"),
    [
        (
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ParallelConfig\n"
            "  Value error, World size (8) is larger than the number of available GPUs (4) in this node.\n",
            "World size (8) is larger than the number of available GPUs (4) in this node.",
        ),
        (
            "RuntimeError: \n        An attempt has been made to start a new process before the\n"
            "        current process has finished its bootstrapping phase.\n\n        This probably means\n",
            "An attempt has been made to start a new process before the current process has finished its "
            "bootstrapping phase.",
        ),
        ("ValueError: these differ:\nTraceback (most recent call last):\n", "these differ:"),
    ],
)
def test_a_message_that_stands_below_is_read(text: str, end: str) -> None:
    assert _exceptions(text)[0].text.endswith(end)


def test_lines_of_another_rank_are_no_part_of_a_message() -> None:
    text = "[rank1]: ValueError: these differ:\n[rank2]: loss 2.1\n[rank1]: - a: 1\n"
    assert _exceptions(text)[0].text == "ValueError: these differ: - a: 1"


FAMILIES = (
    ("ImportError: /lib/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by cpu_adam.so)",
     "newer system"),
    ("ImportError: libcudart.so.12: cannot open shared object file: No such file", "another release of CUDA"),
    ("ImportError: libGL.so.1: cannot open shared object file: No such file or directory", "system library"),
    ("ImportError: libcusparse.so.12: undefined symbol: __nvJitLinkAddData_12_1, version libnvJitLink.so.12",
     "meet"),
    ("ValueError: numpy.dtype size changed, may indicate binary incompatibility.", "numpy"),
    ("RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", "memory"),
    ("RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable", "exclusive"),
    ("OSError: You are trying to access a gated repo.", "hub"),
    ("requests.exceptions.HTTPError: 429 Client Error: Too Many Requests for url: https://huggingface.co/x",
     "many"),
    ("OSError: We couldn't connect to 'https://huggingface.co' to load the files", "outside"),
    ("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`", "cache"),
    ("ValueError: Free memory on device (5.31/79.25 GiB) on startup is less than desired GPU memory utilization",
     "another process"),
    ("ValueError: Tensor parallel size (8) cannot be larger than the number of available GPUs (4).", "More GPUs"),
    ("ValueError: Total available GPUs 4 is less than total desired GPUs 8", "More GPUs"),
    ("AttributeError: Can't pickle local object 'main.<locals>.<lambda>'", "pickle"),
    ("RuntimeError: can't start new thread", "limit"),
    ("safetensors_rust.SafetensorError: Error while serializing: IoError(Os { code: 28, kind: StorageFull })",
     "full"),
    ("OSError: [Errno 116] Stale file handle: '/nfs/last.pt'", "shared folder"),
    ("OSError: [Errno 30] Read-only file system: '/root/.triton'", "written"),
    ("PermissionError: [Errno 13] Permission denied: '/root/.cache'", "read or write"),
    ("FileNotFoundError: [Errno 2] No such file or directory: '/data/train.json'", "not there"),
    ("safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge", "ended too early"),
    ("_pickle.UnpicklingError: Weights only load failed. This file can still be loaded", "2.6"),
    ("AssertionError: found NaN in local grad norm in backward pass", "not a number"),
    ("RuntimeError: Expected all tensors to be on the same device, but found at least two devices", "two GPUs"),
    ("RuntimeError: 'weight' must be 2-D", "ZeRO-3"),
    ("RuntimeError: mat1 and mat2 shapes cannot be multiplied (32x768 and 1024x4096)", "Sizes"),
    ("ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0.", "older"),
    ("ModuleNotFoundError: No module named 'flash_attn'", "not installed"),
    ("ImportError: cannot import name 'x' from 'transformers.utils'", "another release"),
    ("omegaconf.errors.ConfigAttributeError: Key 'use_kl' is not in struct", "Settings"),
    ("TimeoutError: RPC call to execute_model timed out.", "in time"),
)  # fmt: skip


@pytest.mark.parametrize(("text", "words"), FAMILIES)
def test_what_stands_behind_the_words_is_told(text: str, words: str) -> None:
    finding = _told(text + "\n")
    assert text[:40] in finding.what
    assert words in finding.why
    assert finding.remedies


def test_an_exception_of_no_family_is_told_in_its_own_words() -> None:
    event = _exceptions("[rank0]: KeyError: 'foo'\n")[0]
    assert family(event) is None
    assert "others wait" in _told("[rank0]: KeyError: 'foo'\n").why


def test_a_hub_that_has_no_address_is_not_the_master() -> None:
    text = (
        "socket.gaierror: [Errno -3] Temporary failure in name resolution\n"
        "Traceback (most recent call last):\n"
        "requests.exceptions.ConnectionError: (MaxRetryError(\"HTTPSConnectionPool(host='huggingface.co', "
        "port=443)\n"
    )
    verdicts = judged(text)
    assert verdicts["LOG020"].state is not State.FAIL
    assert "outside" in verdicts["LOG004"].findings[0].why
    assert judged("socket.gaierror: [Errno -2] Name or service not known\n")["LOG020"].state is State.FAIL


_STOOD = """^CTraceback (most recent call last):
  File "/w/train.py", line 12, in main
    dist.barrier()
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 4159, in barrier
    work.wait()
KeyboardInterrupt
"""


def test_ctrl_c_tells_where_it_stood_unless_the_job_had_worked() -> None:
    hung = judged(_STOOD)["LOG006"]
    assert hung.state is State.FAIL
    assert hung.findings[0].what.endswith(
        "at /w/train.py:12 (main), in torch/distributed/distributed_c10d.py:4159 (barrier)"
    )
    worked = judged("step 10 loss 2.1\n" * 3 + _STOOD)["LOG006"]
    assert (worked.state, "worked until then" in worked.findings[0].what) == (State.FAIL, True)
