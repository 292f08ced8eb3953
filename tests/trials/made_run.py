"""A published run made up for tests: kernel times that follow a law, so that every answer can be worked out."""

import json
from pathlib import Path

CHUNKS, BEFORE, COUNTS, CONTEXT = (16, 64, 256), (0, 64, 256), (1, 2, 8), (16, 256, 1024)


def dense_us(tokens: int) -> float:
    return 100.0 + tokens


def decode_us(count: float, context: float) -> float:
    """Saturated: what is read decides."""
    return 5.0 + 0.01 * count * context


def prefill_us(chunk: float, before: float) -> float:
    """Each token of a chunk reads what stands before it."""
    return chunk * (0.1 + 0.001 * before + 0.0005 * chunk)


def write_tables(folder: Path) -> None:
    """One layer `qkv_proj`, one `layernorm` and a final one; heads at 10 us a row."""
    lines = ["layer,tokens,time_us"]
    for n in (1, 64, 512):
        lines += [f"qkv_proj,{n},{dense_us(n)}", f"layernorm,{n},1", f"final_layernorm,{n},7"]
    (folder / "dense.csv").write_text("\n".join(lines) + "\n")
    rows = [f"lm_head,{n},{10.0 * n}\nsampler,{n},1" for n in (1, 16)]
    (folder / "per_sequence.csv").write_text("layer,sequences,time_us\n" + "\n".join(rows) + "\n")
    lines = ["prefill_chunk,kv_prefill,n_decode,kv_decode,time_us"]
    lines += [f"0,0,{n},{k},{decode_us(n, k)}" for n in COUNTS for k in CONTEXT]
    lines += [f"{c},{b},0,0,{prefill_us(c, b)}" for c in CHUNKS for b in BEFORE]
    for c in CHUNKS:
        for b in BEFORE:
            mixed = [(n, k) for n in COUNTS for k in CONTEXT if (n, k) != (8, 1024)]  # not measured
            lines += [f"{c},{b},{n},{k},{decode_us(n, k) + prefill_us(c, b)}" for n, k in mixed]
    (folder / "attention.csv").write_text("\n".join(lines) + "\n")


def write_run(folder: Path, **scheduler: object) -> None:
    """Two requests, one second apart, of 40 and 8 prompt tokens; the engine's clock stands at 50 s."""
    folder.mkdir(exist_ok=True)
    write_tables(folder)
    requests = [
        {"arrival_time": 1001.0, "queued_ts": 51.0, "first_token_ts": 51.5, "last_token_ts": 51.5,
         "input_toks": 8, "output_toks": 1},
        {"arrival_time": 1000.0, "queued_ts": 50.25, "first_token_ts": 50.5, "last_token_ts": 52.5,
         "input_toks": 40, "output_toks": 5},
    ]  # fmt: skip
    (folder / "requests.jsonl").write_text("".join(json.dumps(r) + "\n" for r in requests))
    (folder / "timeseries.csv").write_text(
        "t,prompt_throughput,gen_throughput,running,waiting,kv_cache_pct\n1.0,40,1,1,0,3.0\n2.0,8,1,2,0,4.0\n"
    )
    resolved = {
        "cache_config": {"block_size": 16, "num_gpu_blocks": 40, "enable_prefix_caching": True},
        "scheduler_config": {"max_num_seqs": 4, "max_num_batched_tokens": 64, **scheduler},
        "model_config": {"model": "somebody/Llama-3.1-8B-Instruct", "max_model_len": 512},
        "parallel_config": {"world_size": 1},
        "compilation_config": {"cudagraph_mode": [2, 1], "cudagraph_capture_sizes": [4, 1, 8]},
    }
    (folder / "meta.json").write_text(json.dumps({"resolved_config": resolved}))
