"""One arm of a try: a run that goes on from another run's checkpoint, or begins as it did, with or without a change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trainbook.errors import Interrupted, TooLarge, UserError
from trainbook.knobs import Loaded, difference
from trainbook.knobs.dumping import dump_changes, yaml_value
from trainbook.knobs.text import read_file
from trainbook.loop.build import build
from trainbook.loop.data_paths import with_paths_found
from trainbook.loop.device import device_kind
from trainbook.loop.faults.faults import Faults
from trainbook.loop.faults.kinds import Fault, parse
from trainbook.loop.fork import fork
from trainbook.loop.job import Job
from trainbook.loop.saved_files import recover
from trainbook.loop.session import Launch, run_session
from trainbook.parallel import find_rank_env, joined
from trainbook.runs import RunFolder
from trainbook.study.child_run import run_child
from trainbook.study.remedy_plan import RemedyPlan, changes, with_overrides

# Faults that were put in on purpose are part of what is tried; not those that end or hang the process itself.
NOT_AGAIN = ("kill", "full-disk", "corrupt-checkpoint", "slow-tracker", "dead-tracker")

SETTINGS: Mapping[str, Any] = {
    "evaluation.eval_strategy": "steps",
    "evaluation.early_stopping_patience": None,
    "checkpoint.save_total_limit": 1,
    "logging.report_to": (),
}
# Knobs by which an arm may differ from its parent without learning anything else.
SET_ASIDE = (*SETTINGS, "evaluation.eval_steps", "logging.logging_steps")


@dataclass(frozen=True)
class RemedyRun:
    parent: RunFolder
    run: RunFolder
    change: Sequence[str]  # overrides; none: the control
    seed: int
    stop_at: int | None  # None: where the schedule ends
    plan: RemedyPlan

    def train(self, quiet: bool) -> dict[str, Any]:
        """To its end, from wherever it was stopped; what came of it."""
        try:
            ended = run_child(self.run, lambda: self._launch(quiet))
        except Interrupted as stop:
            raise Interrupted(f"{stop}. To resume, run the same command again") from None
        if ended.failure == "too large":
            raise TooLarge(ended.reason)
        return self._outcome(ended.reason if ended.failure else None)

    def loaded(self) -> Loaded:
        """The parent's configuration with the change, and with what all arms have. None of that changes what is
        learned from the same seed, and what the change itself sets stays as it says."""
        settings = {
            **SETTINGS,
            "training.seed": self.seed,
            "evaluation.eval_steps": self.plan.eval_steps,
            "logging.logging_steps": self.plan.logging_steps,
        }
        changed = {change.path for change in changes(self.parent, self.change)}
        ours = [f"{path}={yaml_value(value)}" for path, value in settings.items() if path not in changed]
        return with_overrides(self.parent, [*self.change, *ours])

    def _launch(self, quiet: bool) -> None:
        """As `trainbook train` and `resume` do it, but for where it stops."""
        if not self.run.has_begun and self.plan.from_step:
            fork(self.parent, self.plan.from_step, self.run)
        loaded, manifest = self.loaded(), self.parent.read_manifest()
        config = loaded.config
        before = recover(self.parent).config_text or read_file(self.parent.config)
        differing = difference(self.run.recorded(), config) if self.run.has_begun else []
        run = self.run if self.run.has_begun else RunFolder.create(self.run.path.parent, self.run.name)
        plan = Launch(
            run,
            config,
            dump_changes(before, loaded, difference(self.parent.recorded(), config)),
            manifest.recipe,
            differing,
            loaded.notices,
            quiet,
            config.model.hidden_size,
            Faults([fault for fault in parse(manifest.injected_faults) if _is_tried_again(fault)]),
            str(self.parent.path),
        )
        with joined(find_rank_env(), config.distributed, device_kind(config.training.device)) as ranks:
            if ranks.are_several:
                raise UserError("a remedy is tried in a single process, but this is one of several.")

            def build_job(device: torch.device) -> Job:
                job = build(with_paths_found(config, self.parent)[0], device, run, ranks)
                job.stop_at = self.stop_at
                return job

            run_session(plan, build_job, ranks)

    def _outcome(self, failure: str | None) -> dict[str, Any]:
        """What is compared, as the run's files have it."""
        rows = [row for row in self.run.metrics("train") if row["step"] > self.plan.from_step]
        evaluations = [row for row in self.run.metrics("eval") if row["step"] > self.plan.from_step]
        shortages = [e for e in self.run.events() if e["kind"] == "oom" and e["step"] > self.plan.from_step]
        steady = rows[1:] if len(rows) > 2 else rows  # the first has the start of the process in it
        return {
            "run": str(self.run.path),
            "seed": self.seed,
            "failure": failure,
            "last_step": max((row["step"] for row in rows), default=self.plan.from_step),
            "tokens": max((row["tokens"] for row in rows), default=0),
            "evaluations": [[row["step"], row["loss"]] for row in evaluations],
            "targets": evaluations[-1].get("targets") if evaluations else None,
            "losses": [[row["step"], row.get("cross_entropy", row["loss"])] for row in rows],
            "tokens_per_second": [row["tokens_per_second"] for row in steady],
            "memory": [[row["step"], row["memory_bytes"]] for row in steady],
            "memory_shortages": len(shortages),
        }


def _is_tried_again(fault: Fault) -> bool:
    """A remedy is tried in a single process: what acted on one rank of several has no place there."""
    return fault.kind not in NOT_AGAIN and fault.rank is None
