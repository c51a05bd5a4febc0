"""trainbook train"""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from trainbook.cli import processes
from trainbook.cli.processes import MaxRestarts, Nproc
from trainbook.cli.shared import AcceptChanges, AsJson, Overrides, Quiet, Recipe, RunsDir, Trust, reports_errors
from trainbook.loop.faults.kinds import KINDS, must_suit_world, parse
from trainbook.start_up import measured_start_up

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainbook.data.sources.source import Source
    from trainbook.knobs import Loaded


EXAMPLES = """[bold]Examples[/bold]

trainbook train gpt-tiny

trainbook train my.yaml optimizer.learning_rate=3e-4 --name first-try

trainbook train my.yaml --nproc 8 --max-restarts 3

trainbook train gpt-tiny --inject nan-gradient@50 --inject kill@120 --name survivor
"""

Inject = Annotated[
    list[str] | None,
    typer.Option(
        "--inject",
        metavar="KIND@STEP[:rank=R]",
        help="Inject a fault on purpose, to see how the run copes, on every process or on the one with rank R; "
        f"repeatable: {', '.join(KINDS)}.",
        show_default=False,
    ),
]


Timing = Annotated[
    bool,
    typer.Option("--timing", help="Show how long each part of the start took, up to the end of the first step."),
]


@reports_errors
def train(
    recipe: Recipe,
    overrides: Overrides = None,
    name: Annotated[
        str | None, typer.Option("--name", help="The name of the run. An existing run of that name is resumed.")
    ] = None,
    runs_dir: RunsDir = Path("runs"),
    resume: Annotated[
        Literal["auto", "never"],
        typer.Option(
            "--resume", help="What to do with an existing run of that name. auto: resume it; never: stop with an error."
        ),
    ] = "auto",
    accept_changes: AcceptChanges = False,
    inject: Inject = None,
    nproc: Nproc = 1,
    max_restarts: MaxRestarts = 0,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Check the configuration, the head of the data and the run folder. Train nothing."
        ),
    ] = False,
    timing: Timing = False,
    trust: Trust = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train a model, or resume the run of the same name."""
    from trainbook.knobs import load, overrides_from_arguments, require_length
    from trainbook.runs import check_name, default_name
    from trainbook.runs.kinds import must_describe_a_run

    must_describe_a_run(recipe)
    faults = parse(inject or [])
    starts_others = processes.are_to_be_started(nproc, max_restarts)
    if starts_others:
        must_suit_world(faults, nproc)
    loaded = load(recipe, overrides_from_arguments(overrides or []))
    require_length(loaded)
    if name is not None:
        name = check_name(name, "run")
    if dry_run:
        from trainbook.runs.trust import require_trust_of_file

        require_trust_of_file(recipe, loaded)
        checked = try_out(loaded, recipe, name, runs_dir, resume, accept_changes)
        return _show(loaded, as_json, nproc, checked, classes_in_head(loaded))
    if starts_others:
        # Fixed before they start: all ranks, and those that are started again, must mean the same run.
        name = name or default_name(recipe, runs_dir)
        options = passed_on(runs_dir, accept_changes, inject, timing, as_json, quiet)
        arguments = ["train", recipe, *(overrides or []), "--name", name, "--resume", resume, *options]
        processes.start(arguments, nproc, max_restarts)
    if processes.is_restarted():  # the run is there because of the start before, which has met the faults
        resume, inject = "auto", None

    with measured_start_up(timing):
        from trainbook import api

        result = api.train(
            loaded,
            recipe=recipe,
            name=name,
            runs_dir=runs_dir,
            resume=resume,
            accept_changes=accept_changes,
            quiet=quiet or as_json,
            inject=inject or [],
            trust=trust,
        )
    if as_json:
        print_result(result)


def passed_on(
    runs_dir: Path, accept_changes: bool, inject: list[str] | None, timing: bool, as_json: bool, quiet: bool
) -> list[str]:
    """The options of train and resume as arguments, for the processes that are started."""
    flags = {"--accept-changes": accept_changes, "--timing": timing, "--json": as_json, "--quiet": quiet}
    faults = [argument for fault in inject or [] for argument in ("--inject", fault)]
    return ["--runs-dir", str(runs_dir), *(flag for flag, is_set in flags.items() if is_set), *faults]


def _show(loaded: Any, as_json: bool, world: int, checked: list[str], num_labels: int | None) -> None:
    from trainbook.cli.plan import plan_or_reason
    from trainbook.cli.shared import print_json
    from trainbook.knobs import explain_config
    from trainbook.knobs.explain import render_config
    from trainbook.plan.render import render_plan
    from trainbook.terminal import new_console

    facts = explain_config(loaded)
    planned, reason = plan_or_reason(loaded, world, num_labels)
    if as_json:
        return print_json({**facts, "plan": planned, "checked": checked, "not_checked": not_checked(loaded)})
    console = new_console()
    render_config(facts, console, everything=True)
    console.print()
    if planned is not None:
        render_plan(planned, console)
    else:
        console.print(f"No plan: {reason}")
    for title, lines in (("Checked", checked), ("Not checked", not_checked(loaded))):
        console.print(f"\n{title}", style="bold")
        for line in lines:
            console.print(f"  {line}", highlight=False)


def print_result(result: Any) -> None:
    """The facts of the card as JSON; of several processes, the first one's."""
    from trainbook.cli.shared import print_json
    from trainbook.parallel import find_rank_env

    if find_rank_env().rank > 0:
        return
    faults = result.run.read_manifest().injected_faults
    facts = {"run": str(result.run.path), "ended": result.ended, "best": result.best, "last": result.last}
    print_json({**facts, "injected_faults": faults})


# What `train --dry-run` tries before it says that a run can start, and what it leaves untried.


HEAD_RECORDS = 100
HEAD_CHARACTERS = 2000
NOT_CHECKED = (
    "the rest of the data: its lengths, labels and encoding (trainbook data reads all of it)",
    "the model itself: nothing was built or computed (trainbook check does that with a small one)",
    "memory and speed, which are estimates (trainbook plan --measure measures them)",
)


def try_out(
    loaded: Loaded, recipe: str, name: str | None, runs_dir: Path, resume: str, accept_changes: bool
) -> list[str]:
    """Sentences about what was checked; the first mistake is raised."""
    return [
        "the configuration: every value and every constraint",
        *_machine(loaded),
        *_data(loaded),
        _folder(loaded, recipe, name, runs_dir, resume, accept_changes),
    ]


def _machine(loaded: Loaded) -> list[str]:
    """Whether it has the numbers that are asked for, where not every machine has them."""
    if loaded.config.precision.products != "fp8":
        return []
    from trainbook.loop.device import choose_device
    from trainbook.precision import must_have_fp8

    must_have_fp8(choose_device(loaded.config.training.device))
    return ["the device: it multiplies in fp8"]


def not_checked(loaded: Loaded) -> list[str]:
    if not _tokenizer_is_made(loaded):
        return [*NOT_CHECKED]
    name, model = loaded.config.data.tokenizer, loaded.config.model.pretrained
    tokenizer = (
        f"the tokenizer: training refuses data.tokenizer={name} unless its tokens are those of {model}, whose own "
        "tokenizer is used if data.tokenizer is omitted"
    )
    return [tokenizer, *NOT_CHECKED]


def _tokenizer_is_made(loaded: Loaded) -> bool:
    """For a pretrained model, in place of its own: which tokens it has is known once it is made from the text."""
    from trainbook.data.tokenizers.files import NAMES

    return loaded.config.model.pretrained is not None and loaded.config.data.tokenizer in NAMES


def _data(loaded: Loaded) -> list[str]:
    from trainbook.data import open_sources
    from trainbook.data.samples.frame import reading_request
    from trainbook.data.tokenizers import tokenizer_config
    from trainbook.knobs.derive import task_name
    from trainbook.loop.data_paths import check_paths

    check_paths(loaded)
    data = loaded.config.data
    tokenizer_config(data.tokenizer, data.vocab_size)
    request = reading_request(task_name(loaded.config))
    if request is None:
        return ["the tokenizer; not the data, which a custom task reads itself"]
    sources = [source for source in open_sources(data, request) if source is not None]
    heads = [_head(source, _length_of(loaded), data.max_seq_length) for source in sources]
    return heads if _tokenizer_is_made(loaded) else [_tokenizer(loaded, sources[0]), *heads]


def _tokenizer(loaded: Loaded, source: Source) -> str:
    """A file is read and must have what the task needs. That of a pretrained model is tried, also on the first records:
    transformers must give the same ids."""
    from trainbook.data.tokenizers import check_specials, load_tokenizer
    from trainbook.data.tokenizers.files import NAMES

    name = loaded.config.data.tokenizer
    if loaded.config.model.pretrained is None:
        if name not in NAMES:
            from trainbook.loop.build import request_of

            check_specials(name, request_of(loaded.config).specials, load_tokenizer(name))
        return f"the tokenizer, {name}"
    from trainbook.loop.load_task import check_tokenizer

    records = islice(source.documents(), HEAD_RECORDS) if source.reader.has_fields else ()
    texts = (document.text[:HEAD_CHARACTERS] for document in records)
    chat = source.wanted.chat
    notices = check_tokenizer(loaded.config, load_tokenizer(name), texts, chat.template if chat else None)
    return f"the tokenizer, {name}" + "".join(f"\n  {notice}" for notice in notices)


def _length_of(loaded: Loaded) -> Callable[[str], int] | None:
    """How many tokens a text has, where that is known before the tokenizer is made from all of the text."""
    data = loaded.config.data
    by_name = {
        "byte": lambda text: len(text.encode("utf-8", "replace")),
        "char": len,
        "word": lambda text: len(text.split()),
    }
    if data.tokenizer in by_name:
        return by_name[data.tokenizer]
    from trainbook.data.tokenizers import load_tokenizer
    from trainbook.data.tokenizers.files import NAMES

    if data.tokenizer in NAMES:
        return None
    tokenizer = load_tokenizer(data.tokenizer)
    return lambda text: len(tokenizer.encode(text))


def classes_in_head(loaded: Loaded) -> int | None:
    """How many classes the first records of the training data name; None where the task has none."""
    from trainbook.data import open_sources
    from trainbook.data.samples.frame import reading_request
    from trainbook.knobs.derive import task_name

    request = reading_request(task_name(loaded.config))
    if request is None or request.labels not in ("class", "classes"):
        return None
    source, _ = open_sources(loaded.config.data, request)
    found = {name for document in islice(source.documents(), HEAD_RECORDS) for name in document.classes}
    return len(found) or None


def _head(source: Source, length_of: Callable[[str], int] | None, most: int) -> str:
    """Reads the first records as training will; of a text file, the first bytes."""
    from trainbook.data.sources.reader import FileReader
    from trainbook.data.sources.records import DataRecord
    from trainbook.errors import DataError

    reader = source.reader
    if isinstance(reader, FileReader) and not reader.has_fields:
        for file in reader.files[:HEAD_RECORDS]:
            with file.open():  # which refuses what is not text
                pass
        if source.wanted.records != "text":
            raise source.only_text(DataRecord({}, reader.files[0].name, first_line=1))
        count = len(reader.files)
        return f"{source.knob}, {source.name}: {count:,} text {'file' if count == 1 else 'files'}"
    documents = list(islice(source.documents(), HEAD_RECORDS))
    found = len(documents)
    if not found:
        raise DataError(f"{source.knob}: '{source.name}' has no text to train on: {reader.nothing}.")
    roles = source.fields.roles if source.fields else {}
    columns = ", ".join(f"{role} in '{column}'" for role, column in roles.items())
    said = f"{source.knob}, {source.name}: the first {found} records" + (f", with {columns}" if columns else "")
    if length_of is None or source.wanted.records != "labelled":  # other tasks cut windows, or have limits of their own
        return said
    longer = sum(length_of(document.text) > most for document in documents)
    if not longer:
        return said
    return f"{said}; {longer} of them have more than data.max_seq_length={most:,} tokens and are truncated"


def _folder(loaded: Loaded, recipe: str, name: str | None, runs_dir: Path, resume: str, accept_changes: bool) -> str:
    """Makes the folder as training would, and takes away what was not there before."""
    from trainbook.errors import RunFolderError
    from trainbook.runs import RunFolder, default_name

    name = name or default_name(recipe, runs_dir)
    existing = RunFolder(runs_dir / name)
    if existing.manifest.is_file() or existing.has_checkpoints:
        from trainbook.loop.request import check_resume

        if resume == "never":
            raise RunFolderError(f"{existing.path} already holds a run, and --resume is never: choose another --name.")
        check_resume(existing, loaded, accept_changes)
        return f"the run folder: {existing.path} holds a run that can be resumed with these values"
    missing = [folder for folder in (existing.path, *existing.path.parents) if not folder.exists()]
    try:
        RunFolder.create(runs_dir, name)
        return f"the run folder: {existing.path} can be created"
    finally:
        for folder in missing:
            with suppress(OSError):
                folder.rmdir()
