"""Rows 4, 5, 6c and 6d: bad gradients, bad batches, and losses that must not depend on how a batch is cut."""

from __future__ import annotations

import json
import math
import random
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import oracle
from harness import STEPS, Ended, text_of
from lab import Lab, Result, Trial, count, tracebacks

POISONED = (40, 50, 60)
SEEDS = range(5)


def nan_gradient(lab: Lab) -> Result:
    """Row 4: one gradient with a NaN in it."""
    trials = [_nan_at(lab, step) for step in ((30,) if lab.is_short else (3, 30, 75))]
    says = f"{count(trials)}: the update is skipped and reported, all weights stay finite, {STEPS} updates are applied"
    return Result("4", says, trials)


def _nan_at(lab: Lab, step: int) -> Trial:
    name = f"row4-{step}"
    ended = lab.bench.train(name, "--inject", f"nan-gradient@{step}")
    run, problems = lab.bench.folder(name), tracebacks(ended)
    if ended.code:
        return Trial(f"at step {step}", [*problems, f"exit code {ended.code}: {ended.last_words}"])
    skips = oracle.events(run, "skip")
    if not any(event["step"] in (step, step + 1) for event in skips):
        problems.append("no event tells of a skipped update")
    last = list(oracle.rows_that_count(run, "train").values())[-1]
    if last["applied_updates"] != STEPS:
        problems.append(f"{last['applied_updates']} updates were applied instead of {STEPS}")
    bad = [kept.step for kept in oracle.checkpoints(run) if not _is_finite(kept.path)]
    if bad:
        problems.append(f"weights that are not finite in the checkpoints {bad}")
    facts = {"final_evaluation_loss": _final_loss(run), "clean": _final_loss(lab.twin), "skips": len(skips)}
    return Trial(f"at step {step}", problems, facts)


def _is_finite(checkpoint: Path) -> bool:
    from safetensors.numpy import load_file

    tensors = [load_file(checkpoint / name) for name in ("model.safetensors", "optimizer.safetensors")]
    return all(math.isfinite(float(tensor.sum())) for part in tensors for tensor in part.values())


def poisoned_batches(lab: Lab) -> Result:
    """Row 5: three poisoned batches, beside the clean run of the same seed."""
    trials, facts = [], {}
    for kind in ("repeated-tokens", "random-labels"):
        differences = []
        for seed in (0,) if lab.is_short else SEEDS:
            clean, poisoned = (_trained(lab, seed, kind, poison) for poison in (False, True))
            trial = Trial(f"{kind}, seed {seed}", [*clean[1], *poisoned[1]])
            trials.append(trial)
            if not trial.problems:
                run = poisoned[0]
                differences.append(_final_loss(run) - _final_loss(clean[0]))
                kinds = ("skip", "rollback", "quarantine", "remedy")
                trial.facts = {"difference": differences[-1], "told": _told(run, kinds)}
                if not trial.facts["told"]:
                    trial.problems.append("nothing was told of the poisoned batches")
        facts[kind] = interval(differences)
    says = "; ".join(f"{kind}: {_shown(fact)}" for kind, fact in facts.items())
    noticed = sum(bool(trial.facts.get("told")) for trial in trials)
    return Result("5", f"{says}; noticed in {noticed} of {len(trials)} runs", trials, facts)


def _trained(lab: Lab, seed: int, kind: str, is_poisoned: bool) -> tuple[Path, list[str]]:
    name = f"row5-{kind}-{seed}" if is_poisoned else f"row5-clean-{seed}"
    faults = [part for step in POISONED for part in ("--inject", f"{kind}@{step}")] if is_poisoned else []
    if not is_poisoned and lab.bench.folder(name).exists():
        return lab.bench.folder(name), []
    # A real text, read by character as the other trainers read theirs; a small model knows enough of it by then that
    # random labels cost it something.
    text = () if lab.has_own_text else ("data.source=builtin:pystdlib", "data.tokenizer=char")
    # All of the validation text, and so many samples of it that the loss is a number to three places.
    ended = lab.bench.train(name, f"training.seed={seed}", "evaluation.eval_max_samples=400", *text, *faults)
    problems = [f"exit code {ended.code}: {ended.last_words}"] if ended.code else []
    return lab.bench.folder(name), [*problems, *tracebacks(ended)]


def _told(run: Path, kinds: Sequence[str]) -> list[str]:
    return [f"{event['kind']} at {event['step']}: {event.get('reason', '')}" for event in oracle.events(run, *kinds)]


def interval(differences: Sequence[float]) -> dict[str, Any]:
    """Mean difference of pairs with its 95 % interval (Student's t)."""
    if len(differences) < 2:
        return {"pairs": len(differences), "mean": differences[0] if differences else None}
    from scipy import stats

    mean, deviation = statistics.mean(differences), statistics.stdev(differences)
    half = float(stats.t.ppf(0.975, len(differences) - 1)) * deviation / math.sqrt(len(differences))
    worse = sum(difference > 0 for difference in differences)
    bounds = {"low": mean - half, "high": mean + half}
    return {"pairs": len(differences), "mean": mean, "deviation": deviation, **bounds, "worse": worse}


def _shown(fact: dict[str, Any]) -> str:
    if fact["mean"] is None:
        return "not measured"
    if fact["pairs"] < 2:
        return f"{fact['mean']:+.4f} (one pair)"
    return (
        f"{fact['mean']:+.4f} (sd {fact['deviation']:.4f}, 95 % interval {fact['low']:+.4f} to {fact['high']:+.4f}), "
        f"worse {fact['worse']} of {fact['pairs']}"
    )


def _final_loss(run: Path) -> float:
    return float(list(oracle.rows_that_count(run, "eval").values())[-1]["loss"])


def write_documents(folder: Path) -> None:
    """Texts of one byte to a full row: with as uneven numbers of targets as can be."""
    for name, number, seed in (("uneven.jsonl", 200, 1), ("validation.jsonl", 90, 2)):
        draw, text = random.Random(seed), "_".join(text_of(3000, seed).split())  # a blank text is no document
        texts = [text[start : start + draw.choice((1, 2, 5, 20, 60))] for start in range(0, 70 * number, 70)]
        (folder / name).write_text("".join(json.dumps({"text": each}) + "\n" for each in texts))


UNEVEN = (
    "data.source=uneven.jsonl",
    "data.validation=validation.jsonl",
    "data.samples=documents",
    "data.tokenizer=byte",
    "model.dropout=0",
    "training.max_steps=20",
    "evaluation.eval_max_samples=null",
)


def _train_uneven(lab: Lab, name: str, *overrides: str) -> Ended:
    write_documents(lab.bench.root)
    return lab.bench.train(name, *UNEVEN, *overrides)


def accumulated(lab: Lab) -> Result:
    """Row 6c: k micro-batches of b are one batch of k × b, also where their numbers of targets differ."""
    trials, losses = [], {}
    for parts in (1, 8) if lab.is_short else (1, 2, 4, 8):
        name = f"row6c-{parts}"
        ended = _train_uneven(lab, name, f"batch.gradient_accumulation_steps={parts}")
        trial = Trial(f"{parts} × {8 // parts}", [f"exit code {ended.code}: {ended.last_words}"] if ended.code else [])
        trials.append(trial)
        rows = oracle.rows_that_count(lab.bench.folder(name), "train").values()
        losses[parts] = [(row["loss"], row["grad_norm"]) for row in rows]
        pairs = list(zip(losses[parts], losses[1], strict=True))
        trial.facts = {
            "loss": max(abs(here[0] - there[0]) for here, there in pairs),
            "grad_norm_relative": max(abs(here[1] - there[1]) / there[1] for here, there in pairs),
        }
        if trial.facts["loss"] > 1e-4 or trial.facts["grad_norm_relative"] > 1e-3:
            trial.problems.append(f"differs by more than rounding: {trial.facts}")
    worst = max(trial.facts["loss"] for trial in trials)
    return Result("6c", f"equal up to rounding over 20 steps: loss off by at most {worst:.0e}", trials)


def evaluated(lab: Lab) -> Result:
    """Row 6d: the evaluation loss at several batch sizes, and the true one, by another library on another path."""
    trials, losses = [], {}
    for size in (1, 64) if lab.is_short else (1, 7, 64):
        name = f"row6d-{size}"
        ended = _train_uneven(lab, name, f"evaluation.per_device_eval_batch_size={size}")
        trial = Trial(f"batch {size}", [f"exit code {ended.code}: {ended.last_words}"] if ended.code else [])
        losses[size] = _final_loss(lab.bench.folder(name))
        trial.facts = {"loss": losses[size]}
        trials.append(trial)
    truth = _true_loss(lab, "row6d-1")
    for trial in trials:
        if abs(trial.facts["loss"] - truth) > 1e-5:
            trial.problems.append(f"the true loss is {truth}")
    shown = " / ".join(f"{loss:.4f}" for loss in losses.values())
    return Result("6d", f"{shown}, true {truth:.4f}", trials, {"truth": truth})


def _true_loss(lab: Lab, name: str) -> float:
    """Document by document through the exported model, in 64 bits, all targets weighing the same."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    to = lab.bench.root / f"{name}-exported"
    ended = lab.bench.run("export", f"runs/{name}", "--to", str(to), "--checkpoint", "latest")
    assert ended.code == 0, ended.said
    model = AutoModelForCausalLM.from_pretrained(to).double().eval()
    end, total, targets = 256, 0.0, 0
    for line in (lab.bench.root / "validation.jsonl").read_text().splitlines():
        tokens = torch.tensor([[*json.loads(line)["text"].encode(), end]])
        with torch.no_grad():
            logits = model(tokens[:, :-1]).logits[0]
        total += float(torch.nn.functional.cross_entropy(logits, tokens[0, 1:], reduction="sum"))
        targets += tokens.shape[1] - 1
    return total / targets
