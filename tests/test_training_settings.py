"""Files that say how a run saves: read by their syntax, never run; and what a small save says of a large one."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclcheck.probes import training_settings
from ncclcheck.probes.facts.training.saves import RankProblem, ShardedSave
from ncclcheck.reports.save_forecast import forecast
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
    "accelerate.yaml": (
        "deepspeed_config:\n  zero3_save_16bit_model: true\n  zero_stage: 3\n",
        {"zero3_save_16bit_model": "true", "zero_stage": "3"},
    ),
    "args.txt": ("--ddp_timeout 7200 --bf16 true\n", {"ddp_timeout": "7200"}),
}


@pytest.mark.parametrize("name", [*_GIVEN])
def test_settings_are_read_and_nothing_is_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text, expected = _GIVEN[name]
    Path(name).write_text(text)
    assert {one.name: one.value for one in training_settings.read(name).settings} == expected
    assert not Path("ran").exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [("{", "truncated"), ('{"train_batch_size": 8}', "none of the settings"), ("[" * 100_000, "JSON")],
)
def test_what_cannot_be_read_is_named(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "ds_config.json"
    path.write_text(text)
    with pytest.raises(training_settings.Unreadable, match=f"ds_config.json|{says}"):
        training_settings.read(str(path))


@given(st.binary(max_size=300), st.sampled_from([".json", ".py", ".yaml"]))
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes, end: str) -> None:
    path = tmp_path_factory.getbasetemp() / f"any{end}"
    path.write_bytes(data)
    with suppress(training_settings.Unreadable):
        assert training_settings.read(str(path)).settings


def test_a_file_that_is_not_there_ends_with_2(ncclcheck: Command) -> None:
    ran = ncclcheck("smoke", "--settings", "nowhere.json")
    assert ran.code == 2
    assert "--settings: nowhere.json: No such file" in ran.err


def test_seconds_grow_with_bytes() -> None:
    small = ShardedSave(
        folder="/x", bytes=2**30, ranks=4, gather_s=1.0, write_s=3.0, shards_s=0.5, parameters=2**30
    )
    found = forecast(small)
    assert found is not None
    assert found.gathered == pytest.approx(8.0)
    assert found.pieces == pytest.approx(7.0)


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
