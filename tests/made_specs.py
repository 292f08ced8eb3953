"""A trial spec with everything but what a test is about."""

from trials.spec import trial_spec


def make_spec(**changes):
    data = {
        "engine": {"name": "simulator", "step_time": "roofline:h100-sxm"},
        "model": "llama-3.1-8b", "pool": {"bytes": "1GiB"}, "policy": {}, "trace": {"path": "/t.parquet"},
        "slo": "ttft:p99<500ms;itl:p99<50ms",
    }  # fmt: skip
    data |= changes
    data["policy"] = {"max_model_len": 1024, **data["policy"]}
    return trial_spec(data)
