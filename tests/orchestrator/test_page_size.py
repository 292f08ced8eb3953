"""How large a report is: a sweep of 200 trials stays under 3 MB, and says so."""

import shutil

import pytest
from made_sweep import add_trial, make_spec, make_trace_file, save_outcome, settled

from orchestrator.folder import SweepFolder
from orchestrator.page import write_report

MOST_BYTES = 3_000_000
TRIALS = 200


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> SweepFolder:
    """200 candidates of their own, made of the files of four that were run."""
    folder = tmp_path_factory.mktemp("size") / "sweep"
    trace = make_trace_file(folder.parent / "made.parquet", rows=200)
    sweep = SweepFolder(folder)
    folder.mkdir()
    sweep.sweep_yaml.write_text("name: large\nslo: ttft:p99<500ms;itl:p99<50ms\n")
    records = [add_trial(sweep, i, make_spec(trace, 4 << i)) for i in range(4)]
    for number in range(4, TRIALS):
        source = records[number % 4]
        shutil.copytree(sweep.trial(source.number), sweep.trial(number))
        params = {"policy.block_size": source.spec.policy.block_size, "policy.watermark": number / 1000}
        sweep.save_card(source.card.model_copy(update={"number": number, "params": params}))
    save_outcome(sweep, settled(sweep.load_trials()))
    return sweep


def test_a_sweep_of_200_trials_gives_a_page_below_3_mb(
    large: SweepFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    page = write_report(large.path)
    size = page.stat().st_size
    with capsys.disabled():
        print(f"\nreport of {TRIALS} trials: {size / 1e6:.2f} MB")
    html = page.read_text(encoding="utf-8")
    assert html.count("<option") == 2 * TRIALS
    assert size < MOST_BYTES
