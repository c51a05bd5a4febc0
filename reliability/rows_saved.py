"""Rows 1 to 3: killed runs, and checkpoints that are damaged or half-written."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path

import oracle
from damage import bits_of_every_file, contents, truncate
from harness import STEPS, Bench, save_under_way
from lab import Lab, Result, Trial, count, tracebacks

# 306 MB a checkpoint: a save that takes long enough to be hit anywhere.
LARGE = (
    "gpt-tiny",
    "data.source=text.txt",
    "model.num_hidden_layers=2",
    "model.hidden_size=1024",
    "model.num_attention_heads=8",
    "data.max_seq_length=16",
    "batch.global_batch_size=1",
    "training.max_steps=20",
    "schedule.warmup_steps=2",
    "logging.dense_steps=1000",
    "checkpoint.save_steps=2",
    "evaluation.eval_strategy=no",
)


def killed(lab: Lab) -> Result:
    """Row 1: kill -9 at a drawn step, then resume."""
    draw, trials = lab.draw("1"), []
    for number in range(1 if lab.is_short else 8):
        name, step = f"row1-{number}", draw.randrange(2, STEPS - 8)
        running = lab.bench.start(*lab.bench.train_command(name))
        trial = Trial(f"kill -9 at step {step}")
        if lab.kill_at(running, name, step):
            trial.facts["last_row"] = max(oracle.rows_that_count(lab.bench.folder(name), "train"), default=0)
            _, trial.problems = lab.resume(name)
            trial.facts["resumed_from"] = lab.resumed_from(name)
        else:
            trial.problems = ["the run ended before it was hit"]
        trials.append(trial)
    says = f"{count(trials)} resume bit-equal: weights, optimizer and every row"
    if not lab.is_short:
        renames = [_killed_before_rename(lab, number) for number in RENAMES]
        trials += renames
        says += f"; killed while a file of the run folder was replaced, {count(renames)} resume with the same command"
    return Result("1", says, trials)


# The run's own files are replaced by renaming: first the index, config, tokenizer and manifest, then what saves write.
RENAMES = (1, 2, 3, 4, 5, 9)
BEFORE_RENAME = """
import os, signal
real, left = os.replace, {number}
def replace(source, target):
    global left
    left -= "runs/" in str(target)
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    real(source, target)
os.replace = replace
from trainbook.cli.main import run
run()
"""


def _killed_before_rename(lab: Lab, number: int) -> Trial:
    """The new file is complete under a name of its own, and its process dies."""
    name = f"row1-rename-{number}"
    hit = lab.bench.train(name, program=BEFORE_RENAME.format(number=number))
    left = [path.name for path in lab.bench.folder(name).rglob(".*") if path.is_file()]
    problems = [] if hit.code == -signal.SIGKILL else [f"was not hit: exit code {hit.code}"]
    again = lab.bench.train(name)
    problems += [f"exit code {again.code}: {again.last_words}"] if again.code else []
    problems += tracebacks(again)
    if not problems:
        problems = oracle.faults_of_end(lab.bench.folder(name), lab.twin)
    return Trial(f"kill -9 before rename {number}", problems, {"left": [re.sub(r"\d{2,}", "N", each) for each in left]})


def truncated(lab: Lab) -> Result:
    """Row 2a: each file of the newest checkpoint cut short, then deleted; the folder deleted; all of them deleted."""
    draw, trials = lab.draw("2a"), []
    files = [path.name for path in contents(_newest(lab, lab.killed))]
    spoilers: list[tuple[str, Callable[[Path], None]]] = []
    for file in files:
        spoilers.append((f"{file} cut short", lambda newest, file=file: truncate(newest / file, draw)))
        spoilers.append((f"{file} deleted", lambda newest, file=file: (newest / file).unlink()))
    if lab.is_short:
        spoilers = [spoilers[draw.randrange(len(spoilers))]]
    for number, (what, spoil) in enumerate(spoilers):
        name = f"row2a-{number}"
        lab.bench.copy(lab.killed, name)
        spoil(_newest(lab, name))
        _, problems = lab.resume(name)
        trials.append(Trial(what, problems, {"resumed_from": lab.resumed_from(name)}))
        lab.bench.clear(name)
    says = f"{count(trials)} named, the previous one used, then bit-equal"
    if lab.is_short:
        return Result("2a", says, trials)
    gone = [_missing(lab, "the newest checkpoint's folder deleted", 1), _missing(lab, "every checkpoint deleted", None)]
    says += f"; the newest or every checkpoint missing: {count(gone)} reported, then bit-equal"
    others = [
        _run_file_spoilt(lab, file, harm, verb) for file, verbs in RUN_FILES.items() for verb in verbs for harm in HARMS
    ]
    rows = [trial for trial in others if "jsonl" in trial.what]
    rest = [trial for trial in others if trial not in rows]
    says += (
        f"; the run's own files lost: {count(rest)} restored, then bit-equal; its rows lost: {count(rows)} reported, "
    )
    says += "the weights bit-equal"
    return Result("2a", says, [*trials, *gone, *others])


# Another file of the run folder, and the commands that go on with it.
RUN_FILES = {
    "config.yaml": ("train", "resume"),
    "manifest.json": ("train", "resume"),
    "metrics.jsonl": ("train",),
    "events.jsonl": ("train",),
    "tokenizer/tokenizer.json": ("train",),
}
HARMS = ("deleted", "emptied", "cut short")
MADE_ANEW = "tokenizer/tokenizer.json"  # at every start, from the data: nothing to tell of


def _run_file_spoilt(lab: Lab, file: str, harm: str, verb: str) -> Trial:
    """The run goes on to the same end, and what was lost is told: by an event and on the terminal."""
    name = f"row2a-{verb}-{harm}-{file.replace('/', '-')}".replace(" ", "-")
    run = lab.bench.copy(lab.killed, name)
    path, earlier = run / file, oracle.segments(run)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] if harm == "cut short" else b"")
    if harm == "deleted":
        path.unlink()
    ended = lab.bench.train(name) if verb == "train" else lab.bench.run("resume", name)
    new = [event for event in oracle.events(run) if event["segment"] not in earlier]
    told = [event["reason"] for event in new if event["kind"] == "notice" and path.name in event["reason"]]
    problems = [f"exit code {ended.code}: {ended.last_words}"] if ended.code else []
    problems += tracebacks(ended)
    if file != MADE_ANEW and not any(line in ended.out for line in told):
        problems.append("goes on without a word of what is gone")
    if path.suffix == ".jsonl":  # what was in it cannot come back
        problems += oracle.faults_of_state(run, lab.twin)
    else:
        problems += oracle.faults_of_end(run, lab.twin)
    lab.bench.clear(name)
    return Trial(f"{file} {harm}, {verb}", problems, {"code": ended.code, "told": told})


def _missing(lab: Lab, what: str, number: int | None) -> Trial:
    """Whole checkpoints are gone, of which the run's own events still tell. To go on further back needs a word."""
    name = f"row2a-missing-{number}"
    run = lab.bench.copy(lab.killed, name)
    lost = oracle.checkpoints(run)[:number]
    for kept in lost:
        for file in kept.path.iterdir():
            file.unlink()
        kept.path.rmdir()
    earlier = oracle.segments(run)
    ended = lab.bench.run("resume", name)
    new = [event for event in oracle.events(run) if event["segment"] not in earlier]
    words = [str(event.get("reason", "")) for event in new if event["kind"] not in ("resume", "start", "checkpoint")]
    told = [
        word for word in [*words, ended.err] if any(f"the checkpoint of step {kept.step}," in word for kept in lost)
    ]
    problems = [] if told else [f"went on from step {new[0]['step'] if new else None} without a word of what is gone"]
    if ended.code == 0:
        problems += oracle.faults_of_end(run, lab.twin)
    return Trial(what, [*problems, *tracebacks(ended)], {"code": ended.code, "said": lab.bench.shown(ended.last_words)})


def flipped(lab: Lab) -> Result:
    """Row 2b: one bit of each file, in mantissas, exponents, headers and elsewhere."""
    draw, trials = lab.draw("2b"), []
    flips = bits_of_every_file(_newest(lab, lab.killed), draw)
    if lab.is_short:
        flips = [(place, flip) for place, flip in flips if place == "exponent"][:1]
    for number, (place, flip) in enumerate(flips):
        name = f"row2b-{number}"
        lab.bench.copy(lab.killed, name)
        moved = type(flip)(_newest(lab, name) / flip.path.name, flip.byte, flip.bit)
        moved.do()
        _, problems = lab.resume(name)
        facts = {"file": flip.path.name, "place": place, "byte": flip.byte, "bit": flip.bit}
        trials.append(Trial(f"{flip.path.name}, {place}, byte {flip.byte}, bit {flip.bit}", problems, facts))
        lab.bench.clear(name)
    says = f"{count(trials)} noticed and named, the previous one used, then bit-equal"
    if not lab.is_short:
        readers = [_read_damaged(lab, *arguments) for arguments in READERS]
        trials += readers
        says += f"; generate and export refuse or name it {count(readers)}"
    return Result("2b", says, trials)


READERS = (("generate", "--max-new-tokens", "3"), ("export",))


def _read_damaged(lab: Lab, verb: str, *options: str) -> Trial:
    """Commands that only read the weights must not believe a flipped bit either."""
    name = f"row2b-{verb}"
    lab.bench.copy(lab.killed, name)
    for kept in oracle.checkpoints(lab.bench.folder(name)):
        path = kept.path / "model.safetensors"
        content = bytearray(path.read_bytes())
        content[-2] ^= 1
        path.write_bytes(content)
    to = ("--to", str(lab.bench.root / "exported")) if verb == "export" else ()
    ended = lab.bench.run(verb, f"runs/{name}", *to, *options)
    problems = [] if ended.code and "damaged" in ended.err else [f"exit code {ended.code}: {ended.last_words}"]
    return Trial(f"{verb} from damaged weights", [*problems, *tracebacks(ended)], {"said": ended.last_words})


def killed_while_saving(lab: Lab) -> Result:
    """Row 3: kill -9 after a drawn share of the bytes of a save was written."""
    draw, trials, hits = lab.draw("3"), [], 1 if lab.is_short else 10
    bench = Bench(lab.bench.root / "large", LARGE)
    twin = bench.train("twin")
    run, twin_folder = bench.folder("run"), bench.folder("twin")
    last = oracle.newest_whole(twin_folder)
    assert twin.code == 0 and last is not None, twin.said
    whole_size = sum(path.stat().st_size for path in last.path.iterdir())
    for number in range(hits):
        share, later = draw.uniform(0, 1), draw.randrange(2)  # in the first save of the process, or in its second
        before, earlier = oracle.newest_whole(run), oracle.segments(run)
        running = bench.start(*bench.train_command("run"))
        trial = Trial(f"kill {number + 1}, after {share:.0%} of a save")
        trials.append(trial)
        first_step = (before.step if before else 0) + 2 * later

        def is_there(running=running, first_step=first_step, share=share) -> bool:
            newest = max((int(path.name[5:]) for path in (run / "checkpoints").glob("step-*")), default=0)
            files = save_under_way(run / "checkpoints", running.pid) if newest >= first_step else None
            return files is not None and sum(files.values()) >= share * 0.98 * whole_size

        reached = running.wait_until(is_there)
        running.send(signal.SIGKILL)
        hit = reached and running.end().code == -signal.SIGKILL
        written = sum(path.stat().st_size for path in (run / "checkpoints").glob(".writing-*/*"))
        trial.facts = {"megabytes_written": round(written / 1e6), "of": round(whole_size / 1e6)}
        trial.problems = [] if hit else ["the run ended before it was hit"]
        trial.problems += oracle.faults_of_resume(run, before, set(), earlier)
        trial.problems += oracle.faults_of_keeping(run, before, earlier)
    again = bench.train("run")
    ending = [f"exit code {again.code}: {again.last_words}"] if again.code else []
    trials.append(Trial("the end", ending + oracle.faults_of_end(run, twin_folder) + tracebacks(again)))
    amid = sum(trial.facts.get("megabytes_written", 0) > 0 for trial in trials)
    bench.clear("run")
    bench.clear("twin")
    good = all(not trial.problems for trial in trials)
    says = f"{count(trials[:-1])} resume ({amid} left a half-written save); {'bit-equal' if good else 'NOT bit-equal'} "
    says += f"at the end ({round(whole_size / 1e6)} MB)"
    return Result("3", says, trials)


def _newest(lab: Lab, name: str) -> Path:
    return lab.bench.folder(name) / "checkpoints" / "step-00000040"
