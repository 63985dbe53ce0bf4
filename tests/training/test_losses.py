"""The loss against its definition in plain autograd, and its gradients against finite differences."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from dspark_cli.training import losses
from dspark_cli.training.anchor_blocks import BlockMaker
from dspark_cli.training.losses import LawMaker, LossWeights, SlotTargets, TargetLaw, draft_loss, slot_logits
from tests.fakes.random_drafter import drafter_config, random_tensors
from tests.training.test_draft_model import made, sequence

DRAFT_IDS = torch.tensor([0, 1, 2, 5, 8, 13, 21, 34, 40, 41, 55, 62])


def _case(head: str = "vanilla", **more):
    config = drafter_config(head, **more)
    tensors = random_tensors(config)
    whole = tensors["lm_head.weight"]
    if "markov_head.markov_w2.weight" in tensors:
        tensors["markov_head.markov_w2.weight"] = tensors["markov_head.markov_w2.weight"][DRAFT_IDS]
    tensors["lm_head.weight"] = whole[DRAFT_IDS]
    model = made(replace(config, draft_vocab_size=len(DRAFT_IDS)), tensors)
    chosen = [(sequence(config, 21), torch.tensor([1, 6, 18])), (sequence(config, 12, 4), torch.tensor([5, 9]))]
    batch = BlockMaker(config.block_size, 24).make(chosen)
    logits = functional.rms_norm(batch.last, (24,)) @ whole.T
    batch = replace(batch, log_mass=logits.logsumexp(1))
    law = LawMaker(torch.ones(24), 1e-7, model.head, torch.float32)(batch.last, batch.log_mass)
    draft_of = torch.full((63,), -1).index_put_((DRAFT_IDS,), torch.arange(len(DRAFT_IDS)))
    return model, batch, law, draft_of, logits.softmax(1)


def _by_definition(model, batch, p_t, weights: LossWeights):
    rows = model(batch)
    block = batch.tokens.shape[1]
    p_d = torch.zeros(len(rows.hidden), 63).index_copy(1, DRAFT_IDS, slot_logits(model, rows).softmax(1))
    total, entropy, distance, confidence, of_all = 0.0, 0.0, 0.0, 0.0, 0.0
    for row in range(len(p_d)):
        anchor, slot = divmod(row, block)
        if not batch.valid[anchor, slot]:
            continue
        weight = math.exp(-slot / weights.decay)
        token = int(batch.tokens[anchor, slot])
        l1 = (p_d[row] - p_t[batch.law_rows[anchor, slot]]).abs().sum()
        ce = -p_d[row, token].log() if token in DRAFT_IDS else torch.tensor(0.0)
        of_all += weight
        soft = -p_t[batch.law_rows[anchor, slot], :][DRAFT_IDS] @ p_d[row][DRAFT_IDS].log()
        total = total + weight * (weights.cross_entropy * ce + weights.distance * l1 + weights.soft * soft)
        entropy, distance = entropy + weight * float(ce.detach()), distance + weight * float(l1.detach())
        if rows.confidence is not None:
            accepted = (1 - l1 / 2).detach()
            bce = functional.binary_cross_entropy_with_logits(rows.confidence[row], accepted)
            total = total + weight * weights.confidence * bce
            confidence += weight * float(bce.detach())
    return total / of_all, entropy / of_all, distance / of_all, confidence / of_all


@pytest.mark.parametrize("soft", [0.0, 0.6])
@pytest.mark.parametrize("chunk", [1, 40, 1 << 17])
@pytest.mark.parametrize(("head", "confidence"), [("vanilla", True), ("rnn", True), ("none", False)])
def test_loss_and_every_gradient_follow_the_definition(monkeypatch, head, confidence, chunk, soft):
    monkeypatch.setattr(losses, "_CHUNK_ELEMENTS", chunk)
    monkeypatch.setattr(losses, "_LOGIT_ROWS", 9 if chunk == 40 else 1024)
    weights = LossWeights(0.3, 0.8, 0.7, soft, 2.5)
    model, batch, law, draft_of, p_t = _case(head, confidence=confidence)
    assert not batch.valid.all()
    assert (draft_of[batch.tokens] < 0).any()
    assert (draft_of[batch.tokens] >= 0).any()
    parts = draft_loss(model, model(batch), batch, law, draft_of, weights)
    parts.total.backward()
    mine = {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}
    model.zero_grad()
    total, entropy, distance, bce = _by_definition(model, batch, p_t, weights)
    total.backward()
    assert float(parts.total.detach()) == pytest.approx(float(total.detach()), rel=1e-5)
    assert (parts.cross_entropy, parts.distance) == pytest.approx((entropy, distance), rel=1e-5)
    assert parts.confidence == pytest.approx(bce, rel=1e-5)
    plain = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    assert mine.keys() == plain.keys() == dict(model.named_parameters()).keys()
    for name, gradient in plain.items():
        torch.testing.assert_close(mine[name], gradient, atol=1e-6, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


def test_gradients_of_the_slot_loss_are_those_of_finite_differences():
    chance = torch.Generator().manual_seed(1)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=chance, dtype=torch.float64).requires_grad_()

    hidden, inner, w2 = normal(5, 4), normal(5, 3), normal(7, 3)
    head = normal(7, 4).detach()
    law = torch.rand(2, 9, generator=chance, dtype=torch.float64).softmax(1)[:, :7]
    tokens = torch.tensor([0, -1, 3, 6, 3])
    slots = SlotTargets(law, 1 - law.sum(1), torch.tensor([0, 1, 1, 0, 1]), tokens, torch.randn(5, dtype=torch.float64))
    weight = torch.tensor([0.3, 0.1, 0.0, 0.2, 0.4], dtype=torch.float64)

    def loss(hidden, inner, w2):
        return losses._SlotLoss.apply(hidden, inner, w2, head, slots, weight, (0.4, 0.9, 0.5), torch.float64)[0]

    assert torch.autograd.gradcheck(loss, (hidden, inner, w2))
    assert torch.autograd.gradcheck(lambda h: loss(h, None, None), (hidden,))


def test_the_target_s_law_is_its_softmax_on_the_draft_ids():
    _, _, law, _, p_t = _case()
    torch.testing.assert_close(law.probabilities, p_t[:, DRAFT_IDS], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(law.outside(), 1 - p_t[:, DRAFT_IDS].sum(1), atol=1e-6, rtol=1e-4)
    assert law.outside().max() > 0.5


def test_a_drafter_equal_to_its_target_has_no_distance_and_is_accepted():
    model, batch, _, draft_of, _ = _case()
    logits = slot_logits(model, model(batch)).detach()
    same = TargetLaw(logits.softmax(1))
    rows = torch.arange(len(logits)).view(batch.tokens.shape)
    batch = replace(batch, law_rows=rows, log_mass=torch.zeros(len(logits)))
    parts = draft_loss(model, model(batch), batch, same, draft_of, LossWeights())
    assert parts.distance == pytest.approx(0, abs=1e-5)
    torch.testing.assert_close(parts.acceptance, batch.valid.float())
