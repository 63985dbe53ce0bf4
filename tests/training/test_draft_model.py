"""The trained module against the engine's drafter and the plain computation, on the same weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from dspark_kernels import select

from dspark_cli.engine.checkpoints.drafter_formats import open_drafter
from dspark_cli.engine.checkpoints.hf_folder import open_folder
from dspark_cli.engine.contracts import Rows
from dspark_cli.engine.drafters.dspark import DSparkDrafter
from dspark_cli.engine.targets.torch_target import TorchTarget
from dspark_cli.training.anchor_blocks import BlockMaker, CachedSequence
from dspark_cli.training.draft_model import DraftModel
from dspark_cli.training.losses import slot_logits
from tests.fakes.memory_weights import MemoryWeights
from tests.fakes.random_drafter import drafter_config, plain_block, plain_slot, random_tensors

GOLDEN = Path(__file__).parents[1] / "golden" / "qwen3-tiny"

CONFIGS = {
    "vanilla": drafter_config("vanilla"),
    "gated": drafter_config("gated"),
    "rnn": drafter_config("rnn"),
    "none": drafter_config("none", with_markov=False),
    "no confidence head": drafter_config("rnn", confidence=False),
    "confidence without markov": drafter_config("gated", with_markov=False),
    "block 1": drafter_config("gated", block_size=1),
    "three taps, one layer": drafter_config("vanilla", layers=1, vocab=123, taps=(-1, 0, 2)),
}


def made(config, tensors) -> DraftModel:
    model = DraftModel(config, tensors["embed_tokens.weight"], tensors["lm_head.weight"])
    rest = {name: one for name, one in tensors.items() if name not in ("embed_tokens.weight", "lm_head.weight")}
    model.load_state_dict(rest)
    return model


def sequence(config, length: int, seed: int = 3, reply_start: int = 1) -> CachedSequence:
    chance = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, config.vocab_size, (length,), generator=chance, dtype=torch.int32)
    features = torch.randn(length, (len(config.taps) + 1) * config.layer.hidden_size, generator=chance)
    features[-1] = 0
    return CachedSequence(ids, features, torch.full((length,), 3.0), reply_start, True)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_every_slot_of_every_anchor_equals_the_plain_computation(config):
    tensors = random_tensors(config)
    model, hidden = made(config, tensors), config.layer.hidden_size
    chosen = [
        (sequence(config, 21), torch.tensor([1, 2, 12, 19])),
        (sequence(config, 9, seed=4), torch.tensor([1])),
        (sequence(config, 30, seed=5), torch.tensor([3, 17, 22])),
    ]
    batch = BlockMaker(config.block_size, hidden).make(chosen)
    with torch.no_grad():
        rows = model(batch)
        logits = slot_logits(model, rows).view(len(batch.anchor_at), config.block_size, -1)
    index = 0
    for one, anchors in chosen:
        for at in anchors.tolist():
            expected = plain_block(config, tensors, one.features[:at, :-hidden], int(one.ids[at]))
            for slot in range(config.block_size):
                if at + slot + 1 >= len(one.ids):
                    assert not batch.valid[index, slot]
                    continue
                assert batch.valid[index, slot]
                assert batch.tokens[index, slot] == one.ids[at + slot + 1]
                past = one.ids[at : at + slot + 1].tolist()
                plain, confidence = plain_slot(config, tensors, expected, past)
                torch.testing.assert_close(logits[index, slot].double(), plain, atol=1e-4, rtol=1e-4)
                if confidence is None:
                    assert rows.confidence is None
                else:
                    got = float(rows.confidence.view(-1, config.block_size)[index, slot])
                    assert got == pytest.approx(confidence, abs=1e-4)
            index += 1
    assert index == len(batch.anchor_at)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_the_backbone_equals_the_engine_s(config):
    tensors = random_tensors(config, seed=2)
    model, hidden = made(config, tensors), config.layer.hidden_size
    drafter = DSparkDrafter(config, MemoryWeights(tensors), select("auto", "cpu"))
    one = sequence(config, 40)
    anchors = torch.tensor([1, 8, 31])
    with torch.no_grad():
        rows = model.backbone(BlockMaker(config.block_size, hidden).make([(one, anchors)]))
    for index, at in enumerate(anchors.tolist()):
        context = drafter.new_context()
        drafter.extend(context, one.ids[:at].tolist(), one.features[:at, :-hidden])
        with torch.inference_mode():
            engine = drafter._block(context, int(one.ids[at])).clone()
        mine = rows[index * config.block_size : (index + 1) * config.block_size]
        torch.testing.assert_close(mine, engine, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["drafter-vanilla", "drafter-gated", "drafter-rnn", "drafter-none"])
def test_golden_drafters_fed_with_training_blocks_draft_as_the_reference_did(name):
    golden = json.loads((GOLDEN / "golden.json").read_text())
    checkpoint, opened = open_folder(GOLDEN / "target"), open_drafter(GOLDEN / name)
    target = TorchTarget(checkpoint.config, checkpoint.weights, select("auto", "cpu"))
    tensors = {key: opened.weights.tensor(key) for key in ("embed_tokens.weight", "lm_head.weight")}
    model = DraftModel(opened.config, *tensors.values())
    model.load_state_dict({key: opened.weights.tensor(key) for key in model.state_dict()})
    block, hidden = opened.config.block_size, opened.config.layer.hidden_size
    blocks = BlockMaker(block, hidden)
    checked = 0
    for run in golden["runs"]:
        if run["drafter"] != name or run["confidence_threshold"]:
            continue
        ids = [*run["prompt_ids"], *run["output_ids"]]
        (read,) = target.forward([Rows(target.new_cache(), tuple(ids), len(ids))], opened.config.taps)
        at, rounds, chosen = len(run["prompt_ids"]), [], []
        for one in run["rounds"]:
            # The drafted tokens stand as the true ones after the anchor, then one more that is never looked at.
            text = torch.tensor([*ids[:at], one["anchor"], *one["draft"], 0], dtype=torch.int32)
            features = torch.cat((read.taps[:at], torch.zeros(at, hidden)), 1)
            features = torch.cat((features, torch.zeros(block + 2, features.shape[1])))
            mass = torch.zeros(len(text))
            chosen.append((CachedSequence(text, features, mass, 1, True), torch.tensor([at])))
            rounds.append(one)
            at += one["accepted"] + 1
            if at + 1 >= len(ids):
                break
        with torch.no_grad():
            batch = blocks.make(chosen)
            rows = model(batch)
            drafts = slot_logits(model, rows).argmax(1).view(-1, block)
        assert drafts.tolist() == [one["draft"] for one in rounds]
        if rounds[0].get("confidence_logits"):
            expected = torch.tensor([one["confidence_logits"] for one in rounds])
            torch.testing.assert_close(rows.confidence.view(-1, block), expected, atol=2e-4, rtol=0)
        checked += len(rounds)
    assert checked > 50


def test_what_is_learned_is_what_a_file_holds_without_embedding_and_head():
    for config in CONFIGS.values():
        tensors = random_tensors(config)
        names = set(made(config, tensors).state_dict())
        assert names == set(tensors) - {"embed_tokens.weight", "lm_head.weight"}


def test_a_reduced_vocabulary_cuts_the_rows_of_head_and_w2_only():
    config = replace(drafter_config("vanilla"), draft_vocab_size=20)
    tensors = random_tensors(drafter_config("vanilla"))
    model = DraftModel(config, tensors["embed_tokens.weight"], tensors["lm_head.weight"][:20])
    shapes = {name: tuple(one.shape) for name, one in model.state_dict().items()}
    assert shapes["markov_head.markov_w2.weight"] == (20, 5)
    assert shapes["markov_head.markov_w1.weight"] == (63, 5)
    with pytest.raises(ValueError, match="do not fit"):
        DraftModel(config, tensors["embed_tokens.weight"], tensors["lm_head.weight"])


def test_bfloat16_products_give_the_gradients_of_float32_up_to_their_rounding():
    config = drafter_config("vanilla", vocab=123)
    tensors = random_tensors(config)
    batch = BlockMaker(config.block_size, 24).make([(sequence(config, 40), torch.arange(5, 30))])
    gradients = []
    for compute in (torch.float32, torch.bfloat16):
        model = made(config, tensors)
        model.compute = compute
        rows = model(batch)
        (rows.hidden.square().mean() + slot_logits(model, rows).float().logsumexp(1).mean()).backward()
        gradients.append({name: one.grad for name, one in model.named_parameters() if one.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, exact in gradients[0].items():
        assert torch.cosine_similarity(gradients[1][name].flatten(), exact.flatten(), dim=0) > 0.995, name
