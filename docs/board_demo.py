"""Records the runs of `trainbook board --demo`: python docs/board_demo.py (some minutes on two cores).

Each is a real run of the commands below, with fixed seeds and deterministic settings. What is kept of it are the files
that people read: no checkpoints, no tokenizers, nothing of the machine that recorded them. Numbers of metrics are
rounded to five digits.
"""

from __future__ import annotations

import json
import os
import platform
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from trainbook.report.run_row import changed_settings
from trainbook.runs import RunFolder, jsonl
from trainbook.runs.labels import change_labels

HERE = Path(__file__).parent
DEMO = HERE.parent / "src" / "trainbook" / "board" / "demo"
MOST_BYTES = 600_000
DIGITS = 5

KEPT = ("config.yaml", "manifest.json", "metrics.jsonl", "events.jsonl", "report.md", "board.json")
KEPT += ("quarantine.jsonl", "generations.jsonl", "classes.jsonl")
WITH_SAMPLES = ("healthy", "tickets")
KEPT_OF_A_TRIAL = ("manifest.json", "metrics.jsonl", "events.jsonl")
KEPT_OF_A_STUDY = ("base.yaml", "best.yaml", "question.json", "study.json", "report.md")

SMALL = ("evaluation.eval_max_samples=200", "training.deterministic=true", "checkpoint.save_total_limit=1")
SMALL += ("model.num_hidden_layers=2", "model.num_attention_heads=2", "model.hidden_size=64")
SMALL += ("data.max_seq_length=64", "logging.dense_steps=0")
TICKETS = ("data.text_field=text", "data.label_field=topic", "data.tokenizer=bpe", "data.vocab_size=512")
TICKETS += ("schedule.warmup_steps=20", "logging.logging_steps=6")

# What is recorded: the name of the run, the words of `trainbook train`, tags and a note.
RUNS: tuple[tuple[str, tuple[str, ...], tuple[str, ...], str], ...] = (
    (
        "healthy",
        (
            "gpt-tiny",
            *SMALL,
            "logging.logging_steps=5",
            "training.max_steps=200",
            "evaluation.eval_steps=40",
            "evaluation.prompts=[def , import ]",
            "evaluation.max_new_tokens=60",
        ),
        ("baseline",),
        "Nothing went wrong: this is how learning looks.",
    ),
    (
        "spike-healed",
        (
            "gpt-tiny",
            *SMALL,
            "logging.logging_steps=4",
            "training.max_steps=200",
            "evaluation.eval_steps=40",
            *("--inject", "random-labels@88", "--inject", "nan-gradient@132", "--inject", "random-labels@148"),
        ),
        ("faults",),
        "Two batches of garbage and a NaN, put in on purpose: the guard rejected all three.",
    ),
    (
        "diverged",
        (
            "gpt-tiny",
            *SMALL,
            "logging.logging_steps=5",
            "training.max_steps=120",
            "evaluation.eval_steps=20",
            "optimizer.type=sgd",
            "optimizer.learning_rate=1.5",
            "schedule.warmup_steps=110",
            "batch.max_grad_norm=null",
            "guard.enabled=false",
        ),
        (),
        "The learning rate rises until the loss explodes. The guard was off.",
    ),
    (
        "overfitting",
        (
            "bert-tiny",
            *SMALL,
            *TICKETS,
            "data.source=few-tickets.csv",
            "training.max_steps=200",
            "evaluation.eval_steps=10",
            "optimizer.weight_decay=0",
        ),
        ("classifier",),
        "A hundred tickets, read again and again until the model knows them by heart.",
    ),
    (
        "tickets",
        (
            "bert-tiny",
            *SMALL,
            *TICKETS,
            "data.source=tickets.csv",
            "training.max_steps=240",
            "evaluation.eval_steps=20",
            "evaluation.metric_for_best_model=accuracy",
        ),
        ("classifier",),
        "Support tickets in four topics. Which are taken for which?",
    ),
    *(
        (
            f"lower-rate-seed-{seed}",
            (
                "gpt-tiny",
                *SMALL,
                "logging.logging_steps=10",
                "training.max_steps=200",
                "evaluation.eval_steps=40",
                "optimizer.learning_rate=5e-4",
                f"training.seed={seed}",
            ),
            ("seeds",),
            "",
        )
        for seed in (1, 2)
    ),
)
STUDY = "tune-small"
TUNE = (
    "gpt-tiny",
    *SMALL,
    "logging.logging_steps=30",
    "training.max_steps=60",
    "schedule.warmup_steps=6",
    "evaluation.eval_steps=30",
    "optimizer.learning_rate=5e-4",
    *("--budget", "10", "--method", "zoom", "--seeds", "2", "--workers", "1"),
)
DATA_REPORT = ("data", "tickets.csv", "--task", "classify", "--json")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_tickets(root / "tickets.csv", 700, wrong=0.05)
        write_tickets(root / "few-tickets.csv", 120, wrong=0.2)
        for name, words, _, _ in RUNS:
            run_trainbook(root, "train", *words, "--name", name, "--quiet")
        run_trainbook(root, "tune", *TUNE, "--name", STUDY)
        recorded = root / "recorded"
        for name, _, tags, note in RUNS:
            keep_run(root / "runs" / name, recorded / name, (*KEPT, "samples.jsonl") if name in WITH_SAMPLES else KEPT)
            change_labels(recorded / name, add=tags, note=note)
        keep_study(root / "runs" / STUDY, recorded / STUDY)
        write_json(recorded / "tickets.data.json", rounded(json.loads(run_trainbook(root, *DATA_REPORT))))
        must_be_clean(recorded, root)
        shutil.rmtree(DEMO, ignore_errors=True)
        shutil.copytree(recorded, DEMO)
    size = sum(path.stat().st_size for path in DEMO.rglob("*") if path.is_file())
    print(f"{DEMO}: {len(RUNS)} runs, a study and a data report, {size:,} bytes")
    assert size <= MOST_BYTES, f"must have at most {MOST_BYTES:,} bytes"


def run_trainbook(root: Path, *words: str) -> str:
    """What it printed."""
    print("$ trainbook", shlex.join(words), flush=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    program = [sys.executable, "-m", "trainbook", *words]
    done = subprocess.run(program, cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# The data


OPENINGS = ("Hello, ", "Hi team, ", "", "Good morning. ", "Sorry to bother you: ")
WHEN = ("since yesterday", "for a week", "again", "this morning", "after the update")
TOPICS = {
    "billing": (
        "I was charged twice {}",
        "the invoice is wrong {}",
        "my refund did not arrive {}",
        "the price changed {}",
    ),
    "login": (
        "I cannot sign in {}",
        "the password mail never comes {}",
        "my account is locked {}",
        "the code is refused {}",
    ),
    "crash": (
        "the app closes by itself {}",
        "an error appears when I pay {}",
        "the page stays white {}",
        "saving fails {}",
    ),
    "praise": ("everything works well {}", "the new design is lovely {}", "support was quick {}", "I like the app {}"),
}


def write_tickets(path: Path, count: int, *, wrong: float) -> None:
    """Some are about two things, and a share has the wrong label, so that not all can be told apart."""
    draw = random.Random(7)
    lines = ["text,topic"]
    for _ in range(count):
        topic, other = draw.sample(sorted(TOPICS), 2)
        text = draw.choice(OPENINGS) + draw.choice(TOPICS[topic]).format(draw.choice(WHEN))
        if draw.random() < 0.35:
            text += " and " + draw.choice(TOPICS[other]).format(draw.choice(WHEN))
        lines.append(f'"{text}.",{other if draw.random() < wrong else topic}')
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


# What is kept


def keep_run(run: Path, to: Path, names: tuple[str, ...]) -> None:
    to.mkdir(parents=True)
    for name in names:
        if (run / name).is_file():
            shutil.copyfile(run / name, to / name)
    rows = (rounded(row) for row in jsonl.read(run / "metrics.jsonl"))
    write_rows(to / "metrics.jsonl", rows)
    change_manifest(to / "manifest.json", cleaned)


def keep_study(study: Path, to: Path) -> None:
    to.mkdir(parents=True)
    for name in KEPT_OF_A_STUDY:
        if (study / name).is_file():
            shutil.copyfile(study / name, to / name)
    for trial in sorted((study / "trials").iterdir()):
        if RunFolder(trial).manifest.is_file():
            keep_run(trial, to / "trials" / trial.name, KEPT_OF_A_TRIAL)
            change_manifest(to / "trials" / trial.name / "manifest.json", as_trial)


def change_manifest(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    facts = change(json.loads(path.read_text(encoding="utf-8")))
    write_json(path, facts)


def write_json(path: Path, facts: dict[str, Any]) -> None:
    path.write_text(json.dumps(facts, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


def cleaned(facts: dict[str, Any]) -> dict[str, Any]:
    """Without the machine: its name, its folders, its kernel, and how the program was started there."""
    command = ["trainbook", *facts["command"][1:]] if facts["command"] else []
    hardware = {**facts["hardware"], "host": "", "system": platform.system()}
    return {**facts, "command": command, "working_directory": "", "hardware": hardware}


def as_trial(facts: dict[str, Any]) -> dict[str, Any]:
    """With the command of its study; of the configuration, only what differs from the defaults."""
    config: dict[str, dict[str, Any]] = {}
    for path, value in changed_settings(facts["config"]).items():
        section, name = path.split(".")
        config.setdefault(section, {})[name] = value
    return {**facts, "command": ["trainbook", "tune", *TUNE, "--name", STUDY], "config": config}


def rounded(value: Any) -> Any:
    """Times keep their milliseconds."""
    if isinstance(value, float):
        return round(value, 3) if abs(value) >= 1e8 else float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    return list(map(rounded, value)) if isinstance(value, list) else value


def write_rows(path: Path, rows: Iterator[dict[str, Any]]) -> None:
    path.write_text("".join(f"{jsonl.dumps(row)}\n" for row in rows), encoding="utf-8")


def must_be_clean(folder: Path, root: Path) -> None:
    words = {str(root), str(root.resolve()), str(Path.home()), str(HERE.parent), sys.prefix}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = path.read_text(encoding="utf-8")
        found = [word for word in words if word in content]
        if path.suffix == ".json":  # texts of samples may have any word
            found += re.findall(rf"\b{re.escape(platform.node())}\b", content)
        assert not found, f"{path.relative_to(folder)} names {found}"


if __name__ == "__main__":
    main()
