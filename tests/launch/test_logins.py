"""What another try tells of a host whose sshd refuses the port, or takes its time."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ncclcheck.launch.remote import other_port, slow_login

_SAID = "ssh: connect to host 127.0.0.1 port 9: Connection refused"


@contextmanager
def _listening(first: bytes) -> Iterator[int]:
    """A port whose listener says this to everybody."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            try:
                while True:
                    connection, _ = server.accept()
                    with connection:
                        connection.sendall(first)
            except OSError:
                return

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (b"SSH-2.0-OpenSSH_9.2p1\r\n", "SSH-2.0-OpenSSH_9.2p1"),
        (b"HTTP/1.1 400 Bad Request\r\n", ""),
        (b"SSH-2.0-\x1b[31m\r\n", "SSH-2.0-"),
        (b"", ""),
    ],
)
def test_an_sshd_on_another_port_is_known_by_its_first_line(
    first: bytes, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _listening(first) as port:
        monkeypatch.setattr(other_port, "_USUAL", (9, port))
        reason = other_port.explanation(f"a banner\n{_SAID}\n", "h2")
    if "\x1b" in first.decode():
        assert "\x1b" not in reason
    elif words:
        assert reason == (
            f"ncclcheck: h2: nobody listens on port 9 of 127.0.0.1, and an sshd answers on port {port}: {words}"
        )
    else:
        assert reason == ""


@pytest.mark.parametrize("words", ["", "ssh: connect to host h2 port 22: Connection timed out"])
def test_a_host_that_refuses_nothing_is_not_tried(words: str) -> None:
    assert not other_port.is_refused(words)
    assert other_port.explanation(words, "h2") == ""


@pytest.mark.parametrize(
    ("steps", "slow"),
    [
        ("echo SSH2_MSG_SERVICE_ACCEPT received >&2; sleep 1.2; echo Authenticated to h2 >&2", True),
        ("echo SSH2_MSG_SERVICE_ACCEPT received >&2; echo Authenticated to h2 >&2; sleep 1.2", False),
        ("sleep 1.2; echo SSH2_MSG_SERVICE_ACCEPT received >&2", False),
    ],
)
def test_a_login_that_sshd_looks_at_for_long(
    steps: str, slow: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_login, "_SLOW_S", 1.0)
    done = tmp_path / "done"
    watch = slow_login.LoginWatch(["/bin/sh", "-c", f"{steps}; touch {done}"], dict(os.environ), "h2")
    end = time.monotonic() + 30
    while not done.exists() and time.monotonic() < end:
        time.sleep(0.02)
    time.sleep(0.1)
    assert ("between the key exchange and the login" in watch.words) is slow
