"""Runs a job in its run folder: locked, tracked, resumed from its newest checkpoint, and closed whatever happens."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from trainbook import tracking
from trainbook.checkpoints import CheckpointStore, LoadedCheckpoint
from trainbook.checkpoints.catalogue import step_name
from trainbook.errors import Interrupted, OutOfMemory, RunError, TrainbookError
from trainbook.knobs import Config, KnobChange
from trainbook.loop.data_paths import are_here
from trainbook.loop.device import choose_device, prepared_device
from trainbook.loop.faults.faults import Faults
from trainbook.loop.interrupts import Interrupts
from trainbook.loop.job import Job
from trainbook.loop.live_doctor import LiveDoctor
from trainbook.loop.oom_retry import OUT_OF_MEMORY
from trainbook.loop.samples import PlannedSamples
from trainbook.loop.saved_files import SavedFiles, lost_base, lost_quarantine, lost_rows, record
from trainbook.loop.shortage import Shortage, shortages_in
from trainbook.loop.train import PAUSED, Training, must_be_the_same_data, must_not_be_over
from trainbook.parallel import ALONE, Ranks
from trainbook.runs import Manifest, RunFolder, differences, write_text_atomically
from trainbook.runs.trust import remember_training
from trainbook.tracking import Trackers

# A change of these is a reason to try again what there was no memory for.
MAKES_ROOM = ("memory.", "precision.", "distributed.", "batch.per_device_train_batch_size", "data.max_seq_length")


@dataclass(frozen=True)
class Launch:
    """What is known about a run before its job is built."""

    run: RunFolder
    config: Config
    config_text: str  # the resolved configuration as YAML
    recipe: str | None = None
    changes: Sequence[KnobChange] = ()  # what a resumed run was told to do differently
    notices: Sequence[str] = ()
    quiet: bool = False
    width: int | None = None  # of the model, if it is one of ours
    faults: Faults = field(default_factory=Faults)  # to put in on purpose
    parent_run: str | None = None  # the folder of the run that this one is a variant of


class StoreEvents:
    """Events of the checkpoint store, which may come from its own thread; the loop's thread writes them."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[str, dict[str, Any]]] = deque()

    def __call__(self, kind: str, facts: dict[str, Any]) -> None:
        self._waiting.append((kind, facts))

    def write(self, trackers: Trackers) -> None:
        while self._waiting:
            kind, facts = self._waiting.popleft()
            step = facts.pop("step", None)
            trackers.log_event(kind, step, **facts)


def launch(plan: Launch, build_job: Callable[[torch.device], Job], ranks: Ranks = ALONE) -> str:
    """Run the job and return how it ended. Whatever happens, the manifest has the right status afterwards."""
    if not ranks.is_first:
        return _follow(plan, build_job, ranks)
    run, config = plan.run, plan.config
    with ExitStack() as held:
        interrupts = held.enter_context(Interrupts())
        is_locked = held.enter_context(run.lock())
        held.enter_context(_leaving_nothing_behind(run))
        device = choose_device(config.training.device, ranks.local_rank if ranks.are_several else None)
        switches = held.enter_context(prepared_device(config, device, plan.width))
        fresh = Manifest.of_this_machine(
            run.name,
            recipe=plan.recipe,
            command=sys.argv,
            config=config.model_dump(mode="json"),
            seed=config.training.seed,
            parent_run=plan.parent_run,
            gpus=[torch.cuda.get_device_name(device)] * ranks.world if device.type == "cuda" else [],
            determinism={**switches, **({"world": ranks.world} if ranks.are_several else {})},
            injected_faults=plan.faults.names,
        )
        try:
            job = build_job(device)
        except torch.OutOfMemoryError as error:
            raise OutOfMemory(OUT_OF_MEMORY.format(when="while building the model")) from error
        store_events = StoreEvents()
        # Whatever may refuse to go on comes first: nothing of the folder is changed before the store is opened.
        found = _newest(run, job, ranks, store_events)
        has_new_room = ranks.broadcast(_has_new_room(plan))
        lost: list[str] = []
        if found is not None:
            must_be_the_same_data(job, found)
            must_not_be_over(job, found)
            _load(job, found, has_new_room)
            kept = SavedFiles.of(found, run)
            lost = [*lost_rows(run, kept), *lost_quarantine(run, kept), *lost_base(run, kept)]
        shortages = _limit_rows(run, job, ranks, has_new_room)
        tracking.must_be_installed(config.logging)
        gone, segment = _newer_than(found, run), run.next_segment()
        manifest, differing = _manifest(run, fresh, config)
        store = CheckpointStore(
            run.checkpoints,
            save_total_limit=config.checkpoint.save_total_limit,
            asynchronous=config.checkpoint.asynchronous,
            on_event=store_events,
            ranks=ranks.side_group,
        )
        with closing(store):
            lost += run.set_skipped_aside()
            live_doctor = _live_doctor(run, config, plan.recipe, found, ranks.world)
            trackers = tracking.build(
                config.logging,
                run,
                segment=segment,
                total_steps=job.last_step,
                start_step=found.step if found else 0,
                quiet=plan.quiet,
                config_dict=config.model_dump(mode="json"),
                on_event=live_doctor.note_event,
                counted=job.counted,
            )

            def begin_segment(step: int) -> None:
                manifest.end_segment("running", "rollback")
                manifest.start_segment(trackers.segment + 1, step)
                trackers.begin_segment(trackers.segment + 1, step)
                run.write_manifest(manifest)

            training = Training(
                job,
                trackers,
                store,
                interrupts,
                store_events.write,
                begin_segment,
                run.quarantine_file,
                lambda: record(plan.config_text, manifest, trackers.extents(), job.base_step),
                run.shortage_file,
                live_doctor,
            )
            status, detail = "failed", ""
            manifest.start_segment(segment, found.step if found else 0)
            try:
                if found is not None:
                    training.restore(found)
                    saved_in = found.state["segment"]
                    trackers.log_event("resume", found.step, reason=f"from {step_name(found.step)}", saved_in=saved_in)
                else:
                    left_out = list(job.left_out)
                    trackers.log_event("start", 0, total_updates=job.total_updates, left_out=left_out, **_facts(job))
                for shortage in shortages:
                    if not any(map(shortage.is_told_by, run.events(raw=True))):
                        trackers.log_event("oom", shortage.step, reason=shortage.reason, **shortage.facts)
                _put_in(plan.faults, job, store, trackers)
                store_events.write(trackers)  # such as damaged checkpoints that were passed over
                if gone is not None and not (run.checkpoints / step_name(gone)).exists():
                    where = f"resumed from step {found.step}" if found else "training starts over"
                    reason = f"the checkpoint of step {gone}, the newest one written, is missing: {where}"
                    trackers.log_event("checkpoint_damaged", found.step if found else 0, reason=reason)
                if not is_locked:
                    trackers.log_event(
                        "notice",
                        reason="this file system does not support locks: do not start a second process on this run",
                    )
                for line in [*lost, *plan.notices, *job.notices]:
                    trackers.log_event("notice", reason=line)
                for line in [*differing, *(f"{change.path}: {change.old} -> {change.new}" for change in plan.changes)]:
                    trackers.log_event("config_change", reason=line)
                run.clear_leftovers()
                write_text_atomically(run.config, plan.config_text)
                job.write_files(run.path)
                run.write_manifest(manifest)
                remember_training(run, config)
                detail = training.run()
                store_events.write(trackers)
                plan.faults.write_events()
                for fault in plan.faults.not_met:
                    trackers.log_event(
                        "notice", job.state.step, reason=f"the run ended before {fault} could be injected"
                    )
                if detail == PAUSED:  # it can be resumed, and then goes on to the end
                    status, detail = "interrupted", f"paused after step {job.state.step}, as requested"
                    trackers.log_event("notice", job.state.step, reason=detail)
                else:
                    trackers.log_event("finish", job.state.step, reason=detail)
                    status = "finished"
            except BaseException as error:
                detail = str(error) if isinstance(error, TrainbookError) else f"{type(error).__name__}: {error}"
                if isinstance(error, (Interrupted, KeyboardInterrupt)):
                    status, detail = "interrupted", str(error)
                new_shortage = [each for each in shortages_in(run.shortage_file) if each not in shortages]
                if new_shortage:  # perhaps of another rank: what came over this one then only follows from it
                    detail = new_shortage[0].told
                with suppress(RunError, RuntimeError):
                    store.wait()  # a save under way is still reported; its own error is not the one to tell
                with suppress(RunError):
                    store_events.write(trackers)
                    plan.faults.write_events()
                    if status == "failed" and not new_shortage:
                        trackers.log_event("failure", job.state.step, reason=detail)
                raise
            finally:
                manifest.end_segment(status, "" if detail == status else detail)
                # A full disk fails these as well; the error that ended the run is the one to tell.
                ending = nullcontext() if status == "finished" else suppress(RunError)
                with ending:
                    run.write_manifest(manifest)
                with ending:
                    trackers.close(status)
        return detail


def _follow(plan: Launch, build_job: Callable[[torch.device], Job], ranks: Ranks) -> str:
    """The job on any rank but the first, which alone writes files: from the same checkpoint, in the same way."""
    config = plan.config
    with ExitStack() as held:
        interrupts = held.enter_context(Interrupts())
        device = choose_device(config.training.device, ranks.local_rank)
        held.enter_context(prepared_device(config, device, plan.width))
        job = build_job(device)
        found = _newest(plan.run, job, ranks, lambda kind, facts: None)
        has_new_room = ranks.broadcast(_has_new_room(plan))
        if found is not None:
            _load(job, found, has_new_room)
        _limit_rows(plan.run, job, ranks, has_new_room)
        store = CheckpointStore(
            plan.run.checkpoints,
            asynchronous=config.checkpoint.asynchronous,
            on_event=lambda kind, facts: None,
            ranks=ranks.side_group,
        )
        with closing(store):
            trackers = tracking.silent(0, found.step if found else 0)
            file = plan.run.shortage_file
            training = Training(job, trackers, store, interrupts, lambda trackers: None, shortage_file=file)
            if found is not None:
                training.restore(found)
            _put_in(plan.faults, job, store, trackers)
            return training.run()


def _live_doctor(
    run: RunFolder, config: Config, recipe: str | None, found: LoadedCheckpoint | None, world: int
) -> LiveDoctor:
    """The doctor of this run; it knows the rows and findings from before a resume."""
    if found is None:
        return LiveDoctor(run.name, config, world=world, recipe=recipe)
    events = [event for event in run.events() if event["step"] <= found.step]
    rows = [row for row in run.metrics() if row["step"] <= found.step]
    return LiveDoctor(run.name, config, rows, events, world=world, recipe=recipe)


def _facts(job: Job) -> dict[str, Any]:
    """Facts for the doctor. Training does not depend on them, so an error here cannot stop the run."""
    counted = {} if job.counted == "tokens" else {"counted": job.counted}
    try:
        return {**job.facts(), **counted}
    except Exception as error:
        return {"facts_missing": f"{type(error).__name__}: {error}", **counted}


def _newest(
    run: RunFolder, job: Job, ranks: Ranks, on_event: Callable[[str, dict[str, Any]], None]
) -> LoadedCheckpoint | None:
    """The newest checkpoint, the same one for all ranks."""
    store = CheckpointStore(run.checkpoints, read_only=True, on_event=on_event, ranks=ranks.side_group)
    return store.load("latest", unread=job.state.unread_parts)


def _has_new_room(plan: Launch) -> bool:
    """Whether the user changed a knob that memory depends on: then the full micro-batch is tried again."""
    return any(change.path.startswith(MAKES_ROOM) for change in plan.changes)


def _load(job: Job, found: LoadedCheckpoint, has_new_room: bool) -> None:
    """Load the state; large tensors are held twice only while they are copied."""
    if has_new_room:
        found.state["loop"]["most_rows"] = None
    job.state.load_state_dict(found.state)
    del found.state["model"], found.state["optimizer"]


def _limit_rows(run: RunFolder, job: Job, ranks: Ranks, has_new_room: bool) -> list[Shortage]:
    """Apply the smaller batches of earlier starts that ran out of memory. Only the first rank checks whether the run
    can continue; the others wait for it here."""
    if has_new_room and ranks.is_first:
        run.shortage_file.unlink(missing_ok=True)
    shortages = ranks.broadcast(shortages_in(run.shortage_file) if ranks.is_first else [])
    for shortage in shortages:
        job.limit_rows(shortage.kind, shortage.rows)
    return shortages


def _put_in(faults: Faults, job: Job, store: CheckpointStore, trackers: Trackers) -> None:
    """Set up the requested faults in a job that is at the step where the run continues."""
    if not faults.faults:
        return
    faults.log = trackers.log_event
    trackers.log_event("notice", reason=f"injected faults: {', '.join(faults.names)}")
    faults.install(job.state)
    for fault in faults.behind:
        trackers.log_event("notice", reason=f"{fault} is ignored: the run continues from step {job.state.step}")
    if isinstance(job.samples, PlannedSamples):
        faults.spoil(job.samples.plan, job.state)
    faults.fill_disk(store)
    faults.trackers(trackers)
    job.before_step, job.after_step = faults.before_step, partial(faults.after_step, store=store)


def _newer_than(found: LoadedCheckpoint | None, run: RunFolder) -> int | None:
    """The step of the last checkpoint in the events, if it is newer than the one that was found.

    A killed process may not have logged its last checkpoints: then the last one in the events is older.
    """
    told = [event["step"] for event in run.events(raw=True) if event["kind"] == "checkpoint"]
    is_newer = bool(told) and (found is None or found.step in told or told[-1] > found.step)
    return told[-1] if is_newer else None


@contextmanager
def _leaving_nothing_behind(run: RunFolder) -> Iterator[None]:
    """Remove the folder of a run that failed before it began. Only under the lock: another process may own it."""
    try:
        yield
    except BaseException:
        run.discard()
        raise


def _manifest(run: RunFolder, fresh: Manifest, config: Config) -> tuple[Manifest, list[str]]:
    """The run's manifest, and what has changed in its environment that can change its numbers."""
    if not run.has_begun:
        return fresh, []
    manifest = run.read_manifest()
    differing = [str(change) for change in differences(manifest, fresh)]
    manifest.continue_with(fresh)
    if are_here(config):
        manifest.working_directory = fresh.working_directory
    return manifest, differing
