"""What a cache would have saved of a split's requests: for whoever pays for the answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from keynet.evaluation.closed_loop import SINGLE_PASS
from keynet.evaluation.labels import Labels
from keynet.evaluation.records import Record, Sheet
from keynet.replay.closed_loop import HIT, ReplayResult

ANSWERED, WRONGLY, TOKENS = "answered_at_", "answered_wrongly_at_", "tokens_saved_at_"


def savings_records(
    sheet: Sheet, labels: Labels, passes: Mapping[str, ReplayResult], budget: float, reason: str
) -> list[Record]:
    """Return what single passes of one budget come to together.

    Args:
        sheet: Of all requests.
        labels: Of all requests; what no pass has is asked upstream.
        passes: By subset; each pattern of modalities is a cache of its own.
        budget: Share of false hits among the served.
        reason: Why there is no pass, where there is none.
    """
    both = bool((labels.modalities == "image+text").any())
    own = [SINGLE_PASS, *(f"{SINGLE_PASS}:{one}_only" for one in ("image", "text") if both)]
    found = [passes[subset] for subset in own if subset in passes]
    if not found:
        return [sheet.figure(f"{ANSWERED}{budget:g}", None, n=len(labels), note=reason)]
    hits, served = sum(one.hits for one in found), sum(one.num_served for one in found)
    records = [
        sheet.figure(f"{ANSWERED}{budget:g}", hits / len(labels), n=len(labels)),
        sheet.figure(
            f"{WRONGLY}{budget:g}", (served - hits) / served if served else None, n=served
        ),
    ]
    if labels.tokens.any():
        saved = sum(int(labels.tokens[one.order[one.outcome == HIT]].sum()) for one in found)
        told = f"of {labels.tokens.sum():,}"
        records.append(sheet.figure(f"{TOKENS}{budget:g}", saved, n=hits, unit="tokens", note=told))
    return records


def savings_lines(records: Iterable[Record]) -> tuple[str, ...]:
    """Return for each method what it would have saved, in a sentence."""
    by_metric = {(one.method, one.bits, one.metric): one for one in records}
    lines = []
    for (method, bits, metric), answered in by_metric.items():
        if not metric.startswith(ANSWERED) or bits is not None:
            continue
        budget = metric.removeprefix(ANSWERED)
        if answered.value is None:
            lines.append(
                f"What a cache with {method}'s key would have answered at {100 * float(budget):g} "
                f"% false hits is n/a: {answered.note}"
            )
            continue
        wrongly = by_metric[method, bits, f"{WRONGLY}{budget}"]
        tokens = by_metric.get((method, bits, f"{TOKENS}{budget}"))
        saved = f"{round(answered.value * answered.n):,} requests"
        if tokens is not None and tokens.value is not None:
            saved += f" and {tokens.value:,.0f} tokens ({tokens.note})"
        wrong = "" if wrongly.value is None else f"; {100 * wrongly.value:.2f} % of all it serves"
        lines.append(
            f"At {100 * float(budget):g} % false hits a cache with {method}'s key would have "
            f"answered {100 * answered.value:.1f} % of these {answered.n:,} requests rightly, "
            f"saving {saved}{wrong and wrong + ' would have been wrong'}."
        )
    return tuple(lines)
