"""--start, --init and --init-method: what is read, and what is refused with the field and what is allowed."""

from __future__ import annotations

import pytest

from ncclcheck.base.errors import UsageError
from ncclcheck.probes.facts.run.init import host_and_port
from ncclcheck.run.plan import preflight_plan
from ncclcheck.run.plan.preflight_plan import PreflightOptions
from ncclcheck.run.plan.starts import JobStart, read


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ((None, None, None), JobStart()),
        ((None, None, "env://"), JobStart()),
        (("spawn", None, None), JobStart(start="spawn")),
        ((None, "tcp", None), JobStart(start="spawn", init="tcp")),
        (("torchrun", "file", None), JobStart(start="torchrun", init="file")),
        ((None, None, "tcp://gpu-a1:23456"), JobStart("spawn", "tcp", "tcp://gpu-a1:23456")),
        ((None, "tcp", "tcp://[fd00::1]:4000"), JobStart("spawn", "tcp", "tcp://[fd00::1]:4000")),
        ((None, None, "file:///shared/a b"), JobStart("spawn", "file", "file:///shared/a b")),
    ],
)
def test_what_is_read(given: tuple[str | None, str | None, str | None], wanted: JobStart) -> None:
    assert read(*given) == wanted


@pytest.mark.parametrize(
    ("init", "url", "words"),
    [
        ("file", "tcp://a:1", "--init file and --init-method"),
        (None, "file://shared/init", "write file:///shared/init"),
        (None, "file://shared", "names no path"),
        (None, "file:///a/../b", "no plain path"),
        (None, "file:///", "no plain path"),
        (None, "tcp://::1:5", "brackets"),
        (None, "tcp://host", "port of 1 to 65535"),
        (None, "tcp://host:99999", "port of 1 to 65535"),
        (None, "tcp://:4000", "has no host"),
        (None, "tcp://a b:4000", "no host name or address"),
        (None, "tcp://a:1?rank=0&world_size=2", "given by the launcher"),
        (None, "env://x", "takes nothing"),
        (None, "udp://a:1", "allowed are env://, tcp://HOST:PORT or file:///PATH"),
        (None, "", "allowed are env://"),
    ],
)
def test_what_is_refused(init: str | None, url: str, words: str) -> None:
    with pytest.raises(UsageError, match="--init") as refused:
        read(None, init, url)
    assert words in str(refused.value)


def test_all_jobs_of_preflight_begin_alike() -> None:
    wanted = PreflightOptions(begin=read(None, "tcp", None))
    jobs = (preflight_plan.bench(wanted), preflight_plan.verification(wanted), preflight_plan.smoke(wanted))
    assert [job.begin for job in jobs] == [wanted.begin] * 3


def test_endpoints_are_split() -> None:
    assert host_and_port("[::1]:29500") == ("::1", 29500)
    with pytest.raises(ValueError, match="port"):
        host_and_port("a:²")
