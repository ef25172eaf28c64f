"""The chunked loss equals the plain one, gradients included; slot weights equal their definition."""

from __future__ import annotations

import pytest
import torch

from recguide.training.config import LossConfig
from recguide.training.loss import DraftLoss, slot_weights


def plain(hidden, teacher, labels, head, config: LossConfig, mask: int):
    keep = torch.arange(head.shape[0]) != mask
    names = keep.nonzero()[:, 0].tolist()
    student = (hidden @ head.T)[:, keep]
    own = (teacher @ head.T)[:, keep]
    target = torch.tensor([names.index(int(label)) for label in labels])
    hard = torch.nn.functional.cross_entropy(student, target, reduction="none")
    q = (own / config.teacher_temperature).softmax(-1)
    soft = (q * (q.log() - student.log_softmax(-1))).sum(-1)
    return config.hard * hard + (1 - config.hard) * soft, hard, soft, student.argmax(-1) == target


@pytest.mark.parametrize("hard", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("chunk", [4, 7, 100])
def test_chunked_equals_plain(hard: float, chunk: int):
    torch.manual_seed(0)
    config = LossConfig(hard=hard, teacher_temperature=0.6)
    head = torch.randn(50, 16, dtype=torch.float64)
    hidden = torch.randn(19, 16, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(19, 16, dtype=torch.float64)
    labels = torch.randint(0, 50, (19,))
    labels[labels == 9] = 8
    weights = torch.rand(19, dtype=torch.float64)
    outcome = DraftLoss(head, config, 9, chunk)(hidden, teacher, labels)
    expected = plain(hidden, teacher, labels, head, config, 9)
    for got, want in zip(outcome, expected, strict=True):
        torch.testing.assert_close(got, want)
    (a,) = torch.autograd.grad((weights * outcome.loss).sum(), hidden)
    (b,) = torch.autograd.grad((weights * expected[0]).sum(), hidden)
    torch.testing.assert_close(a, b)


def test_slot_weights_follow_their_definition():
    torch.manual_seed(1)
    sizes, continuation = [4, 8, 4], [False, True, False]
    config = LossConfig(reach=0.25, decay=3.0)
    first, ahead, valid = [], [], []
    for size, masked in zip(sizes, continuation, strict=True):
        start = len(first)
        first += [start] * size
        ahead += [slot + masked for slot in range(size)]
        valid += [slot > 0 or masked for slot in range(size)]
    valid[-1] = False
    hard = torch.rand(16) * 3
    weights = slot_weights(hard, torch.tensor(ahead), torch.tensor(first), torch.tensor(valid), config)
    for index in range(16):
        chance = 1.0
        for before in range(first[index], index):
            chance *= torch.exp(-hard[before]).item() if valid[before] else 1.0
        want = 0.75 * torch.exp(torch.tensor(-(ahead[index] - 1) / 3.0)).item() + 0.25 * chance
        assert weights[index].item() == pytest.approx(want if valid[index] else 0.0, rel=1e-4)
