"""report.html as people meet it: by mouse, keyboard and screen reader, in the dark, on paper, without scripts."""

import json
from importlib import resources
from pathlib import Path

import pytest
from chromium import Tab

from orchestrator.markup import number

pytestmark = pytest.mark.browser

SECTIONS = (
    "answer", "knee", "verdicts", "proofs", "gain", "ledger", "tokens", "breakdown", "waste", "pressure", "churn",
    "latency",
    "search", "screened", "compare", "candidates", "hashes", "environment", "reproduce",
)  # fmt: skip
_READY = "document.documentElement.dataset.live === 'ready'"
_EMPTY = """[...document.querySelectorAll('main > section')]
    .filter((s) => s.getBoundingClientRect().height < 60 || s.innerText.trim().split('\\n').length < 2)
    .map((s) => s.id)"""
_TOO_WIDE = """[...document.querySelectorAll('main *')]
    .filter((e) => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('.scroll, pre, .live'))
    .map((e) => e.tagName + '.' + e.className).slice(0, 5)"""
_CONTRAST = """(() => {
    const lum = (rgb) => { const [r, g, b] = rgb.map((v) => { const c = v / 255;
        return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
    const rgb = (text) => text.match(/[0-9.]+/g).slice(0, 3).map(Number);
    const style = getComputedStyle(document.body);
    const [a, b] = [lum(rgb(style.color)), lum(rgb(style.backgroundColor))].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
})()"""
_TOLD = """(() => {
    const texts = [];
    const walk = (node) => { if (node.shadowRoot) walk(node.shadowRoot);
        for (const child of node.children ?? []) { if (child.className?.includes?.('bk-Tooltip') ||
            child.localName?.includes('tooltip')) texts.push(child.shadowRoot?.textContent || child.textContent);
            walk(child); } };
    walk(document.body);
    return texts.join(' ');
})()"""


def _where(figure: str, label: str) -> str:
    """A script that gives where on the screen a live plot has drawn a point."""
    return f"""(() => {{
        const live = document.querySelector('figure[data-live="{figure}"] .live');
        live.scrollIntoView({{ block: 'center' }});
        const inside = (node) => live.contains(node.getRootNode().host ?? node);
        for (const root of Bokeh.documents.flatMap((d) => d.roots())) {{
            const view = Bokeh.index.find_one(root);
            if (!inside(view.el)) continue;
            for (const drawn of root.renderers) {{
                const data = drawn.data_source.data;
                const at = [...(data.label ?? [])].findIndex((l) => l.includes({label!r}));
                if (at < 0) continue;
                const box = view.canvas_view.el.getBoundingClientRect();
                const [x, y] = [view.frame.x_scale.compute(data.x[at]), view.frame.y_scale.compute(data.y[at])];
                return [box.x + x, box.y + y];
            }}
        }}
        return null;
    }})()"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_every_section_stands_and_nothing_is_fetched_or_complained_of(
    tab: Tab, swept: Path, pictures: Path, width: int, scheme: str
) -> None:
    tab.look(width, scheme)
    tab.open((swept / "report.html").as_uri())
    tab.wait_for(_READY)
    tab.picture(pictures / f"report-{width}-{scheme}.png")
    assert tab.evaluate("[...document.querySelectorAll('main > section')].map((s) => s.id)") == list(SECTIONS)
    assert tab.evaluate(_EMPTY) == []
    assert tab.errors == []
    assert tab.requests == [(swept / "report.html").as_uri()]
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.evaluate(_TOO_WIDE) == []
    assert tab.evaluate(_CONTRAST) > 7
    dark = tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)"
    assert dark == (scheme == "dark")


def test_a_point_that_is_pointed_at_says_its_value(tab: Tab, swept: Path) -> None:
    tab.look(1440)
    tab.open((swept / "report.html").as_uri())
    tab.wait_for(_READY)
    place = tab.wait_for(_where("knee0", "block_size=32"))
    tab.point_at(place[0] - 60, place[1] + 60)
    tab.point_at(*place)
    said = tab.wait_for(f"{_TOLD}.includes('block_size=32') && {_TOLD}")
    assert "32 tokens" in said
    assert "tokens/s" in said
    value = tab.evaluate("""[...document.querySelectorAll('#knee tbody tr')]
        .find((r) => r.cells[0].textContent.startsWith('block_size=32')).cells[4].textContent""")
    assert value.replace(",", "").split(".")[0] in said.replace(",", "")


def test_two_trials_are_chosen_by_keyboard_and_compared(tab: Tab, swept: Path) -> None:
    tab.look(1440)
    tab.open((swept / "report.html").as_uri())
    tab.wait_for(_READY)
    numbers = "[...document.querySelectorAll('#compare-table td')].map((c) => c.textContent).join('|')"
    before = tab.evaluate(numbers)
    drawn = "Bokeh.documents.flatMap((d) => d.get_model_by_name('B') ?? []).map((s) => [...s.data.x].length)"
    tab.evaluate("document.getElementById('compare-b').focus()")
    for _ in range(3):
        tab.press("ArrowDown", 40)
    tab.wait_for(f"{numbers} !== {before!r}")
    chosen = tab.evaluate("document.getElementById('compare-b').value")
    asked = tab.evaluate("""document.querySelector('#compare-b option:checked').textContent""")
    assert asked.startswith(f"trial {chosen}: ")
    assert all(length > 10 for length in tab.evaluate(drawn))
    cells = """[...document.querySelectorAll('#compare-table tr')]
        .find((r) => r.cells[0].textContent === 'payload, mean MiB').cells"""
    a, b, difference = (float(tab.evaluate(f"{cells}[{i}].textContent").replace(",", "")) for i in (1, 2, 3))
    assert b - a == pytest.approx(difference, abs=0.001 * abs(a))
    assert tab.errors == []


NUMBERS = (0, 7, -12, 999.96, 1000, 12345.678, 1234567, 0.00004321, -0.0123456, 3.0627, 2.5e18, 43.4)


def test_the_pages_script_writes_numbers_as_its_tables_have_them(tab: Tab, swept: Path) -> None:
    tab.look(1440)
    tab.open((swept / "report.html").as_uri())
    tab.wait_for(_READY)
    source = resources.files("orchestrator").joinpath("page.js").read_text(encoding="utf-8")
    body = source[source.index("function shown(") : source.index("function percent(")]
    assert tab.evaluate(f"(() => {{ {body} return {json.dumps(NUMBERS)}.map(shown); }})()") == list(
        map(number, NUMBERS)
    )


def test_every_picture_has_words_and_a_table_and_every_wide_table_can_be_reached(tab: Tab, swept: Path) -> None:
    tab.look(1440)
    tab.open((swept / "report.html").as_uri())
    tab.wait_for(_READY)
    tab.call("Accessibility.enable")
    nodes = tab.call("Accessibility.getFullAXTree")["nodes"]
    pictures = [n for n in nodes if n.get("role", {}).get("value") in ("image", "img") and not n["ignored"]]
    assert len(pictures) >= 20
    assert all(len(n["name"]["value"]) > 10 for n in pictures)
    without = """[...document.querySelectorAll('main > section')]
        .filter((s) => s.querySelector('figure') && !s.querySelector('table')).map((s) => s.id)"""
    assert tab.evaluate(without) == []
    assert tab.evaluate("[...document.querySelectorAll('.scroll')].every((r) => r.tabIndex === 0 && r.ariaLabel)")
    tab.press("Tab", 9)
    assert tab.evaluate("document.activeElement.className") == "skip"


def test_the_colours_follow_when_the_reader_changes_them(tab: Tab, swept: Path) -> None:
    tab.look(1440, "light")
    tab.open((swept / "report.html").as_uri())
    tab.wait_for(_READY)
    colour = "Bokeh.documents.flatMap((d) => d.roots())[0].below[0].axis_line_color"
    assert tab.evaluate(colour) == "#1b1f24"
    tab.look(1440, "dark")
    tab.wait_for(f"{colour} === '#e6e8eb'")
    assert tab.errors == []


def test_on_paper_the_drawings_stand_for_the_live_plots(tab: Tab, swept: Path) -> None:
    tab.look(1440)
    tab.open((swept / "report.html").as_uri())
    tab.wait_for(_READY)
    shown = """['.live', 'svg'].map((kind) =>
        getComputedStyle(document.querySelector(`figure[data-live="knee0"] > ${kind}`)).display)"""
    assert tab.evaluate(shown) == ["block", "none"]
    tab.look(1000, media="print")
    assert tab.evaluate(shown) == ["none", "block"]
    assert tab.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"


def test_without_scripts_drawings_and_tables_stand(tab: Tab, swept: Path, pictures: Path) -> None:
    tab.call("Emulation.setScriptExecutionDisabled", value=True)
    tab.look(1440)
    tab.open((swept / "report.html").as_uri())
    tab.wait_for("document.querySelectorAll('main > section').length === 19")
    tab.picture(pictures / "report-without-scripts.png")
    assert tab.evaluate("document.querySelectorAll('.live').length") == 0
    assert tab.evaluate("getComputedStyle(document.querySelector('figure[data-live] > svg')).display") == "block"
    assert "Comparing needs a script" in tab.evaluate("document.getElementById('compare').innerText")
    assert tab.evaluate("document.querySelectorAll('table').length") > 20
