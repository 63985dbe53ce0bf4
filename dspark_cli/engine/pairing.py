"""Does this drafter fit this target? Asked once, before any weight of the drafter is read."""

from __future__ import annotations

from itertools import pairwise

from dspark_cli.engine.model_config import DrafterConfig, TargetConfig
from dspark_cli.errors import PairingError

_WAY_OUT = "use a drafter that was trained for this model, or --drafter ngram, which fits any"


def check_pairing(
    drafter: DrafterConfig,
    target: TargetConfig,
    drafter_tokenizer: str | None = None,
    target_tokenizer: str | None = None,
) -> None:
    """Refuse a drafter that was made for another target.

    Args:
        drafter: the drafter's config.
        target: the target's config.
        drafter_tokenizer: fingerprint of the tokenizer that the drafter ships; None where it ships none.
        target_tokenizer: fingerprint of the target's tokenizer, made in the same way.

    Raises:
        PairingError: the first thing that does not fit, in one sentence.
    """
    hidden, target_hidden = drafter.layer.hidden_size, target.layer.hidden_size
    if hidden != target_hidden:
        raise _misfit(f"the drafter has hidden size {hidden}, the target {target_hidden}")
    if drafter.target_layers not in (None, target.layers):
        raise _misfit(
            f"the drafter was made for a target of {drafter.target_layers} layers, this one has {target.layers}"
        )
    _check_taps(drafter.taps, target.layers)
    if drafter.vocab_size != target.vocab_size:
        raise _misfit(f"the drafter has a vocabulary of {drafter.vocab_size} tokens, the target of {target.vocab_size}")
    if not 0 <= drafter.mask_token_id < target.vocab_size:
        raise _misfit(
            f"the drafter's mask token {drafter.mask_token_id} is not among the target's {target.vocab_size} tokens"
        )
    if drafter_tokenizer is not None and target_tokenizer is not None and drafter_tokenizer != target_tokenizer:
        raise _misfit("the drafter ships another tokenizer than the target's, so their token ids mean different words")


def _check_taps(taps: tuple[int, ...], layers: int) -> None:
    """Tap ids rise strictly from −1 (the embedding output); the final layer's output is no tap."""
    shown = ", ".join(map(str, taps))
    if not taps:
        raise _misfit("the drafter taps no layer of the target")
    if any(after <= before for before, after in pairwise(taps)):
        raise _misfit(f"the drafter's tapped layers ({shown}) do not strictly increase")
    if taps[0] < -1:
        raise _misfit(f"the drafter taps layer {taps[0]}, and -1, the embedding output, is the lowest there is")
    if taps[-1] == layers - 1:
        raise _misfit(f"the drafter taps layer {taps[-1]}, the target's final layer, which no drafter may read")
    if taps[-1] >= layers:
        raise _misfit(f"the drafter taps layer {taps[-1]}, and the target has only {layers} layers (0 to {layers - 1})")


def _misfit(cause: str) -> PairingError:
    return PairingError(cause, _WAY_OUT)
