"""Where searches are compared: two production traces, one space of 6,048 points, and what each point is worth.

A point's value is its mean qualified output throughput over three loads of the first 500 requests, simulated
(llama-3.1-8b on roofline:h100-sxm). `search_efficiency_landscape.py` simulates them all; the answers are kept
beside this file, values only, with a digest of trace, space and scene.
"""

import json
import random
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from search_spaces.dimension import Value
from search_spaces.neighbours import Key, key_of
from search_spaces.space import Space, build_space, space_spec
from trials.content import Content
from trials.engine import DeviceBytes, EngineFacts, StepShape, StepTime
from trials.engines.own import PagedEngine, effective_knobs
from trials.engines.simulator import Modelled
from trials.fingerprint import canonical_json, digest, trace_hash
from trials.formats import reader
from trials.geometry import pool_geometry
from trials.ladder import Measured, Replays
from trials.roofline import step_time
from trials.spec import Load, TrialSpec, Window, trial_spec
from trials.trace import Trace, load_trace

HERE = Path(__file__).resolve().parent
WITHIN = 0.02  # of the optimum: what counts as found
SPACE = {
    "name": "search_efficiency",
    "vary": {
        "policy.block_size": {"powers_of_two": [16, 1024]},
        "policy.max_num_batched_tokens": {"powers_of_two": [128, 4096]},
        "policy.max_num_seqs": {"powers_of_two": [8, 256]},
        "policy.queue": {"one_of": ["fcfs", "shortest_job"]},
        "policy.watermark": {"one_of": [0.0, 0.05, 0.1]},
        "policy.reserve_output": {"one_of": ["none", "full"]},
        "policy.victim": {
            "one_of": ["last_admitted", "fewest_outputs", "largest"],
            "when": {"policy.reserve_output": "none"},
        },
    },
}


@dataclass(frozen=True)
class Scene:
    """A trace, the pool and limits it is served under, and three loads (rate_scale) from sufficient to overload."""

    name: str
    reader: str
    file: str
    pool: str
    slo: str
    limits_ms: tuple[float, float]  # of the SLO: TTFT, TPOT
    loads: tuple[float, float, float]
    max_model_len: int
    requests: int = 500
    screen_requests: int = 150  # of the middle load, where a screen sees the space
    screens: int = 10  # tables with errors of their own

    @property
    def public(self) -> str:
        """Its trace among the public ones."""
        return {"azure": "azure conv", "mooncake": "mooncake"}[self.name]


SCENES = {
    "azure": Scene(
        "azure", "azure", "azure2023/AzureLLMInferenceTrace_conv.csv", "8GiB", "ttft:p99<1s;tpot:p99<20ms",
        (1000.0, 20.0), (2.5, 3.5, 5.0), 16384,
    ),
    "mooncake": Scene(
        "mooncake", "mooncake", "mooncake/conversation_head5000.jsonl", "24GiB", "ttft:p99<10s;tpot:p99<30ms",
        (10_000.0, 30.0), (0.3, 0.45, 0.6), 131072,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Landscape:
    """What every candidate is worth, in the order of `space.candidates()`.

    qualified, output, ttft_p99_ms, tpot_p99_ms: float [candidates, 3 loads]. screens: float [tables, candidates],
    the qualified throughput that a simulator with a wrong table sees on a shorter window of the middle load.
    """

    qualified: NDArray[np.float64]
    output: NDArray[np.float64]
    ttft_p99_ms: NDArray[np.float64]
    tpot_p99_ms: NDArray[np.float64]
    screens: NDArray[np.float64]
    digest: str

    @property
    def answers(self) -> tuple[NDArray[np.float64], ...]:
        """All that is known of a candidate, each [candidates, 3 loads]."""
        return self.qualified, self.output, self.ttft_p99_ms, self.tpot_p99_ms

    @property
    def values(self) -> NDArray[np.float64]:
        found: NDArray[np.float64] = self.qualified.mean(axis=1)
        return found

    @property
    def good(self) -> NDArray[np.bool_]:
        """Which candidates lie within WITHIN of the optimum."""
        found: NDArray[np.bool_] = self.values >= (1 - WITHIN) * self.values.max()
        return found


def read_trace(scene: Scene, folder: Path) -> Trace:
    """The scene's trace, as published or already imported."""
    path = folder / scene.file
    return load_trace(path) if path.suffix == ".parquet" else reader(scene.reader)([path])


def base_of(scene: Scene) -> TrialSpec:
    """The default of the scene: what vLLM would do, over the scene's pool and limits."""
    return trial_spec({
        "engine": {"name": "simulator", "step_time": "roofline:h100-sxm"}, "model": "llama-3.1-8b",
        "pool": {"bytes": scene.pool}, "trace": {"path": "t"}, "slo": scene.slo, "phases": ["cold"],
        "policy": {"max_model_len": scene.max_model_len},
    })  # fmt: skip


def space_of(scene: Scene) -> Space:
    return build_space(space_spec(SPACE), base_of(scene))


def digest_of(scene: Scene, trace: Trace) -> str:
    """What the answers depend on, beside the simulator itself."""
    asked = {"scene": asdict(scene), "space": SPACE, "trace": trace_hash(trace)}
    return digest(canonical_json(asked).encode())


def landscape_file(scene: Scene) -> Path:
    return HERE / f"search_efficiency_{scene.name}.npz"


def load_landscape(scene: Scene) -> Landscape:
    """The committed answers. FileNotFoundError where there are none."""
    with np.load(landscape_file(scene)) as stored:
        arrays = {name: stored[name].astype(np.float64) for name in stored.files if name != "meta"}
        meta = json.loads(str(stored["meta"]))
    return Landscape(**arrays, digest=meta["digest"])


def save_landscape(scene: Scene, found: Landscape) -> None:
    """Single precision is a ten-thousandth of what is compared."""
    arrays = {name: value.astype(np.float32) for name, value in vars(found).items() if name != "digest"}
    np.savez_compressed(landscape_file(scene), meta=json.dumps({"digest": found.digest}), **arrays)


class WrongTable:
    """Step times of which each cell (powers of two of decoding sequences, chunk tokens and context) is off by a
    factor of its own, normal with `spread`."""

    def __init__(self, true: StepTime, seed: int, spread: float) -> None:
        self._true, self._seed, self._spread = true, seed, spread
        self._factors: dict[tuple[int, int, int], float] = {}

    def __call__(self, shape: StepShape) -> tuple[int, int]:
        step_ns, attention_ns = self._true(shape)
        decodes, context, _, _, tokens, before, _, _ = shape
        cell = (decodes.bit_length(), tokens.bit_length(), (context + before).bit_length())
        factor = self._factors.get(cell)
        if factor is None:
            factor = max(0.5, 1 + random.Random(f"{self._seed}/{cell}").gauss(0, self._spread))
            self._factors[cell] = factor
        return int(step_ns * factor), int(attention_ns * factor)


class Stage:
    """Replays of one scene."""

    def __init__(self, scene: Scene, trace: Trace) -> None:
        self.scene, self.trace, self.space = scene, trace, space_of(scene)
        self._content = Content(trace)
        self._at = trace.arrival_ns - trace.arrival_ns[0]

    def replay(self, params: Mapping[str, Value], load: float, requests: int, table: int | None = None) -> Measured:
        """One candidate at one load on the first requests; with the times of a wrong table, by its number."""
        spec = self.space.suggest(params)
        window = Window.model_construct(start=0, duration=int(self._at[requests - 1]) + 1)
        spec = spec.model_copy(update={"trace": spec.trace.model_copy(update={"window": window})})
        geometry = pool_geometry(spec)
        assert not isinstance(geometry, str), geometry
        assert spec.engine.step_time is not None
        most = spec.policy.max_num_batched_tokens
        time_of = step_time(spec.engine.step_time, spec.model, geometry.block_size, max_num_batched_tokens=most)
        facts = EngineFacts(
            name="simulator", engine_hash="", evidence="modelled", clock="virtual", groups=(geometry,), ranks=1,
            effective=effective_knobs(spec.policy, geometry), max_model_len=spec.policy.max_model_len,
        )  # fmt: skip
        execution = Modelled(
            time_of if table is None else WrongTable(time_of, table, 0.1), DeviceBytes(pool=geometry.pool_bytes)
        )
        engine = PagedEngine(facts, spec.policy, self._content, execution)
        return Replays(engine, self.trace, spec, lambda text: None).at(Load(rate_scale=load), "cold")


def places(space: Space) -> dict[Key, int]:
    """Each candidate's row in a landscape."""
    return {key_of(params): n for n, params in enumerate(space.candidates())}
