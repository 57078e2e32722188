"""What of a user's secrets can be read in what windlass shows, saves, or sends to strangers: nothing."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tarfile
from pathlib import Path

from attacks.record import record
from looping import each
from planning import plan_for
from secret_corpus import ORDINARY, SECRETS, S
from windlass.model.plan import plan_to_json
from windlass.model.secrets import MASK, is_secret, is_secret_name, mask_argv, mask_text
from windlass.node.agent.diagnostics import command_text
from windlass.plan.render.rank_script import rank_script
from windlass.plan.render.variables import JobFacts, secrets_text
from windlass.plan.show import plan_text


@each(
    "name",
    [
        *(
            "FIGSHARE_TOKEN",
            "ZENODO_TOKEN",
            "GITHUB_PAT",
            "SMTP_PASS",
            "SENTRY_DSN",
            "BLOB_SAS",
            "AccountKey",
            "MYTOKEN",
        ),
        *(
            "SLACK_WEBHOOK_URL",
            "PGPASSWORD",
            "PBS_JOBCOOKIE",
            "--auth",
            "--pw",
            "clientSecret",
            "SharedAccessKey",
            "AZURE_CONN_STR",
        ),
        *("DB_CONNECTION_STRING", "SESSION_COOKIE", "--bearer", "MY_JWT", "x-api-key", "MYSQL_PWD", "CREDS"),
    ],
)
def test_values_of_such_names_are_hidden(name: str) -> None:
    assert is_secret_name(name)
    assert is_secret(name, S)


@each(
    "name",
    [
        *("PATH", "PYTHONPATH", "NCCL_DEBUG", "FI_CXI_RX_MATCH_MODE", "--path", "--pattern", "--author", "COMPASS"),
        *("PASSES", "--n_key_value_heads", "--max-tokens", "TOKENIZERS_PARALLELISM", "OMP_PLACES", "--token-count"),
    ],
)
def test_values_of_these_are_not(name: str) -> None:
    assert not is_secret_name(name)


WORDS = [
    f"https://me:{S}@example.org/x",
    f"see https://me:{S}@example.org/x and go on",
    f"--remote=https://{S}{S}@example.org/repo.git",
    f"--header=Authorization: Bearer {S}",
    f'{{"lr": 0.1, "api_key": "{S}", "more": [1]}}',
    f"{{'password': '{S}'}}",
    f'{{\\"token\\": \\"{S}\\"}}',
    f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={S}==;EndpointSuffix=core",
    f"https://x.blob.core.windows.net/c?sv=2020&sig={S}&se=1",
    f"https://hooks.slack.com/services/T0/B0/{S}",
    f"https://discord.com/api/webhooks/12/{S}",
    f"host=h password={S} user=u",
    f"curl -H 'Authorization: Bearer {S}' https://example.org",
    f"export HF_TOKEN={S}; python train.py",
    f"s3://k:{S}@bucket/data",
    f"prefix-hf_{S}{S}-suffix",
    f"x=ghp_{S}{S}",
    f"--config=logger.wandb.api_key={S}",
]


@each("word", WORDS)
def test_a_secret_inside_a_longer_word_is_hidden_and_the_rank_still_gets_it(word: str, tmp_path: Path) -> None:
    plan, secrets = plan_for("workstation", "printf", "%s", word, "{rank}", f"{word}-{{rank}}")
    facts = JobFacts(run_dir=str(tmp_path), run_id="r", uid=os.getuid(), master_addr="h", master_port=1)
    script = rank_script(plan, facts).replace("cd /home/user/project", "cd /")
    for text in (plan_to_json(plan).decode(), plan_text(plan, explain=True, script=True), script):
        assert S not in text
    (tmp_path / "rank.sh").write_text(script)
    (tmp_path / "secrets.sh").write_text(secrets_text(secrets))
    (tmp_path / "where").mkdir()
    env = {"PATH": os.defpath, **dict.fromkeys(("WINDLASS_RANK", "RANK", "LOCAL_RANK", "GROUP_RANK"), "0")}
    done = subprocess.run(["/bin/sh", "rank.sh"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout == f"{word}0{word}-0", done.stderr


@each("argv", [("--auth", S), ("--pw", S), ("-u", f"me:{S}"), ("--hf-token", S), (f"--pw={S}",)])
def test_a_secret_behind_an_option_is_hidden(argv: tuple[str, ...]) -> None:
    assert S not in " ".join(mask_argv(("train.py", *argv, "--lr", "3")))


@each(
    "text",
    [
        *(
            "https://host:8080/x",
            "ssh://git@github.com/x",
            "tcp://10.0.0.1:4444",
            "sort(key=foo)",
            "a:b:c",
            "s3://b/k:1",
        ),
        *("--max-tokens=512", "token=$HF_TOKEN", "model.num_tokens=4", "--rank={rank}", "2024-01-01T00:00:00"),
        *("trainer.devices=4", "optimizer:adamw", "lambda k: k.name", "tokens: 4096", "password: null"),
    ],
)
def test_ordinary_words_stay_as_they_are(text: str) -> None:
    assert mask_text(text) == text


def test_masking_is_quick_on_long_and_hostile_text() -> None:
    rng = random.Random(10)
    for _ in range(30):
        text = "".join(rng.choice("a:=/@\"'\\ ?&;.{}-_ yJ") for _ in range(20_000))
        mask_text(text)
    mask_text("a" * 200_000)
    mask_text("://" * 50_000)
    mask_text("key" * 50_000 + "=")


def test_the_selftest_bundle_holds_no_value_of_the_users_variables(tmp_path: Path) -> None:
    bare = tmp_path / "bare-python"
    said = 'echo "cannot log in with $FIGSHARE_TOKEN" > "$WINDLASS_RUN_DIR/comm/library"'
    bare.write_text(f'#!/bin/sh\n{said}\nexec "{sys.executable}" -I -S "$@"\n')
    bare.chmod(0o755)
    given = {
        "PLAIN": f"{S}-1",
        "QUOTED": f'it\'s {S} "2"',
        "LINES": f"{S}\n3",
        "FI_TOKEN": f"{S}-4",
        "MY_PASS": f"{S}-5",
    }
    shown = {"NCCL_DEBUG": "INFO"}
    options = [word for name, value in {**given, **shown}.items() for word in ("--env", f"{name}={value}")]
    outside = {name: f"{S}-{name}" for name in ("FIGSHARE_TOKEN", "ZENODO_TOKEN", "ZE_SECRET", "MASTER_KEY", "OMPX")}
    done = subprocess.run(
        [sys.executable, "-m", "windlass", "selftest", "--python", str(bare), "--bundle", "b.tar.gz", *options],
        cwd=tmp_path,
        env={**os.environ, **outside, "WINDLASS_RUNS": str(tmp_path / "runs")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    with tarfile.open(tmp_path / "b.tar.gz") as bundle:
        files = {entry.name: bundle.extractfile(entry) for entry in bundle.getmembers() if entry.isfile()}
        texts = {name: file.read().decode() for name, file in files.items() if file}
    assert not [name for name, text in texts.items() if S in text]
    assert MASK in texts["selftest/comm/library"], "a known secret is hidden whoever says it"
    record("secrets in the selftest bundle", expected="none", seen="none", variables=len(given) + len(outside))
    assert MASK in texts["selftest/rank.sh"] and "INFO" in texts["selftest/rank.sh"]


def test_evidence_shows_the_program_and_no_argument_of_it() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", f"--pw={S}", S])
    try:
        text = command_text(child.pid)
    finally:
        child.kill()
        child.wait()
    assert S not in text and "sleep" not in text
    assert "more words" in text or "command:" in text


def test_no_secret_of_the_corpus_stays_readable_and_ordinary_lines_do() -> None:
    readable = [text for text in SECRETS if S in mask_text(text)]
    masked = [line for line in ORDINARY if mask_text(line) != line]
    assert len(SECRETS) >= 150 and not readable
    assert len(masked) <= 0.02 * len(ORDINARY), masked
    record(
        "secrets in texts as programs print them",
        expected="none readable",
        seen="none readable",
        secrets=len(SECRETS),
        ordinary_lines=len(ORDINARY),
        ordinary_masked=len(masked),
    )


def test_masking_a_masked_text_changes_nothing() -> None:
    for text in SECRETS:
        once = mask_text(text)
        assert mask_text(once) == once
