"""report.html: complete, self-contained, escaped, and of knee.json's opinion."""

import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from made_sweep import NASTY, WINNER, build, made_outcome, save_outcome

from orchestrator import plots
from orchestrator.folder import SweepFolder
from orchestrator.page import write_report
from orchestrator.recipe import write_recipe
from search_spaces.outcome import Confirmed, FrontPoint, Interval, NearestMiss, Survival
from trials.result import load_result, save_result
from trials.units import SpecError

SECTIONS = (
    "answer", "knee", "verdicts", "proofs", "gain", "ledger", "tokens", "breakdown", "waste", "pressure", "churn",
    "latency",
    "search", "screened", "compare", "candidates", "hashes", "environment", "reproduce",
)  # fmt: skip
_VOID = {"meta", "link", "br", "hr", "img", "input", "path", "use", "rect"}


class _Page(HTMLParser):
    """Tags that open and close, text a section, and everything that leads out of the file."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sections: dict[str, str] = {}
        self.ids: list[str] = []
        self.outward: list[str] = []
        self.tables = self.plots = self.scripts = 0
        self._section = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tables += tag == "table"
        self.plots += found.get("role") == "img"
        self.ids += [found["id"] or ""] if "id" in found else []
        self.outward += [v for k, v in attrs if k in ("src", "href", "action") and v and not v.startswith("#")]
        self.scripts += tag == "script"
        if tag == "section":
            self._section = found["id"] or ""
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in _VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.sections[self._section] = self.sections.get(self._section, "") + data


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> SweepFolder:
    sweep = build(tmp_path_factory.mktemp("page") / "sweep")
    write_recipe(sweep.path)
    return sweep


@pytest.fixture(scope="module")
def html(made: SweepFolder) -> str:
    return write_report(made.path).read_text(encoding="utf-8")


@pytest.fixture
def sweep(made: SweepFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SweepFolder:
    """A copy to spoil. Its plots are not painted, only named and told: how they look is test_plots'."""
    monkeypatch.setattr(plots, "_painted", lambda *_: '<svg viewBox="0 0 1 1"></svg>')
    shutil.copytree(made.path, tmp_path / "sweep")
    return SweepFolder(tmp_path / "sweep")


def test_every_section_is_there_once_and_every_tag_is_closed(html: str) -> None:
    page = _Page(html)
    assert page.open == []
    assert tuple(s for s in page.sections if s) == SECTIONS
    assert len(page.ids) == len(set(page.ids))


def test_nothing_leads_to_the_network(html: str) -> None:
    assert _Page(html).outward == []
    assert not re.search(r"url\((?!#)|@import|<link", html)


def test_what_users_write_is_escaped(html: str) -> None:
    assert _Page(html).scripts == 3  # the library, the data and the page's own, packed by us
    assert NASTY not in html
    assert "&lt;script&gt;" in html


def test_it_is_small_and_every_plot_has_a_table(html: str) -> None:
    assert len(html.encode()) < 3_000_000
    page = _Page(html)
    assert page.plots >= 3 + 2 + 2
    assert page.tables >= 6
    assert html.count("<figcaption>") == page.plots + 4  # those of the comparison are made by the script


def test_the_answer_is_knee_jsons_with_evidence_and_interval(html: str) -> None:
    answer = _Page(html).sections["answer"]
    assert f"Use block size {WINNER}" in answer
    assert "modelled (roofline:h100-sxm)" in answer
    assert "mean of 2 repeats" in answer
    assert "is behind the best by 3.5 [1 to 6]" in answer


def test_another_winner_in_knee_json_is_another_winner_everywhere(sweep: SweepFolder) -> None:
    outcome = sweep.load_outcome()
    assert outcome is not None
    other = outcome.candidates[0]
    save_outcome(sweep, outcome.model_copy(update={"winner": other.label, "winner_trial": other.trials[0],
                                                   "sentence": f"Use {other.label}."}))  # fmt: skip
    write_recipe(sweep.path)
    html = write_report(sweep.path).read_text(encoding="utf-8")
    marked = set(re.findall(r'<tr class="chosen"><th scope="row">([^<]*)', html))
    assert marked == {f"{other.label} (chosen)", other.label}  # and its verdict
    assert html.count(f"Chosen: {other.label}.") == 3


def test_a_modelled_number_is_never_called_measured(html: str) -> None:
    page = _Page(html)
    assert not re.search(r"measured \((?:CPU|CUDA)|measured on", html)
    assert "TTFT p99, ms (modelled)" in page.sections["candidates"]
    assert "TTFT p99 (modelled)" in page.sections["knee"]


def test_a_measured_sweep_says_on_what_and_by_which_clock(sweep: SweepFolder) -> None:
    for record in sweep.load_trials():
        assert record.folder is not None
        result = load_result(record.folder / "result.json")
        replays = tuple(r.model_copy(update={"clock": "cpu"}) for r in result.replays)
        changed = result.model_copy(update={"evidence": "measured", "replays": replays})
        save_result(changed, record.folder / "result.json")
    write_recipe(sweep.path)
    page = _Page(write_report(sweep.path).read_text(encoding="utf-8"))
    assert "measured (CPU, process CPU time)" in page.sections["answer"]
    assert "TTFT p99, ms (measured on CPU)" in page.sections["candidates"]
    assert "modelled" not in page.sections["knee"]


def test_verdicts_controls_hashes_and_commands_are_shown(html: str, made: SweepFolder) -> None:
    page = _Page(html)
    assert all(word in page.sections["verdicts"] for word in ("ship", "reject", "contiguous (control)"))
    result = made.load_trials()[2].result
    assert result is not None
    assert all(
        h in page.sections["hashes"] for h in (result.hashes.spec, result.hashes.trace, result.hashes.engine)
    )
    assert "kvknee reproduce recipe.yaml" in page.sections["reproduce"]
    assert "kvknee trial trials/0002/attempt-1/spec.json" in page.sections["reproduce"]


def test_the_accounts_of_every_row_add_up_to_the_pool(html: str) -> None:
    start = html.index("At the peak, bytes")
    body = html[html.index("<tbody>", start) : html.index("</tbody>", start)]
    rows = [re.findall(r'<td class="n">([^<]*)', row) for row in body.split("</tr>") if "<td" in row]
    assert len(rows) == 4
    for cells in rows:
        pool, *accounts = (int(c.replace(",", "")) for c in cells[:-1])
        assert sum(accounts) == pool == 64 << 20


def test_an_unfinished_sweep_is_shown_as_far_as_it_came(sweep: SweepFolder) -> None:
    sweep.knee_json.unlink()
    sweep.recipe_yaml.unlink()
    card = sweep.load_trials()[0].card
    sweep.save_card(card.model_copy(update={"number": 7, "state": "running", "decides": None}))
    page = _Page(write_report(sweep.path).read_text(encoding="utf-8"))
    assert "So far 7 trials ended, 1 are running. Nothing is chosen yet." in page.sections["answer"]
    assert "Nothing is judged before the sweep has ended." in page.sections["verdicts"]
    assert page.plots >= 3 + 2
    assert "chosen" not in page.sections["knee"].split("Means over")[0].replace("Nothing is chosen", "")


def test_a_sweep_without_any_trial_is_a_page_too(tmp_path: Path) -> None:
    sweep = SweepFolder(tmp_path)
    sweep.sweep_yaml.write_text("name: empty\nslo: ttft:p99<500ms\n")
    page = _Page(write_report(sweep.path).read_text(encoding="utf-8"))
    assert "So far 0 trials ended" in page.sections["answer"]
    assert "no evidence yet" in page.sections["answer"]


def test_where_nothing_was_feasible_the_nearest_miss_is_told(sweep: SweepFolder) -> None:
    miss = NearestMiss(label="block 4", trial=0, clause="ttft:p99<500ms", observed=612.0, limit=500.0, over=0.224)
    outcome = made_outcome(sweep.load_trials(), "infeasible").model_copy(
        update={"winner": None, "winner_trial": None, "winner_trials": (), "tied": (), "nearest_miss": miss}
    )
    save_outcome(sweep, outcome)
    write_recipe(sweep.path)
    page = _Page(write_report(sweep.path).read_text(encoding="utf-8"))
    assert "Nearest miss: block 4, ttft:p99<500ms: 612 against a limit of 500." in page.sections["answer"]
    assert "kvknee reproduce" not in page.sections["reproduce"]
    assert page.sections["ledger"].index("block 4") < page.sections["ledger"].index("contiguous")


def test_another_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="not the folder of a sweep"):
        write_report(tmp_path)


def _with(sweep: SweepFolder, **fields: object) -> _Page:
    outcome = sweep.load_outcome()
    assert outcome is not None
    save_outcome(sweep, outcome.model_copy(update=fields))
    return _Page(write_report(sweep.path).read_text(encoding="utf-8"))


def test_what_was_tried_again_is_shown_with_its_interval(sweep: SweepFolder) -> None:
    outcome = sweep.load_outcome()
    assert outcome is not None
    assert outcome.winner is not None
    again = Confirmed(label=outcome.winner, parts=("winner",), trials=(0, 1), values=(90.0, 110.0), feasible=True)
    behind = Interval(mean=4.0, low=-1.0, high=9.0)
    other = Confirmed(label="block 16", parts=("default",), trials=(2, 3), values=(90.0, 102.0), feasible=True,
                      behind_winner=behind, share_of_winner=0.96)  # fmt: skip
    survival = (Survival(label="block 64", trial=4, survived=False, reason="the bound was passed"),)
    page = _with(
        sweep, confirmed=(again, other), survival=survival, slot_effects={"gpu 1": 0.969}, planned_effect=0.04
    )
    answer = page.sections["answer"]
    assert "Held out: 100 on 2 windows that the search never saw (90 to 110), in qualified tok/s." in answer
    assert "Under bursts of cancels and forks it fell: the bound was passed." in answer
    assert "On windows that the search never saw, qualified tok/s" in page.sections["proofs"]
    proofs = page.sections["proofs"]
    assert all(w in proofs for w in ("4 [-1 to 9]", "96.0%", "fell", "the bound was passed", "-3.10%", "4.0%"))


def test_without_it_the_page_says_that_the_best_of_many_is_flattered(html: str) -> None:
    proofs = _Page(html).sections["proofs"]
    assert "flattered" in proofs
    assert "No candidate was put under bursts" in proofs


def test_a_raced_out_candidate_says_what_it_stays_below(sweep: SweepFolder) -> None:
    outcome = sweep.load_outcome()
    assert outcome is not None
    raced = outcome.candidates[1].model_copy(update={"less_than": 1.25, "value": None})
    page = _with(sweep, candidates=(outcome.candidates[0], raced, *outcome.candidates[2:]))
    assert "< 1.25" in page.sections["knee"]
    assert "1 were raced out" in page.sections["knee"]


def test_a_capacity_at_the_ladders_end_is_a_lower_bound_wherever_it_is_shown(sweep: SweepFolder) -> None:
    """What went wrong: knee.json knew it, and answer, tables and plots showed the bare number."""
    outcome = sweep.load_outcome()
    assert outcome is not None
    for record in sweep.load_trials():
        assert record.folder is not None
        result = load_result(record.folder / "result.json")
        metrics = result.metrics.model_copy(update={"capacity_load": 40.0})
        save_result(result.model_copy(update={"metrics": metrics}), record.folder / "result.json")
    told = tuple(
        c.model_copy(
            update={"value": 40.0, "values": (40.0,) * len(c.values), "at_least": c.label == outcome.winner}
        )
        for c in outcome.candidates
    )
    page = _with(sweep, candidates=told, objective="capacity_load")
    assert f"{outcome.winner}: >= 40 (mean of 2 repeats, 40 to 40), in load." in page.sections["answer"]
    assert f"{outcome.winner} >= 40" in page.sections["knee"]  # what the picture says
    assert "a value is a lower bound" in page.sections["knee"]
    for name in ("knee", "candidates"):
        cells = page.sections[name].split(f"{outcome.winner} (chosen)")[1]
        assert ">= 40" in cells[:60]
        assert page.sections[name].count(">= 40") == (2 if name == "knee" else 1)
    assert "Capacity, x the trace's rate (modelled)" in page.sections["candidates"]


def test_the_front_is_the_one_that_was_asked_for(sweep: SweepFolder) -> None:
    def waste_of(number: int) -> float:
        result = sweep.load_trials()[number].result
        assert result is not None
        return result.metrics.waste_byte_seconds["total"] / result.metrics.qualified_output_tokens

    outcome = sweep.load_outcome()
    assert outcome is not None
    one = outcome.candidates[0]
    assert one.value is not None
    waste = (waste_of(one.trials[0]) + waste_of(one.trials[1])) / 2
    front = (FrontPoint(label=one.label, trials=one.trials, value=one.value, waste_byte_seconds_per_token=waste),)
    search = _with(sweep, front=front).sections["search"]
    assert "1 of 4 are on the front" in search
    assert "waste, KiB x s a qualified token" in search  # 2 KiB x s and less: in MiB no axis could be read


def test_a_wide_space_is_told_by_what_differs_from_the_default(sweep: SweepFolder) -> None:
    outcome = sweep.load_outcome()
    assert outcome is not None
    usual = "block_size=16 watermark=0 queue=fcfs victim=largest"
    wide = [
        c.model_copy(update={"label": usual.replace("16", str(c.block_size))}) if c.in_space else c
        for c in outcome.candidates
    ]
    won = next(c.label for c in wide if c.block_size == WINNER)
    page = _with(sweep, candidates=tuple(wide), winner=won, tied=(usual,), sentence=f"Use {won}.")
    assert f"Use block_size={WINNER}." in page.sections["answer"]
    assert f"Labels name what differs from the default, {usual}." in page.sections["answer"]
    assert page.sections["answer"].count("queue=fcfs") == 1
    assert all("queue=fcfs" not in page.sections[s] for s in SECTIONS if s not in ("answer", "environment"))


def test_trials_that_prove_are_no_part_of_the_search(sweep: SweepFolder) -> None:
    sweep.knee_json.unlink()
    sweep.recipe_yaml.unlink()
    before = _Page(write_report(sweep.path).read_text(encoding="utf-8")).sections["knee"]
    card = sweep.load_trials()[0].card
    shutil.copytree(sweep.trial(0), sweep.trial(9))
    params = {"policy.block_size": 128}
    sweep.save_card(card.model_copy(update={"number": 9, "role": "confirm", "of": 0, "params": params}))
    html = write_report(sweep.path).read_text(encoding="utf-8")
    page = _Page(html)
    assert page.sections["knee"] == before
    assert "trial 9: block_size=4, confirm of trial 0" in page.sections["compare"]
    assert '<th scope="row">9</th><td>block_size=4</td><td>confirm</td>' in html
