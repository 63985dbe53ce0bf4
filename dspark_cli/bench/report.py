"""A bench result as a table for people, and as words that say what to do."""

from __future__ import annotations

from collections.abc import Sequence

from dspark_cli.bench.identity import SAME, TIE, Identity
from dspark_cli.bench.modes import PLAIN
from dspark_cli.bench.result import ALL, BenchResult, Comparison
from dspark_cli.bench.samples import DraftTotals
from dspark_cli.bench.statistics import FASTER, SLOWER, PairedRatio, Spread

NONE = "–"
FEW_PAIRS = 20  # with fewer pairs a gain that differs from prompt to prompt is easily missed
Row = tuple[str, ...]


def render(result: BenchResult) -> str:
    """The whole report, lines that end in a newline each."""
    parts = [
        _head(result),
        _speed_table(result),
        _draft_table(result),
        _step_table(result),
        "\n".join(_identity_line(identity) for identity in result.identities),
        "\n".join(f"{item.mode}: not measured, {item.reason}." for item in result.unavailable),
        "\n".join(conclusions(result)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def conclusions(result: BenchResult) -> list[str]:
    """Sentences: what is faster than what, beyond doubt, and which schedule to use."""
    if not result.samples:
        return ["Nothing was measured."]
    sentences = []
    for mode in result.modes:
        comparison = result.compare(mode, PLAIN) if mode != PLAIN else None
        if comparison is not None:
            is_ours = any(sample.summary is not None for sample in result.of(mode))
            sentences += _about_schedule(result, comparison) if is_ours else [_about_peer(comparison)]
    return sentences


def _about_schedule(result: BenchResult, comparison: Comparison) -> list[str]:
    mode, ratio = comparison.mode, comparison.ratio
    by_kind = [result.compare(mode, PLAIN, kind) for kind in result.kinds]
    wins = [item.kind for item in by_kind if item is not None and item.ratio.verdict == FASTER]
    losses = [item.kind for item in by_kind if item is not None and item.ratio.verdict == SLOWER]
    factor = f"{mode} makes {ratio.ratio:.2f} times the tokens a second of plain decoding {_interval(ratio)}"
    if ratio.verdict == SLOWER:
        gain = f" It gains on {_listed(wins)} alone." if wins else ""
        return [f"{factor}: it LOSES here.{gain} Use --schedule off."]
    if ratio.verdict == FASTER:
        loss = f" It loses on {_listed(losses)}: use --schedule off there." if losses else ""
        sure = f" By kind the gain is beyond doubt on {_listed(wins)}." if wins and len(wins) < len(by_kind) else ""
        return [f"{factor}: it gains here.{sure}{loss}"]
    sentences = [f"{factor}: over all prompts no difference is seen."]
    if wins:
        sentences.append(f"It gains on {_listed(wins)}.")
    if losses:
        sentences.append(f"It loses on {_listed(losses)}: use --schedule off there.")
    if not wins and not losses:
        few = f"{_counted(ratio.pairs, 'prompt')} cannot tell; more may. Until then " if ratio.pairs < FEW_PAIRS else ""
        sentences.append(f"{few or 'As no gain was found, '}--schedule off is the safe choice.")
    return [" ".join(sentences)]


def _about_peer(comparison: Comparison) -> str:
    ratio = _turned(comparison.ratio)
    words = {
        FASTER: "plain decoding here is faster",
        SLOWER: f"plain decoding here is SLOWER than {comparison.mode}",
    }.get(ratio.verdict, "no difference is seen")
    return (
        f"Plain decoding here makes {ratio.ratio:.2f} times the tokens a second of {comparison.mode} "
        f"{_interval(ratio)}: {words}."
    )


def _head(result: BenchResult) -> str:
    m = result.machine
    drafter = f"drafter {m.drafter or m.drafter_kind}, blocks of {m.block_size}" if m.block_size else "no drafter"
    cut = {
        "time": f" The time was up after {result.complete()} of {result.planned} prompts.",
        "interrupted": f" Interrupted after {result.complete()} of {result.planned} prompts.",
    }.get(result.stopped, "")
    long = f" Too long for the context and left out: {', '.join(result.left_out)}." if result.left_out else ""
    busy = (
        f"\nOther programs kept the machine busy when this began (load {m.load:.1f} on {_counted(m.cores, 'core')}): "
        "speeds are lower than they could be, and fewer --threads may be faster."
        if m.busy
        else ""
    )
    return (
        f"dspark {m.version} · {m.model} ({m.weights}, computed in {m.dtype}) · {drafter}\n"
        f"{m.cpu}, {_counted(m.cores, 'core')} · {m.device}, {_counted(m.threads, 'thread')} · "
        f"torch {m.torch} · {m.date}\n"
        f"Greedy replies of at most {result.max_new_tokens} tokens to {_counted(result.complete(), 'prompt')}, "
        f"the modes in turn.{cut}{long}{busy}"
    )


def _speed_table(result: BenchResult) -> str:
    rows: list[Row] = [
        ("mode", "prompts", "replies", "tokens/s", "(quartiles)", "against plain", "(95 %)", "", "first token")
    ]
    for kind in (*result.kinds, ALL):
        for mode in result.modes:
            spread, compared = result.speed(mode, kind), result.compare(mode, PLAIN, kind)
            first = result.first_token(mode, kind)
            is_plain = mode == PLAIN or compared is None
            rows.append(
                (
                    mode,
                    kind,
                    str(len(result.of(mode, kind))),
                    f"{spread.median:.1f}" if spread else NONE,
                    _quartiles(spread),
                    "" if is_plain or compared is None else f"{compared.ratio.ratio:.2f}×",
                    "" if is_plain or compared is None else _interval(compared.ratio),
                    "" if is_plain or compared is None else compared.ratio.verdict,
                    f"{first.median:.0f} ms" if first else NONE,
                )
            )
    return "Speed\n" + aligned(rows, right=(2, 3, 5, 8)) if result.samples else ""


def _draft_table(result: BenchResult) -> str:
    rows: list[Row] = [("mode", "prompts", "drafted", "verified", "accepted", "length", "accepted by position", "time")]
    for mode in result.modes:
        for kind in (*result.kinds, ALL):
            totals = DraftTotals.of(result.of(mode, kind))
            if not totals.drafted:
                continue
            length = totals.mean_accepted_length
            rows.append(
                (
                    mode,
                    kind,
                    f"{totals.draft_rounds} of {totals.rounds} rounds",
                    str(totals.verified),
                    str(totals.accepted),
                    f"{length:.2f}" if length is not None else NONE,
                    " ".join(NONE if p is None else f".{min(99, round(p * 100)):02d}" if p < 1 else "1.0"
                             for p in totals.acceptance),
                    " ".join(f"{part} {value:.0%}" for part, value in totals.time_split.items() if value >= 0.005),
                )
            )  # fmt: skip
    title = "Drafts (length: tokens a round with a draft; by position: given that the earlier ones were accepted)\n"
    return title + aligned(rows, right=(3, 4, 5)) if len(rows) > 1 else ""


def _step_table(result: BenchResult) -> str:
    if result.steps is None:
        return ""
    rows: list[Row] = [("rows", "ms", "against one row", "(95 %)")]
    for width, ms in zip(result.steps.widths, result.steps.medians, strict=True):
        ratio = result.steps.ratio(width)
        shown = ratio is not None and width > 1
        rows.append(
            (
                str(width),
                f"{ms:.1f}",
                f"{ratio.ratio:.2f}×" if ratio is not None and shown else "",
                _interval(ratio) if ratio is not None and shown else "",
            )
        )
    return f"One pass of the target by rows, {result.steps.depth} tokens in the cache\n" + aligned(
        rows, right=(0, 1, 2)
    )


def _identity_line(identity: Identity) -> str:
    against = f"{identity.mode} against {identity.against}"
    if identity.verdict == SAME:
        whole = "the only reply" if identity.replies == 1 else f"all {identity.replies} replies"
        return f"Greedy tokens, {against}: the same in {whole}."
    places = ", ".join(
        f"{item.prompt} at token {item.index + 1} ({'no gap' if item.gap is None else f'gap {item.gap:.1e}'})"
        for item in identity.differences
    )
    count = f"different in {len(identity.differences)} of {_counted(identity.replies, 'reply', 'replies')}"
    if identity.verdict == TIE:
        return f"Greedy tokens, {against}: {count}, each where two tokens tie within rounding: {places}."
    return f"Greedy tokens, {against}: {count}, and rounding does NOT explain it: {places}."


def aligned(rows: Sequence[Row], right: Sequence[int] = ()) -> str:
    """Columns two spaces apart, those in ``right`` flush right, no spaces at the ends of lines."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _quartiles(spread: Spread | None) -> str:
    return f"({spread.low:.1f}–{spread.high:.1f})" if spread and spread.count > 1 else ""


def _interval(ratio: PairedRatio) -> str:
    if ratio.low is None or ratio.high is None:
        return "(one pair)" if ratio.pairs == 1 else f"({ratio.pairs} pairs)"
    return f"({ratio.low:.2f}–{ratio.high:.2f})"


def _turned(ratio: PairedRatio) -> PairedRatio:
    """The same comparison seen from the other side."""
    low, high = ratio.low, ratio.high
    return PairedRatio(
        1 / ratio.ratio,
        1 / high if high is not None else None,
        1 / low if low is not None else None,
        ratio.pairs,
        ratio.confidence,
    )


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def _counted(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
