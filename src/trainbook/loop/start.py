"""From a request to its result: the ranks meet, the folder is chosen, the job is built and its session runs."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path

import torch

from trainbook.bounded.files import read_bytes
from trainbook.checkpoints import damage_of_newest
from trainbook.errors import Interrupted, RunFolderError, TrainbookError
from trainbook.knobs import KnobChange, Loaded, difference, dump, dump_changes, load, require_length
from trainbook.knobs.dumping import untrue, yaml_value
from trainbook.knobs.origin import Origin
from trainbook.knobs.recipes import RECIPE_PREFIX, is_recipe
from trainbook.knobs.text import read_file
from trainbook.loop.build import build
from trainbook.loop.data_paths import check_paths, with_paths_found
from trainbook.loop.describe import describe
from trainbook.loop.device import device_kind
from trainbook.loop.faults.faults import Faults
from trainbook.loop.faults.kinds import must_suit_world
from trainbook.loop.fit import FitJob, OwnTraining, load_weights
from trainbook.loop.job import Job
from trainbook.loop.request import (
    ALREADY_FINISHED,
    Result,
    TrainRequest,
    check_resume,
    with_batch_as_begun,
    with_whole_paths,
)
from trainbook.loop.saved_files import put_back, recover
from trainbook.loop.session import Launch, run_session
from trainbook.parallel import ALONE, Ranks, find_rank_env, joined
from trainbook.runs import RunFolder, check_name, default_name
from trainbook.terminal import echo, folded

# Settings of a run that hold for the pretraining before it as well.
PASSED_ON = ("training.seed", "training.device", "training.deterministic", "data.cache_dir", "data.num_workers")


def train(request: TrainRequest) -> Result:
    """Train a configuration, on every rank of this process's world."""
    require_length(request.loaded)
    env, config = find_rank_env(), request.loaded.config
    must_suit_world(request.faults, env.world)
    with joined(env, config.distributed, device_kind(config.training.device)) as ranks:
        return train_on(ranks, replace(request, quiet=request.quiet or not ranks.is_first))


def train_own(request: TrainRequest, own: OwnTraining) -> Result:
    """Train a user's own module, in this process alone."""
    plan = _prepare(request)
    if isinstance(plan, Result):
        load_weights(own.model, plan.run)
        return plan
    with ExitStack() as held:

        def build_job(device: torch.device) -> Job:
            return held.enter_context(closing(FitJob(request.loaded.config, own, device)))

        return _run(request, plan, build_job, ALONE)


def train_on(ranks: Ranks, request: TrainRequest) -> Result:
    request = replace(request, loaded=with_pretraining(request, ranks))
    loaded = request.loaded
    if request.name is None or not RunFolder(request.runs_dir / request.name).has_begun:
        check_paths(loaded)
    plan = _prepare(replace(request, loaded=with_whole_paths(loaded))) if ranks.is_first else None
    plan = _shared(ranks, plan, request)
    if isinstance(plan, Result):
        return plan
    # As the first rank finds them: others may not see what it has brought back of the run folder.
    as_begun = loaded.config.model_copy(update={"batch": plan.config.batch})
    config, notices = ranks.broadcast(with_paths_found(as_begun, plan.run))
    plan = replace(plan, notices=[*plan.notices, *notices])

    def build_job(device: torch.device) -> Job:
        job = build(config, device, plan.run, ranks)
        if request.stop_after is not None:
            job.stop_at = max(1, round(request.stop_after * job.total_updates))
        if not request.quiet:
            with suppress(BrokenPipeError):  # nobody reads any more: no reason not to train
                echo(plan.run.path)
                for label, text in describe(job, device):
                    echo(folded(f"  {label:<10} {text}", indent=13))
        return job

    return _run(request, plan, build_job, ranks)


def with_pretraining(request: TrainRequest, ranks: Ranks) -> Loaded:
    """If the model starts from a recipe, train that first; a finished run is used, an unfinished one resumed."""
    loaded = request.loaded
    pretrained = loaded.config.model.pretrained
    if pretrained is None or not is_recipe(pretrained):
        return loaded
    recipe = pretrained.removeprefix(RECIPE_PREFIX)
    passed = [f"{path}={yaml_value(loaded.get(path))}" for path in PASSED_ON if loaded.origins[path].is_the_users]
    name = f"{recipe}-seed{loaded.config.training.seed}"
    again = f"run the same command again ({name} is only its first part)"
    earlier = TrainRequest(
        load(recipe, passed),
        recipe,
        name,
        request.runs_dir,
        quiet=request.quiet,
        again=again,
        write_report=request.write_report,
    )
    require_length(earlier.loaded)
    first = train_on(ranks, earlier)
    config, folder = loaded.config, str(first.run.path)
    model = config.model.model_copy(update={"pretrained": folder})
    data = config.data.model_copy(update={"tokenizer": str(first.run.tokenizer), "vocab_size": None})
    origin = Origin("pretrained", folder)
    changed = ("model.pretrained", "data.tokenizer", "data.vocab_size")
    return replace(
        loaded,
        config=config.model_copy(update={"model": model, "data": data}),
        origins={**loaded.origins, **dict.fromkeys(changed, origin)},
    )


def _prepare(request: TrainRequest) -> Launch | Result:
    """The run folder to train in, or the result if the run is already finished."""
    loaded, config_text = request.loaded, dump(request.loaded)
    is_named = request.name is not None
    name = (
        check_name(request.name or "", "run") if is_named else default_name(request.recipe or "run", request.runs_dir)
    )
    existing = RunFolder(request.runs_dir / name)
    changes: list[KnobChange] = []
    if request.resume == "never" and (existing.manifest.is_file() or existing.has_checkpoints):
        raise RunFolderError(f"{existing.path} already holds a run, and --resume is never: choose another --name.")
    recovered = recover(existing)
    notices = [*recovered.lines, *loaded.notices]
    if existing.has_begun:
        before = recovered.config_text or read_file(existing.config)
        loaded = with_batch_as_begun(existing, loaded, before)
        now_stated = difference(request.loaded.config, loaded.config)
        notices += [f"{each.path} is now stated: {each.new} ({loaded.origins[each.path].where})" for each in now_stated]
        changes = check_resume(existing, loaded, request.accept_changes)
        if existing.read_manifest().status == "finished" and not changes:
            damage = damage_of_newest(existing.checkpoints)
            if not damage:
                put_back(existing, recovered, request.quiet)
                return Result(existing, ALREADY_FINISHED)
            notices.append(
                f"The run is finished, but its last checkpoint is damaged, so its end is trained again: {damage}"
            )
        run = existing
        if wrong := untrue(before, loaded, [*changes, *now_stated]):
            named = ", ".join(wrong[:3]) + (f" and {len(wrong) - 3} more" if len(wrong) > 3 else "")
            notices.append(f"config.yaml did not match the run and was corrected: {named}")
        config_text = dump_changes(before, loaded, changes)
    else:
        run = RunFolder.create(request.runs_dir, name)
    return Launch(
        run,
        loaded.config,
        config_text,
        request.recipe,
        changes,
        notices,
        request.quiet,
        request.width,
        Faults(request.faults),
    )


def _shared(ranks: Ranks, plan: Launch | Result | None, request: TrainRequest) -> Launch | Result:
    """What the first rank has prepared, as the others need it."""
    ended = plan.ended if isinstance(plan, Result) else None
    path, ended = ranks.broadcast((str(plan.run.path) if plan else "", ended))
    if plan is not None:
        return plan
    run = RunFolder(path)
    if ended is not None:
        return Result(run, ended)
    return Launch(
        run,
        request.loaded.config,
        "",
        request.recipe,
        quiet=True,
        width=request.width,
        faults=Faults(request.faults),
    )


def _run(request: TrainRequest, plan: Launch, build_job: Callable[[torch.device], Job], ranks: Ranks) -> Result:
    """Run the session; of a run that ends in any way, write the report and tell how to resume it."""
    if not ranks.is_first:
        return Result(plan.run, run_session(plan, build_job, ranks))
    run, before = plan.run, _bytes(plan.run.manifest)
    is_part = request.again is not None  # of something that says itself how to go on
    try:
        ended = run_session(plan, build_job, ranks)
    except RunFolderError:
        raise  # the folder is another process's
    except Interrupted as stop:
        request.write_report(run)
        told = f"{stop}. To resume: {request.again or _how_to_resume(request, run, ranks)}"
        raise _told_on_the_terminal(told, plan.quiet or is_part) from None
    except KeyboardInterrupt:
        if is_part:
            raise
        raise _told_on_the_terminal("interrupted before the first step: nothing was lost", plan.quiet) from None
    except BaseException:
        if _bytes(run.manifest) != before:  # a run that was refused is as it was
            with suppress(TrainbookError):  # the first error is the one to tell
                request.write_report(run)
        raise
    request.write_report(run)
    return Result(run, ended)


def _how_to_resume(request: TrainRequest, run: RunFolder, ranks: Ranks) -> str:
    again = f"fit(…, name={run.name!r})" if request.is_fit else f"trainbook resume {shlex.quote(str(run.path))}"
    is_one_machine = ranks.are_several and ranks.local_world == ranks.world
    return f"{again} --nproc {ranks.world}" if is_one_machine else again


def _told_on_the_terminal(message: str, quiet: bool) -> Interrupted:
    """A script that does not catch it ends without a traceback: this line is all that the user sees."""
    if not quiet:
        with suppress(OSError):
            echo(folded(message, stream=sys.stderr), err=True)
    return Interrupted(message, is_told=not quiet)


def _bytes(path: Path) -> bytes | None:
    return read_bytes(path) if path.is_file() else None
