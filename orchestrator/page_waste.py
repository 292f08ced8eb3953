"""The report's account of what the bytes were used for: by length and state of requests, and what was wasted."""

from collections.abc import Mapping, Sequence

from orchestrator.markup import Value, figures, folded, nothing, paragraph, table
from orchestrator.plots_bars import Bars, Part, bars_svg
from orchestrator.shown import NO_LEDGER, Focus, Shown, Sweep
from orchestrator.shown_quantities import leaders
from trials.result import TrialResult
from trials.units import byte_unit

_Kind = tuple[str, str, str, str]  # key of the ledger, words, colour, hatch
_SEARCHED = 12  # block sizes that are drawn
_LENGTHS_OF = 2  # candidates whose request lengths are drawn; the table has all in focus
_BY_LENGTH: tuple[_Kind, ...] = (
    ("full", "in full blocks", "blue", ""),
    ("tail", "in tail blocks", "sky", ""),
    ("tail_slack_filled_later", "tail slack, filled later", "grey", ""),
    ("tail_slack_never_filled", "tail slack, never filled", "vermilion", "//"),
    ("reserved_ahead", "reserved ahead", "purple", ".."),
)  # fmt: skip
_BY_STATE: tuple[_Kind, ...] = (
    ("full", "decoding, full blocks", "blue", ""),
    ("tail", "decoding, tail blocks", "sky", ""),
    ("prefill", "prefill or paused", "yellow", ""),
    ("tail_slack", "tail slack", "vermilion", "//"),
    ("reserved_ahead", "reserved ahead", "purple", ".."),
    ("cached", "cached", "green", ""),
)  # fmt: skip
_WASTE: tuple[_Kind, ...] = (
    ("padding", "padding", "orange", ""),
    ("remainder", "remainder", "sky", ""),
    ("reserve", "reserve", "yellow", ""),
    ("tail_slack_never_filled", "tail slack never filled", "vermilion", "//"),
    ("stranded_watermark", "stranded: watermark", "green", ".."),
    ("stranded_head_of_line", "stranded: head of line", "blue", "xx"),
    ("stranded_slots", "stranded: slots", "purple", "--"),
)  # fmt: skip


def breakdown(sweep: Sweep) -> str:
    """Byte-seconds by length of request, and by the state of what they held."""
    if not sweep.focus:
        return nothing(NO_LEDGER)
    drawn = [
        (bars_svg(_length_bars(f), f"length-{f.key}"), f"{f.title}: byte-seconds by prompt + answer length.")
        for f in sweep.focus[:_LENGTHS_OF]
    ]
    results = [f.result for f in sweep.focus]
    rows = tuple(f.shown.label for f in sweep.focus)
    states = _bars("By state of what held them", rows, [r.ledger.by_state for r in results], _BY_STATE)
    drawn.append((bars_svg(states, "states"), "Winner and controls. Shared tokens count once a holder here."))
    note = (
        "Over the steps inside the window that gave a request a token. "
        "full + tail + prefill - shared is the payload."
    )
    return (
        figures(drawn) + paragraph(note, "note") + folded("Data", *map(_length_table, sweep.focus), _states(sweep))
    )


def _length_bars(focus: Focus) -> Bars:
    classes = _classes(focus.result)
    values = [
        {key: _of_length(by, key) for key, *_ in _BY_LENGTH}
        for by in (focus.result.ledger.by_length[c] for c in classes)
    ]
    return _bars(focus.title, tuple(f"{c} tokens" for c in classes), values, _BY_LENGTH)


def _classes(result: TrialResult) -> list[str]:
    """Length classes, short to long; they begin with their lowest length."""
    return sorted(result.ledger.by_length, key=lambda name: int(name.split("-")[0]))


def _of_length(by: Mapping[str, float], key: str) -> float:
    if key == "tail_slack_filled_later":
        return max(_of_length(by, "tail_slack") - _of_length(by, "tail_slack_never_filled"), 0.0)
    return by.get(f"{key}_byte_seconds", 0.0)


def _bars(
    title: str,
    rows: tuple[str, ...],
    found: Sequence[Mapping[str, float]],
    kinds: Sequence[tuple[str, str, str, str]],
) -> Bars:
    """Byte-seconds in the unit in which the longest bar is read."""
    most = max((sum(by.get(key, 0.0) for key, *_ in kinds) for by in found), default=0.0)
    unit, scale = byte_unit(most)
    parts = tuple(
        Part(words, colour, tuple(by.get(key, 0.0) / scale for by in found), hatch)
        for key, words, colour, hatch in kinds
    )
    return Bars(title, f"{unit} x s", rows, parts, "no byte was held over time")


def _words(kinds: Sequence[_Kind]) -> list[str]:
    return [words for _, words, *_ in kinds]


def _length_table(focus: Focus) -> str:
    by_length = focus.result.ledger.by_length
    head = [
        "prompt + answer tokens",
        "requests",
        "cached tokens",
        "preemptions",
        *(words for _, words, *_ in _BY_LENGTH),
    ]
    rows: list[list[Value]] = [
        [c, *(by_length[c].get(k, 0.0) for k in ("requests", "cached_tokens", "preemptions")),
         *(_of_length(by_length[c], key) for key, *_ in _BY_LENGTH)]
        for c in _classes(focus.result)
    ]  # fmt: skip
    return table(f"By length of request, byte-seconds: {focus.title}", head, rows)


def _states(sweep: Sweep) -> str:
    head = ["candidate", *_words(_BY_STATE), "of it shared"]
    rows: list[list[Value]] = []
    for s in sweep.shown:
        if s.results:
            state = s.results[0].ledger.by_state
            rows.append([s.label, *(state.get(key, 0.0) for key, *_ in _BY_STATE), state.get("shared", 0.0)])
    return table("By state, byte-seconds", head, rows)


def waste(sweep: Sweep) -> str:
    """Byte-seconds that could not serve declared work, by kind; never-filled slack and stranded bytes apart."""
    if not sweep.focus:
        return nothing(NO_LEDGER)
    beside = _waste_bars("Winner beside controls", [f.shown for f in sweep.focus])
    leads = leaders(sweep)
    alone = _waste_bars("Searched, by block size", [s for s in sweep.shown if s.label in leads][:_SEARCHED])
    captions = ("Winner (or nearest miss), default and controls.", "The best that was searched at each block size.")
    drawn = [(bars_svg(b, f"waste-{i}"), captions[i]) for i, b in enumerate((beside, alone))]
    head = [
        "candidate",
        *(words for _, words, *_ in _WASTE),
        "total",
        "per qualified token",
        "not waste: slack filled later",
    ]
    rows: list[list[Value]] = []
    for s in sweep.shown:
        if s.results:
            m = s.results[0].metrics
            by = m.waste_byte_seconds
            rows.append([s.label, *(by.get(key, 0.0) for key, *_ in _WASTE), by.get("total"),
                         m.waste_per_qualified_token, by.get("tail_slack_filled_later", 0.0)])  # fmt: skip
    note = (
        "Only what cannot serve declared work. Stranded: free or cached while something waits that may not take "
        "it, by cause. Free bytes with nothing waiting are no waste. First repeat, over the window."
    )
    return (
        figures(drawn) + paragraph(note, "note")
        + folded("Data", table("Waste, byte-seconds", head, rows))
    )  # fmt: skip


def _waste_bars(title: str, of: Sequence[Shown]) -> Bars:
    ended = [s for s in of if s.results]
    found = [s.results[0].metrics.waste_byte_seconds for s in ended]
    bars = _bars(title, tuple(s.label for s in ended), found, _WASTE)
    return Bars(bars.title, bars.unit, bars.rows, bars.parts, "nothing was wasted")
