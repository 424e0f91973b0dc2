"""`ncclcheck script`: faulty sources are named, their sound twins are not; a printed diff ends a finding."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ncclcheck.base.endpoint import free_port
from ncclcheck.probes.facts import Cluster, Measurements
from ncclcheck.probes.script import reading, sources
from ncclcheck.reports.judgement import jsondoc
from ncclcheck.reports.judgement.findings import Finding, State
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules
from ncclcheck.reports.output.anonymise import anonymised
from ncclcheck.results import finish
from ncclcheck.run.plan.options import Options
from tests.conftest import Command

FOLDER = Path(__file__).resolve().parents[1] / "data/script"
RULES = [rule for rule in all_rules() if rule.code.startswith("SCR")]
CODES = sorted(path.name[:6] for path in FOLDER.glob("*_faulty.py"))


def _findings(name: str = "train.py") -> dict[str, list[Finding]]:
    script = reading.read([name], [])
    verdicts = judge(Cluster(command="script", measurements=Measurements(script=script)), RULES)
    return {verdict.code: verdict.findings for verdict in verdicts if verdict.findings}


def _put(folder: Path, source: str) -> None:
    (folder / "train.py").write_text((FOLDER / source).read_text())


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_rule_has_its_sources() -> None:
    assert [*CODES] == [rule.code for rule in RULES if rule.code != "SCR001"]


@pytest.mark.parametrize("code", CODES)
def test_a_faulty_source_is_named_with_its_line(code: str, tmp_path: Path) -> None:
    _put(tmp_path, f"{code}_faulty.py")
    by_code = _findings()
    assert code in by_code
    assert all(str(finding.where).startswith("train.py:") for finding in by_code[code])
    others = {
        other for other, findings in by_code.items() for finding in findings if finding.state is not State.NOTE
    }
    assert others <= {code}


@pytest.mark.parametrize("code", CODES)
def test_its_sound_twin_is_silent(code: str, tmp_path: Path) -> None:
    _put(tmp_path, f"{code}_sound.py")
    by_code = _findings()
    assert code not in by_code
    assert not [
        finding for findings in by_code.values() for finding in findings if finding.state is not State.NOTE
    ]


@pytest.mark.parametrize("code", CODES)
def test_a_printed_diff_ends_the_finding(code: str, tmp_path: Path) -> None:
    _put(tmp_path, f"{code}_faulty.py")
    remedies = [remedy for finding in _findings()[code] for remedy in finding.remedies if remedy.commands]
    assert bool(remedies) == (code not in _WITHOUT_DIFF)
    before = {*_findings()}
    for remedy in remedies:
        diff = f"{remedy.commands[0]}\n"
        subprocess.run(["patch", "-p0"], input=diff, text=True, cwd=tmp_path, check=True, timeout=20)
        assert {*_findings()} <= before - {code}  # and it still parses


_WITHOUT_DIFF = {"SCR015", "SCR052"}  # fmt: skip


def _states(code: str, lines: str, arguments: list[str] | None = None, nodes: int | None = None) -> list[State]:
    """Of a script that begins with the usual imports."""
    head = "import os, shutil, torch\nimport torch.distributed as dist\n"
    Path("train.py").write_text(head + lines)
    script = reading.read(["train.py"], arguments or [], nodes)
    verdicts = judge(Cluster(command="script", measurements=Measurements(script=script)), RULES)
    return [finding.state for verdict in verdicts if verdict.code == code for finding in verdict.findings]


_TAKEN = """def main(rank):
    {}
    dist.init_process_group("nccl")
    net = {}
    net = torch.nn.parallel.DistributedDataParallel(net, device_ids=[rank])
device = {}
main(int(os.environ["LOCAL_RANK"]))
"""
_CUDA = '"cuda" if torch.cuda.is_available() else "cpu"'


@pytest.mark.parametrize(
    ("first", "model", "device", "states"),
    [
        ("pass", "model().cuda()", "0", [State.WARN]),
        ("pass", "model().to('cuda')", "0", [State.WARN]),
        ("pass", "model().to(device)", "'cuda'", [State.WARN]),
        ("pass", "model().to(device)", f"torch.device({_CUDA})", [State.WARN]),
        # each call names its GPU, or it is not known which one
        ("pass", "model().cuda(rank)", "0", [State.NOTE]),
        ("pass", "model().to(f'cuda:{rank}')", "0", [State.NOTE]),
        ("pass", "model().cuda().to(rank)", "0", [State.NOTE]),
        ("pass", "model().to(device)", "torch.device('cuda', rank)", [State.NOTE]),
        ("pass", "model().to(device)", "'cuda'\nif last:\n    device = 'cuda:1'", [State.NOTE]),
        ("device = choose(rank)", "model().to(device)", "'cuda'", [State.NOTE]),
        # taken for the whole process
        ("torch.cuda.set_device(rank)", "model().cuda()", "0", []),
        ("torch.cuda.device(rank).__enter__()", "model().cuda()", "0", []),
        ("os.environ['CUDA_VISIBLE_DEVICES'] = str(rank)", "model().cuda()", "0", []),
    ],
)
def test_a_process_that_takes_no_gpu(first: str, model: str, device: str, states: list[State]) -> None:
    assert _states("SCR010", _TAKEN.format(first, model, device)) == states


def test_no_gpu_is_taken_for_gloo() -> None:
    lines = _TAKEN.format("pass", "model()", "0").replace("nccl", "gloo")
    assert _states("SCR010", lines) == []


def test_a_device_in_a_variable_is_used_before_set_device() -> None:
    lines = "dist.init_process_group('nccl')\ndevice = {}\nnet = net.to(device)\ntorch.cuda.set_device(own)\n"
    assert _states("SCR022", lines.format("'cuda'")) == [State.WARN]
    assert _states("SCR022", lines.format("f'cuda:{own}'")) == []


_OUT = """import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--output-dir", default="")
args = parser.parse_args()
dist.init_process_group("nccl")
{}:
    torch.save(net.state_dict(), "model.pt")
"""


@pytest.mark.parametrize(
    ("condition", "states"),
    [
        ("if True", [State.WARN]),
        ("if args.output_dir", [State.NOTE]),
        ("if args.output_dir and dist.get_rank() == 0", []),
        ("if args.write_dir", []),  # not declared: who knows
        ("if False", []),
    ],
)
def test_conditions_that_are_the_same_on_all_ranks(condition: str, states: list[State]) -> None:
    assert _states("SCR004", _OUT.format(condition)) == states


_SAMPLED = """dist.init_process_group("nccl")
sampler = torch.utils.data.distributed.DistributedSampler(images{})
batches = torch.utils.data.DataLoader(images, sampler=sampler)
"""
_ITERATED = """batch = iter(batches)
for step in range(9000):
    try:
        x = next(batch)
    except StopIteration:
        epoch += 1
        {}
        batch = iter({})
    net(x).backward()
"""
_ENDLESS = """def endless(batches):
    while True:
        {}
        for x in batches:
            yield x
batches = endless(batches)
for step in range(9000):
    net(next(batches)).backward()
"""


@pytest.mark.parametrize(
    ("shuffle", "loop", "states"),
    [
        ("", _ITERATED.format("pass", "batches"), [State.WARN]),
        ("", _ITERATED.format("pass", "other"), []),
        ("", _ITERATED.format("sampler.set_epoch(epoch)", "batches"), []),
        (", shuffle=False", _ITERATED.format("pass", "batches"), []),
        (", shuffle=args.shuffle", _ITERATED.format("pass", "batches"), []),
        ("", _ENDLESS.format("pass"), [State.WARN]),
        ("", _ENDLESS.format("batches.sampler.set_epoch(next(count))"), []),
        ("", _ENDLESS.format("pass").replace("while True", "for _ in range(1)"), []),
    ],
)
def test_a_loader_that_is_begun_anew(shuffle: str, loop: str, states: list[State]) -> None:
    assert _states("SCR009", _SAMPLED.format(shuffle) + loop) == states


@pytest.mark.parametrize(
    ("line", "states"),
    [
        ("batches.dataset.set_epoch(epoch)", [State.NOTE]),
        ("images.set_epoch(epoch)", []),
        ("extra.set_epoch(epoch)", [State.WARN]),
        ("batches.sampler.set_epoch(epoch)", []),
        ("self.datasampler_train.set_epoch(epoch)", []),
        ("getattr(batches, 'set_epoch')(epoch)", []),
    ],
)
def test_set_epoch_of_something_else(line: str, states: list[State]) -> None:
    extra = "extra = torch.utils.data.distributed.DistributedSampler(more, shuffle=False)\n"
    loop = f"for epoch in range(9):\n    {line}\n    for x in batches:\n        net(x).backward()\n"
    assert _states("SCR009", _SAMPLED.format("") + extra + loop) == states


_LOGGED = """dist.init_process_group("nccl")
def make(folder):
    {}
    return logging.getLogger()
logger = make(folder)
for x in data:
    loss = net(x)
    loss.backward()
    {}
"""


@pytest.mark.parametrize(
    ("made", "logged", "states"),
    [
        ("if dist.get_rank() == 0: logging.basicConfig()", "logger.info(f'Loss: {loss}')", [State.NOTE]),
        ("pass", "if dist.get_rank() == 0: wandb.log({'loss': loss})", [State.NOTE]),
        # every rank logs its own; reduced; that of one rank's whole validation; no loss
        ("pass", "logger.info(f'Loss: {loss}')", []),
        ("pass", "if dist.get_rank() == 0: wandb.log({'loss': reduce_mean(loss)})", []),
        ("pass", "if dist.get_rank() == 0: wandb.log({'val_loss': loss})", []),
        ("pass", "if dist.get_rank() == 0: wandb.log({'lr': rate})", []),
    ],
)
def test_a_loss_that_is_logged(made: str, logged: str, states: list[State]) -> None:
    assert _states("SCR019", _LOGGED.format(made, logged)) == states


_STEP = "    loss = net(x.cuda())\n    loss.backward()\n"
_PRINTS = "rank = dist.get_rank()\nfor x in data:\n    if rank == 3:\n        print(loss)\n"

_EPOCHS = """sampler = torch.utils.data.distributed.DistributedSampler(images)
batches = torch.utils.data.DataLoader(images, sampler=sampler)
for {} in range({}):
    for x in batches:
        net(x).backward()
"""
_HELD_BY_ONE = """net = torch.nn.parallel.DistributedDataParallel(torch.nn.BatchNorm1d(4))
if dist.get_rank() == 0:
    {}
        net(x)
"""
_LOCAL = "parser.add_argument('--local_rank', type=int)\ndist.init_process_group('nccl', {})\n"
_LOADS = """torch.nn.parallel.DistributedDataParallel(net.cuda())
torch.utils.data.DataLoader(held, batch_size=8)
"""
_LOADED = f"""class Held(torch.utils.data.Dataset):
    def __init__(self, given):
        self.x = {{1}}
    def __getitem__(self, at):
        {{0}}
held = Held(files)
{_LOADS}"""

_OPTION = """import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--dist-url", default="tcp://localhost:23456")
args = parser.parse_args()
dist.init_process_group("nccl", init_method=args.dist_url)
"""


@pytest.mark.parametrize(
    ("arguments", "nodes", "states"),
    [
        ([], 2, [State.NOTE, State.NOTE]),  # of the address and of the port: arguments may be given as it starts
        ([], None, [State.NOTE, State.NOTE]),
        ([], 1, [State.NOTE]),
        (["--dist-url", "tcp://localhost:1"], 2, [State.FAIL]),
        (["--dist-url", "env://"], 2, []),
    ],
)
def test_the_default_of_an_option_is_what_the_job_uses(
    arguments: list[str], nodes: int | None, states: list[State]
) -> None:
    assert _states("SCR011", _OPTION, arguments, nodes) == states


@pytest.mark.parametrize(
    ("code", "lines", "states"),
    [
        # set anew from the environment; a port that is none fails elsewhere
        ("SCR011", 'os.environ["MASTER_ADDR"] = "::1"\nos.environ["MASTER_ADDR"] = os.environ["HEAD"]\n', []),
        ("SCR011", 'os.environ["MASTER_ADDR"] = "::1"\n', [State.NOTE]),
        ("SCR011", 'os.environ["MASTER_PORT"] = "29500"\n', [State.NOTE]),
        ("SCR005", "net.cuda()\nfeatures = torch.load(folder + '/features.pth')\n", []),
        ("SCR005", "net.cuda()\nfound = torch.load(folder + '/a.pth')\nnet.load_state_dict(found['net'])\n",
         [State.WARN]),
        ("SCR005", "net.cuda()\nif args.gpu is None:\n    state = torch.load('model.pt')\n", []),
        ("SCR005", "net.cuda()\nif args.gpu is not None:\n    state = torch.load('model.pt')\n", [State.WARN]),
        ("SCR011", 'os.environ["MASTER_PORT"] = "70000"\n', []),
        # that no rank gives anything to another
        ("SCR015", "model = torch.nn.DataParallel(torch.nn.Linear(8, 8))\n", [State.WARN]),
        ("SCR015", "if args.all_gpus:\n    model = torch.nn.DataParallel(net)\n", [State.NOTE]),
        ("SCR015", "model = torch.nn.DataParallel(net)\ndist.all_reduce(model.module.weight)\n", [State.NOTE]),
        ("SCR015", "model = torch.nn.DataParallel(net)\naverage_gradients(model)\n", [State.NOTE]),
        # the loss on the GPU, and its copy in the CPU's memory
        ("SCR018", f"for x in data:\n{_STEP}    print(loss.item())\n", [State.NOTE]),
        ("SCR018", f"for x in data:\n{_STEP}    seen.append(loss.detach().cpu())\n", [State.NOTE]),
        ("SCR018", "loss_cpu = torch.zeros(1).pin_memory()\nfor x in data:\n    loss = net(x.cuda())\n"
         "    loss.backward()\n    loss_cpu.copy_(loss, non_blocking=True)\n    print(loss_cpu.item())\n", []),
        # a step that is timed waits in any case; six steps train nothing, but may be part of an epoch
        ("SCR018", "def wait():\n    if on_gpu:\n        torch.cuda.synchronize()\n"
         f"for x in data:\n{_STEP}    wait()\n    print(loss.item())\n", []),
        ("SCR018", f"for x in data:\n{_STEP}    print(loss.item())\n"
         "    if slow:\n        torch.cuda.synchronize()\n", [State.NOTE]),
        ("SCR018", f"for _ in range(6):\n{_STEP}    print(loss.item())\n", []),
        ("SCR018", "for epoch in range(epochs):\n    for _ in range(6):\n        loss = net(x.cuda())\n"
         "        loss.backward()\n        print(loss.item())\n", [State.NOTE]),
        # a timer of the script's own waits too; outputs are read as the loss is
        ("SCR018", "class Timer:\n    def __exit__(self, *_):\n        self.synchronize()\n"
         f"for x in data:\n    with Timer():\n        y = net(x)\n{_STEP}    print(loss.item())\n", []),
        ("SCR018", f"for x in data:\n{_STEP}    seen.append(outputs.cpu())\n", [State.NOTE]),
        ("SCR018", f"for x in data:\n{_STEP}    seen.append(labels.cpu())\n", []),
        # a name that means nothing ends the function
        ("SCR005", "def resume():\n    nothing\n    state = torch.load('model.pt')\nnet.cuda()\nresume()\n", []),
        ("SCR005", "def resume():\n    net\n    state = torch.load('model.pt')\nnet = net.cuda()\nresume()\n",
         [State.WARN]),
        # seeds that differ by rank cut the dataset differently
        ("SCR025", "torch.manual_seed(7 + dist.get_rank())\ntorch.utils.data.random_split(data, [8, 2])\n",
         [State.WARN]),
        ("SCR025", "rank = dist.get_rank()\ntorch.manual_seed(7 + rank)\n"
         "torch.utils.data.random_split(data, [8, 2])\n", [State.WARN]),
        ("SCR025", "torch.manual_seed(7)\ntorch.utils.data.random_split(data, [8, 2])\n", []),
        ("SCR011", 'os.environ["MASTER_ADDR"] = "10.0.0.1"\n', [State.NOTE]),
        ("SCR012", 'os.system("python -m torch.distributed.launch train.py")\n', [State.NOTE]),
        # what never runs: under a condition that cannot hold, and after the end
        ("SCR005", "net.cuda()\nif 0:\n    state = torch.load('model.pt')\n", []),
        ("SCR005", "net.cuda()\nif 1:\n    state = torch.load('model.pt')\n", [State.WARN]),
        ("SCR005", "def resume():\n    raise NotImplementedError\n    state = torch.load('model.pt')\n"
         "net.cuda()\nresume()\n", []),
        # ranks that hold parts of one model see the same samples
        ("SCR019", _PRINTS, [State.NOTE]),
        ("SCR019", f"stage = PipelineStage(net)\n{_PRINTS}", []),
        ("SCR024", "sampler = torch.utils.data.distributed.DistributedSampler(data)\n", [State.WARN]),
        ("SCR024", "import tensor_parallel as tp\nnet = tp.tensor_parallel(net)\n"
         "sampler = torch.utils.data.distributed.DistributedSampler(data)\n", []),
        # every step on a GPU waits for it: under a question for the GPU, in both branches, after one that ends it
        ("SCR018", f"for x in data:\n{_STEP}    if device.type == 'cuda':\n        torch.cuda.synchronize()\n"
         "    print(loss.item())\n", []),
        ("SCR018", f"for x in data:\n{_STEP}    if torch.cuda.is_available():\n        torch.cuda.synchronize()\n"
         "    print(loss.item())\n", []),
        ("SCR018", f"for x in data:\n{_STEP}    if device.type == 'cuda' and slow:\n"
         "        torch.cuda.synchronize()\n    print(loss.item())\n", [State.NOTE]),
        ("SCR018", f"for x in data:\n{_STEP}    if half:\n        torch.cuda.synchronize()\n    else:\n"
         "        torch.cuda.synchronize()\n    print(loss.item())\n", []),
        ("SCR018", f"for x in data:\n{_STEP}    if not finite(loss.item()):\n        exit()\n"
         "    torch.cuda.synchronize()\n", []),
        # a rank that is made of options: what starts the processes may give the local one too
        ("SCR012", _LOCAL.format("init_method=args.url, rank=args.node * 8 + args.local_rank"), [State.NOTE]),
        ("SCR012", _LOCAL.format("init_method='tcp://localhost:1', rank=args.local_rank"), [State.WARN]),
        # a variable of the option's name, which nothing reads as an option
        ("SCR012", f"{_LOCAL.format('')}args = parser.parse_args()\nlocal_rank = dist.get_rank()\n", []),
        ("SCR012", f"{_LOCAL.format('')}torch.cuda.set_device(parser.parse_args().local_rank)\n", [State.WARN]),
        # how far a run is: numbers
        ("SCR005", "progress_state = torch.load(folder + '/progress.pt')\nnet.cuda()\n", []),
        ("SCR005", "model_state = torch.load(folder + '/progress.pt')\nnet.cuda()\n", [State.WARN]),
        # nobody has left where the call stands
        ("SCR003", "if not several and dist.get_rank() != 0:\n    exit()\nif several:\n    dist.barrier()\n", []),
        ("SCR003", "if not several and dist.get_rank() != 0:\n    exit()\ndist.barrier()\n", [State.FAIL]),
        # with no gradients one forward pass broadcasts, and a later one does not
        ("SCR023", _HELD_BY_ONE.format("with torch.no_grad():"), [State.NOTE]),
        ("SCR023", _HELD_BY_ONE.format("if True:"), [State.WARN]),
        # a loop counts epochs by another name; the steps of one are no epochs
        ("SCR009", f"{_EPOCHS.format('ep', 'epochs')}", [State.WARN]),
        ("SCR009", f"{_EPOCHS.format('i', 'steps_per_epoch')}", []),
        ("SCR018", "for x in data:\n    loss = net(x.cuda())\n    loss.backward()\n    print(float(loss))\n",
         [State.NOTE]),
        ("SCR018", "for x in data:\n    net(x.cuda()).backward()\n    print(float(loss))\n", []),
        # whether a file is there says the same on all ranks
        ("SCR005", "if (run_dir / 'a.pt').is_file():\n    net.cuda().load_state_dict(torch.load('a.pt'))\n",
         [State.WARN]),
        ("SCR004", "if not os.path.exists('model.pt'):\n    torch.save(net.state_dict(), 'model.pt')\n", []),
        # no rank is in an interval of none
        ("SCR007", "torch.utils.data.distributed.DistributedSampler(data, num_replicas=0, rank=0)\n",
         [State.WARN]),
        ("SCR007", "torch.utils.data.distributed.DistributedSampler(data, num_replicas=1, rank=0)\n", []),
        # samples that are there already
        ("SCR027", _LOADED.format("return self.x[at]", "[torch.rand(2) for _ in range(9)]"), []),
        ("SCR027", _LOADED.format("return load(self.x[at])", "[torch.rand(2) for _ in range(9)]"), [State.NOTE]),
        ("SCR027", _LOADED.format("return self.x[at]", "given"), [State.NOTE]),
        ("SCR027", f"held = torch.utils.data.TensorDataset(x, y)\n{_LOADS}", []),
    ],
)  # fmt: skip
def test_what_was_judged_wrongly_in_scripts_of_others(code: str, lines: str, states: list[State]) -> None:
    assert _states(code, f'dist.init_process_group("nccl")\n{lines}') == states


def test_a_job_with_a_benchmark_option_is_to_end_there() -> None:
    lines = "rank = dist.get_rank()\nif {} and rank == 0:\n    exit()\ndist.barrier()\n"
    init = 'dist.init_process_group("nccl")\n'
    assert _states("SCR003", init + lines.format("args.throughput")) == [State.NOTE]
    assert _states("SCR003", init + lines.format("args.stop")) == [State.FAIL]


@pytest.mark.parametrize(
    ("between", "states"),
    [
        ("try:\n    import apex\nexcept ImportError:\n    apex = None\nclass Other:\n    pass\n", []),
        ("first = load\n", [State.WARN]),
        ("def other():\n    load()\n", []),
        ("def other():\n    load()\nother()\n", [State.WARN]),
    ],
)
def test_a_function_that_another_one_replaces_is_not_judged(between: str, states: list[State]) -> None:
    faulty = 'def load():\n    net.load_state_dict(torch.load("a.pt"))\n'
    sound = 'def load():\n    net.load_state_dict(torch.load("a.pt", map_location="cpu"))\n'
    assert _states("SCR005", f'dist.init_process_group("nccl")\n{faulty}{between}{sound}load()\n') == states


_FLAG = """def save():
    torch.save(net.state_dict(), "a.pt")
def load():
    net.load_state_dict(torch.load("a.pt"))
parallel = bool(args.parallel)
{}
    dist.init_process_group("nccl")
    if dist.get_rank() == 0:
        save()
{}
    load()
    save()
"""


@pytest.mark.parametrize(
    ("group", "other", "states"),
    [
        ("if parallel == True:", "if not parallel:", []),
        ("if parallel:", "if args.parallel is False:", []),
        ('if args.dist == "ON":', 'if args.dist == "OFF":', []),
        ("if count > 1:", "if not count > 1:", []),
        ("if parallel:", "if args.resume:", [State.WARN]),
        ("if parallel and args.fast:", "if not args.fast:", []),
        ("if parallel or args.fast:", "if not args.fast:", [State.WARN]),
    ],
)
def test_what_stands_where_no_group_is_started_is_not_judged(group: str, other: str, states: list[State]) -> None:
    lines = f"net.cuda()\n{_FLAG.format(group, other)}"
    assert _states("SCR005", lines) == states


_SPAWNED = """def parts():
    return torch.utils.data.random_split(data, [8, 2])
def work(rank, given):
    dist.init_process_group("nccl", rank=rank, world_size=2)
    {}
def main():
    {}
    torch.multiprocessing.spawn(work, nprocs=2, args=(given,))
if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(
    ("child", "parent", "states"),
    [("pass", "given = parts()", []), ("given = parts()", "given = None", [State.WARN]),
     ("given = parts()", "given = parts()", [State.WARN])],
)  # fmt: skip
def test_what_the_parent_of_all_ranks_does_is_done_once(child: str, parent: str, states: list[State]) -> None:
    assert _states("SCR025", _SPAWNED.format(child, parent)) == states


_BY_GPU = """def work(gpu, given):
    dist.init_process_group("nccl", rank=gpu, world_size=2)
    if {}:
        dist.barrier()
{}
"""


@pytest.mark.parametrize(
    ("condition", "start", "states"),
    [("gpu == 0", "torch.multiprocessing.spawn(work, nprocs=2)", [State.FAIL]),
     ("gpu is not None", "torch.multiprocessing.spawn(work, nprocs=2)", []),
     ("gpu == 0", "work(0, given)", [State.WARN])],
)  # fmt: skip
def test_the_first_parameter_of_what_is_spawned_is_a_rank(condition: str, start: str, states: list[State]) -> None:
    assert _states("SCR002", _BY_GPU.format(condition, start)) == states


_SAVED = 'dist.init_process_group("nccl")\ndef save(net):\n    torch.save(net.state_dict(), "a.pt")\n{}save(net)\n'


@pytest.mark.parametrize(
    ("later", "has_diff"),
    [("", True), ('    print("a.pt")\n', True), ('    shutil.copy("a.pt", "b.pt")\n', False),
     ('    upload("a.pt")\n', False)],
)  # fmt: skip
def test_no_diff_where_the_file_is_used_after_it_is_saved(later: str, has_diff: bool) -> None:
    assert _states("SCR004", _SAVED.format(later)) == [State.WARN]
    diffs = [
        command for finding in _findings()["SCR004"] for remedy in finding.remedies for command in remedy.commands
    ]
    assert bool(diffs) == has_diff
    assert all("if not dist.is_initialized() or dist.get_rank() == 0:" in diff for diff in diffs)


@pytest.mark.parametrize(
    ("before", "more", "count", "has_diff"),
    [("", "", 1, True), ("", ", static_graph=True", 0, False), ("net.requires_grad_(False)\n", "", 1, False),
     ("def big():\n    pass\nif args.big:\n    net = big()\n", "", 1, False)],
)  # fmt: skip
def test_parameters_that_may_be_unused_are_asked_for(before: str, more: str, count: int, has_diff: bool) -> None:
    wrap = f"net = torch.nn.parallel.DistributedDataParallel(net, find_unused_parameters=True{more})\n"
    assert _states("SCR016", f'dist.init_process_group("nccl")\n{before}{wrap}') == [State.NOTE] * count
    diffs = [
        command
        for finding in _findings().get("SCR016", [])
        for fix in finding.remedies
        for command in fix.commands
    ]
    assert bool(diffs) == has_diff


_MODEL = """class Net(torch.nn.Module):
    def forward(self, x, short=False):
        {}
        return self.last(x)
net = Net()
net = torch.nn.parallel.DistributedDataParallel(net, find_unused_parameters=True)
for x in data:
    net(x).backward()
    {}
"""


@pytest.mark.parametrize(
    ("branch", "step", "states"),
    [("x = self.first(x)", "net(y)", [State.NOTE]), ("x = self.first(x)", "net(x, short=True)", []),
     ("x = x if short else self.first(x)", "", []), ("if x.mean() > 0:\n            return x", "", []),
     ("x = self.more(x) if self.more is not None else x", "", [State.NOTE]),
     ("x = self.drop(x) if self.training else x", "", [State.NOTE])],
)  # fmt: skip
def test_a_model_that_may_leave_layers_out_is_not_judged(branch: str, step: str, states: list[State]) -> None:
    assert _states("SCR016", f'dist.init_process_group("nccl")\n{_MODEL.format(branch, step)}') == states


@pytest.mark.parametrize(("nodes", "states"), [(None, [State.NOTE]), (1, [])])
def test_the_gpus_of_one_node_are_not_all_ranks(nodes: int | None, states: list[State]) -> None:
    init = "dist.init_process_group('nccl', world_size=torch.cuda.device_count())\n"
    assert _states("SCR026", init, nodes=nodes) == states
    assert _states("SCR026", init.replace("torch.cuda.device_count()", "count"), nodes=nodes) == []


_SEVERAL = """import argparse{}
import torch
import torch.distributed as dist
from torch.utils.data.distributed import DistributedSampler
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int{})
args = parser.parse_args()
torch.cuda.set_device(args.local_rank)
dist.init_process_group("nccl",
                        init_method="tcp://127.0.0.1:1",
                        world_size=torch.cuda.device_count(),
                        rank=args.local_rank)
"""


@pytest.mark.parametrize("default", ["", ", default=0"])
@pytest.mark.parametrize("more", ["", "\nfrom os import path", ", os"])
@pytest.mark.parametrize("code", ["SCR012", "SCR026"])
def test_a_fix_brings_what_it_needs(code: str, more: str, default: str, tmp_path: Path) -> None:
    Path("train.py").write_text(_SEVERAL.format(more, default))
    (remedy,) = (fix for finding in _findings()[code] for fix in finding.remedies)
    subprocess.run(
        ["patch", "-p0"], input=f"{remedy.commands[0]}\n", text=True, cwd=tmp_path, check=True, timeout=20
    )
    source = Path("train.py").read_text()
    assert source.count("import os\n") + source.count("argparse, os\n") == 1
    assert ("import os" in remedy.text) == (more != ", os")
    assert not {code, "SCR021"} & {*_findings()}
    if code == "SCR026":
        assert "device_count() is that of one node" in remedy.text
        assert 'init_method="env://"' in source
        assert 'world_size=int(os.environ["WORLD_SIZE"])' in source


_SHUFFLED = """dist.init_process_group("nccl")
{}sampler = torch.utils.data.distributed.DistributedSampler(data)
loader = torch.utils.data.DataLoader(data, shuffle=True, sampler=sampler)
"""


@pytest.mark.parametrize(
    ("before", "given"),
    [("", "(data, sampler=sampler)"),
     ("sampler = None\nif args.distributed:\n    ", "(data, shuffle=sampler is None, sampler=sampler)")],
)  # fmt: skip
def test_a_run_without_a_group_still_shuffles(before: str, given: str, tmp_path: Path) -> None:
    assert _states("SCR008", _SHUFFLED.format(before)) == [State.FAIL]
    (diff,) = (
        command for finding in _findings()["SCR008"] for fix in finding.remedies for command in fix.commands
    )
    subprocess.run(["patch", "-p0"], input=f"{diff}\n", text=True, cwd=tmp_path, check=True, timeout=20)
    assert given in Path("train.py").read_text()
    assert "SCR008" not in _findings()


_PARTS = """def loader():
    sampler = None
    if dist.get_world_size() > 1:
        sampler = torch.utils.data.distributed.DistributedSampler(data)
    return torch.utils.data.DataLoader(data, sampler=sampler)
batches = loader()
for epoch in range(9):
    for at, batch in enumerate(batches):
        net(batch).backward()
"""


def test_the_epoch_is_given_through_the_loader(tmp_path: Path) -> None:
    assert _states("SCR009", f'dist.init_process_group("nccl")\n{_PARTS}') == [State.WARN]
    (diff,) = (
        command for finding in _findings()["SCR009"] for fix in finding.remedies for command in fix.commands
    )
    subprocess.run(["patch", "-p0"], input=f"{diff}\n", text=True, cwd=tmp_path, check=True, timeout=20)
    assert '    if hasattr(batches.sampler, "set_epoch"):\n        batches.sampler.set_epoch(epoch)\n' in (
        Path("train.py").read_text()
    )
    assert "SCR009" not in _findings()


@pytest.mark.parametrize(
    ("parts", "line"),
    [
        ("from torch.utils.data.distributed import DistributedSampler\n"
         "batches = torch.utils.data.DataLoader(data, sampler=DistributedSampler(data))\n"
         "for epoch in range(9):\n    for batch in batches:\n        net(batch).backward()\n",
         "    batches.sampler.set_epoch(epoch)\n"),
        (_PARTS.replace("    for at, batch in enumerate(batches):",
                        "    shown = tqdm(batches)\n    for batch in shown:"), ""),
    ],
)  # fmt: skip
def test_the_epoch_is_given_by_a_name_that_is_there(parts: str, line: str) -> None:
    """A sampler that is made within the call of its loader has the loader's name; what an epoch makes has none."""
    assert _states("SCR009", f'dist.init_process_group("nccl")\n{parts}') == [State.WARN]
    diffs = [command for finding in _findings()["SCR009"] for fix in finding.remedies for command in fix.commands]
    assert [f"+{line}" in diff for diff in diffs] == ([True] if line else [])


def test_imports_of_the_folder_are_followed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "from tools import comm\nif comm.rank() == 0 and comm.is_main():\n    comm.sync()\n"
    )
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/__init__.py").write_text("")
    (tmp_path / "tools/comm.py").write_text("import torch.distributed as dist\ndef sync():\n    dist.barrier()\n")
    assert [str(finding.where) for finding in _findings()["SCR002"]] == ["train.py:3"]


_OWN_ADDRESS = """from datetime import timedelta
size, soon = int(os.environ["WORLD_SIZE"]), timedelta(seconds=8)
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:{}", {}, world_size=size, timeout=soon)
dist.all_reduce(torch.ones(1))
"""
_GIVEN = 'rank=int(os.environ["RANK"])'


@pytest.mark.parametrize(
    ("rank", "before", "states"),
    [(_GIVEN, "", [State.WARN]), ("rank=own", 'own = int(os.environ["RANK"])\n', [State.WARN]),
     ("rank=int(sys.argv[1])", "", []), (_GIVEN, "torch.multiprocessing.spawn(work)\n", [])],
)  # fmt: skip
def test_tcp_with_a_rank_that_torchrun_gave(rank: str, before: str, states: list[State]) -> None:
    assert _states("SCR021", before + _OWN_ADDRESS.format(29511, rank)) == states


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_that_job_never_meets_and_its_fix_lets_it(tmp_path: Path) -> None:
    _states("SCR021", _OWN_ADDRESS.format(free_port("127.0.0.1"), _GIVEN))
    (diff,) = (
        command for finding in _findings()["SCR021"] for fix in finding.remedies for command in fix.commands
    )
    argv = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    argv.append(f"--master-port={free_port('127.0.0.1')}")
    codes = []
    for _ in range(2):
        ran = subprocess.run([*argv, "train.py"], capture_output=True, check=False, timeout=140)
        codes.append(ran.returncode)
        subprocess.run(["patch", "-p0", "-N"], input=f"{diff}\n", text=True, cwd=tmp_path, check=False, timeout=20)
    assert codes == [1, 0]


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "out.py").write_text("x = 1\n")
    (tmp_path / "in/other.py").symlink_to(tmp_path / "out.py")
    (tmp_path / "in/train.py").write_text("import other\n")
    assert [file.name for file in reading.read(["in/train.py"], []).files] == ["in/train.py"]


_SYNC = "import torch.distributed as dist\ndef sync():\n    dist.barrier()\n"
_ON_ONE = "{}\nimport torch.distributed as dist\nif dist.get_rank() == 0:\n    {}\n"


@pytest.mark.parametrize(
    ("main", "module", "line"),
    [
        ("src/job/train.py", "src/other/comm.py", "from other import comm"),
        ("src/job/train.py", "src/comm.py", "import comm"),
        ("scripts/train.py", "src/other/comm.py", "from other import comm"),
        ("a/b/c/train.py", "a/other/comm.py", "from other import comm"),
    ],
)
@pytest.mark.parametrize("by_path", [False, True])
def test_packages_around_the_script_are_followed(
    main: str, module: str, line: str, by_path: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in ((main, _ON_ONE.format(line, "comm.sync()")), (module, _SYNC), ("setup.py", "")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    if by_path:
        monkeypatch.chdir((tmp_path / main).parent)
        main = str(tmp_path / main)
    assert [str(finding.where) for finding in _findings(main)["SCR002"]] == [f"{main}:4"]


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        ("from .comm import sync", ["job/comm.py"]), ("from job.comm import sync", ["job/comm.py"]),
        ("import job.deep.comm", ["job/deep/comm.py"]),
        ("from . import comm", []), ("from .there import comm", []), ("from ._compiled import sync", []),
        ("from elsewhere.comm import sync", []),
        ("try:\n    from .comm import sync\nexcept ImportError:\n    pass", []),
    ],
)  # fmt: skip
def test_a_module_of_the_repository_that_is_not_there_is_named(
    line: str, missing: list[str], tmp_path: Path
) -> None:
    (tmp_path / "job/there").mkdir(parents=True)
    (tmp_path / "job/__init__.py").write_text("")
    (tmp_path / "job/train.py").write_text(f"{line}\n")
    assert [str(finding.where) for finding in _findings("job/train.py").get("SCR001", [])] == missing


def test_an_import_that_is_broken_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import broken\n")
    (tmp_path / "broken.py").write_text("import torch.distributed\ndef (:\n")
    assert [finding.state for finding in _findings()["SCR001"]] == [State.UNKNOWN]


@pytest.mark.parametrize(
    "text",
    [
        "def (:\n", "x = '\0'\n", "-" * 50_000 + "1", "(" * 5_000 + ")" * 5_000, "a" + ".b" * 5_000,
        "x = 1\n" * 400_000,
        "\n".join(" " * at + "if x:" for at in range(300)), "+".join(["1"] * 3_000),
    ],
)  # fmt: skip
def test_hostile_sources_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(text)
    with pytest.raises(sources.NotRead, match=r"train\.py"):
        reading.read(["train.py"], [])


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "latin.py").write_bytes(b"x = 1\n# caf\xe9\n")
    os.mkfifo(tmp_path / "pipe.py")
    for name, why in (
        ("latin.py", "latin.py:2: this is not UTF-8"),
        ("pipe.py", "regular"),
        ("none.py", "No such"),
    ):
        with pytest.raises(sources.NotRead, match=why):
            reading.read([name], [])


def test_two_hundred_files_in_a_second(tmp_path: Path) -> None:
    text = (FOLDER / "SCR009_faulty.py").read_text()
    for at in range(200):
        (tmp_path / f"part{at}.py").write_text(text)
    (tmp_path / "train.py").write_text("".join(f"import part{at}\n" for at in range(200)))
    begun = time.process_time()
    by_code = _findings()
    assert time.process_time() - begun < 5  # far more than it takes: what grows with the square would be seen
    assert len(by_code["SCR009"]) == 200


@pytest.mark.parametrize(
    ("source", "code"), [("SCR002_faulty.py", 1), ("SCR002_sound.py", 0), ("SCR004_faulty.py", 0)]
)
def test_the_command(source: str, code: int, ncclcheck: Command, tmp_path: Path) -> None:
    _put(tmp_path, source)
    ran = ncclcheck("script", "train.py", "-o", "json", "--save", "a.json", "--", "--lr", "0.1")
    assert ran.code == code
    script = ran.document.measurements.script
    assert script is not None
    assert script.arguments == ["--lr", "0.1"]
    assert ncclcheck("report", "a.json").code == code


def test_wrong_usage(ncclcheck: Command, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def (:\n")
    for given in ([], ["train.py"], ["none.py"]):
        ran = ncclcheck("script", *given)
        assert ran.code == 2
        assert "Traceback" not in ran.err


def test_preflight_judges_a_script_that_it_was_given(tmp_path: Path) -> None:
    _put(tmp_path, "SCR002_faulty.py")
    given = Measurements(script=reading.read(["train.py"], []))
    for measured, codes in ((given, {"SCR002"}), (Measurements(), set())):
        verdicts = judge(Cluster(command="preflight", measurements=measured))
        assert {
            verdict.code for verdict in verdicts if verdict.code.startswith("SCR") and verdict.state is State.FAIL
        } == codes


def test_preflight_refuses_a_script_that_is_not_there(ncclcheck: Command) -> None:
    ran = ncclcheck("preflight", "--script", "none.py")
    assert ran.code == 2
    assert "none.py: No such file" in ran.err


@pytest.mark.parametrize("code", CODES)
def test_an_anonymised_result_says_what_and_where_and_quotes_nothing(code: str, tmp_path: Path) -> None:
    _put(tmp_path, f"{code}_faulty.py")
    (tmp_path / "train.py").rename(tmp_path / "Zebra.py")
    script = reading.read(["Zebra.py"], ["--secret", "Quagga"])
    cluster = Cluster(command="script", measurements=Measurements(script=script))
    document = finish.make(cluster, Options(command="script", policy=cluster.policy), finish.Story("", 0.0))
    bare = anonymised(document)
    before = [(verdict.code, verdict.state) for verdict in document.verdicts]
    assert [(verdict.code, verdict.state) for verdict in bare.verdicts] == before
    findings = next(verdict.findings for verdict in bare.verdicts if verdict.code == code)
    assert all(str(finding.where).startswith("file1.py:") for finding in findings)
    text = jsondoc.encode(bare).decode()
    assert not [word for word in ("Zebra", "Quagga", "import torch", "init_process_group(") if word in text]
    again = judge(Cluster(command="script", measurements=bare.measurements), RULES)
    assert {verdict.state for verdict in again} == {State.UNKNOWN, State.SKIPPED}


_HERE = "import os\nimport torch\nimport torch.distributed as dist\n"
_INIT = 'dist.init_process_group("nccl", rank=rank, world_size=size)'
_LOCALHOST = 'os.environ["MASTER_ADDR"] = "localhost"\n'


@pytest.mark.parametrize(
    ("lines", "states"),
    [
        (f'{_LOCALHOST}dist.init_process_group("nccl")\n', [State.FAIL]),
        (f'{_LOCALHOST}size = int(os.environ["WORLD_SIZE"])\n{_INIT}\n',
         [State.FAIL]),
        (f'def work(rank, size):\n    {_LOCALHOST}    {_INIT}\n'
         'torch.multiprocessing.spawn(work, nprocs=8)\n', [State.NOTE]),
        (f'def work(rank, size):\n    {_LOCALHOST}    {_INIT}\n'
         'parser.add_argument("--nodes")\ntorch.multiprocessing.spawn(work, nprocs=8)\n', [State.FAIL]),
        (f'def local():\n    {_LOCALHOST}    dist.init_process_group("nccl")\n'
         'if args.launcher == "local":\n    local()\n',
         [State.NOTE]),
    ],
)  # fmt: skip
def test_localhost_fails_where_ranks_of_other_nodes_are_waited_for(lines: str, states: list[State]) -> None:
    assert _states("SCR011", f"{_HERE}{lines}", nodes=2) == states


@pytest.mark.parametrize(
    ("call", "states"),
    [
        ("dist.init_process_group('nccl', rank=local_rank, world_size=size)", [State.WARN]),
        ("size = int(os.environ['WORLD_SIZE'])\ndist.init_process_group('nccl', rank=local_rank, world_size=size)",
         [State.FAIL]),
        ("dist.init_process_group('nccl', rank=local_rank)", [State.FAIL]),
        ("count = torch.cuda.device_count()\ndist.init_process_group('nccl', rank=local_rank, world_size=count)",
         [State.WARN]),
        ("count = torch.cuda.device_count()\ndist.init_process_group('nccl', world_size=count)", [State.WARN]),
        ("count = torch.cuda.device_count()\ndist.init_process_group('nccl', rank=own, world_size=count)",
         [State.NOTE]),
        ("count = 2 * torch.cuda.device_count()\ndist.init_process_group('nccl', world_size=count)", []),
        ("dist.init_process_group('nccl')\n"
         "torch.utils.data.distributed.DistributedSampler(data, rank=local_rank)", [State.WARN]),
    ],
)  # fmt: skip
def test_numbers_of_one_node_on_two(call: str, states: list[State]) -> None:
    assert _states("SCR026", f"{call}\n", nodes=2) == states


def test_an_address_made_of_the_launchers_is_its_store() -> None:
    given = 'init_method="tcp://{}:{}".format(os.environ["MASTER_ADDR"], port), rank=int(os.environ["RANK"])'
    assert _states("SCR021", f'dist.init_process_group("nccl", {given}, world_size=2)\n') == []


_SHARED = """import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--resume")
args = parser.parse_args()
dist.init_process_group("nccl")
rank = dist.get_rank()
net = torch.nn.parallel.DistributedDataParallel(net.cuda())
"""
_LEFT = "for x in loader:\n    loss = net(x)\n    {}\n    loss.backward()\n"
_KEPT = """if args.resume:
    found = torch.load(args.resume, map_location="cpu")
    net.{}load_state_dict(found["net"])
if rank == 0:
    torch.save({{"net": net.{}state_dict(), "step": 1}}, "a.pt")
"""
_STEP = """def one(x):
    loss = net(x)
    loss.backward()
    return loss.item()
{}for x in loader:
    {}
"""
_VALIDATES = """sampler_val = torch.utils.data.distributed.DistributedSampler(data_val, shuffle=False)
loader_val = torch.utils.data.DataLoader(data_val, sampler=sampler_val)
def validate():
    for x in loader_val:
        total += (net(x) == 1).sum().item()
    {}
    return total
validate()
"""


@pytest.mark.parametrize(
    ("code", "lines", "states"),
    [
        # a backward pass is entered by all ranks of a shared model
        ("SCR003", _LEFT.format("if torch.isnan(loss):\n        continue"), [State.WARN]),
        ("SCR003", _LEFT.format("if torch.isnan(loss):\n        raise ValueError"), []),
        ("SCR003", _LEFT.format("if torch.isnan(mean_loss):\n        continue"), []),
        ("SCR003", _LEFT.format("dist.all_reduce(loss)\n    if torch.isnan(loss):\n        continue"), []),
        ("SCR003", "for i in range(9 - rank):\n    net(i).backward()\n", [State.FAIL]),
        ("SCR003", "for i in range(9):\n    net(i).backward()\n", []),
        ("SCR003", "for i in range(rank, 9, 2):\n    net(i).backward()\n", []),
        ("SCR002", "for i in range(9):\n    if rank == 0:\n        net(i).backward()\n", [State.FAIL]),
        ("SCR002", "for i in range(9):\n    if rank == 0:\n        net(i).backward()\n    else:\n"
         "        net(0).backward()\n", []),
        # a key under which a state is saved and loaded
        ("SCR006", _KEPT.format("module.", ""), [State.FAIL]),
        ("SCR006", _KEPT.format("", ""), []),
        ("SCR006", _KEPT.format("module.", "module."), []),
        # what is read in a function of every step
        ("SCR018", _STEP.format("", "one(x)"), [State.NOTE]),
        ("SCR018", _STEP.format("", "if x:\n        one(x)"), []),
        ("SCR018", _STEP.format("torch.cuda.synchronize()\n", "one(x)"), []),
        # numbers of a validation that is shared out
        ("SCR019", _VALIDATES.format("pass"), [State.NOTE]),
        ("SCR019", _VALIDATES.format("dist.all_reduce(total)"), []),
        # how far the training is says the same on all ranks, whatever option it names
        ("SCR004", "def save():\n    torch.save(net.state_dict(), 'a.pt')\nfor epoch in range(9):\n"
         "    if epoch % args.save_every == 0 or epoch == args.last:\n        save()\n", [State.WARN]),
        ("SCR004", "def save():\n    torch.save(net.state_dict(), 'a.pt')\nfor epoch in range(9):\n"
         "    if epoch % args.save_every == args.local_index:\n        save()\n", []),
        # what a step draws with one seed for all
        ("SCR029", "torch.manual_seed(1)\nfor x in loader:\n    net(torch.randn(9)).backward()\n", [State.NOTE]),
        ("SCR029", "torch.manual_seed(1)\ny = torch.randn(9)\nfor x in loader:\n    net(x).backward()\n", []),
        ("SCR029", "torch.manual_seed(args.seed)\ntorch.cuda.manual_seed(args.seed + rank)\nfor x in loader:\n"
         "    net(torch.randn(9)).backward()\n", []),
        # a function that nothing calls
        ("SCR017", "def end():\n    dist.destroy_process_group()\n", [State.NOTE]),
        ("SCR017", "def end():\n    dist.destroy_process_group()\natexit.register(end)\n", []),
    ],
)  # fmt: skip
def test_what_all_ranks_of_a_shared_model_do(code: str, lines: str, states: list[State]) -> None:
    assert _states(code, f"{_SHARED}{lines}") == states


def test_a_short_timeout_is_said() -> None:
    init = 'dist.init_process_group("nccl", timeout=datetime.timedelta({}))\n'
    assert _states("SCR020", init.format("seconds=30")) == [State.NOTE]
    assert _states("SCR020", init.format("minutes=30")) == []


def _tables() -> list[tuple[str, str]]:
    """Every case of this file in which something is found."""
    tables = (test_what_was_judged_wrongly_in_scripts_of_others, test_what_all_ranks_of_a_shared_model_do)
    heads = ('dist.init_process_group("nccl")\n', _SHARED)
    return [
        (case[0], head + case[1])
        for table, head in zip(tables, heads, strict=True)
        for mark in table.pytestmark  # type: ignore[attr-defined]
        for case in mark.args[1]
        if case[2]
    ]


_MORE = [
    ("SCR010", 'dist.init_process_group("nccl")\nrank = dist.get_rank()\ntorch.cuda.set_device(rank)\n'
     "net = net.to(rank)\nnet = torch.nn.parallel.DistributedDataParallel(net, device_ids=[rank])\n"),
    ("SCR010", 'dist.init_process_group("nccl")\ntorch.cuda.set_device(int(os.environ["RANK"]))\n'),
    ("SCR010", 'dist.init_process_group("nccl")\nnet = net.to("cuda")\n'),
    ("SCR010", 'dist.init_process_group("nccl")\nnet = net.to("cuda:0")\n'),
    ("SCR011", 'os.environ["MASTER_ADDR"] = "localhost"\ndist.init_process_group("nccl")\n'),
    ("SCR011", 'def work(rank):\n    os.environ["MASTER_ADDR"] = "localhost"\n'
     '    dist.init_process_group("nccl")\n'
     "torch.multiprocessing.spawn(work)\n"),
    ("SCR026", 'dist.init_process_group("nccl")\ncount = torch.cuda.device_count()\n'
     "torch.utils.data.distributed.DistributedSampler(data, num_replicas=count, rank=args.local_rank)\n"),
    ("SCR026", 'count = torch.cuda.device_count()\n'
     'dist.init_process_group("nccl", rank=local_rank, world_size=count)\n'),
]  # fmt: skip


@pytest.mark.parametrize(("code", "lines"), [*_tables(), *_MORE])
def test_every_diff_ends_its_finding_and_brings_no_other(code: str, lines: str, tmp_path: Path) -> None:
    """A diff that would leave the finding, or bring another one, is not printed."""
    assert _states(code, lines, nodes=2)
    source = Path("train.py").read_text()
    by_code = _findings_of_two()
    for finding in by_code[code]:
        for diff in (command for remedy in finding.remedies for command in remedy.commands):
            Path("train.py").write_text(source)
            subprocess.run(["patch", "-p0"], input=f"{diff}\n", text=True, cwd=tmp_path, check=True, timeout=20)
            compile(Path("train.py").read_text(), "train.py", "exec")
            left = _findings_of_two()
            assert len(left.get(code, [])) < len(by_code[code])
            assert {*left} <= {*by_code}


def _findings_of_two() -> dict[str, list[Finding]]:
    script = reading.read(["train.py"], [], 2)
    verdicts = judge(Cluster(command="script", measurements=Measurements(script=script)), RULES)
    return {verdict.code: verdict.findings for verdict in verdicts if verdict.findings}


def test_a_rank_that_names_a_gpu_in_several_places_is_replaced_in_all() -> None:
    assert _states("SCR010", _MORE[0][1]) == [State.WARN]
    (remedy,) = (fix for finding in _findings()["SCR010"] for fix in finding.remedies)
    assert remedy.commands[0].count("LOCAL_RANK") == 3
    for no_diff in (_MORE[3], _MORE[5]):
        _states(no_diff[0], no_diff[1])
        assert not [
            command for finding in _findings()[no_diff[0]] for fix in finding.remedies for command in fix.commands
        ]


_SHARED_OUT = """from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
def main(args, rank):
    dist.init_process_group("nccl")
    model = net()
    if args.fsdp:
        model = FSDP(model)
    if rank == 0:
        torch.save({}, "last.pt")
main(parse(), int(os.environ["RANK"]))
"""


def test_a_state_that_is_asked_for_without_fsdp_alone_is_no_collective() -> None:
    lines = _SHARED_OUT.format("full if args.fsdp else model.state_dict()")
    assert _states("SCR002", lines) == []
    assert _states("SCR002", _SHARED_OUT.format("model.state_dict()")) == [State.FAIL]


@pytest.mark.parametrize(
    ("head", "call", "states"),
    [
        ("from lightning import Trainer", "if trainer.is_global_zero:\n        trainer.test(net)", [State.FAIL]),
        ("from lightning import Trainer", "if trainer.is_global_zero:\n        trainer.save_checkpoint(net)",
         [State.NOTE]),
        ("from lightning import Trainer", "trainer.test(net)", []),
        # a trainer of one process, and one of another library
        ("from lightning import Trainer", "dist.destroy_process_group()\n    if trainer.is_global_zero:\n"
         "        trainer.test(net)", []),
        ("from lightning import Trainer", "if trainer.is_global_zero:\n        trainer = Trainer(devices=1)\n"
         "        trainer.test(net)", []),
        ("from tools import Trainer", "if trainer.is_global_zero:\n        trainer.test(net)", []),
        ("import accelerate", "if accelerator.is_main_process:\n        accelerator.gather(net)", [State.FAIL]),
        ("import accelerate", "if accelerator.is_main_process:\n        accelerator.save_state(net)",
         [State.NOTE]),
        ("import accelerate", "accelerator.save_state(net)", []),
        ("from deepspeed import zero\ndef keep(net):\n    with zero.GatheredParameters([net]):\n        pass",
         "if trainer.is_world_process_zero():\n        keep(net)", [State.NOTE]),
    ],
)  # fmt: skip
def test_what_a_library_enters_on_all_ranks(head: str, call: str, states: list[State]) -> None:
    assert (
        _states("SCR002", f"{head}\ndef main(trainer, accelerator, net):\n    {call}\nmain(*made())\n") == states
    )


_LEFT = """from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("nccl")
net = DDP(model())
for x in batches:
    loss = net(x)
    {}
"""


@pytest.mark.parametrize(
    ("step", "states"),
    [
        ("dist.barrier()\n    if not torch.isfinite(loss):\n        continue\n    loss.backward()", [State.WARN]),
        ("loss.backward()\n    if float(loss.item()) < 0.06:\n        break", [State.WARN]),
        ("loss.backward()\n    dist.all_reduce(loss)\n    if loss.item() < 0.06:\n        break", []),
        ("loss.backward()\n    if loss.item() < 0.06:\n        continue", []),
        ("loss.backward()\n    if val_loss < 0.06:\n        break", []),
    ],
)
def test_a_step_that_a_rank_leaves_by_its_own_loss(step: str, states: list[State]) -> None:
    assert _states("SCR003", _LEFT.format(step)) == states


_BY_URL = """try:
    rank = int(os.environ["RANK"])
    dist.init_process_group("nccl")
except KeyError:
    rank = 0
    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:12584", rank=rank, world_size=1)
"""


def test_an_address_for_want_of_torchrun_is_no_clash_with_it() -> None:
    assert _states("SCR021", _BY_URL) == []
    alone = _BY_URL.replace("except KeyError:\n    rank = 0", "finally:")
    assert _states("SCR021", alone) == [State.WARN]


def test_a_rank_in_one_node_that_is_made_of_the_rank_of_the_job() -> None:
    lines = """import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
args = parser.parse_args()
dist.init_process_group("nccl")
local_rank = dist.get_rank(){}
args.local_rank = local_rank
torch.cuda.set_device(local_rank)
net = model().cuda(args.local_rank)
"""
    assert _states("SCR010", lines.format(" % args.gpus")) == []
    assert _states("SCR012", lines.format(" % args.gpus")) == []
    assert _states("SCR010", lines.format("")) == [State.WARN]
