"""The reference list of variables, and how values are parsed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclcheck.probes.facts import ConfFile, ConfLine, JobFacts, Nccl, Node, Unread, Variable
from ncclcheck.reports.subjects.nccl.variables import (
    as_version,
    effective,
    parse,
    parse_int,
    parsed_value,
    reference,
)


@pytest.mark.parametrize(
    ("text", "value", "complains"),
    [
        ("1", 1, False),
        ("0", 0, False),
        ("-2", -2, False),
        ("+3", 3, False),
        (" 7", 7, False),
        ("7 ", 7, False),
        ("0x10", 16, False),
        ("0X1f", 31, False),
        ("010", 8, True),
        ("00", 0, False),
        ("07", 7, False),
        ("08", 0, True),
        ("true", 0, True),
        ("yes", 0, True),
        ("4M", 4, True),
        ("1.5", 1, True),
        ("0x", 0, True),
        ('"1"', 0, True),
        ("-", 0, True),
        ("9223372036854775807", 2**63 - 1, False),
        ("9223372036854775808", None, True),
        ("-9223372036854775809", None, True),
        ("", None, False),
    ],
)
def test_integers_as_strtoll_reads_them(text: str, value: int | None, complains: bool) -> None:
    parsed = parse_int(text)
    assert (parsed.value, bool(parsed.complaint)) == (value, complains)


@pytest.mark.parametrize(
    ("name", "text", "value", "words"),
    [
        ("NCCL_IB_DISABLE", "true", 0, "means 0"),
        ("NCCL_IB_DISABLE", "2", 2, "documented 0 to 1"),
        ("NCCL_CUMEM_ENABLE", "-2", -2, ""),
        ("NCCL_SET_THREAD_NAME", "true", 1, ""),
        ("NCCL_DEBUG", "info", "INFO", ""),
        ("NCCL_DEBUG", "DEBUG", None, "prints nothing"),
        ("NCCL_P2P_LEVEL", "NVL", "NVL", ""),
        ("NCCL_P2P_LEVEL", "nvl", None, "write NVL"),
        ("NCCL_P2P_LEVEL", "NODE", None, "is ignored"),
        ("NCCL_P2P_LEVEL", "3", "3", ""),
        ("NCCL_SOCKET_FAMILY", "AF_INET6", "AF_INET6", ""),
        ("NCCL_SOCKET_FAMILY", "af_inet", None, "write AF_INET"),
        ("NCCL_ALGO", "^ring,Tree", "^ring,Tree", ""),
        ("NCCL_ALGO", "allreduce:tree;broadcast:ring", "allreduce:tree;broadcast:ring", ""),
        ("NCCL_PROTO", "LL256", None, "LL256"),
        ("NCCL_NET", "anything", "anything", ""),
        ("TORCH_NCCL_BLOCKING_WAIT", "YES", 1, ""),
        ("TORCH_NCCL_BLOCKING_WAIT", "off", None, "exception"),
        ("NCCL_BLOCKING_WAIT", "on", None, "exception"),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "600", 600, ""),
        ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "ten", None, "exception"),
    ],
)
def test_values_as_their_readers_read_them(name: str, text: str, value: int | str | None, words: str) -> None:
    parsed = parse(reference()[name], text, (2, 30, 7))
    assert parsed.value == value
    assert words in parsed.complaint
    assert bool(words) == bool(parsed.complaint)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("Ring;Tree", "only the first entry"),
        ("foo:ring", "operation foo"),
        ("ring:tree", "operation ring"),
        ("ring ", "'ring '"),
        ("^^ring", "^ring"),
        ("allreduce", "allreduce"),
        (":", "colons"),
        (",", ""),
        ("^", ""),
        ("allreduce:^ring;broadcast:tree;", ""),
    ],
)
def test_lists_as_the_library_refused_them(value: str, words: str) -> None:
    """Each was asked of NCCL 2.23.4, 2.26 and 2.27; 2.23 refused none."""
    parsed = parse(reference()["NCCL_ALGO"], value, (2, 27, 7))
    assert (parsed.raises, words in parsed.complaint) == (bool(words), True)
    assert not parse(reference()["NCCL_ALGO"], value, (2, 23, 4)).raises


def test_an_empty_nccl_net_ends_init() -> None:
    assert parse(reference()["NCCL_NET"], "").raises
    assert not parse(reference()["NCCL_NET"], "Socket").raises


def test_words_for_booleans_came_with_2_30_7() -> None:
    assert parse(reference()["NCCL_SET_THREAD_NAME"], "true", (2, 29, 7)).value == 0


@pytest.mark.parametrize("name", sorted(reference()))
def test_every_entry_is_whole(name: str) -> None:
    entry = reference()[name]
    assert not entry.since or as_version(entry.since)
    assert not entry.until or as_version(entry.until)
    assert bool(entry.words) == (entry.type in ("word", "exact", "list"))
    if entry.default:
        assert not parse(entry, entry.default).complaint
    if entry.instead:
        assert entry.instead.partition("=")[0] in reference()


@given(st.sampled_from(sorted(reference())), st.text(max_size=30))
def test_any_value_is_survived(name: str, text: str) -> None:
    parsed = parse(reference()[name], text)
    assert not parsed.raises or parsed.complaint


def test_unset_and_the_default_are_the_same() -> None:
    assert parsed_value("NCCL_IB_DISABLE", None) == parsed_value("NCCL_IB_DISABLE", "0x0") == 0
    assert parsed_value("NCCL_IB_DISABLE", "1") == 1
    assert parsed_value("NCCL_NET_PLUGIN", None) is None
    assert parsed_value("NCCL_NOBODY_KNOWS", "x") == "x"


def test_the_environment_is_stronger_than_files_and_the_first_file_than_the_second() -> None:
    home = ConfFile(path="/root/.nccl.conf", lines=[_line(1, "NCCL_A", "home"), _line(2, "NCCL_B", "home")])
    etc = ConfFile(path="/etc/nccl.conf", lines=[_line(1, "NCCL_B", "etc"), _line(2, "NCCL_C", "etc")])
    lost = ConfFile(path="/etc/other", lines=Unread("denied", "no right"))
    node = Node(
        name="n",
        job=JobFacts(variables=[Variable(name="NCCL_A", value="env")]),
        nccl=Nccl(conf_files=[lost, home, etc]),
    )
    values = {name: (setting.value, setting.source) for name, setting in effective(node).items()}
    assert values == {
        "NCCL_A": ("env", "environment"),
        "NCCL_B": ("home", "/root/.nccl.conf:2"),
        "NCCL_C": ("etc", "/etc/nccl.conf:2"),
    }


def test_the_first_line_of_a_file_wins() -> None:
    file = ConfFile(path="/etc/nccl.conf", lines=[_line(1, "NCCL_A", "1"), _line(2, "NCCL_A", "2")])
    assert effective(Node(name="n", nccl=Nccl(conf_files=[file])))["NCCL_A"].value == "1"


def _line(number: int, name: str, value: str) -> ConfLine:
    return ConfLine(line=number, name=name, value=value)
