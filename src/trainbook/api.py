"""Trainbook from Python: the commands as functions."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trainbook.bounded.files import read_bytes
from trainbook.errors import Interrupted, ResumeError, RunFolderError, TrainbookError, UserError
from trainbook.knobs import KnobChange, Loaded, difference, dump, dump_changes, load, require_length, resume_rule
from trainbook.knobs.dumping import untrue, yaml_value
from trainbook.knobs.origin import Origin
from trainbook.knobs.own_models import RECIPE_PREFIX, is_recipe
from trainbook.knobs.own_module import FIT
from trainbook.knobs.text import read_file
from trainbook.loop.faults.kinds import Fault, must_suit_own_data, must_suit_world, parse
from trainbook.runs import RunFolder, check_name, default_name, write_text_atomically
from trainbook.runs.trust import require_trust, require_trust_of_file, trusting
from trainbook.terminal import echo

if TYPE_CHECKING:
    import torch
    from torch import nn

    from trainbook.loop.fit import CountFunction, LossFunction
    from trainbook.loop.job import Job
    from trainbook.loop.launch import Launch
    from trainbook.parallel import Ranks

Source = str | Path | Mapping[str, Any]
Resume = Literal["auto", "never"]


@dataclass(frozen=True)
class Result:
    """How a run ended, and its folder."""

    run: RunFolder
    ended: str  # finished | early_stop | already finished

    @property
    def best(self) -> dict[str, Any] | None:
        """The evaluation row that is best by `evaluation.metric_for_best_model`."""
        rows = self.run.metrics("eval").with_true("best")
        return self._named(rows[-1]) if rows else None

    @property
    def last(self) -> dict[str, Any] | None:
        """The last training row."""
        rows = self.run.metrics("train")
        return self._named(rows[-1]) if rows else None

    def _named(self, row: dict[str, Any]) -> dict[str, Any]:
        """Of `fit`, what a row calls tokens are samples, batches or targets of the caller's own."""
        from trainbook.runs.run_record import counted

        recipe = self.run.read_manifest().recipe
        if recipe != FIT:
            return row
        start = next((event for event in self.run.events() if event["kind"] == "start"), {})
        unit = counted({"recipe": recipe, **start})
        names = {"tokens": unit, "tokens_per_second": f"{unit}_per_second", "targets": f"evaluated_{unit}"}
        return {names.get(name, name): value for name, value in row.items()}


def train(
    config: Source | Loaded = "gpt-tiny",
    overrides: Sequence[str] = (),
    *,
    name: str | None = None,
    runs_dir: str | Path = "runs",
    resume: Resume = "auto",
    accept_changes: bool = False,
    quiet: bool = False,
    recipe: str | None = None,
    inject: Sequence[str] = (),
    stop_after: float | None = None,
    trust: bool = False,
) -> Result:
    """Train a recipe, a configuration file or a mapping. An existing run of that name is resumed, unless `resume` is
    "never".

    `inject` injects faults on purpose, such as "nan-gradient@5", but not into a pretraining run that comes first. With
    `stop_after`, the run pauses after that fraction of its steps, evaluated and saved, and can be resumed later; the
    schedule is that of the whole run. `trust`: another run that this one starts from or is configured by may bring its
    own code.
    """
    if stop_after is not None and not 0 < stop_after <= 1:
        raise UserError(f"stop_after: must be a fraction of the run, > 0 and <= 1, but got {stop_after}.")
    faults = parse(inject)
    if isinstance(config, Loaded) and overrides:
        raise UserError("overrides: cannot be applied to a loaded configuration; pass them to load().")
    loaded = config if isinstance(config, Loaded) else load(config, overrides)
    recipe = str(config) if isinstance(config, str | Path) else recipe
    with trusting(trust):
        require_trust_of_file(recipe, loaded)
        result = _train(
            loaded, recipe, name, runs_dir, resume, accept_changes, quiet, faults=faults, stop_after=stop_after
        )
    _show_card(result.run, quiet)
    return result


def _train(
    loaded: Loaded,
    recipe: str | None,
    name: str | None,
    runs_dir: str | Path,
    resume: Resume = "auto",
    accept_changes: bool = False,
    quiet: bool = False,
    again: str | None = None,
    faults: Sequence[Fault] = (),
    ranks: Ranks | None = None,
    stop_after: float | None = None,
) -> Result:
    """`again` is the advice after an interruption, if it is not to resume this run. `ranks`: once they have joined."""
    from trainbook.loop.build import build
    from trainbook.loop.data_paths import with_paths_found
    from trainbook.loop.device import device_kind
    from trainbook.parallel import find_rank_env, joined

    require_length(loaded)
    must_suit_world(faults, find_rank_env().world if ranks is None else ranks.world)
    if ranks is None:
        knobs = loaded.config.distributed
        with joined(find_rank_env(), knobs, device_kind(loaded.config.training.device)) as ranks:
            return _train(
                loaded, recipe, name, runs_dir, resume, accept_changes, quiet, again, faults, ranks, stop_after
            )
    quiet = quiet or not ranks.is_first
    loaded = _with_pretraining(loaded, runs_dir, quiet, ranks)
    prepared: Launch | Result | None = None
    if ranks.is_first:
        prepared = _prepare(_with_whole_paths(loaded), recipe, name, runs_dir, resume, accept_changes, quiet, faults)
    prepared = _told(ranks, prepared, loaded, recipe, faults)
    if isinstance(prepared, Result):
        return prepared
    # As the first rank finds them: others may not see what it has brought back of the run folder.
    config, notices = ranks.broadcast(with_paths_found(loaded.config, prepared.run))
    prepared = replace(prepared, notices=[*prepared.notices, *notices])

    def build_job(device: torch.device) -> Job:
        from trainbook.folding import folded
        from trainbook.loop.describe import describe

        built = build(config, device, prepared.run, ranks)
        if stop_after is not None:
            built.job.stop_at = max(1, round(stop_after * built.job.total_updates))
        if not quiet:
            with suppress(BrokenPipeError):  # nobody reads any more: no reason not to train
                echo(prepared.run.path)
                for label, text in describe(built, device):
                    echo(folded(f"  {label:<10} {text}", indent=13))
        return built.job

    return _run(prepared, build_job, again, ranks)


def _told(
    ranks: Ranks, prepared: Launch | Result | None, loaded: Loaded, recipe: str | None, faults: Sequence[Fault]
) -> Launch | Result:
    """What the first rank has prepared, as the others need it."""
    from trainbook.loop.faults.faults import Faults
    from trainbook.loop.launch import Launch

    ended = prepared.ended if isinstance(prepared, Result) else None
    path, ended = ranks.broadcast((str(prepared.run.path) if prepared else "", ended))
    if prepared is not None:
        return prepared
    run = RunFolder(path)
    if ended is not None:
        return Result(run, ended)
    width = None if recipe == "fit" else loaded.config.model.hidden_size
    return Launch(run, loaded.config, "", recipe, quiet=True, width=width, faults=Faults(faults))


# Settings of a run that hold for the pretraining before it as well.
PASSED_ON = ("training.seed", "training.device", "training.deterministic", "data.cache_dir", "data.num_workers")


def _with_pretraining(loaded: Loaded, runs_dir: str | Path, quiet: bool, ranks: Ranks) -> Loaded:
    """If the model starts from a recipe, train that first; a finished run is used, an unfinished one resumed."""
    pretrained = loaded.config.model.pretrained
    if pretrained is None or not is_recipe(pretrained):
        return loaded
    recipe = pretrained.removeprefix(RECIPE_PREFIX)
    passed = [f"{path}={yaml_value(loaded.get(path))}" for path in PASSED_ON if loaded.origins[path].is_the_users]
    name = f"{recipe}-seed{loaded.config.training.seed}"
    again = f"run the same command again ({name} is only its first part)"
    first = _train(load(recipe, passed), recipe, name, runs_dir, quiet=quiet, again=again, ranks=ranks)
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


# Knobs that may name a folder or a file, whose contents are looked for again when the run is resumed or used.
FOLDERS = ("model.pretrained", "data.tokenizer", "distributed.deepspeed_config")


def _with_whole_paths(loaded: Loaded) -> Loaded:
    """Absolute paths: a run may be used from another working directory than it was made in."""
    from trainbook.data.tokenizers.files import NAMES

    config = loaded.config
    for path in FOLDERS:
        section, name = path.split(".")
        value = config.get(path)
        if value is not None and value not in NAMES and Path(value).expanduser().exists():
            changed = getattr(config, section).model_copy(update={name: _whole(value)})
            config = config.model_copy(update={section: changed})
    return replace(loaded, config=config)


def _whole(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


def resume(
    run: str | Path,
    overrides: Sequence[str] = (),
    *,
    runs_dir: str | Path = "runs",
    accept_changes: bool = False,
    quiet: bool = False,
    inject: Sequence[str] = (),
    trust: bool = False,
) -> Result:
    """Resume a run with the configuration in its folder. Injected faults of an earlier process are not repeated.

    `trust`: import the code that the configuration names, even if this user has not trained the run on this machine.
    """
    from trainbook.loop.saved_files import recover

    folder = RunFolder.find(run, runs_dir)
    recovered = recover(folder)
    if folder.read_manifest().recipe == "fit":
        raise ResumeError(
            f"{folder.path} was made by trainbook.fit from a module of your own: call fit again with "
            f"name={folder.name!r}."
        )
    loaded = load(folder.config, overrides, text=recovered.config_text)
    with trusting(trust):
        require_trust(folder, loaded.config)
    # `.` or a link has another name than the folder that it means.
    path = folder.path if folder.path.name == folder.name else folder.path.resolve()
    return train(
        loaded,
        name=folder.name,
        runs_dir=path.parent,
        accept_changes=accept_changes,
        quiet=quiet,
        inject=inject,
        trust=trust,
    )


def fit(
    model: nn.Module,
    data: Iterable[Any],
    *,
    loss: LossFunction,
    count_targets: CountFunction | None = None,
    eval_data: Iterable[Any] | None = None,
    name: str | None = None,
    runs_dir: str | Path = "runs",
    resume: Resume = "auto",
    accept_changes: bool = False,
    quiet: bool = False,
    config: Source | None = None,
    inject: Sequence[str] = (),
    **knobs: Any,
) -> Result:
    """Train your own module with the same loop, run folder, resume and tracking. Knobs are keywords, by any name.

    `loss(model, batch)` returns a mean; or, if `count_targets(batch)` is given, a sum over that many targets.
    `eval_data` holds the validation batches, read again for each evaluation. `quiet`: no progress, no card at the end.
    """
    from trainbook.loop.fit import fit_job, load_weights, must_apply_to_fit, must_not_be_eval_data
    from trainbook.parallel import find_rank_env

    if find_rank_env().world > 1:
        raise UserError("fit trains in one process only: it cannot split your data between ranks.")
    faults = parse(inject)
    must_suit_world(faults, 1)
    must_suit_own_data(faults)
    must_not_be_eval_data(knobs)
    overrides = [f"{knob}={yaml_value(value)}" for knob, value in knobs.items()]
    loaded = load(config, overrides)
    require_length(loaded)
    must_apply_to_fit(loaded)
    prepared = _prepare(loaded, "fit", name, runs_dir, resume, accept_changes, quiet, faults)
    if isinstance(prepared, Result):
        load_weights(model, prepared.run)
        result = prepared
    else:
        result = _run(
            prepared,
            lambda device: fit_job(
                loaded.config, model, data, loss, count_targets=count_targets, eval_data=eval_data, device=device
            ),
        )
    _show_card(result.run, quiet)
    return result


def open_run(path: str | Path) -> RunFolder:
    """Open a run folder: its metrics, events, configuration and manifest."""
    return RunFolder.open(path, "runs")


def explain(name: str) -> dict[str, Any]:
    """Everything known about a knob, by any of its names."""
    from trainbook.knobs import explain_knob

    return explain_knob(name)


def generate(run: str | Path, prompt: str = "", *, trust: bool = False, **options: Any) -> str:
    """The text that a run's model generates after the prompt. `trust`: import the code that the run names."""
    from trainbook.loop.generate import generate_text

    with trusting(trust):
        return "".join(generate_text(RunFolder.open(run, "runs"), prompt, **options))


def _prepare(
    loaded: Loaded,
    recipe: str | None,
    name: str | None,
    runs_dir: str | Path,
    resume: Resume,
    accept_changes: bool,
    quiet: bool,
    faults: Sequence[Fault],
) -> Launch | Result:
    """The run folder to train in, or the result if the run is already finished."""
    from trainbook.loop.faults.faults import Faults
    from trainbook.loop.launch import Launch
    from trainbook.loop.saved_files import put_back, recover

    config_text = dump(loaded)
    if name == "":
        check_name(name, "run")
    name = name or default_name(recipe or "run", runs_dir)
    existing = RunFolder(Path(runs_dir) / name)
    changes: list[KnobChange] = []
    if resume == "never" and (existing.manifest.is_file() or existing.has_checkpoints):
        raise RunFolderError(f"{existing.path} already holds a run, and --resume is never: choose another --name.")
    recovered = recover(existing)
    notices = [*recovered.lines, *loaded.notices]
    if existing.has_begun:
        changes = check_resume(existing, loaded, accept_changes)
        if existing.read_manifest().status == "finished" and not changes:
            put_back(existing, recovered, quiet)
            return Result(existing, "already finished")
        run = existing
        before = recovered.config_text or read_file(run.config)
        if wrong := untrue(before, loaded, changes):
            named = ", ".join(wrong[:3]) + (f" and {len(wrong) - 3} more" if len(wrong) > 3 else "")
            notices.append(f"config.yaml did not match the run and was corrected: {named}")
        config_text = dump_changes(before, loaded, changes)
    else:
        run = RunFolder.create(runs_dir, name)
    width = None if recipe == "fit" else loaded.config.model.hidden_size
    return Launch(run, loaded.config, config_text, recipe, changes, notices, quiet, width, Faults(faults))


def check_resume(run: RunFolder, loaded: Loaded, accept_changes: bool) -> list[KnobChange]:
    """The changes of the new configuration; refused if they would silently change the meaning of the run."""
    changes = [change for change in difference(run.recorded(), loaded.config) if not _is_the_same_folder(change)]
    policies = {change.path: resume_rule(change.path).policy for change in changes}
    refused = [
        c for c in changes if policies[c.path] == "fixed" or (policies[c.path] == "schedule" and not accept_changes)
    ]
    if refused:
        lines = [f"{run.path} was started with another configuration:"]
        lines += [f"  {change.path}: {change.old} -> {change.new}" + _why(change.path) for change in changes]
        is_fit = run.read_manifest().recipe == "fit"
        accept, name = ("pass accept_changes=True", "name") if is_fit else ("add --accept-changes", "--name")
        can_accept = all(policies[change.path] != "fixed" for change in refused)
        or_accept = f", {accept} to resume with the new ones" if can_accept else ""
        lines.append(f"Use the old values{or_accept}, or start a new run under another {name}.")
        raise ResumeError("\n".join(lines))
    return changes


def _is_the_same_folder(change: KnobChange) -> bool:
    both = (change.old, change.new)
    return change.path in FOLDERS and None not in both and len({_whole(path) for path in both}) == 1


def _why(path: str) -> str:
    rule = resume_rule(path)
    return "" if rule.policy == "free" else f"   ({rule.why})"


def _run(
    prepared: Launch,
    build_job: Callable[[torch.device], Job],
    again: str | None = None,
    ranks: Ranks | None = None,
) -> Result:
    from trainbook.loop.launch import launch
    from trainbook.parallel import ALONE

    ranks = ranks or ALONE
    is_asked_for_alone = again is None  # rather than as a part of something that says itself how to go on
    if not ranks.is_first:
        return Result(prepared.run, launch(prepared, build_job, ranks))
    run, before = prepared.run, _bytes(prepared.run.manifest)
    try:
        ended = launch(prepared, build_job, ranks)
    except RunFolderError:
        raise  # the folder is another process's
    except Interrupted as stop:
        _write_report(run)
        if again is None:
            again = f"fit(…, name={run.name!r})" if prepared.recipe == "fit" else f"trainbook resume {run.path}"
            again += f" --nproc {ranks.world}" if ranks.are_several and ranks.local_world == ranks.world else ""
        told = f"{stop}. To resume: {again}"
        raise _told_on_the_terminal(told, prepared.quiet or not is_asked_for_alone) from None
    except KeyboardInterrupt:
        if not is_asked_for_alone:
            raise
        raise _told_on_the_terminal("interrupted before the first step: nothing was lost", prepared.quiet) from None
    except BaseException:
        if _bytes(run.manifest) != before:  # a run that was refused is as it was
            with suppress(TrainbookError):  # the first error is the one to tell
                _write_report(run)
        raise
    _write_report(run)
    return Result(run, ended)


def _told_on_the_terminal(message: str, quiet: bool) -> Interrupted:
    """A script that does not catch it ends without a traceback: this line is all that the user sees."""
    from trainbook.folding import folded

    if not quiet:
        with suppress(OSError):
            echo(folded(message, stream=sys.stderr), err=True)
    return Interrupted(message, is_told=not quiet)


def _bytes(path: Path) -> bytes | None:
    return read_bytes(path) if path.is_file() else None


def _show_card(run: RunFolder, quiet: bool) -> None:
    """The card of a run that has ended; of several processes, the first one shows it."""
    from trainbook.folding import folded
    from trainbook.parallel import find_rank_env
    from trainbook.report import make_card

    if not quiet and find_rank_env().rank == 0:
        with suppress(BrokenPipeError):
            echo("")
            echo(folded(make_card(run).as_text(), indent=13))


def _write_report(run: RunFolder) -> None:
    from trainbook.report import make_card

    if run.manifest.is_file():
        write_text_atomically(run.report, make_card(run).as_markdown())
