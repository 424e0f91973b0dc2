"""Recipes as users write them, trained by two real gloo ranks: the sound pass, and of the others the right why is
told first.
"""

from __future__ import annotations

from functools import cache
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import pytest

from ncclcheck.probes.facts import together
from ncclcheck.probes.job.context import TrainingPlan
from ncclcheck.reports.judgement.causal import causes_first
from ncclcheck.reports.judgement.findings import Finding, State, Verdict
from ncclcheck.reports.judgement.judge import judge
from ncclcheck.reports.judgement.rule import all_rules
from tests.jobs.training_job import ROOT, Case, cluster_of, outcomes_of

pytestmark = pytest.mark.timeout(300)  # a job of two ranks, each of which imports torch
RULES = [rule for rule in all_rules() if rule.code.startswith("TRN")]
_FOLDERS = TemporaryDirectory(prefix="ncclcheck-recipes-")  # of checkpoints; removed with this process
BAD = (State.FAIL, State.WARN, State.UNKNOWN)


def case(name: str, model: str = "Net", data: str = "rows", *, file: str = "recipes.py", **given: Any) -> Case:
    functions = ("loss", "step", "save", "load")
    plan: dict[str, Any] = {
        "model": f"{file}:{model}",
        "data": f"{file}:{data}",
        "steps": 4,
        "batch": 8,
        "budget_s": 60.0,
        "directory": str(ROOT / "tests/samples"),
        "run_folder": mkdtemp(dir=_FOLDERS.name) if "save" in given else "",
        "kill": False,
    }
    plan |= {key: f"{file}:{value}" if key in functions else value for key, value in given.items()}
    return Case(name=name, plan=TrainingPlan(**plan))


def saving(save: str = "save", load: str = "load", **given: Any) -> dict[str, Any]:
    return {"step": "step", "save": save, "load": load, **given}


SOUND = [
    case("resnet", "ResNet", "images"),
    case("workers", "ResNet", "augmented"),
    case("bfloat", "ResNet", "images", precision="bf16"),
    case("finetuned", "FineTuned", "images"),
    case("gpt", "GPT", "tokenized"),
    case("dropout", "GPT", "tokenized", model_kwargs={"drop": 0.1}),
    case("accumulate", "GPT", "tokenized", accumulate=2),
    case("fsdp", "GPT", "tokenized", strategy="fsdp", model_kwargs={"checkpointing": False}),
    case("lstm", "LSTM", "sentences"),
    case("moe", "MoE", find_unused=True),
    case("lightning", "Lit"),
    case("spectral", "Spectral"),
    case("compiled", "compiled"),
    case("gan", "GAN", loss="gan_loss", step="adversarial"),
    case("contrastive", "Clip", loss="contrastive"),
    case("stream", data="Shards"),
    case("own part", data="own_part"),
    case("step", **saving()),
    case("trainer", **saving("save_trainer", "load_trainer", step="by_trainer")),
    case("accumulating", step="accumulating"),
    case("logging", step="logging"),
    case("noised", step="noised"),
    case("another loss", loss="summed", step="step"),
    case("quantized", "Quantized"),
    case("centred together", step="centred_together"),
    case("queued", step="queued"),
    case("half", "Half"),
    case("half step", "Half", step="logging"),
    case("pursued", step="pursued"),
    case("by hand", "Pair", step="by_hand"),
    case("dropping", model_kwargs={"drop": 0.3}, **saving()),
]

# The first finding that is bad: its code, state, and words of what it says, why and how to fix it.
FAULTY: dict[str, tuple[Case, str, State, str]] = {
    name: (given, code, state, words)
    for name, given, code, state, words in (
        ("split", case("split", data="split_by_each_rank"), "TRN006", State.FAIL, "random_split(dataset"),
        (
            "permuted",
            case("permuted", data="permuted_by_each_rank"),
            "TRN006",
            State.FAIL,
            "same seed on all",
        ),
        ("unused", case("unused", "UnusedHead"), "TRN010", State.FAIL, "auxiliary.weight"),
        ("experts", case("experts", "MoE"), "TRN010", State.FAIL, "find_unused_parameters=True"),
        ("main", case("main", "OnlyMain"), "TRN028", State.FAIL, "rank 0 in all_reduce at recipes.py:"),
        ("large", case("large", "WhenLarge", batch=4), "TRN028", State.FAIL, "in forward on every rank"),
        ("logged", case("logged", step="logged_on_main"), "TRN028", State.FAIL, "in logged_on_main"),
        ("frozen", case("frozen", "FrozenOnMain"), "TRN002", State.FAIL, "frozen, 32x16 on rank 0"),
        ("wider", case("wider", "WiderOnOthers"), "TRN002", State.FAIL, "5x16 on rank 1"),
        ("summed", case("summed", loss="summed"), "TRN004", State.WARN, "is not a mean over samples"),
        ("scaled", case("scaled", step="clipped_scaled"), "TRN027", State.WARN, "scaler.unscale_(optimizer)"),
        (
            "divided",
            case("divided", step="divided"),
            "TRN027",
            State.WARN,
            "not loss / world_size",
        ),
        ("past", case("past", step="past_the_wrap"), "TRN027", State.FAIL, "not model.module(x)"),
        ("quiet", case("quiet", step="always_quiet"), "TRN027", State.FAIL, "leave no_sync()"),
        ("skipping", case("skipping", step="skipping"), "TRN027", State.FAIL, "4 on rank 0, 0 on rank 1"),
        ("stale", case("stale", step="never_cleared"), "TRN027", State.WARN, "optimizer.zero_grad("),
        ("copy", case("copy", step="of_a_copy"), "TRN027", State.FAIL, "change no parameter"),
        (
            "scheduled",
            case("scheduled", step="scheduled_on_main"),
            "TRN027",
            State.FAIL,
            "state['scheduler'].step()",
        ),
        ("averaged", case("averaged", step="averaged_on_main"), "TRN027", State.WARN, "ema.n_averaged"),
        (
            "scheduler",
            case("scheduler", **saving("save_no_scheduler")),
            "TRN029",
            State.WARN,
            "scheduler.last_epoch",
        ),
        ("scaler", case("scaler", **saving("save_no_scaler")), "TRN029", State.WARN, "state['scaler'].load"),
        ("ema", case("ema", **saving("save_no_ema")), "TRN029", State.WARN, "state['ema'].load_state_dict"),
        (
            "counter",
            case("counter", **saving("save_no_step")),
            "TRN029",
            State.WARN,
            "saved['step'] = state",
        ),
        (
            "averages",
            case("averages", **saving("save_no_averages", "load_trainer", step="by_trainer")),
            "TRN029",
            State.WARN,
            "saved['shadow'] = copy.deepcopy(state['trainer'].averages.shadow)",
        ),
        (
            "rates",
            case("rates", **saving("save_no_rates", "load_trainer", step="by_trainer")),
            "TRN029",
            State.WARN,
            "state['trainer'].scheduler.load_state_dict(saved['scheduler'])",
        ),
        (
            "assigned",
            case("assigned", **saving(load="load_assigned", step="plain")),
            "TRN029",
            State.FAIL,
            "without assign=True",
        ),
        (
            "untied",
            case("untied", "GPT", "tokenized", **saving(load="load_untied", step="plain")),
            "TRN029",
            State.FAIL,
            "no longer shared",
        ),
        ("on all", case("on all", **saving("save_on_all")), "TRN029", State.WARN, "if dist.get_rank() == 0:"),
        ("on main", case("on main", **saving(load="load_on_main")), "TRN029", State.WARN, "on rank 1"),
        (
            "codebook",
            case("codebook", "Drifting"),
            "TRN034",
            State.FAIL,
            "self.register_buffer('codebook', torch.randn",
        ),
        (
            "adjusted",
            case("adjusted", "Adjusted"),
            "TRN034",
            State.FAIL,
            "model.counts, no parameter and no buffer",
        ),
        ("centred", case("centred", step="centred"), "TRN034", State.WARN, "dist.all_reduce(state['center'])"),
        ("rounded", case("rounded", "Half", step="timid"), "TRN027", State.WARN, "with torch.autocast("),
        ("clearing", case("clearing", step="clearing_each"), "TRN027", State.WARN, "3 of 4 backward passes"),
        ("handed out", case("handed out", step="handed_out"), "TRN027", State.FAIL, "gradients of rank 0's batch"),
        (
            "never cleared by hand",
            case("never cleared by hand", "Pair", step="by_hand_never_cleared"),
            "TRN027",
            State.WARN,
            "adds its gradients to those of the step before",
        ),
        (
            "warming",
            case("warming", "Warming", **saving(step="logging")),
            "TRN029",
            State.WARN,
            "self.register_buffer('steps'",
        ),
    )
}


@cache
def judged(*, sound: bool, whole: bool = False) -> dict[str, list[Verdict]]:
    cases = SOUND if sound else [given for given, *_ in FAULTY.values()]
    return judged_of([_whole(recipe) for recipe in cases] if whole else cases)


def judged_of(cases: list[Case]) -> dict[str, list[Verdict]]:
    """What the rules say of each, trained by two ranks."""
    outcomes = outcomes_of(cases, 2)
    return {
        recipe.name: judge(cluster_of(recipe, 2, together([rank.told for rank in outcomes[recipe.name]])), RULES)
        for recipe in cases
    }


def _whole(given: Case) -> Case:
    return Case(name=given.name, plan=given.plan, whole=True)


def shown(finding: Finding) -> str:
    """All that is said of it: what, why, what was seen, and the fixes."""
    texts = [text for fix in finding.remedies for text in (fix.text, *fix.commands)]
    return " | ".join(
        [finding.what, finding.why or "", *texts, *(evidence.value for evidence in finding.evidence)]
    )


def bad(verdicts: list[Verdict]) -> list[tuple[str, Finding]]:
    """In the order of the report."""
    ordered = sorted(causes_first(verdicts), key=lambda verdict: verdict.state.rank)
    return [(verdict.code, each) for verdict in ordered for each in verdict.findings if each.state in BAD]


@pytest.mark.parametrize("name", [recipe.name for recipe in SOUND])
def test_a_sound_recipe_has_no_failure_and_no_warning(name: str) -> None:
    assert bad(judged(sound=True)[name]) == []


@pytest.mark.nightly
@pytest.mark.parametrize("name", [recipe.name for recipe in SOUND])
def test_a_sound_recipe_passes_the_whole_run(name: str) -> None:
    assert bad(judged(sound=True, whole=True)[name]) == []


@pytest.mark.parametrize("name", FAULTY)
def test_a_fault_is_told_with_its_cause(name: str) -> None:
    _, code, state, words = FAULTY[name]
    (first, finding), *_ = bad(judged(sound=False)[name])
    assert (first, finding.state, words in shown(finding)) == (code, state, True), shown(finding)


def test_dropout_that_no_checkpoint_restores_is_a_note() -> None:
    verdicts = judged(sound=True)["dropping"]
    (finding,) = next(verdict.findings for verdict in verdicts if verdict.code == "TRN029")
    assert "restore no random generator" in finding.what
