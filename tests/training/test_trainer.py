"""Training runs on a tiny target: they learn, they resume exactly, they refuse what does not fit."""

from __future__ import annotations

import pytest
import torch

from dspark_cli.engine.model_config import LayerShape, RopeConfig, TargetConfig
from dspark_cli.errors import DsparkError, UsageError
from dspark_cli.training.anchor_blocks import AnchorSampler, BlockMaker
from dspark_cli.training.feature_cache import FeatureCache, Origin
from dspark_cli.training.losses import LawMaker, LossWeights
from dspark_cli.training.prompt_synthesis import Dialogue
from dspark_cli.training.target_parts import TargetParts, draft_vocabulary, log_mass, read_target, start_weights
from dspark_cli.training.trainer import Budget, Course, HeldOut, Progress
from dspark_cli.training.training_run import DrafterShape, open_run
from tests.fakes.memory_weights import MemoryWeights

HIDDEN, VOCABULARY = 16, 40
TAPS = (0, 2, 3)


def tiny_target() -> TargetParts:
    """Weights of a target of 4 layers whose last ones can be begun from; its features are made by ``dialogues``."""
    shape = LayerShape(HIDDEN, 24, 4, 2, 8, 1e-6, RopeConfig(theta=500.0))
    config = TargetConfig("llama", shape, 4, VOCABULARY, True, 64, (None,) * 4)
    chance = torch.Generator().manual_seed(5)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=chance) * size[-1] ** -0.5

    tensors = {"model.embed_tokens.weight": normal(VOCABULARY, HIDDEN) * 8, "model.norm.weight": torch.ones(HIDDEN)}
    for index in range(4):
        prefix = f"model.layers.{index}."
        for name, size in {
            "self_attn.q_proj": (32, HIDDEN), "self_attn.k_proj": (16, HIDDEN), "self_attn.v_proj": (16, HIDDEN),
            "self_attn.o_proj": (HIDDEN, 32), "mlp.gate_proj": (24, HIDDEN), "mlp.up_proj": (24, HIDDEN),
            "mlp.down_proj": (HIDDEN, 24),
        }.items():  # fmt: skip
            tensors[f"{prefix}{name}.weight"] = normal(*size)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}{name}.weight"] = torch.ones(HIDDEN)
    return read_target(config, MemoryWeights(tensors))


def dialogues(count: int, target: TargetParts) -> list[Dialogue]:
    """Replies that go through the vocabulary in steps of three: a law that can be learned exactly."""
    found = []
    for number in range(count):
        step, length = 3, 20 + number % 5
        ids = [(7 * number + step * at) % VOCABULARY for at in range(length)]
        after = torch.tensor([(token + step) % VOCABULARY for token in ids])
        here = torch.tensor(ids)
        last = target.embedding[after] * 3  # the head is the embedding, so the next id is nearly certain
        features = torch.cat((target.embedding[here], target.embedding[after], last), 1)[:-1]
        found.append(Dialogue(number, tuple(ids), 4, number % 2 == 0, features.half()))
    return found


@pytest.fixture
def cache(tmp_path) -> FeatureCache:
    made = FeatureCache(tmp_path / "features", Origin("tiny", TAPS, HIDDEN, VOCABULARY))
    every = dialogues(90, tiny_target())
    made.add(every[:50], 50)
    made.add(every[50:], 90)
    return made


SHAPE = DrafterShape(
    3, layers=1, block_size=3, rank=8, draft_vocabulary=0, precision="float32", anchors_per_batch=32,
    anchors_per_sequence=8,
)  # fmt: skip


def _open(cache, run, shape=SHAPE, course=Course(), lines=None):  # noqa: B008 (frozen)
    tell = (lambda line: None) if lines is None else lines.append
    return open_run(cache, tiny_target(), shape, course, frozenset({1}), run, tell, lambda done, of: None)


@pytest.mark.parametrize(("optimizer", "head"), [("adamw", "vanilla"), ("muon", "rnn")])
def test_a_simple_law_is_learned(cache, tmp_path, optimizer, head):
    lines: list[Progress | HeldOut] = []
    shape = DrafterShape(
        3, layers=1, block_size=3, rank=8, head=head, draft_vocabulary=0, precision="float32", anchors_per_batch=64,
        anchors_per_sequence=8,
    )  # fmt: skip
    course = Course(optimizer=optimizer, lr=1e-2, warmup=5, held_out_steps=50)
    trainer = _open(cache, tmp_path / "run", shape, course, lines)
    before = trainer.judge()
    trainer.train(Budget(anchors=64 * 200))
    after = trainer.judge()
    assert before.accepted_length < 1.3
    assert after.accepted_length > 3.4
    assert after.greedy_length > 3.4
    assert [type(line) for line in lines] == [Progress, HeldOut] * 4
    assert lines[-2].anchors == 64 * 200
    assert lines[-2].acceptance[0] > 0.85


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_resumed_run_ends_with_the_very_weights_of_one_that_ran_through(cache, tmp_path, optimizer):
    course, budget = Course(optimizer=optimizer, lr=3e-3, warmup=4, held_out_steps=7), Budget(anchors=32 * 30)
    whole = _open(cache, tmp_path / "whole", course=course)
    assert not whole.resume(budget)
    whole.train(budget)
    for stops in ([1, 8, 13], [25], [29, 1]):
        run = tmp_path / f"run {stops}"
        for most in [*stops, None]:
            part = _open(cache, run, course=course)
            part.resume(budget)
            part.train(budget, most_steps=most)
        assert part.step == whole.step == 30
        for name, tensor in whole.finish()[1].items():
            assert torch.equal(tensor, part.finish()[1][name]), name
        assert part.judge() == whole.judge()


def test_more_budget_goes_on_from_before_the_rate_fell(cache, tmp_path):
    course = Course(lr=3e-3, warmup=1, fall=0.5)
    first = _open(cache, tmp_path / "run", course=course)
    first.train(Budget(anchors=32 * 20))
    more = _open(cache, tmp_path / "run", course=course)
    assert more.resume(Budget(anchors=32 * 60))
    assert more.step == 10
    more.train(Budget(anchors=32 * 60))
    whole = _open(cache, tmp_path / "whole", course=course)
    whole.train(Budget(anchors=32 * 60))
    for name, tensor in whole.finish()[1].items():
        assert torch.equal(tensor, more.finish()[1][name]), name
    # Little more budget: the fall has begun for it, too, so the last state is taken up.
    same = _open(cache, tmp_path / "run", course=course)
    assert same.resume(Budget(anchors=32 * 61))
    assert same.step == 60


def test_the_rate_rises_stays_and_falls_to_nothing():
    course = Course(lr=0.1, warmup=4, fall=0.25)
    assert [course.rate(step, 0.0) for step in range(5)] == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1])
    assert [course.rate(99, spent) for spent in (0.5, 0.75, 0.875, 1.0)] == pytest.approx([0.1, 0.1, 0.05, 0.0])


def test_growing_features_keep_their_order(cache, tmp_path):
    """A run that took in new shards resumes onto the same batches."""
    course, budget = Course(lr=3e-3, warmup=1), Budget(anchors=32 * 60)

    def opened(name):
        return open_run(
            cache, tiny_target(), SHAPE, course, frozenset({1}), tmp_path / name, lambda line: None,
            lambda done, of: None, growing=True,
        )  # fmt: skip

    whole, part = opened("whole"), opened("part")
    whole.train(budget, most_steps=10)
    part.train(budget, most_steps=10)
    cache.add(dialogues(20, tiny_target()), 110)
    whole.train(budget)
    again = opened("part")
    again.resume(budget)
    again.train(budget, most_steps=35)
    again = opened("part")
    again.resume(budget)
    again.train(budget)
    for name, tensor in whole.finish()[1].items():
        assert torch.equal(tensor, again.finish()[1][name]), name


def test_another_run_s_folder_or_a_damaged_checkpoint_is_refused(cache, tmp_path):
    budget = Budget(anchors=64)
    _open(cache, tmp_path / "run").train(budget)
    other = _open(cache, tmp_path / "run", course=Course(loss=LossWeights(decay=2.0)))
    with pytest.raises(DsparkError, match="other options"):
        other.resume(budget)
    path = tmp_path / "run" / "checkpoint.pt"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(DsparkError, match="damaged"):
        _open(cache, tmp_path / "run")


def test_what_cannot_be_meant_is_refused_before_any_work(cache, tmp_path):
    def shape(**more):
        return DrafterShape(3, **{"draft_vocabulary": 0, "precision": "float32", **more})

    for wrong, words in (
        (shape(taps=(0, 3)), "last one"),
        (shape(taps=(1,)), "do not hold"),
        (shape(taps=(2, 0)), "must rise"),
        (shape(draft_vocabulary=41), "cannot have 41"),
        (shape(precision="int8"), "unknown precision"),
    ):
        with pytest.raises(UsageError, match=words):
            _open(cache, tmp_path / "run", wrong)
    with pytest.raises(UsageError, match="budget"):
        Budget()
    few = FeatureCache(tmp_path / "few", Origin("tiny", TAPS, HIDDEN, VOCABULARY))
    few.add(dialogues(5, tiny_target()), 5)
    with pytest.raises(DsparkError, match="too few"):
        _open(few, tmp_path / "run")


def test_the_draft_vocabulary_holds_the_most_frequent_ids_and_those_that_must_be_there():
    counts = torch.tensor([5, 0, 9, 5, 1, 5])
    assert draft_vocabulary(counts, 3, frozenset({1})).tolist() == [0, 1, 2]
    assert draft_vocabulary(counts, 4, frozenset({1})).tolist() == [0, 1, 2, 3]


def test_a_reduced_run_drafts_from_its_own_ids(cache, tmp_path):
    trainer = _open(cache, tmp_path / "run", DrafterShape(3, block_size=3, draft_vocabulary=12, precision="float32"))
    trainer.train(Budget(anchors=2000))
    config, tensors, ids = trainer.finish()
    assert config.draft_vocab_size == len(ids) == 12
    assert 1 in ids
    assert tensors["markov_head.markov_w2.weight"].shape == (12, 64)
    # New features may be more frequent elsewhere: a run keeps the vocabulary that it began with.
    cache.add(dialogues(9, tiny_target())[2::3] * 30, 200)
    again = _open(cache, tmp_path / "run", DrafterShape(3, block_size=3, draft_vocabulary=12, precision="float32"))
    assert again.resume(Budget(anchors=4000))
    assert torch.equal(again.finish()[2], ids)


def test_log_mass_is_kept_beside_the_features_and_made_again_for_others(cache, tmp_path):
    target = tiny_target()
    _open(cache, tmp_path / "run")
    kept = list((cache.folder / "log-mass").iterdir())
    assert len(kept) == 2
    shard = cache.read(cache.shards[0])
    last = shard.features[:, -HIDDEN:].float()
    expected = (torch.nn.functional.rms_norm(last, (HIDDEN,), eps=1e-6) @ target.head.T).logsumexp(1)
    laws = LawMaker(target.norm, target.eps, target.head, torch.float32)
    torch.testing.assert_close(log_mass(laws, last, shard.ids.long()), expected)
    rough = LawMaker(target.norm, target.eps, target.head, torch.bfloat16)
    torch.testing.assert_close(log_mass(rough, last, shard.ids.long()), expected, atol=0.05, rtol=0.005)


def test_layers_begin_as_the_target_s_last():
    target = tiny_target()
    from dataclasses import replace

    from dspark_cli.training.draft_model import DraftModel
    from dspark_cli.training.training_run import drafter_config

    config = drafter_config(replace(SHAPE, layers=2), target, TAPS)
    model = DraftModel(config, target.embedding, target.head)
    start_weights(model, target, 0, True)
    tensors = model.state_dict()
    for mine, theirs in ((0, 2), (1, 3)):
        for name in ("self_attn.q_proj", "mlp.down_proj"):
            assert torch.equal(
                tensors[f"layers.{mine}.{name}.weight"], target.weights.tensor(f"model.layers.{theirs}.{name}.weight")
            )
    # With unit rows in, queries come out of the norm as long as the target has them on average.
    q = torch.randn(4000, HIDDEN) @ tensors["layers.0.self_attn.q_proj.weight"].T
    assert float(tensors["layers.0.self_attn.q_norm.weight"][0]) == pytest.approx(
        float(q.square().mean().sqrt()), rel=0.05
    )


def test_batches_hold_the_same_anchors_for_the_same_seed_only(cache):
    from dspark_cli.training.anchor_blocks import sequences_of

    shards = list(cache)
    every = sequences_of(shards, [torch.zeros(len(shard.ids)) for shard in shards])

    def drawn(seed: int) -> list[list[int]]:
        sampler = AnchorSampler(every, seed, 16, 4, BlockMaker(3, HIDDEN))
        return [sampler.batch().anchor_at.tolist() for _ in range(60)]

    assert drawn(3) == drawn(3) != drawn(4)
    for batch in drawn(3):
        assert all(3 <= at <= 23 for at in batch)
