"""Hosts: the forms people have are read; anything else is a UsageError, never an argument of ssh."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclcheck.base.errors import UsageError
from ncclcheck.launch.hosts.hostfile import HostLine, from_file, from_lines, from_option

_OPEN_MPI = """\
# the cluster
aa slots=8
bb slots=8 max_slots=16   # two sockets
cc
admin@dd.site slots = 4
"""


def test_open_mpi() -> None:
    assert from_lines(_OPEN_MPI, "hosts") == (
        HostLine("aa", "aa", 8),
        HostLine("bb", "bb", 8),
        HostLine("cc", "cc"),
        HostLine("admin@dd.site", "dd.site", 4),
    )


@pytest.mark.parametrize(
    ("content", "hosts"),
    [
        ("worker-1 slots=4\r\nworker-2 slots=4\r\n", [("worker-1", 4), ("worker-2", 4)]),
        ("h1:8\nh2:8", [("h1", 8), ("h2", 8)]),
        ("10.0.0.1\n\n10.0.0.2\n", [("10.0.0.1", None), ("10.0.0.2", None)]),
        ("[fe80::1%eth0]:2\n[2001:db8::7] slots=3", [("fe80::1%eth0", 2), ("2001:db8::7", 3)]),
    ],
)
def test_deepspeed_mpich_plain_and_ipv6(content: str, hosts: list[tuple[str, int | None]]) -> None:
    assert [(host.target, host.slots) for host in from_lines(content, "hosts")] == hosts


def test_option() -> None:
    assert from_option("a, b:8,user@c") == (HostLine("a", "a"), HostLine("b", "b", 8), HostLine("user@c", "c"))


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("a,,b", "no host name"), ("-oProxyCommand=id", "no host name"), ("a;id", "no host name"),
        ("$(id)", "no host name"),
        ("a b", "not understood"), ("a\nb", "not understood"), ("ä", "no host name"), ("a:2222", "ssh/config"),
        ("a:22", "ssh/config"), ("a:0", "1 to 1024"), ("a:x", "1 to 1024"), ("a:", "1 to 1024"),
        ("::1", "brackets"), ("a:8:8", "brackets"),
        ("[::g]", "IPv6"), ("[::1%$x]", "interface"), ("-l@a", "user"), ("@a", "user"), ("a,a", "twice"),
        ("a,root@a", "twice"), ("a`id`", "no host name"), ("a'b", "no host name"), ("", "no host name"),
    ],
)  # fmt: skip
def test_what_is_no_host_is_refused(text: str, word: str) -> None:
    with pytest.raises(UsageError, match=f"^--hosts: .*{re.escape(word)}"):
        from_option(text)


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ("a\nb slots=many", "line 2: slots"),
        ("a\n\nb port=22", "line 3: 'port=22'"),
        ("a slots=8\na slots=8", "line 2: a stands there twice"),
        ("# nothing\n", "names no host"),
        ("\n".join(f"n{i}" for i in range(20_001)), "line 20001: more than 20,000"),
    ],
)
def test_errors_name_file_and_line(tmp_path: Path, content: str, word: str) -> None:
    path = tmp_path / "hosts"
    path.write_text(content)
    with pytest.raises(UsageError, match=f"{re.escape(str(path))}.*{re.escape(word)}"):
        from_file(str(path))


@pytest.mark.parametrize("name", ["absent", ".", "with\0nul"])
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"--hostfile: .* cannot be read"):
        from_file(f"{tmp_path}/{name}")


_LIKE_HOSTS = st.text(alphabet="ab1@:[]%,.-=$; '\n#slots", max_size=40)


@given(st.one_of(st.text(max_size=60), _LIKE_HOSTS))
def test_any_text_gives_hosts_or_a_usage_error(text: str) -> None:
    for read in (from_option, lambda content: from_lines(content, "hosts")):
        try:
            hosts = read(text)
        except UsageError:
            continue
        assert all(re.fullmatch(r"[A-Za-z0-9_:][A-Za-z0-9_.:%@-]*", host.target, re.ASCII) for host in hosts)
