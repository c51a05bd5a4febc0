"""A job in its run folder: locked, tracked, resumed from its newest checkpoint, and closed whatever happens."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from trainbook import tracking
from trainbook.checkpoints import CheckpointStore, LoadedCheckpoint
from trainbook.checkpoints.catalogue import step_name
from trainbook.errors import Interrupted, OutOfMemory, RunError, TrainbookError
from trainbook.knobs import Config, KnobChange
from trainbook.loop.data_paths import are_here
from trainbook.loop.device import choose_device, prepared_device
from trainbook.loop.evaluation_record import EvaluationRecord
from trainbook.loop.faults.faults import Faults
from trainbook.loop.job import Job, TrainingSamples
from trainbook.loop.kernel_verdicts import excluded_backends, told
from trainbook.loop.live_doctor import LiveDoctor
from trainbook.loop.oom_retry import OUT_OF_MEMORY
from trainbook.loop.run_io import Interrupts, RunIO, StoreEvents
from trainbook.loop.samples import PlannedSamples
from trainbook.loop.saved_files import SavedFiles, lost_base, lost_quarantine, lost_rows, record
from trainbook.loop.shortage import Shortage, shortages_in
from trainbook.loop.train import PAUSED, Training, must_be_the_same_data, must_not_be_over
from trainbook.parallel import ALONE, Ranks
from trainbook.runs import Manifest, RunFolder, differences, write_text_atomically
from trainbook.runs.manifest import Status
from trainbook.runs.trust import remember_training
from trainbook.start_up import end_of
from trainbook.tracking import Trackers

# A change of these is a reason to try again what there was no memory for.
MAKES_ROOM = ("memory.", "precision.", "distributed.", "batch.per_device_train_batch_size", "data.max_seq_length")


SHOWN_SAMPLES = 8


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


def run_session(plan: Launch, build_job: Callable[[torch.device], Job], ranks: Ranks = ALONE) -> str:
    """Run the job and return how it ended. Whatever happens, the manifest has the right status afterwards."""
    return (Session if ranks.is_first else FollowingSession)(plan, build_job, ranks).run()


class Session:
    """A run on its first rank, which alone writes files: open, restore, begin, train, close."""

    job: Job
    found: LoadedCheckpoint | None  # the newest checkpoint, if there is one
    io: FolderIO
    training: Training
    excluded: list[str]  # attention kernels, a sentence each

    def __init__(self, plan: Launch, build_job: Callable[[torch.device], Job], ranks: Ranks) -> None:
        self.plan, self.run_folder, self.config = plan, plan.run, plan.config
        self.build_job, self.ranks = build_job, ranks
        self.store_events = StoreEvents()
        self.lost: list[str] = []  # what is missing of the run's files, a sentence each
        self.status: Status = "failed"
        self.detail = ""

    def run(self) -> str:
        with ExitStack() as held:
            self._open(held)
            self._restore()
            self._connect(held)
            try:
                self._begin()
                self._end(self.training.run())
            except BaseException as error:
                self._fail(error)
                raise
            finally:
                self._close()
        return self.detail

    def _open(self, held: ExitStack) -> None:
        """Lock the folder, set up the device, build the job."""
        plan, run, config, ranks = self.plan, self.run_folder, self.config, self.ranks
        self.interrupts = held.enter_context(Interrupts(run.lock_file))
        self.is_locked = held.enter_context(run.lock())
        held.enter_context(_leaving_nothing_behind(run))
        device = choose_device(config.training.device, ranks.local_rank if ranks.are_several else None)
        switches = held.enter_context(prepared_device(config, device, plan.width))
        self.excluded = told(excluded_backends(device))
        self.fresh = Manifest.of_this_machine(
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
        end_of("device")
        try:
            self.job = self.build_job(device)
            end_of("model and optimizer")
        except torch.OutOfMemoryError as error:
            raise OutOfMemory(OUT_OF_MEMORY.format(when="while building the model")) from error

    def _restore(self) -> None:
        """Load the newest checkpoint. Whatever may refuse to go on is here: nothing of the folder is changed yet."""
        run, job = self.run_folder, self.job
        self.found = found = _newest(run, job, self.ranks, self.store_events)
        has_new_room = self.ranks.broadcast(_has_new_room(self.plan))
        if found is not None:
            must_be_the_same_data(job, found)
            must_not_be_over(job, found)
            _load(job, found, has_new_room)
            kept = SavedFiles.of(found, run)
            self.lost += [*lost_rows(run, kept), *lost_quarantine(run, kept), *lost_base(run, kept)]
        self.shortages = _limit_rows(run, job, self.ranks, has_new_room)
        tracking.must_be_installed(self.config.logging)
        end_of("checkpoint")

    @property
    def start_step(self) -> int:
        return self.found.step if self.found else 0

    def _connect(self, held: ExitStack) -> None:
        """Open what the training writes to. From here on the folder is changed."""
        run, config, job, found = self.run_folder, self.config, self.job, self.found
        self.gone, segment = _newer_than(found, run), run.next_segment()
        manifest, self.differing = _manifest(run, self.fresh, config)
        store = CheckpointStore(
            run.checkpoints,
            save_total_limit=config.checkpoint.save_total_limit,
            asynchronous=config.checkpoint.asynchronous,
            on_event=self.store_events,
            ranks=self.ranks.side_group,
        )
        held.enter_context(closing(store))
        self.lost += run.set_skipped_aside()
        live_doctor = _live_doctor(run, config, self.plan, found, self.ranks.world)
        trackers = tracking.build(
            config.logging,
            run,
            segment=segment,
            total_steps=job.last_step,
            start_step=self.start_step,
            quiet=self.plan.quiet,
            config_dict=config.model_dump(mode="json"),
            on_event=live_doctor.note_event,
            counted=job.counted,
        )
        self.io = FolderIO(self, trackers, store, manifest, live_doctor)
        self.training = Training(job, self.io)
        manifest.start_segment(segment, self.start_step)
        end_of("run folder")

    def _begin(self) -> None:
        """Tell what is known before the first step, and write what readers of the run need."""
        run, job, found, log = self.run_folder, self.job, self.found, self.io.trackers.log_event
        if found is not None:
            self.training.restore(found)
            log("resume", found.step, reason=f"from {step_name(found.step)}", saved_in=found.state["segment"])
        else:
            log("start", 0, total_updates=job.total_updates, left_out=list(job.left_out), **_facts(job))
        for shortage in self.shortages:
            if not any(map(shortage.is_told_by, run.events(raw=True))):
                log("oom", shortage.step, reason=shortage.reason, **shortage.facts)
        _put_in(self.plan.faults, job, self.io)
        self.io.write_store_events()  # such as damaged checkpoints that were passed over
        self._tell_of_missing_checkpoint()
        if not self.is_locked:
            log("notice", reason="this file system does not support locks: do not start a second process on this run")
        for line in [*self.excluded, *self.lost, *self.plan.notices, *job.notices]:
            log("notice", reason=line)
        changed = (f"{change.path}: {change.old} -> {change.new}" for change in self.plan.changes)
        for line in [*self.differing, *changed]:
            log("config_change", reason=line)
        run.clear_leftovers()
        write_text_atomically(run.config, self.plan.config_text)
        job.write_files(run.path)
        run.write_manifest(self.io.manifest)
        remember_training(run, self.config)
        if found is None and job.samples is not None:
            run.write_samples(_of_first_batch(job.samples))
        end_of("facts for the doctor")

    def _tell_of_missing_checkpoint(self) -> None:
        gone = self.gone
        if gone is not None and not (self.run_folder.checkpoints / step_name(gone)).exists():
            where = f"resumed from step {self.start_step}" if self.found else "training starts over"
            reason = f"the checkpoint of step {gone}, the newest one written, is missing: {where}"
            self.io.trackers.log_event("checkpoint_damaged", self.start_step, reason=reason)

    def _end(self, ended: str) -> None:
        self.detail = ended
        step, log = self.job.state.step, self.io.trackers.log_event
        self.io.write_store_events()
        self.plan.faults.write_events()
        for fault in self.plan.faults.not_met:
            log("notice", step, reason=f"the run ended before {fault} could be injected")
        if ended == PAUSED:  # it can be resumed, and then goes on to the end
            self.status, self.detail = "interrupted", f"paused after step {step}, as requested"
            log("notice", step, reason=self.detail)
        else:
            log("finish", step, reason=ended)
            self.status = "finished"

    def _fail(self, error: BaseException) -> None:
        """Note why the run ends here; the error itself goes on to whoever asked for the run."""
        self.status = "failed"
        self.detail = str(error) if isinstance(error, TrainbookError) else f"{type(error).__name__}: {error}"
        if isinstance(error, (Interrupted, KeyboardInterrupt)):
            self.status, self.detail = "interrupted", str(error)
        new_shortage = [each for each in shortages_in(self.run_folder.shortage_file) if each not in self.shortages]
        if new_shortage:  # perhaps of another rank: what came over this one then only follows from it
            self.detail = new_shortage[0].told
        with suppress(RunError, RuntimeError):
            self.io.store.wait()  # a save under way is still reported; its own error is not the one to tell
        with suppress(RunError):
            self.io.write_store_events()
            self.plan.faults.write_events()
            if self.status == "failed" and not new_shortage:
                self.io.trackers.log_event("failure", self.job.state.step, reason=self.detail)

    def _close(self) -> None:
        manifest = self.io.manifest
        manifest.end_segment(self.status, "" if self.detail == self.status else self.detail)
        # A full disk fails these as well; the error that ended the run is the one to tell.
        ending = nullcontext() if self.status == "finished" else suppress(RunError)
        with ending:
            self.run_folder.write_manifest(manifest)
        with ending:
            self.io.trackers.close(self.status)


class FollowingSession:
    """The run on any rank but the first: from the same checkpoint, in the same way, without writing files."""

    def __init__(self, plan: Launch, build_job: Callable[[torch.device], Job], ranks: Ranks) -> None:
        self.plan, self.build_job, self.ranks = plan, build_job, ranks

    def run(self) -> str:
        plan, config, ranks = self.plan, self.plan.config, self.ranks
        with ExitStack() as held:
            interrupts = held.enter_context(Interrupts())
            device = choose_device(config.training.device, ranks.local_rank)
            held.enter_context(prepared_device(config, device, plan.width))
            job = self.build_job(device)
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
            held.enter_context(closing(store))
            io = RunIO(tracking.silent(0, found.step if found else 0), store, interrupts, faults=plan.faults)
            io.shortage_file = plan.run.shortage_file
            training = Training(job, io)
            if found is not None:
                training.restore(found)
            _put_in(plan.faults, job, io)
            return training.run()


class FolderIO(RunIO):
    """That of the first rank, which keeps the run folder's files true."""

    def __init__(
        self,
        session: Session,
        trackers: Trackers,
        store: CheckpointStore,
        manifest: Manifest,
        live_doctor: LiveDoctor,
    ) -> None:
        super().__init__(trackers, store, session.interrupts, session.store_events, session.plan.faults)
        self.session, self.manifest, self.live_doctor = session, manifest, live_doctor
        self.quarantine_file = session.run_folder.quarantine_file
        self.shortage_file = session.run_folder.shortage_file

    def write_evaluation(self, step: int, record: EvaluationRecord | None, labels: tuple[str, ...]) -> None:
        if record is not None:
            place = {"step": step, "segment": self.trackers.segment}
            matrix = {**place, "labels": list(labels), "matrix": record.confusion} if record.confusion else None
            texts = [{**place, **text} for text in record.generations]
            self.session.run_folder.add_evaluation(classes=matrix, generations=texts)

    def begin_segment(self, step: int) -> None:
        self.manifest.end_segment("running", "rollback")
        self.manifest.start_segment(self.trackers.segment + 1, step)
        self.trackers.begin_segment(self.trackers.segment + 1, step)
        self.session.run_folder.write_manifest(self.manifest)

    def record(self) -> Mapping[str, Any]:
        return record(self.session.plan.config_text, self.manifest, self.trackers.extents(), self.session.job.base_step)


def _live_doctor(
    run: RunFolder, config: Config, plan: Launch, found: LoadedCheckpoint | None, world: int
) -> LiveDoctor:
    """The doctor of this run; it knows the rows and findings from before a resume."""
    told: dict[str, Any] = {"world": world, "recipe": plan.recipe, "injected_faults": plan.faults.names}
    if found is None:
        return LiveDoctor(run.name, config, **told)
    events = [event for event in run.events() if event["step"] <= found.step]
    rows = [row for row in run.metrics() if row["step"] <= found.step]
    return LiveDoctor(run.name, config, rows, events, **told)


def _facts(job: Job) -> dict[str, Any]:
    """Facts for the doctor. Training does not depend on them, so an error here cannot stop the run."""
    counted = {} if job.counted == "tokens" else {"counted": job.counted}
    try:
        return {**job.facts(), **counted}
    except Exception as error:
        return {"facts_missing": f"{type(error).__name__}: {error}", **counted}


def _of_first_batch(samples: TrainingSamples) -> list[dict[str, Any]]:
    """The first samples of it, to see what is trained on."""
    ids, _ = samples.of_step(1)
    return [samples.entry(int(each), 1, "of the first batch", None, is_quick=True) for each in ids[:SHOWN_SAMPLES]]


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


def _put_in(faults: Faults, job: Job, io: RunIO) -> None:
    """Set up the requested faults in a job that is at the step where the run continues."""
    if not faults.faults:
        return
    faults.log = log = io.trackers.log_event
    log("notice", reason=f"injected faults: {', '.join(faults.names)}")
    faults.install(job.state)
    for fault in faults.behind:
        log("notice", reason=f"{fault} is ignored: the run continues from step {job.state.step}")
    if isinstance(job.samples, PlannedSamples):
        faults.spoil(job.samples.plan, job.state)
    faults.fill_disk(io.store)
    faults.trackers(io.trackers)


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
