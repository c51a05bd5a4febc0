"""Rows 6a, 6b and 10: misspelt keys, wrong values, and a run that is resumed under other settings."""

from __future__ import annotations

import shutil
from pathlib import Path

import oracle
from damage import tear
from harness import SAVE_STEPS
from lab import KILLED_AT, Lab, Result, Trial, bytes_of, changed, count, tracebacks

# What is typed, and the name that has to be proposed for it. The first ones are parts of a name, not misspellings.
MISSPELT = {
    "optimizer.learning=1e-3": "optimizer.learning_rate",
    "batch.global_batch=4": "batch.global_batch_size",
    "optimizer.lerning_rate=1e-3": "optimizer.learning_rate",
    "lerning_rate=1e-3": "optimizer.learning_rate",
    "model.num_hidden_layrs=2": "model.num_hidden_layers",
    "n_layr=2": "model.num_hidden_layers",
    "gradient_acumulation_steps=2": "batch.gradient_accumulation_steps",
    "max_grad_nrom=1.0": "batch.max_grad_norm",
    "schedule.warmup_step=5": "schedule.warmup_steps",
    "warmup_raito=0.1": "schedule.warmup_ratio",
    "training.max_step=10": "training.max_steps",
    "checkpoint.save_step=10": "checkpoint.save_steps",
    "model.dropot=0.1": "model.dropout",
    "evaluation.eval_stratgy=no": "evaluation.eval_strategy",
    "optimizr.type=adamw": "optimizer",
}

WRONG = (
    "optimizer.learning_rate=fast",
    "optimizer.learning_rate=-1e-3",
    "optimizer.learning_rate=0",
    "optimizer.learning_rate=.nan",
    "optimizer.beta2=1.0",
    "optimizer.type=adamm",
    "optimizer.weight_decay=-0.1",
    "schedule.type=cosin",
    "schedule.warmup_steps=80",
    "batch.global_batch_size=0",
    "batch.global_batch_size=2.5",
    "batch.gradient_accumulation_steps=3",
    "batch.max_grad_norm=-1",
    "training.max_steps=0",
    "training.max_steps=ten",
    "training.seed=true",
    "training.device=gpu7",
    "model.dropout=1.5",
    "model.num_attention_heads=5",
    "precision.compute=fp17",
    "checkpoint.save_steps=0",
    "evaluation.eval_steps=-5",
    "evaluation.metric_for_best_model=los",
    "data.source=no-such-file.txt",
    "data.max_seq_length=0",
    "logging.report_to=[mlflow]",
)


def misspelt(lab: Lab) -> Result:
    """Row 6a."""
    trials = []
    for typed, meant in list(MISSPELT.items())[: 2 if lab.is_short else None]:
        trial = _refused(lab, typed)
        if f"Did you mean {meant}?" not in trial.facts["said"]:
            trial.problems.append(f"does not propose {meant}: {trial.facts['said']}")
        trials.append(trial)
    says = f"{count(trials)} refused before anything is loaded, with the right name suggested; no prefix is accepted"
    return Result("6a", says, trials)


def wrong_values(lab: Lab) -> Result:
    """Row 6b."""
    trials = [_refused(lab, typed) for typed in WRONG[: 2 if lab.is_short else None]]
    silent = sum(any("accepted" in problem for problem in trial.problems) for trial in trials)
    says = f"of {len(trials)}: {sum(not trial.problems for trial in trials)} refused before the first step with the "
    return Result("6b", says + f"constraint and the value, {silent} silent", trials)


def _refused(lab: Lab, typed: str) -> Trial:
    knob = typed.split("=")[0]
    ended = lab.bench.train("wrong", typed)
    problems = tracebacks(ended)
    if ended.code == 0:
        problems.append("accepted")
    elif ended.code != 2:
        problems.append(f"exit code {ended.code}: {ended.last_words}")
    if not any(part in ended.err for part in knob.split(".")):
        problems.append(f"does not name the knob: {ended.last_words}")
    if lab.bench.folder("wrong").exists():
        problems.append("left a run folder behind")
        lab.bench.clear("wrong")
    return Trial(typed, problems, {"said": lab.bench.shown(ended.last_words)})


CHANGES = {
    "another rate": ("optimizer.learning_rate=1e-3", "optimizer.learning_rate: 0.003 -> 0.001"),
    "another batch": ("batch.global_batch_size=16", "batch.global_batch_size: 8 -> 16"),
    "another length": ("training.max_steps=120", "training.max_steps: 80 -> 120"),
    "another seed": ("training.seed=7", "training.seed: 0 -> 7"),
    "another width": ("model.hidden_size=64", "model.hidden_size: 32 -> 64"),
    "other data": ("data.source=other.txt", "the data has changed since step 40 was saved"),
}
ON_REQUEST = ("another rate", "another batch", "another length")


def resumed_otherwise(lab: Lab) -> Result:
    """Row 10: refused with the difference named; on request taken, and written down."""
    text = (lab.bench.root / "text.txt").read_text()
    (lab.bench.root / "other.txt").write_text(text[1000:] + text[:1000])
    untidy(lab.bench.copy(lab.killed, "row10"))
    changes = list(CHANGES)[:1] if lab.is_short else list(CHANGES)
    refused = [_change_refused(lab, what) for what in changes]
    _, problems = lab.resume("row10")
    unharmed = Trial("resumed as it was, after all these", problems)
    taken = [] if lab.is_short else [_change_taken(lab, what) for what in ON_REQUEST]
    says = f"{count(refused)} refused with old and new value, no byte of the run changed, then bit-equal"
    says += "" if lab.is_short else f"; with --accept-changes {count(taken)} accepted and recorded"
    return Result("10", says, [*refused, unharmed, *taken])


def untidy(run: Path) -> None:
    """What a process can leave that is killed amid a save: half of it, an index of the time before, torn last rows."""
    checkpoints = run / "checkpoints"
    newest = max(checkpoints.glob("step-*"))
    half = checkpoints / f".writing-step-{int(newest.name[5:]) + 1:08d}-99999999"  # no process has this number
    shutil.copytree(newest, half)
    (half / "complete.json").unlink()
    (checkpoints / "index.json").write_text('{"latest": null, "best": null, "steps": []}\n')
    for rows in ("metrics.jsonl", "events.jsonl"):
        tear(run / rows)


def _change_refused(lab: Lab, what: str) -> Trial:
    override, words = CHANGES[what]
    before = bytes_of(lab.bench.folder("row10"))
    ended = lab.bench.run("resume", "row10", override)
    problems = [] if ended.code == 2 else [f"exit code {ended.code}: {ended.last_words}"]
    if words not in ended.err:
        problems.append(f"does not say '{words}'")
    if touched := changed(before, bytes_of(lab.bench.folder("row10"))):
        problems.append(f"changed {', '.join(touched)}")
    return Trial(what, [*problems, *tracebacks(ended)], {"said": lab.bench.shown(ended.err.strip())})


def _change_taken(lab: Lab, what: str) -> Trial:
    override, words = CHANGES[what]
    name = f"row10-{what.split()[-1]}"
    run = lab.bench.copy(lab.killed, name)
    ended = lab.bench.run("resume", name, override, "--accept-changes")
    problems = [f"exit code {ended.code}: {ended.last_words}"] if ended.code else []
    told = [event["reason"] for event in oracle.events(run, "config_change")]
    if words not in told:
        problems.append(f"was not written down: {told}")
    rows, begin = oracle.rows_that_count(run, "train"), KILLED_AT // SAVE_STEPS * SAVE_STEPS
    if what == "another batch" and not ended.code:
        # Twice the samples a step from here on, and none left out: the place in the data moves on by two old steps.
        a_step = rows[begin]["epoch"] / begin
        if abs(rows[begin + 1]["epoch"] - (begin + 2) * a_step) > 1e-9:
            problems.append("samples were left out or seen again")
    highest = max((row["learning_rate"] for step, row in rows.items() if step > begin), default=0.0)
    if what == "another rate" and not ended.code and highest > 1e-3:
        problems.append("the old rate went on")
    if what == "another length" and max(rows) != 120:
        problems.append(f"ended at step {max(rows)}")
    return Trial(f"{what}, accepted", [*problems, *tracebacks(ended)], {"written_down": told})
