"""The NCCL probe on real files: a small libnccl built with gcc, a fake torch, conf files, recorded trees."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclcheck.probes.facts import ConfLine, Library, Unread, known
from ncclcheck.probes.machine.access import Machine
from ncclcheck.probes.machine.software import nccl, nccl_files, stack
from ncclcheck.probes.machine.software.elf import find_section

LIBNCCL = """
const char *names[] = {"NCCL_DEBUG", "NCCL_IB_DISABLE", "text about NCCL_NOT_A_NAME in a log", "TORCH"};
int ncclGetVersion(int *version) { *version = VERSION; return 0; }
"""
LIBTORCH = "int ncclGetVersion(int *); int torch(void) { int v; return ncclGetVersion(&v); }"
LIVE = Machine()

needs_gcc = pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc to build a small libnccl")


def build(target: Path, source: str, *flags: str) -> None:
    """Compile a shared library."""
    target.parent.mkdir(parents=True, exist_ok=True)
    argv = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(target), *flags]
    subprocess.run(argv, input=source, text=True, check=True, timeout=60)


def build_nccl(target: Path, version: int = 23007) -> None:
    build(target, LIBNCCL, f"-DVERSION={version}", "-Wl,-soname,libnccl.so.2")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site-packages with a torch for CUDA, whose libnccl stands beside it as the wheel puts it."""
    packages = tmp_path / "site-packages"
    wheel = packages / "nvidia/nccl/lib/libnccl.so.2"
    build_nccl(wheel)
    flags = (
        f"-L{wheel.parent}",
        "-Wl,--no-as-needed",
        "-l:libnccl.so.2",
        "-Wl,-rpath,$ORIGIN/../../nvidia/nccl/lib",
    )
    build(packages / "torch/lib/libtorch_cuda.so", LIBTORCH, *flags)
    (packages / "torch/version.py").write_text(
        "from typing import Optional\n__version__ = '2.9.1+cu130'\ncuda: Optional[str] = '13.0'\n"
    )
    monkeypatch.setattr(stack, "_find_torch", lambda: str(packages / "torch"))
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return packages


@needs_gcc
def test_the_wheels_library_is_found_and_asked(site: Path) -> None:
    facts = nccl.probe(LIVE)
    loaded = known(facts.loaded)
    assert (Path(loaded.path).resolve(), loaded.origin, loaded.version) == (
        site / "nvidia/nccl/lib/libnccl.so.2",
        "pip package",
        "2.30.7",
    )
    assert known(facts.known_names) == ["NCCL_DEBUG", "NCCL_IB_DISABLE"]
    assert "pip package" not in {other.origin for other in known(facts.others)}


@needs_gcc
def test_a_copy_on_ld_library_path_shadows_the_wheel(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_nccl(tmp_path / "old/libnccl.so.2", 2804)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "old"))
    facts = nccl.probe(LIVE)
    loaded = known(facts.loaded)
    assert (loaded.origin, loaded.version) == ("LD_LIBRARY_PATH", "2.8.4")
    wheel = next(other for other in known(facts.others) if other.origin == "pip package")
    assert (Path(wheel.path), wheel.version) == (site / "nvidia/nccl/lib/libnccl.so.2", "2.30.7")


@needs_gcc
@pytest.mark.usefixtures("site")
def test_a_preloaded_copy_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preloaded = tmp_path / "pre/libnccl.so.2"
    build_nccl(preloaded, 21903)
    monkeypatch.setenv("LD_PRELOAD", str(preloaded))
    loaded = known(nccl.probe(LIVE).loaded)
    assert (loaded.path, loaded.origin, loaded.version) == (str(preloaded), "LD_PRELOAD", "2.19.3")


@needs_gcc
def test_a_torch_without_its_library(site: Path) -> None:
    (site / "nvidia/nccl/lib/libnccl.so.2").unlink()
    loaded = nccl.probe(LIVE).loaded
    assert isinstance(loaded, Unread)
    assert (loaded.kind, "finds none" in loaded.why) == ("absent", True)


@needs_gcc
def test_a_library_that_does_not_load(site: Path) -> None:
    library = site / "nvidia/nccl/lib/libnccl.so.2"
    build(library, "int nothing;", "-Wl,-soname,libnccl.so.2")
    version = known(nccl.probe(LIVE).loaded).version
    assert isinstance(version, Unread)
    assert "ncclGetVersion" in version.why


@needs_gcc
def test_nccl_inside_torch(site: Path) -> None:
    source = 'const char *text = "NCCL version 2.21.5+cuda12.4"; int n;'
    build(site / "torch/lib/libtorch_cuda.so", source)
    loaded = known(nccl.probe(LIVE).loaded)
    assert (loaded.origin, loaded.version) == ("inside torch", "2.21.5")


def test_a_torch_without_cuda_loads_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack, "_find_torch", lambda: str(tmp_path))
    loaded = nccl.probe(LIVE).loaded
    assert isinstance(loaded, Unread)
    assert loaded == Unread("absent", "this torch was built without CUDA: it loads no NCCL")


@pytest.mark.parametrize(
    ("number", "text"),
    [(2304, "2.3.4"), (2708, "2.7.8"), (2804, "2.8.4"), (20900, "2.9.0"), (21805, "2.18.5"), (23007, "2.30.7")],
)
def test_version_numbers(number: int, text: str) -> None:
    assert nccl.decode_version(number) == text


def test_plugins_on_ld_library_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("libnccl-net.so", "libnccl-net-ofi.so", "libnccl-tuner.so"):
        (tmp_path / name).touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert nccl.probe(LIVE).plugins == [f"{tmp_path}/libnccl-net.so", f"{tmp_path}/libnccl-tuner.so"]
    monkeypatch.setenv("NCCL_NET_PLUGIN", "ofi")
    monkeypatch.setenv("NCCL_TUNER_PLUGIN", "none")
    assert nccl.probe(LIVE).plugins == [f"{tmp_path}/libnccl-net-ofi.so"]


CONF = """# NCCL_DEBUG=WARN
NCCL_DEBUG=INFO
NCCL_DEBUG = TRACE
 # NCCL_P=1
export NCCL_ALGO=Ring
NCCL_SOCKET_IFNAME==eth0
NCCL_PROTO="LL"  # why
no assignment
NCCL_EMPTY=
"""


def test_conf_grammar() -> None:
    assert nccl_files.parse_conf(CONF) == [
        ConfLine(line=2, name="NCCL_DEBUG", value="INFO"),
        ConfLine(line=3, name="NCCL_DEBUG ", value=" TRACE"),
        ConfLine(line=4, name=" # NCCL_P", value="1"),
        ConfLine(line=5, name="export NCCL_ALGO", value="Ring"),
        ConfLine(line=6, name="NCCL_SOCKET_IFNAME", value="=eth0"),
        ConfLine(line=7, name="NCCL_PROTO", value='"LL"  # why'),
        ConfLine(line=9, name="NCCL_EMPTY", value=""),
    ]


def test_conf_values_are_cut() -> None:
    assert len(nccl_files.parse_conf("NCCL_A=" + "x" * 5000)[0].value) == 1023


@pytest.mark.parametrize(
    ("env", "version", "expected"),
    [
        ({"HOME": "/home/u"}, (2, 30, 7), ["/home/u/.nccl.conf", "/etc/nccl.conf"]),
        ({"HOME": "/home/u", "NCCL_CONF_FILE": "/my.conf"}, (2, 23, 4), ["/my.conf", "/etc/nccl.conf"]),
        ({"HOME": "/home/u", "NCCL_CONF_FILE": "/my.conf"}, None, ["/my.conf", "/etc/nccl.conf"]),
        ({"HOME": "/home/u", "NCCL_CONF_FILE": "/my.conf"}, (2, 22, 3), ["/pw/.nccl.conf", "/etc/nccl.conf"]),
        ({"HOME": "/home/u", "NCCL_CONF_FILE": ""}, (2, 29, 7), ["/pw/.nccl.conf", "/etc/nccl.conf"]),
        ({"NCCL_CONF_FILE": "/missing"}, (2, 30, 7), ["/missing", "/etc/nccl.conf"]),
        ({}, (2, 30, 7), ["/etc/nccl.conf"]),
    ],
)
def test_which_conf_files_apply(
    tmp_path: Path, env: dict[str, str], version: tuple[int, ...] | None, expected: list[str]
) -> None:
    for path in ("home/u/.nccl.conf", "pw/.nccl.conf", "my.conf", "etc/nccl.conf"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("NCCL_A=1\n")
    (tmp_path / ".ncclcheck").mkdir()
    (tmp_path / ".ncclcheck/home.json").write_text('"/pw"')
    files = nccl_files.conf_files(Machine(str(tmp_path), recorded=True), env, version)
    assert [file.path for file in files] == expected
    assert [file.path for file in files if isinstance(file.lines, Unread)] == [
        p for p in expected if p == "/missing"
    ]


def test_lines_in_login_files_that_did_not_reach_us(tmp_path: Path) -> None:
    (tmp_path / "etc/profile.d").mkdir(parents=True)
    (tmp_path / "etc/environment").write_text('NCCL_A="1"\nPATH=/bin\n')
    (tmp_path / "etc/profile.d/n.sh").write_text("# export NCCL_C=3\n  export NCCL_B=2\n")
    (tmp_path / "root").mkdir()
    (tmp_path / "root/.bashrc").write_bytes(b"NCCL_D=\xff\n")
    machine = Machine(str(tmp_path), recorded=True)
    lines = nccl_files.stray_lines(machine, {"NCCL_A": "1", "HOME": "/root"})
    assert [(line.path, line.line, line.name, line.value, line.reached) for line in lines] == [
        ("/etc/environment", 1, "NCCL_A", "1", True),
        ("/etc/profile.d/n.sh", 2, "NCCL_B", "2", False),
        ("/root/.bashrc", 1, "NCCL_D", "\\xff", False),
    ]


def test_a_recorded_machine(tmp_path: Path) -> None:
    recorded = {
        "environment": {"HOME": "/root"},
        "nccl_loaded": {"type": "library", "path": "/x/libnccl.so.2", "origin": "system", "version": "2.19.3"},
        "nccl_names": ["NCCL_DEBUG"],
        "torch_path": "/opt/torch",
        "nccl_others": {"type": "unread", "kind": "denied", "why": "no right"},
    }
    (tmp_path / ".ncclcheck").mkdir()
    for name, value in recorded.items():
        (tmp_path / f".ncclcheck/{name}.json").write_text(json.dumps(value))
    facts = nccl.probe(Machine(str(tmp_path), recorded=True))
    assert facts.loaded == Library(path="/x/libnccl.so.2", origin="system", version="2.19.3")
    assert facts.known_names == ["NCCL_DEBUG"]
    assert facts.others == Unread("denied", "no right")
    assert isinstance(facts.plugins, Unread)
    assert facts.plugins.kind == "recorded"
    assert (facts.conf_files, facts.stray_lines) == ([], [])


def test_torch_libraries_that_are_always_loaded(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    for name, size in (("libtorch_cpu.so", 4000), ("libc10.so", 30), ("libtorch_cuda_linalg.so", 500)):
        (tmp_path / "lib" / name).write_bytes(bytes(size))
    assert stack._libraries(str(tmp_path)) == 4030
    assert stack._libraries(Unread("absent", "no torch")) == Unread("absent", "no torch")


def test_an_empty_recording_is_only_unread(tmp_path: Path) -> None:
    library = nccl.probe(Machine(str(tmp_path), recorded=True))
    facts = (library.loaded, library.others, library.known_names, library.plugins, library.stray_lines)
    assert [fact.kind for fact in facts if isinstance(fact, Unread)] == ["recorded"] * 5


@pytest.mark.parametrize(
    ("text", "torch", "cuda"),
    [
        ("__version__ = '2.1.0'\ncuda = '12.1'\n", "2.1.0", "12.1"),
        ("__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\n", "2.13.0+cpu", "absent"),
        ('__version__: str = "2.6.0a0+nv"\ncuda: Optional[str] = "12.8"\n', "2.6.0a0+nv", "12.8"),
        ("raise SystemExit\n", "broken", "broken"),
    ],
)
def test_torch_versions_are_read_as_text(tmp_path: Path, text: str, torch: str, cuda: str) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/version.py").write_text(text)
    (tmp_path / ".ncclcheck").mkdir()
    (tmp_path / ".ncclcheck/torch_path.json").write_text('"/torch"')
    facts = stack.probe(Machine(str(tmp_path), recorded=True))
    assert [fact.kind if isinstance(fact, Unread) else fact for fact in (facts.torch, facts.torch_cuda)] == [
        torch,
        cuda,
    ]


@pytest.mark.parametrize(
    ("text", "driver"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n",
            "535.104.05",
        ),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86  Release Build\n", "570.86"),
        ("something else\n", "broken"),
        (None, "absent"),
    ],
)
def test_driver_version(tmp_path: Path, text: str | None, driver: str) -> None:
    if text is not None:
        (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
        (tmp_path / "proc/driver/nvidia/version").write_text(text)
    version = stack.probe(Machine(str(tmp_path), recorded=True)).driver
    assert (version.kind if isinstance(version, Unread) else version) == driver


@given(st.binary(max_size=400), st.integers(0, 2**64 - 1), st.integers(0, 2**16 - 1))
def test_any_bytes_are_survived_as_elf(tail: bytes, table: int, count: int) -> None:
    numbers = table.to_bytes(8, "little"), (64).to_bytes(2, "little"), count.to_bytes(2, "little")
    head = b"\x7fELF\x02\x01".ljust(40, b"\0") + numbers[0] + bytes(10) + numbers[1] + numbers[2] + b"\0\0"
    for data in (tail, head + tail, head[:40] + (64).to_bytes(8, "little") + head[48:] + tail):
        section = find_section(lambda at, most, data=data: data[at : at + most], ".rodata")  # type: ignore[misc]
        assert section is None or section.name == ".rodata"


@given(st.text())
def test_any_text_is_survived_as_conf(text: str) -> None:
    for line in nccl_files.parse_conf(text):
        assert "=" not in line.name
        assert "\0" not in line.value
