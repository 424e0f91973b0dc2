"""Jobs that went wrong in one way each, as the Flight Recorder sees them."""

from __future__ import annotations

from collections.abc import Callable

from tests.helpers.flights import Job

WORLD = {"0": ("default_pg", [0, 1, 2, 3])}
GRID = {
    "0": ("default_pg", [*range(8)]),
    "1": ("TENSOR", [0, 1]), "2": ("TENSOR", [2, 3]), "3": ("TENSOR", [4, 5]), "4": ("TENSOR", [6, 7]),
    "5": ("DATA", [0, 2, 4, 6]), "6": ("DATA", [1, 3, 5, 7]),
}  # fmt: skip
STAGES = {"0": ("default_pg", [0, 1, 2, 3]), "9": ("PIPELINE", [0, 1, 2, 3])}


def sound() -> Job:
    """All calls of all ranks ended."""
    made = Job(GRID)
    for group in GRID:
        made.call(group)
    return made


def one_stays_away() -> Job:
    """Rank 2 saves a checkpoint while the others go on to the next step."""
    made = Job(WORLD).call("0").call("0", place="train.py:88")
    return made.call("0", "_all_gather_base", ranks=[0, 1, 3], state="scheduled", out=(4096,), place="train.py:91")


def stuck_in_another_group() -> Job:
    """Rank 7 is away; rank 6 waits for it in their tensor group, and so everybody else in the data groups."""
    made = sound()
    made.call("4", ranks=[6], state="scheduled")
    for group, ranks in (("5", [0, 2, 4]), ("6", [1, 3, 5])):
        made.call(group, ranks=ranks, state="scheduled")
    return made


def a_record_that_stops() -> Job:
    """Rank 1 entered as many calls as the others, and notices the end of none since the third."""
    made = Job(WORLD)
    for number in range(6):
        made.call("0", ranks=[0, 2, 3], state="scheduled" if number == 5 else "completed")
        made.call("0", ranks=[1], state="scheduled" if number >= 2 else "completed")
    return made


def another_operation() -> Job:
    """Rank 3 leaves out an all-reduce, and is a call ahead from there on."""
    made = Job(WORLD).call("0", "broadcast")
    for op in ("all_reduce", "_all_gather_base", "_reduce_scatter_base", "all_reduce"):
        made.call("0", op, ranks=[0, 1, 2], state="scheduled")
        if op != "all_reduce" or made.numbers[3, "0", False] > 2:
            made.call("0", op, ranks=[3], state="scheduled")
    return made


def another_size() -> Job:
    """The last batch of rank 1 is smaller."""
    made = Job(WORLD).call("0")
    made.call("0", ranks=[0, 2, 3], state="started", size=(64, 128), place="loss.py:12")
    return made.call("0", ranks=[1], state="started", size=(37, 128), place="loss.py:12")


def another_type() -> Job:
    """Rank 0 did not cast."""
    made = Job(WORLD).call("0", ranks=[1, 2, 3], state="scheduled")
    return made.call("0", ranks=[0], state="scheduled", dtype="Float")


def sizes_that_do_not_add_up() -> Job:
    """In an all-to-all more is expected than sent."""
    made = Job(WORLD)
    for rank, (size, out) in enumerate([(100, 90), (80, 110), (100, 100), (100, 100)]):
        made.call("0", "all_to_all", ranks=[rank], state="scheduled", size=(size,), out=(out,))
    return made


def sizes_that_add_up() -> Job:
    """Experts get as many tokens as were sent, each another number."""
    made = Job(WORLD)
    for rank, (size, out) in enumerate([(100, 90), (80, 110), (100, 80), (100, 100)]):
        made.call("0", "all_to_all", ranks=[rank], size=(size,), out=(out,))
    return made


def an_uneven_all_gather() -> Job:
    """Ranks give unlike amounts, which torch writes down as a broadcast from each."""
    made = Job(WORLD)
    for rank in range(4):
        made.call("0", "_broadcast_oop", ranks=[rank], size=(10 + rank,), out=(46,))
    return made


def data_that_does_not_get_through() -> Job:
    """All entered the same call, and it does not end."""
    return Job(WORLD).call("0").call("0", state="started")


def a_gpu_that_does_not_begin() -> Job:
    """All entered, and rank 2 alone has not begun on its GPU."""
    made = Job(WORLD).call("0").call("0", ranks=[0, 1, 3], state="started")
    return made.call("0", ranks=[2], state="scheduled")


def a_program_that_stopped_earlier() -> Job:
    """The same call hangs on both; the program of rank 1 was stopped by an error soon after it."""
    made = Job({"0": ("default_pg", [0, 1, 2, 3]), "1": ("TENSOR", [0, 1]), "2": ("TENSOR", [2, 3])}).call("0")
    made.call("1", state="scheduled").call("1", state="scheduled")
    for _ in range(5):
        made.call("1", ranks=[0], state="scheduled")
    return made


def an_end_that_one_does_not_see() -> Job:
    """The call ended on all but rank 3."""
    return Job(WORLD).call("0", ranks=[0, 1, 2]).call("0", ranks=[3], state="started")


def two_orders() -> Job:
    """Ranks 0 and 1 make the calls of two groups in two orders."""
    groups = {"0": ("default_pg", [0, 1]), "1": ("A", [0, 1]), "2": ("B", [0, 1])}
    made = Job(groups).call("0")
    return made.call("1", ranks=[0], state="scheduled").call("2", ranks=[1], state="scheduled")


def both_receive_first() -> Job:
    """Two stages wait for each other's activations."""
    made = Job(STAGES).call("0").receive("9", 1, 2, state="scheduled")
    return made.receive("9", 2, 1, state="scheduled")


def a_send_that_is_missing() -> Job:
    """Rank 0 computes for ever; each stage waits for the one before it."""
    made = Job(STAGES).send("9", 0, 1).receive("9", 1, 0).send("9", 1, 2).receive("9", 2, 1)
    for rank in (1, 2, 3):
        made.receive("9", rank, rank - 1, state="scheduled")
    return made


def a_receive_of_another_size() -> Job:
    """Rank 2 expects a longer sequence."""
    made = Job(STAGES).send("9", 1, 2, state="scheduled", size=(512, 8))
    return made.receive("9", 2, 1, state="scheduled", size=(1024, 8))


def gloo_without_rank_2() -> Job:
    """Rank 2 raised an exception before the third call, which then failed on the others."""
    return Job(WORLD, "2.10", "gloo").call("0").call("0").call("0", ranks=[0, 1, 3])


def gloo_that_waits() -> Job:
    """Rank 1 sleeps, and nobody has given up on it yet."""
    made = Job(WORLD, "2.10", "gloo").call("0")
    return made.call("0", ranks=[0, 2, 3], state="scheduled")


def gloo_whose_calls_end_in_another_order() -> Job:
    """Its threads run calls side by side: that a later one is over says nothing of an earlier one."""
    made = Job(WORLD, "2.10", "gloo").call("0").call("0", ranks=[0, 2, 3])
    return made.call("0", ranks=[1], state="scheduled").call("0")


def gloo_in_a_subgroup() -> Job:
    """Torch 2.13 does not write down which ranks a group of gloo has."""
    made = Job({**WORLD, "1": ("second", [0, 1])}, "2.10", "gloo").call("0")
    return made.call("1", state="scheduled")


JOBS: dict[str, tuple[Callable[[], Job], dict[str, str]]] = {
    "sound": (sound, {}),
    "one stays away": (one_stays_away, {"LOG132": "did not enter _all_gather_base 3 of default_pg (0)"}),
    "stuck in another group": (
        stuck_in_another_group,
        {"LOG132": "did not enter all_reduce 2 of DATA (6), in which ranks 1,3,5 wait"}),
    "a record that stops": (a_record_that_stops, {"LOG133": "did not notice the end of 2 calls"}),
    "another operation": (
        another_operation,
        {"LOG134": "called another operation than the others at 2 of default_pg (0); a call that the"}),
    "another size": (another_size, {"LOG135": "called another size than the others at 2 of default_pg"}),
    "another type": (another_type, {"LOG135": "called another data type than the others at 1"}),
    "sizes that do not add up": (sizes_that_do_not_add_up, {"LOG135": "380 elements sent, 400 expected"}),
    "sizes that add up": (sizes_that_add_up, {}),
    "an uneven all-gather": (an_uneven_all_gather, {}),
    "data that does not get through": (
        data_that_does_not_get_through,
        {"LOG136": "all_reduce 2 of default_pg (0) hangs though all have entered it: ranks 0-3 wait"}),
    "a gpu that does not begin": (a_gpu_that_does_not_begin, {"LOG136": "rank 2 has not begun it on the GPU"}),
    "a program that stopped earlier": (
        a_program_that_stopped_earlier, {"LOG136": "rank 1 entered nothing after 2, the others went on to 7"}),
    "an end that one does not see": (an_end_that_one_does_not_see, {"LOG136": "rank 3 did not see its end"}),
    "two orders": (two_orders, {"LOG137": "ranks 0-1 wait for each other in a circle"}),
    "both receive first": (both_receive_first, {"LOG137": "ranks 1-2 wait for each other in a circle"}),
    "a send that is missing": (
        a_send_that_is_missing,
        {"LOG132": "did not send to rank 1 in PIPELINE (9), for which rank 1 waits"}),
    "a receive of another size": (
        a_receive_of_another_size, {"LOG135": "sends 4096 BFloat16, and rank 2 expects 8192 BFloat16"}),
    "gloo without rank 2": (gloo_without_rank_2, {}),
    "gloo that waits": (gloo_that_waits, {"LOG132": "did not enter all_reduce 2 of default_pg (0)"}),
    "gloo in a subgroup": (
        gloo_in_a_subgroup,
        {"LOG136": "second (1) hangs: ranks 0-1 wait, and no dump shows who else is in the group"}),
}  # fmt: skip
