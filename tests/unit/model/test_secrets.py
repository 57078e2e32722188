"""What looks like a secret is hidden, and what only sounds like one is not."""

from __future__ import annotations

from looping import each
from windlass.model.secrets import MASK, is_secret, is_secret_name, mask_word, secret_positions


@each(
    "name",
    [
        "HF_TOKEN",
        "WANDB_API_KEY",
        "--api-key",
        "AWS_SECRET_ACCESS_KEY",
        "DB_PASSWORD",
        "password",
        "--token",
        "MY_CREDENTIALS",
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@each(
    "name",
    [
        "TOKENIZERS_PARALLELISM",
        "--tokenizer",
        "--max_tokens",
        "tokens_per_batch",
        "PWD",
        "SSH_AUTH_SOCK",
        "MONKEY",
        "--sort-key",
        "KEYBOARD",
    ],
)
def test_names_that_only_sound_like_secrets(name: str) -> None:
    assert not is_secret_name(name)


@each(
    "value",
    [
        "hf_" + "a" * 34,
        "ghp_" + "A1" * 18,
        "sk-" + "x" * 40,
        "AKIA" + "B" * 16,
        "glpat-" + "z" * 20,
        "https://user:hunter2@example.org/x",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.sig",
    ],
)
def test_a_value_of_a_known_form_is_a_secret_under_any_name(value: str) -> None:
    assert is_secret("HARMLESS", value)


@each("value", ["4096", "1.5", "true", "none", ""])
def test_a_plain_small_value_is_not_hidden(value: str) -> None:
    assert not is_secret("MAX_TOKEN", value)


def test_positions_of_secret_words_in_a_command_line() -> None:
    words = ("train.py", "--token", "abc def", "--api-key=zzz", "--max-tokens", "512", "--lr", "0.1", "hf_" + "a" * 20)
    assert secret_positions(words) == (2, 3, 8)


def test_an_option_that_follows_a_secret_option_is_not_its_value() -> None:
    assert secret_positions(("--token", "--verbose")) == ()


def test_the_name_stays_readable_and_the_value_does_not() -> None:
    assert mask_word("--api-key=zzz") == f"--api-key={MASK}"
    assert mask_word("zzz") == MASK
    masked = mask_word("https://me:hunter2@example.org/x")
    assert "hunter2" not in masked
    assert masked.endswith("@example.org/x")


def test_a_password_in_the_value_of_an_option_is_hidden() -> None:
    word = "--url=https://me:hunter2@example.org/x"
    assert secret_positions((word,)) == (0,)
    assert "hunter2" not in mask_word(word)
