"""Labels and token numbers out of range, before torch or a GPU sees them; DDP's numbers of parameters; scratch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ncclcheck.probes.training.course.bounds import Bounds, OutOfRange
from ncclcheck.probes.training.course.unreduced import named
from ncclcheck.probes.training.equal.state import lasting


def _entropy(labels: Tensor, **given: Any) -> Tensor:
    return F.cross_entropy(torch.zeros(len(labels), 4, *labels.shape[1:]), labels, **given)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: _entropy(torch.tensor([1, 2, 4])), "label 4 in row 2 of the batch: the scores have 4 classes"),
        (lambda: _entropy(torch.tensor([0, -1, 2])), "label -1 in row 1"),
        (lambda: nn.CrossEntropyLoss()(torch.zeros(3, 4), torch.tensor([1, 9, 2])), "go from 1 to 9"),
        (lambda: F.nll_loss(torch.zeros(3, 4), torch.tensor([5, 0, 0])), "label 5 in row 0"),
        (lambda: _entropy(torch.tensor([[1, 2], [3, 3], [0, 7]])), "label 7 in row 2"),
        (lambda: nn.Embedding(10, 2)(torch.tensor([[1, 2], [3, 10], [0, 0]])), "number 10 in row 1"),
    ],
)  # fmt: skip
def test_what_has_no_class_or_row_is_named(call: Callable[[], Tensor], words: str) -> None:
    with Bounds(rows=3), pytest.raises(OutOfRange) as failed:
        call()
    assert words in str(failed.value)


def test_what_torch_takes_passes() -> None:
    with Bounds(rows=3):
        _entropy(torch.tensor([0, -100, 3]))
        _entropy(torch.tensor([0, -1, 3]), ignore_index=-1)
        F.cross_entropy(torch.zeros(3, 4), torch.full((3, 4), 0.25))
        nn.Embedding(10, 2, padding_idx=0)(torch.tensor([0, 9, 0]))


def test_the_sample_takes_the_place_of_the_row() -> None:
    error = OutOfRange("label 10", 3, "the scores have 10 classes")
    assert error.words(77) == "label 10 of sample 77: the scores have 10 classes"


def test_numbers_of_parameters_get_their_names() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 2))
    text = (
        "Expected to have finished reduction in the prior iteration before starting a new one. This error "
        "indicates that ...\nParameter indices which did not receive grad for rank 1: 2 3\n In addition, ..."
    )
    with pytest.raises(RuntimeError) as failed, named(model):
        raise RuntimeError(text)
    assert "2.weight, 2.bias got no gradient on rank 1" in str(failed.value)
    assert "finished reduction in the prior iteration before starting a new one" in str(failed.value)


def test_scratch_that_no_checkpoint_keeps_is_no_part_of_the_model() -> None:
    layer = nn.Linear(2, 2)
    layer.register_buffer("load", torch.zeros(2), persistent=False)
    layer.register_buffer("bias_of_load", torch.zeros(2))
    assert [*lasting(nn.Sequential(layer))] == ["0.weight", "0.bias", "0.bias_of_load"]
