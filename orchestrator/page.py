"""report.html: one file without network that answers, shows what the answer rests on, and says how to check it.

The winner is knee.json's; none is computed here. A sweep that still runs is shown as far as it came.
"""

from collections.abc import Callable
from importlib import resources
from pathlib import Path
from string import Template

from orchestrator.folder import SweepFolder, write_text
from orchestrator.markup import paragraph, section, text
from orchestrator.page_answer import answer, knee, verdicts
from orchestrator.page_compare import compare
from orchestrator.page_gain import gain
from orchestrator.page_identity import again, candidates, identity, surroundings
from orchestrator.page_latency import latency
from orchestrator.page_ledger import ledgers, tokens
from orchestrator.page_pressure import churn, pressure
from orchestrator.page_proofs import proofs
from orchestrator.page_screen import screened
from orchestrator.page_script import scripts
from orchestrator.page_search import search
from orchestrator.page_waste import breakdown, waste
from orchestrator.plots_live import library_words
from orchestrator.shown import Sweep, read_sweep

_UNITS = "Block sizes in tokens; KiB, MiB and GiB in powers of 1024; times in milliseconds."
_SECTIONS: tuple[tuple[str, str, Callable[[Sweep], str]], ...] = (
    ("answer", "Answer", answer),
    ("knee", "The knee", knee),
    ("verdicts", "Verdicts", verdicts),
    ("proofs", "Proofs", proofs),
    ("gain", "What could be gained", gain),
    ("ledger", "Where every byte went", ledgers),
    ("tokens", "Three numbers apart", tokens),
    ("breakdown", "By request length and state", breakdown),
    ("waste", "Waste", waste),
    ("pressure", "Who was kept out", pressure),
    ("churn", "Churn", churn),
    ("latency", "Latency beside occupancy", latency),
    ("search", "The search", search),
    ("screened", "Screened against measured", screened),
    ("compare", "Compare two trials", compare),
    ("candidates", "Every candidate", candidates),
    ("hashes", "Hashes", identity),
    ("environment", "Environment", surroundings),
    ("reproduce", "Run it again", again),
)


def write_report(folder: Path) -> Path:
    """Write report.html into a sweep's folder, whole or not at all, and return its path.

    Works on an unfinished sweep. SpecError where the folder holds no sweep.
    """
    sweep = read_sweep(SweepFolder(folder))
    made = [(key, heading, make(sweep)) for key, heading, make in _SECTIONS]
    files = resources.files("orchestrator")
    page = Template(files.joinpath("page.html").read_text(encoding="utf-8")).substitute(
        title=text(sweep.name),
        style=files.joinpath("page.css").read_text(encoding="utf-8"),
        nav=" ".join(f'<a href="#{key}">{text(heading)}</a>' for key, heading, _ in made),
        body="\n".join(section(key, heading, body) for key, heading, body in made),
        footer=paragraph(f"{_UNITS} {library_words()}."),
        scripts=scripts(sweep),
    )
    write_text(sweep.folder.report_html, page)
    return sweep.folder.report_html
