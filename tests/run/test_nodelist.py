"""Slurm's node lists: what Slurm writes is read, anything else is a UsageError."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclcheck.base.errors import UsageError
from ncclcheck.launch.hosts.nodelist import MOST_NODES, expand, fold


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("h1", ["h1"]),
        ("gpu-a[17-18,20],b1", ["gpu-a17", "gpu-a18", "gpu-a20", "b1"]),
        ("r[1-2]n[09-11]", ["r1n09", "r1n10", "r1n11", "r2n09", "r2n10", "r2n11"]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        ("a[1-2]-ib.site,b", ["a1-ib.site", "a2-ib.site", "b"]),
        (" n[3] ", ["n3"]),
    ],
)
def test_expressions(text: str, names: list[str]) -> None:
    assert expand(text, "SLURM_JOB_NODELIST") == tuple(names)


@pytest.mark.parametrize(
    "text",
    [
        "", ",", "a,", ",a", "a,,b", "a[", "a[]", "a[1", "a]1[", "a[1-]", "a[-1]", "a[2-1]", "a[1,]", "a[1-2-3]",
        "a[[1]]", "a b", "-w", "$(id)", "a;b", "a\nb", "ä1", "a[١]", "a,a", "a[1-2],a2", "(null)",
        "a[1-99999999999]", "a[0-999]b[0-999]", "x" * 300, "a[1-2],-b",
    ],
)  # fmt: skip
def test_what_is_no_list_is_refused_and_the_variable_named(text: str) -> None:
    with pytest.raises(UsageError, match=r"^SLURM_JOB_NODELIST: "):
        expand(text, "SLURM_JOB_NODELIST")


def test_the_bound_itself_is_allowed() -> None:
    assert len(expand(f"n[1-{MOST_NODES}]", "X")) == MOST_NODES
    with pytest.raises(UsageError, match="20,000"):
        expand(f"n[1-{MOST_NODES}],m", "X")


def test_fold_is_short() -> None:
    assert fold(["h1", "h2", "h3", "h5", "b", "h09", "h10"]) == "h[1-3,5],b,h[09-10]"


_LIKE_A_LIST = st.text(alphabet="ab019[],--._ $", max_size=40)


@given(st.one_of(st.text(max_size=60), _LIKE_A_LIST))
def test_any_text_gives_names_or_a_usage_error(text: str) -> None:
    try:
        names = expand(text, "X")
    except UsageError:
        return
    assert names
    assert all(name and not set(name) & set(" $[];,\n") and name[0] not in "-." for name in names)


_NAMES = st.from_regex(r"[a-c]{1,2}-?[0-9]{0,3}[a-c]?[0-9]{0,3}", fullmatch=True)


@given(st.lists(_NAMES, min_size=1, max_size=30, unique=True))
def test_fold_and_expand_are_inverse(names: list[str]) -> None:
    assert expand(fold(names), "X") == tuple(names)
