"""What to expect of slots that are not drawn yet, and how far to believe a confidence: learnt from earlier rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from dspark_cli.engine.contracts import Draft

MEMORY = 256.0  # drafted rounds over which confidences are averaged
PRIOR_ROUNDS = 4.0
PRIOR_MEAN, PRIOR_VARIANCE, PRIOR_COVARIANCE = 0.7, 0.04, 0.02
HOPED, HOPED_ROUNDS = 0.9, 4.0  # of slots that were never judged: what is not tried is never learnt
STOOD_MEMORY = 64.0  # judged slots over which it is averaged how often one stands
TRUST_MEMORY = 48.0  # drafted rounds over which claims are held against what stood
DOUBT = 1.0  # standard deviations that a head may miss by before it is believed less
FADING = 0.8
LEAST, MOST = 0.01, 0.99


@dataclass
class Outlook:
    """Running averages over drafted rounds, by slot (0-based).

    ``mean[k]`` is the confidence of slot k; ``so_far[k]`` the mean confidence of slots 0 … k in one round, with its
    ``variance[k]`` and its ``covariance[k]`` with the mean of the later ones: a draft that began well goes on well.
    ``stood[k]`` is how often slot k stood where it was judged, over ``judged[k]`` rounds.
    ``claimed`` confidences of judged slots stand against ``right`` ones that stood; ``spread`` is their variance.
    """

    mean: list[float]
    so_far: list[float]
    variance: list[float]
    covariance: list[float]
    stood: list[float]
    judged: list[float]
    rounds: float = PRIOR_ROUNDS
    claimed: float = 0.0
    right: float = 0.0
    spread: float = 0.0
    trust: float = 1.0

    @classmethod
    def new(cls, block_size: int) -> Outlook:
        return cls(
            [PRIOR_MEAN] * block_size,
            [PRIOR_MEAN] * block_size,
            [PRIOR_VARIANCE] * block_size,
            [PRIOR_COVARIANCE] * block_size,
            [HOPED] * block_size,
            [HOPED_ROUNDS] * block_size,
        )

    def confidence(self, draft: Draft) -> Sequence[float]:
        """The draft's own confidences, or how often its slots stood so far."""
        return draft.confidence if draft.confidence is not None else self.stood[: len(draft.tokens)]

    def trusted(self, confidence: Sequence[float]) -> Sequence[float]:
        """Confidences as far as they deserve belief."""
        return confidence if self.trust == 1.0 else [c * self.trust for c in confidence]

    def ahead(self, slot: int, mean_so_far: float, end: int) -> list[float]:
        """Expected confidences of slots ``slot`` + 1 … ``end`` − 1, given the mean confidence of slots 0 … ``slot``."""
        shift = self.covariance[slot] / self.variance[slot] * (mean_so_far - self.so_far[slot] * self.trust)
        trust = self.trust
        return [min(max(mean * trust + shift, LEAST), MOST) for mean in self.mean[slot + 1 : end]]

    def fade(self) -> None:
        """A probe that did not dare to verify anything: old doubts count less, lest they last for ever."""
        self.claimed *= FADING
        self.right *= FADING
        self.spread *= FADING
        self.stood = [HOPED + FADING * (rate - HOPED) for rate in self.stood]
        self._weigh()

    def observe(self, shown: Sequence[float], verified: int, accepted: int) -> None:
        """Learn from one drafted round: from all its confidences, and from what the judged slots came to.

        Given c_k, whether slot k was admitted tells nothing more about x_k, so judged slots are fair samples.
        """
        self._learn_confidences(shown)
        keep = 1.0 - 1.0 / TRUST_MEMORY
        self.claimed *= keep
        self.right = self.right * keep + accepted
        self.spread *= keep
        for slot in range(min(accepted + 1, verified)):
            confidence = shown[slot]
            self.claimed += confidence
            self.spread += confidence * (1.0 - confidence)
            self.judged[slot] = count = min(self.judged[slot] + 1.0, STOOD_MEMORY)
            self.stood[slot] += ((slot < accepted) - self.stood[slot]) / count
        self._weigh()

    def _weigh(self) -> None:
        most = self.right + DOUBT * sqrt(self.spread + 1.0)
        self.trust = most / self.claimed if most < self.claimed else 1.0

    def _learn_confidences(self, shown: Sequence[float]) -> None:
        count = len(shown)
        if not count:
            return
        self.rounds = min(self.rounds + 1.0, MEMORY)
        rate = 1.0 / self.rounds
        mean, so_far, variance, covariance = self.mean, self.so_far, self.variance, self.covariance
        later = sum(shown)
        expected_later = sum(mean[:count])
        total = 0.0
        for slot in range(count):
            confidence = shown[slot]
            total += confidence
            later -= confidence
            expected_later -= mean[slot]
            mean[slot] += rate * (confidence - mean[slot])
            off = total / (slot + 1) - so_far[slot]
            so_far[slot] += rate * off
            variance[slot] += rate * (off * off - variance[slot])
            if slot + 1 < count:
                off_later = (later - expected_later) / (count - slot - 1)
                covariance[slot] += rate * (off * off_later - covariance[slot])
        # A head that always says the same would leave nothing to divide by.
        self.variance = [max(v, 1e-4) for v in variance]
