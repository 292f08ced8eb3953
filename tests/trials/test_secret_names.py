"""A spec holds no secret: names that look like one are refused, and taken from the environment by reference."""

import pytest

from trials.secret_names import NotSet, dereferenced, looks_secret, secrets_in
from trials.spec import trial_spec
from trials.units import SpecError

SECRET = (
    "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "dbPassword", "PGPASSWORD", "api-key", "OPENAI_API_KEY", "token",
    "AWS_SECRET_ACCESS_KEY", "MLFLOW_TRACKING_TOKEN", "GITHUB_PAT", "SENTRY_DSN",
)  # fmt: skip
PLAIN = (
    "eos_token", "eos_token_id", "tokenizer", "tokenizer_mode", "max_num_batched_tokens", "RAY_AUTH_TOKEN_PATH",
    "RAY_AUTH_MODE", "kv_cache_dtype", "VLLM_LOGGING_LEVEL", "prefix_key", "path", "PWD", "OLDPWD",
)  # fmt: skip


@pytest.mark.parametrize("name", SECRET)
def test_names_of_secrets_are_known(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize("name", PLAIN)
def test_names_of_an_engines_vocabulary_are_no_secrets(name: str) -> None:
    assert not looks_secret(name)


def asked(**engine: object) -> dict[str, object]:
    return {
        "engine": {"name": "simulator", "step_time": "roofline:h100-sxm", **engine},
        "model": "llama-3.1-8b",
        "pool": {"blocks": 100},
        "trace": {"path": "/nowhere/trace.parquet"},
        "slo": "ttft:p99<500ms",
    }


@pytest.mark.parametrize(
    "engine",
    [
        {"env": {"HF_TOKEN": "hf_abcdefgh"}},
        {"args": {"hf_token": "hf_abcdefgh"}},
        {"args": {"nested": {"api_key": "hf_abcdefgh"}}},
        {"env": {"HTTPS_PROXY": "http://me:hf_abcdefgh@proxy:3128"}},
        {"args": {"index": "https://hf_abcdefgh@host/simple"}},
        {"args": {"headers": ["Authorization: Bearer hf_abcdefgh"]}},
        {"args": {"servers": [{"api_key": "hf_abcdefgh"}]}},
        {"args": {"servers": [["http://me:hf_abcdefgh@host"]]}},
        {"args": {"api_keys": ["hf_abcdefgh"], "api_key": ["hf_abcdefgh"]}},
        {"args": {"extra": ["--api-key", "hf_abcdefgh"]}},
        {"args": {"extra": "--api-key=hf_abcdefgh"}},
        {"args": {"config": '{"token": "hf_abcdefgh"}'}},
    ],
)
def test_a_spec_with_a_secret_is_refused_and_the_words_do_not_repeat_it(engine: dict[str, object]) -> None:
    with pytest.raises(SpecError, match="looks like a secret") as refused:
        trial_spec(asked(**engine))
    assert "hf_abcdefgh" not in str(refused.value)
    assert "env:" in str(refused.value)


def test_a_reference_is_all_that_a_spec_holds_of_a_secret() -> None:
    spec = trial_spec(asked(env={"HF_TOKEN": "env:HF_TOKEN", "LEVEL": "3"}))
    assert dereferenced(spec.engine.env, {"HF_TOKEN": "hf_1"}) == {"HF_TOKEN": "hf_1", "LEVEL": "3"}
    with pytest.raises(NotSet, match=r"engine\.env\.HF_TOKEN: HF_TOKEN is not set"):
        dereferenced(spec.engine.env, {})


def test_empty_values_and_numbers_are_no_secrets() -> None:
    assert list(secrets_in({"token": "", "api_key": 3, "deep": {"password": "env:X"}})) == []


def test_lists_and_texts_without_a_secret_stay() -> None:
    args = {
        "stop": ["</s>", "eos_token: 7"], "flags": ["--api-key", "env:KEY", "--token", "--max-tokens", "5"],
        "config": '{"kv_connector": "a:b", "tokens": "many"}', "served": ["http://host:8000/a@b"],
        "store": "postgresql://kv@host/db",
    }  # fmt: skip
    assert list(secrets_in(args)) == []
