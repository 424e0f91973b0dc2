"""Files that say how a run saves: read by their syntax, never run; and what a small save says of a large one."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclcheck.probes.facts import Cluster, Job, Measurements, Node
from ncclcheck.probes.facts.training import Saves, Smoke
from ncclcheck.probes.facts.training.saves import RankProblem, ShardedSave
from ncclcheck.probes.training.saves import settings_files
from ncclcheck.reports.judgement.findings import State, Verdict
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules
from ncclcheck.reports.subjects.training.save_forecast import forecast
from tests.conftest import Command

_GIVEN = {
    "ds_config.json": (
        '{"zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": true}}',
        {"stage": "3", "stage3_gather_16bit_weights_on_model_save": "true"},
    ),
    "train.py": (
        "import os\nfrom datetime import timedelta\nos.system('touch ran')\n"
        "args = TrainingArguments(output_dir='x', ddp_timeout=5400)\n"
        "kwargs = InitProcessGroupKwargs(timeout=timedelta(hours=1, minutes=30))\n"
        "dist.init_process_group('nccl', timeout=timedelta(seconds=HOW_LONG))\n",
        {
            "ddp_timeout": "5400",
            "InitProcessGroupKwargs.timeout": "5400",
            "init_process_group.timeout": "timedelta(seconds=HOW_LONG)",
        },
    ),
    "sums.py": (
        "args = TrainingArguments(ddp_timeout=2 * 3600, zero_stage=3)\n"
        "dist.init_process_group('nccl', timeout=datetime.timedelta(0, 1200))\n",
        {"ddp_timeout": "7200", "zero_stage": "3", "init_process_group.timeout": "1200"},
    ),
    "lightning.py": ("trainer = Trainer(strategy='deepspeed_stage_3')\n", {"strategy": "deepspeed_stage_3"}),
    "lightning_fsdp.py": ("trainer = L.Trainer(strategy='fsdp', devices=8)\n", {"strategy": "fsdp"}),
    "other.yaml": ("strategy: auto\nddp_timeout: 60\n", {"ddp_timeout": "60"}),
    "plugin.py": (
        "plugin = FullyShardedDataParallelPlugin(state_dict_type='FULL_STATE_DICT')\n",
        {"FullyShardedDataParallelPlugin.state_dict_type": "FULL_STATE_DICT"},
    ),
    "torch_fsdp.py": (
        "with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):\n    pass\n",
        {"state_dict_type": "StateDictType.FULL_STATE_DICT"},
    ),
    "nested.json": (
        '{"training": {"ddp_timeout": 60, "fsdp_config": {"state_dict_type": "FULL_STATE_DICT"}}}',
        {"ddp_timeout": "60", "state_dict_type": "FULL_STATE_DICT"},
    ),
    "accelerate.yaml": (
        "deepspeed_config:\n  zero3_save_16bit_model: true\n  zero_stage: 3\n",
        {"zero3_save_16bit_model": "true", "zero_stage": "3"},
    ),
    "llama_factory.yaml": (
        "stage: sft\nzero_stage: 3\nddp_timeout: 600\n",
        {"zero_stage": "3", "ddp_timeout": "600"},
    ),
    "attribute.py": (
        "TIMEOUT = timedelta(minutes=5)\nargs.ddp_timeout = 60\ndist.init_process_group('nccl', None, TIMEOUT)\n",
        {"ddp_timeout": "60", "init_process_group.timeout": "300"},
    ),
    "twice.py": (
        "TIMEOUT = 5\nTIMEOUT = 7\ninit_process_group(timeout=TIMEOUT)\n",
        {"init_process_group.timeout": "TIMEOUT"},
    ),
    "train_pl.py": (
        "strategy = FSDPStrategy(state_dict_type='full', timeout=timedelta(seconds=60))\n",
        {"FSDPStrategy.state_dict_type": "full", "FSDPStrategy.timeout": "60"},
    ),
    "accelerate_fsdp.yaml": (
        "fsdp_config:\n  fsdp_state_dict_type: FULL_STATE_DICT\n",
        {"fsdp_state_dict_type": "full_state_dict"},
    ),
    "trainer_args.yaml": (
        "bf16: true\nfsdp: full_shard auto_wrap\nfsdp_config:\n  state_dict_type: SHARDED_STATE_DICT\n",
        {"fsdp": "full_shard", "state_dict_type": "sharded_state_dict"},
    ),
    "trainer_list.yaml": ("fsdp:\n  - full_shard\n  - auto_wrap\nbf16: true\n", {"fsdp": "full_shard"}),
    "trainer_flow.yaml": ("fsdp: [hybrid_shard, auto_wrap]\n", {"fsdp": "hybrid_shard"}),
    "trainer_args.json": (
        '{"fsdp": ["full_shard", "auto_wrap"], "fsdp_config": {"fsdp_state_dict_type": "FULL_STATE_DICT"}}',
        {"fsdp": "full_shard auto_wrap", "fsdp_state_dict_type": "FULL_STATE_DICT"},
    ),
    "trainer_args.py": (
        "args = TrainingArguments('out', fsdp='full_shard auto_wrap', fsdp_config={'state_dict_type': 'X'})\n",
        {"fsdp": "full_shard auto_wrap", "state_dict_type": "X"},
    ),
    "fsdp_off.yaml": ("fsdp: ''\nfsdp_config: null\nddp_timeout: 60\n", {"ddp_timeout": "60"}),
    "megatron_gpt.yaml": (
        "trainer:\n  strategy: null\nmodel:\n  fsdp: True # with Torch FSDP\n  fsdp_sharded_checkpoint: False\n"
        "  dist_ckpt_format: 'torch_dist'\n",
        {"fsdp": "true", "fsdp_sharded_checkpoint": "false", "dist_ckpt_format": "torch_dist"},
    ),
    "overrides.txt": (
        "+model.fsdp=True\n+model.fsdp_sharded_checkpoint=True\n",
        {"fsdp": "true", "fsdp_sharded_checkpoint": "true"},
    ),
    "hydra.yaml": (
        "trainer:\n  _target_: nemo.lightning.Trainer\n  strategy:\n"
        "    _target_: lightning.pytorch.strategies.FSDPStrategy\n    state_dict_type: sharded\n",
        {"_target_": "fsdpstrategy", "state_dict_type": "sharded"},
    ),
    "automodel.yaml": (
        "dist_env:\n  backend: nccl\n  timeout_minutes: 20\ndistributed:\n  strategy: fsdp2\n",
        {"timeout_minutes": "1200", "strategy": "fsdp2"},
    ),
    "nemo_run.py": (
        "strategy = nl.MegatronStrategy(tensor_model_parallel_size=8)\nTrainer(strategy=strategy, devices=8)\n",
        {"strategy": "nl.MegatronStrategy(tensor_model_paralle"},
    ),
    "nemo_fsdp.py": (
        "strategy = NLPFSDPStrategy(sharded_checkpoint=False)\n",
        {"NLPFSDPStrategy.sharded_checkpoint": "false"},
    ),
    "args.txt": ("--ddp_timeout 7200 --bf16 true\n", {"ddp_timeout": "7200"}),
}


@pytest.mark.parametrize("name", [*_GIVEN])
def test_settings_are_read_and_nothing_is_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text, expected = _GIVEN[name]
    Path(name).write_text(text)
    assert {setting.name: setting.value for setting in settings_files.read(name).settings} == expected
    assert not Path("ran").exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [("{", "truncated"), ('{"train_batch_size": 8}', "none of the settings"), ("[" * 100_000, "JSON")],
)
def test_what_cannot_be_read_is_named(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "ds_config.json"
    path.write_text(text)
    with pytest.raises(settings_files.NoSettings, match=f"ds_config.json|{says}"):
        settings_files.read(str(path))


@given(st.binary(max_size=300), st.sampled_from([".json", ".py", ".yaml"]))
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes, end: str) -> None:
    path = tmp_path_factory.getbasetemp() / f"any{end}"
    path.write_bytes(data)
    with suppress(settings_files.NoSettings):
        assert settings_files.read(str(path)).settings


def test_a_file_that_is_not_there_ends_with_2(ncclcheck: Command) -> None:
    ran = ncclcheck("smoke", "--settings", "nowhere.json")
    assert ran.code == 2
    assert "--settings: nowhere.json: No such file" in ran.err


def test_seconds_grow_with_bytes() -> None:
    small = ShardedSave(
        folder="/x", bytes=2**30, ranks=4, gather_s=1.0, write_s=3.0, shards_s=0.5, parameters=2**30
    )
    seconds = forecast(small)
    assert seconds is not None
    assert seconds.gathered == pytest.approx(8.0)
    assert seconds.pieces == pytest.approx(7.0)


@pytest.mark.parametrize(
    "measured",
    [
        ShardedSave(folder="/x", bytes=2**30, ranks=4, gather_s=1.0, write_s=3.0, shards_s=0.5),
        ShardedSave(folder="/x", bytes=0, ranks=4, gather_s=1.0, write_s=3.0, shards_s=0.5, parameters=1e9),
        ShardedSave(
            folder="/x",
            bytes=2**30,
            ranks=4,
            gather_s=1.0,
            write_s=3.0,
            shards_s=0.5,
            parameters=1e9,
            problems=[RankProblem(rank=0, node="a", problem="disk full")],
        ),
    ],
)
def test_without_a_measurement_or_a_model_nothing_is_forecast(measured: ShardedSave) -> None:
    assert forecast(measured) is None


GATHERS = '{"zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": %s}}'


def verdicts(tmp_path: Path, files: dict[str, str], saved: ShardedSave | None = None) -> dict[str, Verdict]:
    """Of TRN016 to TRN018, with the first file given."""
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    settings = settings_files.read_all([str(tmp_path / next(iter(files)))])
    smoke = Smoke(settings=settings, saves=Saves(sharded=saved) if saved else None)
    cluster = Cluster(
        command="smoke", nodes=[Node(name="a")], job=Job(ranks=4), measurements=Measurements(smoke=smoke)
    )
    return {v.code: v for v in judge(cluster, [rule for rule in all_rules() if "TRN016" <= rule.code <= "TRN018"])}


@pytest.mark.parametrize("line", ["deepspeed: ds.json", "deepspeed_config_file: ds.json", "--deepspeed ds.json"])
def test_a_file_that_is_named_is_followed(tmp_path: Path, line: str) -> None:
    verdict = verdicts(tmp_path, {"run.yaml": f"stage: sft\n{line}\n", "ds.json": GATHERS % "true"})["TRN017"]
    assert verdict.state is State.NOTE
    assert "rank 0 gathers all weights" in verdict.findings[0].what


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("ds.json", GATHERS % '"auto"', "is left to Accelerate"),
        ("ds.json", GATHERS % "false", "ZeRO-3 saves pieces"),
        ("fsdp.yaml", "fsdp_state_dict_type: SHARDED_STATE_DICT\n", "FSDP saves pieces"),
        ("fsdp.yaml", "fsdp_state_dict_type: FULL_STATE_DICT\n", "rank 0 gathers all weights"),
        ("train.py", "FSDPStrategy(state_dict_type='full')\n", "rank 0 gathers all weights"),
        ("train.py", "TrainingArguments(fsdp='full_shard auto_wrap')\n", "rank 0 gathers all weights"),
        (
            "args.json",
            '{"fsdp": true, "fsdp_config": {"state_dict_type": "SHARDED_STATE_DICT"}}',
            "FSDP saves pieces",
        ),
        ("gpt.yaml", "model:\n  fsdp: True\n  fsdp_sharded_checkpoint: False\n", "rank 0 gathers all weights"),
        ("gpt.yaml", "model:\n  fsdp: True\n", "rank 0 gathers all weights"),
        ("gpt.yaml", "model:\n  fsdp: True\n  fsdp_sharded_checkpoint: True\n", "FSDP saves pieces"),
        (
            "gpt.yaml",
            "model:\n  fsdp: False\n  fsdp_sharded_checkpoint: False\n  dist_ckpt_format: torch_dist\n",
            "Megatron saves pieces",
        ),
        (
            "run.py",
            "Trainer(strategy=nl.MegatronStrategy(tensor_model_parallel_size=8))\n",
            "Megatron saves pieces",
        ),
        ("run.yaml", "distributed:\n  strategy: fsdp2\n", "FSDP saves pieces"),
        ("hydra.yaml", "strategy:\n  _target_: lightning.pytorch.strategies.FSDPStrategy\n", "rank 0 gathers"),
    ],
)
def test_how_weights_are_saved(tmp_path: Path, name: str, text: str, words: str) -> None:
    verdict = verdicts(tmp_path, {name: text})["TRN017"]
    assert verdict.state is State.NOTE
    assert words in verdict.findings[0].what


def test_an_fsdp_config_of_its_own_is_followed(tmp_path: Path) -> None:
    text = "fsdp: full_shard auto_wrap\nfsdp_config: fsdp.json\n"
    pieces = verdicts(tmp_path, {"run.yaml": text, "fsdp.json": '{"state_dict_type": "SHARDED_STATE_DICT"}'})
    assert "FSDP saves pieces" in pieces["TRN017"].findings[0].what
    silent = verdicts(tmp_path, {"run.yaml": text, "fsdp.json": '{"min_num_params": 2000}'})["TRN017"]
    assert "rank 0 gathers all weights" in silent.findings[0].what


def saved(size: int, **more: float) -> ShardedSave:
    return ShardedSave(folder="/x", bytes=size, ranks=4, parameters=70e9, **{"shards_s": 0.001, **more})  # type: ignore[arg-type]


def test_what_saves_pieces_gathers_nothing(tmp_path: Path) -> None:
    small = saved(2**30, gather_s=50.0, write_s=50.0)
    judged = verdicts(tmp_path, {"ds.json": GATHERS % "false"}, small)
    assert judged["TRN016"].state is State.OK
    assert judged["TRN018"].state is State.SKIPPED
    assert "nothing is gathered" in (judged["TRN018"].reason or "")


def test_the_timeout_of_the_files_is_that_of_the_forecast(tmp_path: Path) -> None:
    """Five years: nothing is too slow for it."""
    text = '{"args": {"ddp_timeout": 180000000, "zero_optimization": {"stage": 3}}}'
    assert verdicts(tmp_path, {"args.json": text}, saved(2**30, gather_s=50.0, write_s=50.0))["TRN016"].state is (
        State.OK
    )


@pytest.mark.parametrize(
    ("size", "seconds", "state"),
    [
        (2**34, 1.0, State.OK),
        (2**34, 40.0, State.NOTE),
        (2**34, 60.0, State.WARN),
        (2**34, 900.0, State.FAIL),
        (2**26, 0.2, State.NOTE),
        (2**26, 0.9, State.WARN),
    ],
)
def test_a_forecast_has_an_error_bar_and_a_small_save_proves_no_failure(
    tmp_path: Path, size: int, seconds: float, state: State
) -> None:
    given = {"t.py": "init_process_group(timeout=600)\n"}
    verdict = verdicts(tmp_path, given, saved(size, gather_s=seconds / 2, write_s=seconds / 2))["TRN016"]
    assert verdict.state is state
    assert "times what was measured" in verdict.findings[0].what
