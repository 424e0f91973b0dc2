"""Lines that a terminal or a table cut are read whole; stacks without an end, and what serves at the end."""

from __future__ import annotations

import pytest

from tests.helpers.logs import judged, parsed


def _watchdog(rank: int, seq: int, op: str) -> str:
    return (
        f"[rank{rank}]:[E513 13:25:57.714781669 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught "
        f"collective operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn=5164000, NumelOut=5164000, "
        "Timeout(ms)=1800000) ran for 1800042 milliseconds before timing out."
    )


def _wrapped(lines: list[str], width: int) -> str:
    pieces = [line[at : at + width] for line in lines for at in range(0, len(line), width)]
    return "\n".join(pieces) + "\n"


@pytest.mark.parametrize("width", [80, 100, 150, 190])
def test_what_a_terminal_wrapped_is_read_whole(width: int) -> None:
    lines = [_watchdog(rank, seq, "BROADCAST") for rank, seq in ((1, 532339), (2, 532339), (0, 532341))]
    whole, cut = parsed("\n".join(lines) + "\n"), parsed(_wrapped(lines, width))
    assert [(event.sign, event.rank, event.fields) for event in whole.events] == [
        (event.sign, event.rank, event.fields) for event in cut.events
    ]
    assert (
        len(cut.events) == len(lines) == len([event for event in cut.events if event.sign == "watchdog-timeout"])
    )


def test_a_wrapped_line_at_the_end_of_the_file_is_not_lost() -> None:
    text = _watchdog(3, 7, "ALLREDUCE")[:150] + "\n"
    assert [event.sign for event in parsed(text).events] == ["watchdog-cut"]


def test_a_cell_that_goes_on_in_the_next_rows_is_one_line() -> None:
    rows = [
        "| model         | 1 | UNAVAILABLE: Internal: unexpected error when creating the state: [LIB][E |",
        "|               |   | RROR] Assertion failed: size == tp * pp (/app/worldConfig.cpp:80)         |",
        "|               |   | 3  0x7f06d283e9e2 /opt/lib.so(+0x569e2) [0x7f06d283e9e2]                  |",
    ]
    finding = judged("\n".join(rows) + "\n")["LOG008"].findings[0]
    assert "[LIB][ERROR] Assertion failed: size == tp * pp" in finding.what


def test_a_table_of_separate_rows_stays_so() -> None:
    text = "| a | 1 | Error: the first of these two failed |\n| b | 1 | Error: the second of these two failed |\n"
    assert len([event for event in parsed(text).events if event.sign == "complaint"]) == 2


def test_frames_alone_at_the_end_are_a_traceback_that_was_cut() -> None:
    frames = "".join(
        f'  File "/v/lib/python3.8/site-packages/torch/distributed/a.py", line {n}, in {name}\n    call()\n'
        for n, name in enumerate(("save", "sync", "wrapper", "barrier"))
    )
    assert "(barrier)" in judged(frames)["LOG001"].findings[0].what
    steps = "".join(f"step {n}: loss 0.{n}\n" for n in range(1, 20))
    assert not [event for event in parsed(frames + steps).events if event.sign == "traceback-cut"]


def test_a_box_that_warns_explains_what_only_follows() -> None:
    rule = "-" * 74
    text = (
        f"{rule}\nWARNING: An invalid value was given for oob_tcp_if_include.  This\nvalue will be ignored.\n\n"
        f"  Local host: n1\n  Value:      10.0.2.0/24\n  Message:    Did not find interface matching this subnet\n"
        f"{rule}\n[n2:08003] [[32552,0],2] tcp_peer_send_blocking: send() to socket 9 failed: Broken pipe (32)\n"
    )
    assert "An invalid value was given for oob_tcp_if_include" in judged(text)["LOG001"].findings[0].what


def test_service_threads_whose_sockets_close_are_no_failure() -> None:
    text = (
        "h:2374:2994 [0] NCCL INFO misc/socket.cc:47 -> 3\n"
        "h:2374:2994 [0] proxy.cc:1458 NCCL WARN [Service thread] Accept failed Resource temporarily unavailable\n"
        "h:2374:2994 [0] proxy.cc:1521 NCCL WARN [Proxy Service 0] Failed to execute operation Close from rank 0, "
        "retcode 3\n"
    )
    results = judged(text)
    assert not [f for result in results.values() for f in result.findings if f.state.value == "fail"]
    assert not [f for f in results["LOG001"].findings if f.state.value != "ok"]
    called = text + "h:2374:2374 [0] NCCL INFO group.cc:418 -> 3\nh:2374:2374 [0] NCCL INFO init.cc:1548 -> 3\n"
    assert judged(called)["LOG001"].findings[0].state.value == "fail"


def test_named_parameters_without_a_gradient_are_enough() -> None:
    text = "Parameters which did not receive grad for rank 3: model.22.cv4.bias, model.22.cv4.weight, x.bias\n"
    assert "model.22.cv4.bias, model.22.cv4.weight" in judged(text)["LOG088"].findings[0].what


def test_an_exception_that_gives_a_number_has_its_meaning_from_below() -> None:
    text = (
        'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n'
        "RuntimeError: OPS function error: HcclAllreduce, error code is 6\n"
        "EI0006: Getting socket times out. Reason: Remote Rank did not send the data in time.\n"
    )
    assert "Remote Rank did not send the data" in judged(text)["LOG004"].findings[0].what
