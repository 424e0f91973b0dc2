"""Diffs of `ncclcheck script` in sources that are written in other ways than those of tests/data/script."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

from ncclcheck.probes.facts import Cluster, Measurements
from ncclcheck.probes.script import reading
from ncclcheck.reports.judgement.findings import Finding
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules

RULES = [rule for rule in all_rules() if rule.code.startswith("SCR")]
_HEAD = "import os\nimport torch\nimport torch.distributed as dist\n"
_DOWNLOADS = "from torchvision import datasets\ndist.init_process_group('gloo')\n"
_PRINTS = """dist.init_process_group("gloo")
for x in data:
    loss = net(x)
    loss.backward()
    {}:
        print("loss {{}}".format(
            loss))
        {}
dist.destroy_process_group()
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _found(code: str) -> list[Finding]:
    script = reading.read(["train.py"], [])
    verdicts = judge(Cluster(command="script", measurements=Measurements(script=script)), RULES)
    return [finding for verdict in verdicts if verdict.code == code for finding in verdict.findings]


def _patched(code: str, source: str) -> str:
    """The source with what its one finding prints; as it was where no diff is printed."""
    Path("train.py").write_text(source)
    (finding,) = _found(code)
    for diff in [command for remedy in finding.remedies for command in remedy.commands]:
        subprocess.run(["patch", "-p0", "-F0"], input=f"{diff}\n", text=True, check=True, timeout=20)
        assert not _found(code)
    new = Path("train.py").read_text()
    ast.parse(new)
    return new


def test_a_file_without_a_newline_at_its_end() -> None:
    source = _HEAD + "def main():\n    dist.init_process_group('nccl')\nif __name__ == '__main__':\n    main()"
    end = "\n    if dist.is_initialized():\n        dist.destroy_process_group()\n"
    assert _patched("SCR017", source) == source + end


@pytest.mark.parametrize("end", ["sys.exit(main())", "main() ; print()", "def more():\n    return 1"])
def test_no_line_follows_what_leaves(end: str) -> None:
    source = f"{_HEAD}def main():\n    dist.init_process_group('nccl')\n{end}\n"
    Path("train.py").write_text(source)
    new = _patched("SCR017", source)
    assert (new == source) == (end != "main() ; print()")


def test_a_spawned_function_destroys_its_group() -> None:
    work = "def work(rank):\n    dist.init_process_group('nccl', rank=rank, world_size=4)\n    train()\n"
    start = "if __name__ == '__main__':\n    torch.multiprocessing.spawn(work, nprocs=4)\n"
    assert _patched("SCR017", _HEAD + work + start) == _HEAD + work + "    dist.destroy_process_group()\n" + start


def test_what_is_returned_is_not_followed_by_a_barrier() -> None:
    source = f"{_HEAD}{_DOWNLOADS}def make():\n    return datasets.MNIST('.', download=True)\nmake()\n"
    source += "dist.destroy_process_group()\n"
    assert _patched("SCR030", source) == source


@pytest.mark.parametrize(
    ("condition", "more", "is_made"),
    [
        ("if dist.get_rank() == 0", "log(loss.item(), 'loss')", True),
        ("if step % 9 == 0 and dist.get_rank() == 0", "pass", True),
        ("if step % 9 == 0:\n      if dist.get_rank() == 0", "pass", False),  # what others do there is not known
    ],
)
def test_a_mean_is_made_before_the_condition(condition: str, more: str, is_made: bool) -> None:
    source = _HEAD + _PRINTS.format(condition, more)
    new = _patched("SCR019", source)
    assert (new != source) == is_made
    if is_made:
        assert new.index("dist.all_reduce(mean_loss)") < new.index(condition)
        assert "            mean_loss))" in new
        assert more.replace("(loss.", "(mean_loss.") in new
        assert "'loss'" in new or "'loss'" not in more


@pytest.mark.parametrize(
    ("line", "new"),
    [
        ("total += loss.item() * len(x)", "total += loss.detach() * len(x)"),
        ("print(step, loss.item())", "if step % 100 == 0:\n        print(step, loss.item())"),
        ("seen.append(loss.item())", "seen.append(loss.item())"),  # numpy's mean takes no tensor of a GPU
    ],
)
def test_a_loss_is_read_seldom(line: str, new: str) -> None:
    loop = "for step, x in enumerate(data):\n    loss = net(x.cuda())\n    loss.backward()\n    {}\n"
    assert _patched("SCR018", _HEAD + loop.format(line)) == _HEAD + loop.format(new)


@pytest.mark.parametrize(
    ("made", "new"),
    [
        ("wandb.init()", 'wandb.init(mode=None if dist.get_rank() == 0 else "disabled")'),
        ("SummaryWriter('runs')", "SummaryWriter('runs')"),  # all uses would go under a condition too
    ],
)
def test_a_run_is_kept_by_one_rank(made: str, new: str) -> None:
    source = _HEAD + "import wandb\nfrom torch.utils.tensorboard import SummaryWriter\n"
    source += "dist.init_process_group('nccl')\n{}\ndist.destroy_process_group()\n"
    assert _patched("SCR050", source.format(made)) == source.format(new)
