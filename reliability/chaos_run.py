"""One run of the chaos: hit again and again, examined after every process, and brought to its end."""

from __future__ import annotations

import random
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import chaos_faults as faults
import oracle
from chaos_faults import Fault, Hit
from disks import SmallDisk, can_mount
from harness import STEPS, Bench, Ended, Running
from lab import bytes_of, changed, tracebacks
from rows_endings import HANGING

DISK_KILOBYTES = 16_000
LAST_STEP = STEPS - 15  # hits later than this might find the run ended


@dataclass
class Report:
    name: str
    kind: str
    faults: list[Fault] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    processes: int = 0
    is_bit_equal: bool = False


@dataclass(frozen=True)
class Kind:
    """What a run is like: its settings, and the faults that are put into its training, in its twin's as well."""

    name: str
    overrides: tuple[str, ...] = ()
    injected: tuple[str, ...] = ()

    @property
    def inject(self) -> tuple[str, ...]:
        return tuple(part for fault in self.injected for part in ("--inject", fault))


class Subject:
    def __init__(
        self, bench: Bench, name: str, kind: Kind, twin: Path, is_on_small_disk: bool, draw: random.Random
    ) -> None:
        self.bench, self.name, self.kind, self.twin, self.draw = bench, name, kind, twin, draw
        self.report = Report(name, kind.name)
        place = bench.root / f"disk-{name}"
        self.disk = SmallDisk(place, DISK_KILOBYTES) if is_on_small_disk and can_mount() else None
        self.runs = place if self.disk else bench.root / "runs"
        self.run = self.runs / name

    def suffer(self, share: int) -> Report:
        """Up to so many faults, then the end."""
        try:
            self._suffer(share)
        except ValueError as error:
            self._problem(f"the run's files can no longer be read: {error}")
        if self.disk is not None:
            self.disk.remove()
        return self.report

    def _suffer(self, share: int) -> None:
        while len(self.report.faults) < share and self._newest_step() < LAST_STEP:
            if not self._process(share):
                break
            self._damage(share)
            if len(self.report.faults) < share and self.draw.random() < 0.15:
                self._refused_start()
        self._end()

    def _process(self, share: int) -> bool:
        """One process, from its start to whatever ends it: whether that was a hit, and not the end of the run."""
        before, earlier = oracle.newest_whole(self.run), oracle.segments(self.run)
        damaged = oracle.damaged_before(self.run, before)
        options: dict[str, str] = {}
        arguments = self._command()
        if share - len(self.report.faults) >= 2 and self.draw.random() < 0.15:
            arguments = (*self._train_command(), "logging.report_to=[tensorboard]")
            options["program"] = HANGING
            self.report.faults.append(Fault("hanging tracker"))
        running = self.bench.start(*arguments, **options)
        self.report.processes += 1
        with ExitStack() as held:
            hit = self._strike(running, (before.step if before else 0) + self.draw.randrange(1, 16), held)
            ended = running.end()
        faults.bring_room(self.disk)
        if hit is not None:
            half = ", which it left half-written" if any((self.run / "checkpoints").glob(".writing-*")) else ""
            self.report.faults.append(replace(hit.fault, detail=hit.fault.detail + half))
            self._must_have_ended_by(hit, ended)
        elif ended.code:
            self._problem(f"exit code {ended.code} though nothing hit it: {ended.last_words}")
        self._examine(ended, before, damaged, earlier)
        return hit is not None

    def _strike(self, running: Running, step: int, held: ExitStack) -> Hit | None:
        ways = [faults.kill, faults.kill, faults.kill_while_saving, faults.kill_while_saving, faults.kill_while_saving]
        ways += [faults.kill_at_start, faults.interrupt, faults.interrupt, faults.two_signals]
        if can_mount():
            ways.append(partial(faults.read_only_checkpoints, held=held))
        if self.disk is not None:
            ways += [partial(faults.full_disk, disk=self.disk)] * 2
        return self.draw.choice(ways)(running, self.run, step, self.draw)

    def _must_have_ended_by(self, hit: Hit, ended: Ended) -> None:
        words = f"{hit.fault.kind} {hit.fault.detail}"
        if ended.code not in hit.codes:
            self._problem(f"{words}: exit code {ended.code}: {ended.last_words}")
        if hit.said and not any(said in ended.err for said in hit.said):
            self._problem(f"{words}: said only: {ended.last_words}")
        newest = self._newest_step()
        if hit.saves_where_it_stopped and newest != max(oracle.rows_that_count(self.run, "train"), default=0):
            self._problem(f"{words}: saved is step {newest}, which is not where it stopped")

    def _examine(self, ended: Ended, before: oracle.Kept | None, damaged: set[int], earlier: set[int]) -> None:
        for fault in (
            *oracle.faults_of_resume(self.run, before, damaged, earlier),
            *oracle.faults_of_keeping(self.run, before, earlier),
            *oracle.faults_of_rows(self.run, self.twin),
            *tracebacks(ended),
        ):
            self._problem(fault)

    def _damage(self, share: int) -> None:
        for _ in range(self.draw.choice((0, 1, 1, 2))):
            fault = self.draw.choice(faults.DAMAGES)(self.run, self.draw)
            if fault is not None and len(self.report.faults) < share:
                self.report.faults.append(fault)

    def _refused_start(self) -> None:
        """Starts that cannot go well: they have to say so, and leave everything as it was."""
        way = faults.read_only_folder if can_mount() and self.draw.random() < 0.5 else faults.every_checkpoint_damaged
        before = bytes_of(self.run)
        done = way(self.run, lambda: self.bench.run(*self._command()))
        if done is None:
            return
        fault, problems = done
        self.report.processes += 1
        self.report.faults.append(fault)
        touched = [name for name in changed(before, bytes_of(self.run)) if name != "lock"]  # it says who failed here
        if touched:
            problems.append(f"changed {', '.join(touched)}")
        for problem in problems:
            self._problem(problem)

    def _end(self) -> None:
        before, earlier = oracle.newest_whole(self.run), oracle.segments(self.run)
        damaged = oracle.damaged_before(self.run, before)
        ended = self.bench.run(*self._train_command())
        self.report.processes += 1
        if ended.code:
            self._problem(f"the end: exit code {ended.code}: {ended.last_words}")
        self._examine(ended, before, damaged, earlier)
        if not self.run.is_dir():
            return self._problem("there is no run folder")
        last = oracle.faults_of_end(self.run, self.twin)
        self.report.is_bit_equal = not last
        for fault in last:
            self._problem(fault)

    def _command(self) -> tuple[str, ...]:
        """As a user would: the same name again, or resume, which needs a run that has begun."""
        if (self.run / "manifest.json").exists() and self.draw.random() < 0.5:
            return ("resume", str(self.run), *self.kind.inject)
        return self._train_command()

    def _train_command(self) -> tuple[str, ...]:
        command = self.bench.train_command(self.name, *self.kind.overrides)
        return (*command, *self.kind.inject, "--runs-dir", str(self.runs))

    def _newest_step(self) -> int:
        newest = oracle.newest_whole(self.run)
        return newest.step if newest else 0

    def _problem(self, what: str) -> None:
        recent = ", ".join(f"{fault.kind} {fault.detail}".strip() for fault in self.report.faults[-3:])
        line = f"{self.bench.shown(what)} [after {recent}]"
        if line not in self.report.problems:
            self.report.problems.append(line)
