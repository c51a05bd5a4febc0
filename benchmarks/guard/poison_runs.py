"""Bad data in runs of `trainbook train`, with its quarantine: put in by the fault injector, or in the data file."""

from __future__ import annotations

import json
import math
import re
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

from doctor.texts import SYMBOLS, foreign_paragraphs, paragraphs, topics

from guard.own_runs import SMALL, TINY_MODEL
from guard.poison import bad_steps, file_kinds_in, placements_in
from guard.poison_loops import counted

STEPS, BATCH, ROWS = 300, 16, 3000
INJECTED = ("random-labels", "repeated-tokens", "nan-gradient")
SHARES = {"rows-1": 0.01, "rows-6": 1 / 16}  # one sample in each batch is a sixteenth of all
PROGRAMS = ("gpt", "classifier")
POLICIES = ("none", "guard")
LINE = re.compile(r"(?::|line )(\d+)$")

Task = tuple[str, str, str, int, str]


def tasks(half: str, seeds: list[int]) -> list[Task]:
    found: list[Task] = []
    for program in PROGRAMS:
        kinds: list[tuple[str, str]] = [("clean", "")]
        for placement in placements_in(half):
            if placement != "one-sample":  # the injector spoils whole batches
                kinds += [(kind, placement) for kind in INJECTED]
        for kind in file_kinds_in(half):
            if not (program == "gpt" and kind == "mislabelled-rows"):
                kinds += [(kind, share) for share in SHARES]
        found += [(program, *each, seed, policy) for each in kinds for seed in seeds for policy in POLICIES]
    return found


def run_poisoned(task: Task) -> dict[str, Any]:
    """One run in a folder of its own, in a process of the pool."""
    import torch

    from trainbook import api
    from trainbook.errors import Diverged

    torch.set_num_threads(1)
    program, kind, placement, seed, policy = task
    started, stopped = time.process_time(), False
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bad_lines = _write_data(folder, program, kind, SHARES.get(placement, 0.0), seed)
        steps = bad_steps(placement, seed, STEPS) if kind in INJECTED else []
        overrides = [
            *_knobs(program, folder),
            f"training.seed={seed}",
            f"guard.enabled={str(policy == 'guard').lower()}",
        ]
        recipe = "gpt-tiny" if program == "gpt" else "bert-tiny"
        try:
            faults = [f"{kind}@{step}" for step in steps]
            api.train(recipe, overrides, name="run", runs_dir=folder, quiet=True, inject=faults)
        except Diverged:
            stopped = True
        run = api.open_run(folder / "run")
        # Rows are read from the file when they are used, and the file is gone after this.
        rows, evaluations, events = [*run.metrics("train")], [*run.metrics("eval")], run.events()
        file = folder / "run" / "quarantine.jsonl"
        entries = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    skipped = {event["step"] for event in events if event["kind"] == "skip"}
    if placement in SHARES:
        truth, blamed = bad_lines, {_line(entry["source"]) for entry in entries}
    else:
        truth = {sample for event in events if event["kind"] == "inject" for sample in event.get("ids", ())}
        blamed = {entry["id"] for entry in entries}
    return {
        **{"program": program, "kind": kind, "placement": placement, "seed": seed, "policy": policy},
        **counted(set(steps), skipped if policy == "guard" else set(), set(), rows[-1]["step"] if rows else 0),
        **{"quarantined": len(blamed), "quarantined_rightly": len(blamed & truth), "bad_samples": len(truth)},
        "quality": evaluations[-1]["loss"] if evaluations and not stopped else math.nan,
        "stopped": stopped,
        "rollbacks": sum(event["kind"] == "rollback" for event in events),
        "seconds": round(time.process_time() - started, 3),
    }


def _line(source: str) -> int:
    found = LINE.search(source)
    assert found is not None, f"a sample's source names no line: {source}"
    return int(found[1])


def _knobs(program: str, folder: Path) -> list[str]:
    common = [
        *TINY_MODEL[:3],
        *(each for each in SMALL if not each.startswith("logging")),
        *(f"training.max_steps={STEPS}", f"batch.global_batch_size={BATCH}", "schedule.type=constant"),
        *("schedule.warmup_steps=20", f"evaluation.eval_steps={STEPS}", "evaluation.eval_max_samples=256"),
        *(f"data.source={folder / 'train.jsonl'}", f"data.validation={folder / 'held.jsonl'}", "data.tokenizer=char"),
        f"data.cache_dir={folder / 'cache'}",
    ]
    if program == "gpt":
        return [*common, "data.samples=documents", "data.max_seq_length=48", "optimizer.learning_rate=3e-3"]
    return [*common, "training.task=classify", "data.max_seq_length=40", "optimizer.learning_rate=3e-3"]


def _write_data(folder: Path, program: str, kind: str, share: float, seed: int) -> set[int]:
    """The training file with bad rows in it, and a clean one for evaluation. Gives the numbers of the bad lines."""
    draw = Random(f"{kind} {share} {seed}")
    if program == "gpt":
        rows = [{"text": each} for each in paragraphs(seed, 80 * ROWS)[:ROWS]]
        held = [{"text": each} for each in paragraphs(1000 + seed, 40_000)]
        foreign = [{"text": each} for each in foreign_paragraphs(seed, 80 * ROWS // 8)]
    else:
        rows, held = topics(seed, ROWS, noise=0.0), topics(1000 + seed, 400, noise=0.0)
        foreign = topics(seed, ROWS // 8, noise=1.0, is_foreign=True)
    bad = sorted(draw.sample(range(len(rows)), round(share * len(rows))))
    labels = sorted({row.get("label", "") for row in rows})
    for number, at in enumerate(bad):
        row = dict(rows[at])
        if kind == "garbled-rows":
            # The order of symbols says little about a topic: there they are drawn anew.
            symbols = row["text"] if program == "gpt" else SYMBOLS
            row["text"] = "".join(draw.choice(symbols) for _ in row["text"])
        elif kind == "mislabelled-rows":
            row["label"] = draw.choice([label for label in labels if label != row["label"]])
        elif kind == "repeated-rows":
            row["text"] = draw.choice(row["text"].strip()) * len(row["text"])
        elif kind != "clean":  # of the held-out half
            row = foreign[number % len(foreign)]
        rows[at] = row
    for name, content in (("train.jsonl", rows), ("held.jsonl", held)):
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in content)
        (folder / name).write_text(lines, encoding="utf-8")
    return {at + 1 for at in bad}
