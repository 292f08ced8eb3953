"""Public traces and runs that benchmarks and tests replay: which files, who publishes them, where they lie here.

Nothing is fetched, and no place is taken for granted: `make full TRACES=DIR RUNS=DIR`, or KVKNEE_TRACES and
KVKNEE_RUNS, or a script's own argument. Without them a benchmark says what it leaves out, and a test is skipped.

    python benchmarks/public_traces.py      what is found, and where the rest is published
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

TRACES, RUNS = "KVKNEE_TRACES", "KVKNEE_RUNS"


@dataclass(frozen=True, slots=True)
class Published:
    """`files`: a pattern below the folder of traces; `form`: its importer; `where`: who publishes it."""

    form: str
    files: str
    where: str

    def paths(self, folder: Path | None) -> list[Path]:
        return sorted(folder.glob(self.files)) if folder is not None else []


_AZURE = "github.com/Azure/AzurePublicDataset, AzureLLMInferenceDataset2023"
PUBLIC = {
    "azure conv": Published("azure", "azure2023/AzureLLMInferenceTrace_conv.csv", _AZURE),
    "azure code": Published("azure", "azure2023/AzureLLMInferenceTrace_code.csv", _AZURE),
    "mooncake": Published("mooncake", "mooncake/conversation_head5000.jsonl",
                          "github.com/kvcache-ai/Mooncake, FAST25-release: 5,000 lines of its conversations"),
    "sharegpt": Published("lengths", "sharegpt_lengths/qwen3_32b_300.jsonl",
                          "github.com/casys-kaist/LLMServingSim: 300 requests of ShareGPT, lengths and arrivals"),
    "weka": Published("weka", "weka/trace_*.json", "github.com/callanjfox/kv-cache-tester"),
}  # fmt: skip
RUN = "vllm_rtx4090_llama31_8b"  # of RUNS: requests.jsonl, timeseries.csv, meta.json and the GPU's kernel tables
RUN_WHERE = "github.com/casys-kaist/LLMServingSim: vLLM 0.19.0, Llama-3.1-8B on one RTX 4090"


def folder(variable: str, asked: Path | None = None) -> Path | None:
    """What was asked, else what the environment says, else None."""
    said = os.environ.get(variable)
    return asked or (Path(said) if said else None)


def absent(name: str, at: Path | None) -> str:
    """Why a trace cannot be replayed, and what to do."""
    one = PUBLIC[name]
    there = f"{at / one.files} is not there" if at is not None else f"{TRACES} is not set"
    return f"{name}: {there}; {one.files.rpartition('/')[2]} is published at {one.where}"


def main() -> int:
    at, runs = folder(TRACES), folder(RUNS)
    for name, one in PUBLIC.items():
        found = one.paths(at)
        print(f"{name}: {len(found)} files, {found[0].parent}" if found else absent(name, at))
    there = runs is not None and (runs / RUN).is_dir()
    why = f"is not below {runs}" if runs is not None else f"{RUNS} is not set"
    print(f"{RUN}: {runs / RUN}" if there and runs else f"{RUN}: {why}; published at {RUN_WHERE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
