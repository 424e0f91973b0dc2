"""Secrets that were planted everywhere are in no output: known by their name, or by their shape in any words."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from ncclcheck.base import progress
from ncclcheck.probes.facts import Cluster, Job, JobEnd, Leftover, RankState, Run, Silence
from ncclcheck.probes.facts.guard.secrets import is_secret, masked, without_secrets
from ncclcheck.probes.machine.process import _describe
from ncclcheck.reports.judgement import jsondoc
from ncclcheck.results import finish
from ncclcheck.run.plan.options import Options
from tests.conftest import Command
from tests.helpers import clusters

# Every one holds ZZ, which stands nowhere else.
NAMED = {
    name: f"ZZnamed{number}"
    for number, name in enumerate(
        [
            "FI_CXI_DEFAULT_VNI_CREDENTIAL", "UCX_CRED", "PYTORCH_AUTH", "TORCHELASTIC_AUTHZ", "SLURM_SSH_PWD",
            "OMPI_COMM_WORLD_CRED", "SLURM_CLI_SPANK_X", "SLURM_SPANK_PLUGIN", "NCCL_FOO_TOKEN", "NCCL_MY_KEY",
            "NCCL_OOB_PASSPHRASE", "SLURM_JWT", "SLURM_SECRET", "TORCH_PASSWORD", "CUDA_SESSION_ID", "FI_COOKIE",
            "WANDB_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY",
        ]
    )
}  # fmt: skip
SHAPES = [
    "http://u:ZZuserinfo@h:8080/x",
    "postgres://me:p/ZZslash@db.example/x",
    "https://ZZaccount@github.com/a/b",
    "tcp://h:1/?token=ZZquery1&x=1",
    "https://s3.example/a?X-Amz-Signature=ZZquery2&X-Amz-Credential=ZZquery3",
    "https://blob.example/a?sv=1&sig=ZZquery4",
    "Authorization: Bearer ZZbearer1",
    "Authorization: Basic ZZbasic",
    "got Bearer ZZbearer2xyz back",
    "Cookie: session=ZZcookie",
    '{"password": "ZZjson1", "x": 1}',
    "{'api_key': 'ZZjson2'}",
    "export WANDB_API_KEY=ZZenv1",
    "MY_DB_PASSWORD='ZZenv2 and more'",
    "train.py --password ZZargv1 --lr 1",
    "train.py --api-key=ZZargv2",
    "train.py --hf-token ZZargv3",
    "AKIAZZAAAAAAAAAAAAAA",
    "hf_ZZabcdefghijklmnopqrstuvwxyzABCD",
    "ghp_ZZabcdefghijklmnopqrstuvwxyz0123456789",
    "github_pat_ZZ11AAAAAAAAAAAAAAAAAAAAAA",
    "glpat-ZZabcdefghijklmnop",
    "xoxb-ZZ1234567890-abcdef",
    "sk-ant-ZZabcdefghijklmnopqrstuv",
    "AIzaZZabcdefghijklmnopqrstuvwxyz0123456",
    "nvapi-ZZabcdefghijklmnopqrstuvwxyz",
    "dckr_pat_ZZabcdefghijklmnopqr",
    "eyJZZabcdefgh.eyJZZabcdefgh.ZZabc",
    "wandb: key f00dZZ is not what 0123456789abcdef0123456789abcdef01234567 is".replace("f00dZZ", "of 40"),
    "-----BEGIN RSA PRIVATE KEY-----ZZpem",
    "NCCL_FOO_SECRET set by environment to ZZsetby",
]
_LEFT = re.compile(r"ZZ\w*|0123456789abcdef0123456789abcdef01234567")
_COMMIT = "0123456789abcdef0123456789abcdef01234567"
_HARMLESS = [
    "tcp://10.0.0.1:29500", "docker://localhost:5000/img@sha256:abc",
    "docker://nvcr.io/nvidia/torch@sha256:abc",
    "mds1@o2ib:/data", "PWD=/home/x", "OLDPWD=/home/x", "max_tokens=4096", "tokenizer: gpt2", "NCCL_IB_PKEY=1",
    "Bearer token missing", "keys: /default_pg/0//cpu//0", "the key of the store: rank_3", f"commit {_COMMIT}",
    "/data/hf_datasets/x", "task-runner-with-a-long-name-0", "https://h/a?page=2",
    "authentication failed", "/dev/disk-by-something-very-long-0",
]  # fmt: skip


def test_the_names() -> None:
    assert [name for name in NAMED if not is_secret(name)] == []
    assert [
        name for name in ("PWD", "OLDPWD", "NCCL_IB_PKEY", "UCX_IB_PKEY", "NCCL_DEBUG") if is_secret(name)
    ] == []


@pytest.mark.parametrize("text", SHAPES)
def test_the_shapes(text: str) -> None:
    for words in (text, f"a line with {text} in it", f"x={text}"):
        assert _LEFT.findall(masked(words)) == []
    assert masked(masked(text)) == masked(text)


@pytest.mark.parametrize("text", _HARMLESS)
def test_what_is_none(text: str) -> None:
    assert masked(text) == text


def _planted() -> Cluster:
    """A result from elsewhere that has one in every place where words of others go."""
    env = {**NAMED, **{f"NCCL_X{number}": text for number, text in enumerate(SHAPES)}}
    env |= {"SLURM_JOB_COMMENT": "; ".join(SHAPES), "NCCL_TUNER_CONFIG": SHAPES[0], "MASTER_ADDR": SHAPES[0]}
    all_of_them = "  ".join(text for text in SHAPES if "PRIVATE" not in text and "Cookie" not in text)
    nodes = [
        clusters.node(name, clusters.nic("eth0", f"10.1.0.{at}/24"), env=env) for at, name in enumerate("ab", 1)
    ]
    run = Run(
        ranks=[RankState(rank=0, node="a", last_step=all_of_them, error=all_of_them, first=True)],
        silent=[Silence(node="c", last_step=all_of_them, since_s=1.0, detail=all_of_them)],
        ends=[JobEnd(node="a", exit=1, detail=all_of_them)],
        leftovers=[Leftover(node="a", pid=7, state="D", wchan="x", devices="", command=f"train {all_of_them}")],
        started_job=True,
    )
    job = Job(launcher="ssh", nodes_asked=3, nodes_answered=2, missing=["c"], chosen_by=all_of_them)
    return Cluster(command="bench", nodes=nodes, job=job, run=run)


def _saved(cluster: Cluster) -> bytes:
    """As a version without any care would have written it."""
    whole = finish.make(Cluster(command="bench", nodes=[clusters.node("a")]), Options(command="bench"), _STORY)
    document = json.loads(jsondoc.encode(whole))
    named = {"job": cluster.job, "run": cluster.run}
    document |= {name: json.loads(msgspec.json.encode(part)) for name, part in named.items()}
    encoded = [json.loads(msgspec.json.encode(node)) for node in cluster.nodes]
    document["nodes"] = [{"name": node["name"], "facts": node} for node in encoded]
    return json.dumps(document).encode()


_STORY = finish.Story("2026-01-01T00:00:00+00:00", 1.0)
_FILES = ["--json=o.json", "--save=o.save", "--markdown=o.md", "--junit=o.xml", "--prometheus=o.prom"]
_FILES += ["--html=o.html"] if importlib.util.find_spec("matplotlib") else []
_SETTINGS = ["--env-file=o.env", "--nccl-conf=o.conf"]


def _outputs(ncclcheck: Command, folder: Path, *arguments: str, **env: str) -> Iterator[tuple[str, str]]:
    """Every output of a command, with and without invented names."""
    for hidden in ([], ["--anonymise"]):
        for form in (["-o", "short"], ["-v"]):
            files = [*_FILES, *([] if hidden else _SETTINGS)] if form == ["-v"] else []
            ran = ncclcheck(*arguments, *form, *files, *hidden, **env)
            assert ran.out, ran.err
            yield " ".join([*form, *hidden]), ran.out + ran.err
        for file in folder.glob("o.*"):
            yield " ".join([file.name, *hidden]), file.read_text()
            file.unlink()


def _leaks(outputs: Iterator[tuple[str, str]]) -> dict[str, list[str]]:
    return {name: leaks for name, text in outputs if (leaks := sorted({*_LEFT.findall(text)}))}


def test_a_saved_result(ncclcheck: Command, tmp_path: Path) -> None:
    (tmp_path / "saved.json").write_bytes(_saved(_planted()))
    assert len({*_LEFT.findall((tmp_path / "saved.json").read_text())}) > 40
    assert _leaks(_outputs(ncclcheck, tmp_path, "report", "saved.json")) == {}


def test_the_environment(ncclcheck: Command, tmp_path: Path) -> None:
    env = {**NAMED, **{f"NCCL_X{number}": text for number, text in enumerate(SHAPES)}, "MASTER_ADDR": SHAPES[0]}
    assert _leaks(_outputs(ncclcheck, tmp_path, "env", **env)) == {}


def test_logs(ncclcheck: Command, tmp_path: Path) -> None:
    head = "gpu-a17:4711:4800 [3]"
    lines = [f"{head} misc/socket.cc:50 NCCL WARN socketStartConnect: Connect to {text} failed" for text in SHAPES]
    lines += [f"{head} NCCL INFO {name} set by environment to {value}" for name, value in NAMED.items()]
    lines += [f"[rank0]: RuntimeError: NCCL error in: x.cpp:1, unhandled system error {text}" for text in SHAPES]
    (tmp_path / "a.log").write_text("\n".join(lines))
    assert _leaks(_outputs(ncclcheck, tmp_path, "logs", "a.log")) == {}


def test_the_command_line_of_another_process() -> None:
    psutil = importlib.import_module("psutil")
    argv = [sys.executable, "-c", "print(flush=True); input()", "--password", "ZZargv1", "http://u:ZZuserinfo@h/"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()  # the kernel shows no arguments before the program has been loaded
        command = _describe(psutil.Process(child.pid)).command
        child.communicate(b"\n")
    assert "--password" in command
    assert _LEFT.findall(command) == []


def test_what_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    for text in SHAPES:
        progress.complain(f"lead: {text}")
        progress.Progress().say(text)
    assert _LEFT.findall(capsys.readouterr().err) == []


def test_what_an_agent_sends_is_masked_already() -> None:
    end = JobEnd(node="a", exit=1, detail=SHAPES[0])
    assert without_secrets(end).detail == "http://***@h:8080/x"
    untouched = JobEnd(node="a", exit=1, detail="no route to host")
    assert without_secrets(untouched) is untouched
