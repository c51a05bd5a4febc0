"""The folders that the pages are tried on: made by hand, in a second or two."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.report.test_study_page import RATE, ablation, knob, trial, tuning
from tests.run_folders import make_run, write_lines

from trainbook.runs import RunFolder

MANY = 1_000_000
SPIKE_AT = 613_337
EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>"
EVIL_FOLDER = "<img src=x onerror=alert(3)>"  # a name that a file system allows


def make_all(folder: Path) -> None:
    for make in (
        _live,
        _seeds,
        _not_a_number,
        _classifier,
        _evil,
        _of_another_tool,
        _studies,
        _data_report,
        _many_steps,
    ):
        make(folder)


def make_few(folder: Path) -> None:
    _seeds(folder)
    _of_another_tool(folder)


def train_row(step: int, loss: float, **more: Any) -> dict[str, Any]:
    rest = {
        "learning_rate": 1e-3,
        "grad_norm": 0.8,
        "tokens": 8 * step,
        "tokens_per_second": 900.0,
        "step_seconds": 0.1,
    }
    return {"step": step, "segment": 0, "split": "train", "loss": loss, **rest, **more}


def start(**facts: Any) -> dict[str, Any]:
    return {"step": 0, "segment": 0, "kind": "start", "num_parameters": 1234, "total_updates": 10, **facts}


def append_row(run: RunFolder, step: int, loss: float) -> None:
    write_lines(run.metrics_file, [train_row(step, loss)], mode="a")


def _run(path: Path, loss_at: Callable[[int], float], steps: int, **more: Any) -> RunFolder:
    run = make_run(path, **more)
    write_lines(run.metrics_file, [train_row(step, loss_at(step)) for step in range(1, steps + 1)])
    return run


def _live(folder: Path) -> None:
    made = {"settings": {"training__max_steps": 100}, "events": [start(total_updates=100)], "status": "running"}
    _run(folder / "live", lambda step: 3.0 / step, 20, **made)


def _seeds(folder: Path) -> None:
    """Three seeds of one configuration, and one of another."""
    for seed in (1, 2, 3):
        evaluations = {step: {"loss": 2.0 + 0.1 * seed + 3.0 / step, "best": True} for step in (10, 20, 30, 40)}
        settings = {"training__seed": seed, "optimizer__learning_rate": 1e-2}
        losses = [2.0 + 0.1 * seed + 3.0 / step for step in range(1, 41)]
        made = {"seed": seed, "settings": settings, "evaluations": evaluations, "events": [start()]}
        make_run(folder / f"small-{seed}", losses=losses, **made)
    losses = [3.0 + 3.0 / step for step in range(1, 41)]
    evaluations = {step: {"loss": 3.0 + 3.0 / step, "best": True} for step in (10, 20, 30, 40)}
    run = make_run(
        folder / "other", losses=losses, evaluations=evaluations, settings={"optimizer__learning_rate": 1e-4}
    )
    run.config.write_text("optimizer:\n  learning_rate: 0.0001\ntraining:\n  max_steps: 40\n")


def _not_a_number(folder: Path) -> None:
    losses = [3 * math.exp(-step / 100) + 1 for step in range(1, 401)]
    losses[200], losses[250], losses[300] = math.nan, math.inf, 55.0
    skips = [{"step": 201, "segment": 0, "kind": "skip", "reason": "the loss is NaN"}]
    others = [
        {"step": 251, "segment": 0, "kind": "rollback", "reason": "back to step 240"},
        {"step": 350, "segment": 0, "kind": "checkpoint"},
    ]
    make_run(folder / "not-a-number", losses=losses, events=[start(), *skips, *others])


def _classifier(folder: Path) -> None:
    labels = ["noun", "verb", "adjective"]
    evaluations = {step: {"loss": 1.1 / step, "accuracy": 1 - 1 / step, "best": True} for step in (10, 20)}
    losses = [1.2 / step for step in range(1, 21)]
    run = make_run(
        folder / "classifier", losses=losses, evaluations=evaluations, settings={"training__task": "classify"}
    )
    matrix = [[30, 2, 1], [3, 25, 0], [0, 4, 19]]
    write_lines(run.path / "classes.jsonl", [{"step": 20, "labels": labels, "matrix": matrix}])
    texts = [{"step": step, "prompt": "def ", "text": f"main(): # {step}"} for step in (10, 20)]
    write_lines(run.path / "generations.jsonl", texts)


def _evil(folder: Path) -> None:
    for place in (folder / "evil", folder / EVIL_FOLDER):
        settings = {"data__source": EVIL, "training__max_steps": 3}
        events = [start(), {"step": 2, "segment": 0, "kind": "skip", "reason": EVIL}]
        run = make_run(place, name=EVIL, recipe=EVIL, status_detail=EVIL, settings=settings, events=events)
        sample = {"id": 1, "source": EVIL, "step": 1, "loss": 2.0, "reason": EVIL, "text": EVIL}
        write_lines(run.quarantine_file, [sample])
        write_lines(run.path / "samples.jsonl", [sample])
        write_lines(run.path / "generations.jsonl", [{"step": 2, "prompt": EVIL, "text": EVIL}])
        write_lines(run.path / "classes.jsonl", [{"step": 2, "labels": [EVIL, "b"], "matrix": [[1, 2], [3, 4]]}])
        (run.path / "board.json").write_text(json.dumps({"tags": [EVIL], "note": EVIL}))


def trainer_state() -> dict[str, Any]:
    """Of a run of the Hugging Face trainer that overfits."""
    train = [
        {
            "step": step,
            "loss": 3 * math.exp(-step / 50) + 1,
            "learning_rate": 1e-4,
            "grad_norm": 1.0,
            "epoch": step / 50,
        }
        for step in range(10, 500, 10)
    ]
    evaluated = [
        {"step": step, "eval_loss": 2.9 * math.exp(-step / 60) + 1.1 + max(0, step - 250) / 600}
        for step in range(50, 500, 50)
    ]
    return {"log_history": [*train, *evaluated], "global_step": 490, "max_steps": 500}


def _of_another_tool(folder: Path) -> None:
    place = folder / "hf"
    place.mkdir()
    (place / "trainer_state.json").write_text(json.dumps(trainer_state()))


def _studies(folder: Path) -> None:
    trials = [trial(0, 3.0, "base")]
    for number in range(1, 21):
        values = {RATE: 1e-4 * 1.25**number, "optimizer.beta1": 0.8 + 0.008 * ((7 * number) % 20)}
        trials.append(trial(number, 2.0 + 0.01 * (number - 12) ** 2, values=values))
    tuned = tuning("tuned") | {"trials": trials, "importance": {RATE: 0.8, "optimizer.beta1": 0.2}}
    tuned |= {"space": [knob(RATE, 1e-4, 1e-2, "log"), knob("optimizer.beta1", 0.8, 0.98, "linear")]}
    for name, file, answer in (("tuned", "study.json", tuned), ("parts", "ablation.json", ablation("RMSNorm"))):
        place = folder / name
        place.mkdir()
        (place / "base.yaml").write_text("")
        (place / file).write_text(json.dumps(answer))


def _data_report(folder: Path) -> None:
    """As `trainbook data --json` answers, cut down to what the page cannot do without."""
    lengths = {"percentiles": {"50": 12, "95": 20, "99": 30}, "max": 40}
    lengths["histogram"] = [{"from": 1, "to": 20, "documents": 90}, {"from": 20, "to": 41, "documents": 10}]
    side = {"documents": 100, "sampled_documents": 100, "characters": 900, "bytes": 900, "tokens": 1200}
    side |= {
        "tokens_estimated": False,
        "tokens_per_byte": 1.3,
        "lengths": lengths,
        "labels": {"counts": {EVIL: 60, "b": 40}},
    }
    curve = [{"length": 2**power, "tokens_kept": power / 8, "documents_whole": power / 9} for power in range(3, 9)]
    facts = {"source": EVIL, "validation": None, "task": "classify", "tokenizer": "byte", "vocab_size": 260}
    facts |= {"findings": [{"rule": "duplicates", "severity": "warning", "text": EVIL, "override": None}]}
    facts |= {
        "sides": {"train": side},
        "lengths": {"curve": curve, "recommended": 64, "configured": 256, "by_length": []},
    }
    facts |= {"padding": None, "duplicates": None, "contradictions": None, "shift": None, "fields": {}, "filters": {}}
    (folder / "reviews.data.json").write_text(json.dumps(facts))


def _many_steps(folder: Path) -> None:
    run = make_run(folder / "many-steps", losses=[1.0], settings={"training__max_steps": MANY})
    losses = (9.0 if step == SPIKE_AT else 2.0 + 0.05 * (step % 7) for step in range(1, MANY + 1))
    head = '{"step":%d,"segment":0,"split":"train","loss":%.2f}\n'
    run.metrics_file.write_text("".join(head % pair for pair in enumerate(losses, start=1)))
