"""What is shown, logged or sent holds no secret; what is none stays as it is."""

import pytest

from orchestrator.redaction import redacted, secret_values, without_password

ENV = {
    "HF_TOKEN": "hf_12345678", "SHORT_TOKEN": "abc", "HTTP_PROXY": "http://me:pr0xypass@proxy",
    "SSH_SECRET": "/home/me", "PIP_INDEX_URL": "https://ghp_fromtheenv@index/simple",
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://u:pw@h/db", "postgresql://u:***@h/db"),
        ("mysql+pymysql://root:p%40ss@h:3306/x?charset=utf8", "mysql+pymysql://root:***@h:3306/x?charset=utf8"),
        ("could not reach 'https://u:pw@h:80/a', twice", "could not reach 'https://u:***@h:80/a', twice"),
        ("postgresql://h/db?user=u&password=pw&sslmode=off", "postgresql://h/db?user=u&password=***&sslmode=off"),
        ("Authorization: Bearer abcdefghijkl", "Authorization: Bearer ***"),
        ("{'hf_token': 'abcdef', 'n': 3}", "{'hf_token': '***', 'n': 3}"),
        ("http://joe:p@ss@h:5000", "http://joe:***@h:5000"),
        ("serve --api-key=abcdef --port=80", "serve --api-key=*** --port=80"),
        ("https://ghp_abc123@host/x", "https://***@host/x"),
        ("git clone https://ghp_abc123:@host/x", "git clone https://***:@host/x"),
        ("https://github_pat_11AA:x-oauth-basic@host", "https://***:***@host"),
        ("https://9f2c41d07be34a58b6d1e0437ac95f1e@o1.host/2", "https://***@o1.host/2"),
        ("fatal: 'https://glpat-Ab1@host/x.git/' not found", "fatal: 'https://***@host/x.git/' not found"),
        ("cloned with ghp_fromtheenv", "cloned with ***"),
        ("loaded with hf_12345678.", "loaded with ***."),
        ("via pr0xypass", "via ***"),
    ],
)
def test_secrets_are_taken_out(text: str, shown: str) -> None:
    assert redacted(text, ENV) == shown


@pytest.mark.parametrize(
    "text",
    [
        "ttft:p99<500ms;itl:p99<50ms", "sqlite:////tmp/a:b@c", "https://host:5000/a@b", "http://user@host",
        "postgresql://kv@host/db", "ssh://git@host/x.git", "git@host:x/y.git", "redis://default:@host",
        "postgresql://kvknee_production_reader_2026@host/db", "mysql://first.last%40example.org@host",
        "https://skills@host", "https://service-account-for-the-sweeps-eu1@host",
        '{"token": 5, "eos_token": "</s>", "tokens": "many"}', "HF_TOKEN: env:HF_TOKEN", "/home/me", "abc",
    ],
)  # fmt: skip
def test_what_is_no_secret_stays(text: str) -> None:
    assert redacted(text, ENV) == text


def test_a_uri_is_shown_without_its_password_and_showing_it_again_changes_nothing() -> None:
    shown = without_password("postgresql://u:pw@h/db")
    assert without_password(shown) == shown == "postgresql://u:***@h/db"


def test_our_own_words_about_a_name_stay() -> None:
    said = "engine.api_key: unknown key; postgresql://u:pw@h and hf_12345678"
    assert redacted(said, ENV, named=False) == "engine.api_key: unknown key; postgresql://u:***@h and ***"
    asked = "tracking store http://h/?a=1&token=abcdef: no answer"
    assert redacted(asked, ENV, named=False) == "tracking store http://h/?a=1&token=*** no answer"


def test_a_text_without_any_break_takes_no_longer_than_one_with_many() -> None:
    """It was looked through once a letter: nine thousand letters took a second, a log would have taken hours."""
    assert redacted("x" * 2_000_000, ENV) == "x" * 2_000_000
    assert redacted("a://" * 100_000, ENV) == "a://" * 100_000
    assert redacted("a://x:" + "y" * 2_000_000, ENV) == "a://x:" + "y" * 2_000_000


def test_values_too_short_to_be_told_from_words_are_left() -> None:
    assert secret_values(ENV) == ["ghp_fromtheenv", "hf_12345678", "pr0xypass"]
