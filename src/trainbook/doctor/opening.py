"""What the doctor is asked to look at: a run, whoever wrote it, or a configuration by itself."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from trainbook.errors import RunFolderError, UserError
from trainbook.knobs import recipes
from trainbook.knobs.config import Config, declarations
from trainbook.knobs.dumping import yaml_value
from trainbook.knobs.loading import load
from trainbook.knobs.sections.model_size import BUILT_IN
from trainbook.plan import network
from trainbook.runs.record import open_record
from trainbook.runs.run_record import RunRecord

BYTES = 257  # what a byte tokenizer has; of others the size is known once it is made, or stated


def open_subject(what: str, runs_dir: Path, overrides: Sequence[str] = ()) -> RunRecord:
    """A run by its folder or name, another tool's record, a recipe or a YAML file."""
    if what in recipes.names() or (what.endswith((".yaml", ".yml")) and os.path.isfile(what)):
        loaded = load(what, list(overrides))
        asked = [path for path, origin in loaded.origins.items() if origin.kind == "override"]
        overrides = tuple(f"{path}={yaml_value(loaded.get(path))}" for path in asked)
        return replace(of_config(loaded.config, what), overrides=overrides)
    try:
        record = open_record(what, runs_dir)
    except RunFolderError as error:
        if os.path.exists(what):
            raise
        if overrides or what.endswith((".yaml", ".yml")):
            load(what)  # which says that there is none
        near = recipes.nearest(what)
        raise RunFolderError(f"{error} The recipe nearest in name is {near}." if near else str(error)) from None
    if overrides:
        raise UserError(f"{what} is a run: overrides apply to a recipe or a YAML file only.")
    return record


def of_config(config: Config, name: str) -> RunRecord:
    """Nothing was run yet: settings, and what follows from them on paper."""
    settings = {knob.path: config.get(knob.path) for knob in declarations()}
    facts = {}
    if config.model.type in BUILT_IN and config.model.pretrained is None:
        facts["num_parameters"] = network(config, config.data.vocab_size or BYTES).parameters
    return RunRecord(name, [], [], settings=settings, config=config, facts=facts)
