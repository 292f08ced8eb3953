"""What a block size costs at the tail: at final length as counted from the rows; in flight (block_size - 1) / 2."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from tests.builders import build_engine
from trials.describe import BLOCK_SIZES, describe
from trials.documents import validated
from trials.formats import reader
from trials.generate import Preset, generate
from trials.load import offer
from trials.replay import replay
from trials.spec import Load, PoolPolicy, TraceSpec

MOONCAKE = "mooncake/conversation_head5000.jsonl"
# Percent of all tokens at final length, by block size, as measured of the whole published files.
PUBLISHED = {
    "azure2023/AzureLLMInferenceTrace_code.csv": (0, 0.024, 0.072, 0.169, 0.368, 0.735, 1.54, 3.13, 6.48),
    "azure2023/AzureLLMInferenceTrace_conv.csv": (0, 0.037, 0.109, 0.256, 0.547, 1.13, 2.26, 4.58, 8.72),
}
PUBLISHED_MOONCAKE = (0, 0.004, 0.012, 0.028, 0.060, 0.124, 0.255, 0.515, 1.02)  # of 12,031 rows; 5,000 are here


def shown(name: str, path: Path) -> list[float]:
    return [part.percent for part in describe(reader(name)([path])).static_tail_slack]


def counted(lengths: list[int]) -> list[float]:
    """The same from plain numbers: blocks one by one."""
    total = sum(lengths)
    out = []
    for size in BLOCK_SIZES:
        claimed = sum(len(range(0, length, size)) * size for length in lengths)
        out.append(100 * (claimed - total) / total)
    return out


@pytest.mark.parametrize("file", PUBLISHED)
def test_azure_has_the_tail_slack_that_was_measured_of_it(real_traces: Path, file: str) -> None:
    with (real_traces / file).open(newline="") as rows:
        lengths = [int(row["ContextTokens"]) + int(row["GeneratedTokens"]) for row in csv.DictReader(rows)]
    found = shown("azure", real_traces / file)
    assert found == pytest.approx(counted(lengths), rel=1e-12)
    assert found == pytest.approx(PUBLISHED[file], rel=0.006, abs=0.0006)  # the last digit that is given


def test_mooncake_has_the_tail_slack_that_its_rows_give(real_traces: Path) -> None:
    rows = [json.loads(line) for line in (real_traces / MOONCAKE).read_text().splitlines()]
    found = shown("mooncake", real_traces / MOONCAKE)
    assert found == pytest.approx(counted([row["input_length"] + row["output_length"] for row in rows]), rel=1e-12)
    assert found == pytest.approx(PUBLISHED_MOONCAKE, rel=0.2, abs=0.001)  # a part of the rows: near, not equal


@pytest.mark.parametrize("block_size", [1, 4, 16, 64])
def test_a_live_sequence_of_uniform_length_has_half_a_block_less_half_a_token(block_size: int) -> None:
    """Time-mean of slack over live sequences, as the simulator's ledger has it, within three standard errors.

    A sequence that grows passes every fill of its tail equally often, but is seen from a random fill to another:
    about one independent draw a sequence of the uniform distribution over 0 .. block_size - 1.
    """
    rows = 400
    law = {"kind": "uniform", "min": 2 * block_size, "max": 8 * block_size - 1}
    preset = {"name": "uniform", "rows": rows, "arrivals": {"kind": "poisson", "rps": 60.0}, "prompt": law,
              "output": {"kind": "uniform", "min": 2, "max": 2 * block_size + 40}}  # fmt: skip
    trace = generate(validated(Preset, preset, "preset"), 11)
    policy = PoolPolicy(block_size=block_size, prefix_caching=False)
    engine = build_engine(trace, policy, num_blocks=40_000 // block_size)
    recorded = replay(engine, trace, offer(trace, TraceSpec(path="t"), Load(rate_scale=1.0), "cold"))
    live = recorded.steps["num_running"]
    steps = np.flatnonzero(live > 0)
    duration = recorded.steps["duration_ns"][steps]
    slack = recorded.ledger["tail_slack_tokens"][steps]  # one group, one rank: a row a step
    mean = float((slack * duration).sum() / (live[steps] * duration).sum())
    error = np.sqrt((block_size**2 - 1) / 12 / rows)
    assert mean == pytest.approx((block_size - 1) / 2, abs=3 * error + 1e-12)
