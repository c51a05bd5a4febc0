"""A search on a small model for a large one: the small one's study, the large one's recipe, and what that saved.

The large model is muP's base, unless the recipe names one: it stays what the recipe says, to the bit, and the small one
is made like it. The folder is that of the study (see study/tune/run.py), and in it

  large.yaml      the recipe of the large model, with what was found
  transfer.json   the answer
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainbook.bounded import json_text
from trainbook.errors import ConfigError, UserError
from trainbook.knobs import Loaded, load
from trainbook.knobs.config import Config
from trainbook.knobs.dumping import yaml_value
from trainbook.plan import network, operations
from trainbook.plan.activations import lengths_of
from trainbook.plan.vocabulary import vocabulary
from trainbook.runs import write_text_atomically
from trainbook.runs.jsonl import dumps
from trainbook.study.space import base_text
from trainbook.study.transfer.family import Family
from trainbook.study.tune.conclusion import chosen_trial
from trainbook.study.tune.study_file import StudyQuestion, load_values
from trainbook.study.tune.trial import Trial

RECIPE, ANSWER = "large.yaml", "transfer.json"
# What muP carries from one width to another; of anything else it says nothing.
CARRIED = (
    "optimizer.learning_rate",
    "optimizer.beta1",
    "optimizer.beta2",
    "optimizer.momentum",
    "optimizer.epsilon",
    "schedule.",
    "model.initializer_range",
    "model.embedding_multiplier",
    "model.output_multiplier",
)


@dataclass(frozen=True)
class Proxy:
    family: Family  # the small width and the large one
    question: StudyQuestion  # about the small one

    @property
    def width(self) -> int:
        return self.family.sizes[0]

    @property
    def large_width(self) -> int:
        return self.family.sizes[1]

    def loaded(self, width: int) -> Loaded:
        """The recipe in this width, under muP. What comes from the recipe still says where it stands there."""
        found = self.family.loaded("mup", width)
        ours = f"--proxy {self.width}"
        origins = {
            path: replace(origin, where=ours) if origin.kind == "override" else self.family.base.origins[path]
            for path, origin in found.origins.items()
        }
        return replace(found, origins=origins)


def proxy_for(asked: StudyQuestion, width: int) -> Proxy:
    """From the question about the large model that about the small one."""
    large = asked.loaded.config.model
    if large.pretrained is not None:
        raise UserError("model.pretrained: the size of a pretrained model is fixed, so it must be null here.")
    if not 1 <= width < large.hidden_size:
        raise UserError(f"--proxy: must be a width below model.hidden_size, {large.hidden_size}, but got {width}.")
    family = Family(asked.loaded, "width", (width, large.hidden_size), "--proxy")
    differs = {override.partition("=")[0] for override in family.overrides("mup", width)}
    for each in (*asked.roles.scientific, *(asked.roles.nuisance or ())):
        if each.path in differs:
            raise UserError(f"{each.path}: cannot be searched with --proxy, which sets it for the small model.")
    proxy = Proxy(family, asked)
    return replace(proxy, question=replace(asked, loaded=proxy.loaded(width)))


def carry_over(proxy: Proxy, facts: Mapping[str, Any], trials: Sequence[Trial], folder: Path) -> dict[str, Any]:
    """The large model's recipe, and the answer; `facts` are those of the small one's study."""
    found, large = dict(chosen_trial(dict(facts))["values"]), proxy.loaded(proxy.large_width)
    spent = cost(trials, proxy.question.loaded, large, found)
    remarks = [
        f"{path} was found on the small model and is not covered by muP: check it on the large model"
        for path in found
        if not path.startswith(CARRIED)
    ]
    words = [*_words(proxy, found, spent), *remarks]
    head = [f"# Found by trainbook transfer --proxy {proxy.width}: study {folder.name}.", "#"]
    text = "\n".join([*head, *(f"# {line}" for line in words), "", base_text(large, found)])
    load(Path(RECIPE), text=text)  # what a law has against it is said here, and not when it is trained
    answer = {
        "proxy": proxy.width,
        "width": proxy.large_width,
        "found": found,
        "cost": spent,
        "conclusion": [*facts["conclusion"], *words],
        "recipe": str(folder / RECIPE),
        "proxy_recipe": facts["recipe"],
        "study": str(folder),
    }
    write_text_atomically(folder / RECIPE, text)
    write_text_atomically(folder / ANSWER, dumps(answer) + "\n")
    return answer


def cost(trials: Sequence[Trial], small: Loaded, large: Loaded, found: Mapping[str, Any]) -> dict[str, Any]:
    """Of the search, of the same trials on the large model, and of one training of that with what was found. Each trial
    is counted by its own values: depth may be one of them."""
    tokens = sum(each.tokens for each in trials)
    ended = [each for each in trials if each.state == "done"]
    whole = max((each.tokens for each in ended if each.values == found), default=0)
    whole = whole or max((each.tokens for each in ended), default=0)
    spent = {"trials": sum(each.tokens > 0 for each in trials), "tokens": tokens, "large_run_tokens": whole}
    try:
        words = _vocabulary(trials, small.config)
        configs = [load_values(base, dict(found)).config for base in (small, large)]
        parameters, large_parameters = (num_parameters(config, words) for config in configs)
        large_run = whole * flops_per_token(configs[1], words)
        flops, direct_flops = (_flops(trials, base, words) for base in (small, large))
    except ConfigError as error:  # a value that fits the small model alone
        return spent | {
            "share": None,
            "unknown": f"the large model cannot be trained with these values: {error.problems[0]}",
        }
    except UserError:
        return spent | {"share": None, "unknown": "no trial got far enough to know the vocabulary size."}
    return spent | {
        "parameters": parameters,
        "large_parameters": large_parameters,
        "flops": flops,
        "direct_flops": direct_flops,
        "large_run_flops": large_run,
        "share": flops / direct_flops if direct_flops else None,
        "unknown": None if direct_flops else "no trial trained on any token.",
    }


def _flops(trials: Sequence[Trial], base: Loaded, vocab_size: int) -> float:
    tokens: dict[str, int] = defaultdict(int)
    values = {}
    for each in trials:
        if each.tokens:
            name = dumps(each.values)
            tokens[name] += each.tokens
            values[name] = dict(each.values)
    return sum(
        flops_per_token(load_values(base, values[name]).config, vocab_size) * count for name, count in tokens.items()
    )


def _vocabulary(trials: Sequence[Trial], config: Config) -> int:
    """As a trial has it: some tokenizers are learned from the data."""
    files = [Path(each.run) / "tokenizer" / "facts.json" for each in trials if each.run is not None]
    found = next((file for file in files if file.is_file()), None)
    return vocabulary(config) if found is None else json_text.read(found)["vocab_size"]


def flops_per_token(config: Config, vocab_size: int) -> float:
    """Forward and backward, by the model's matrix products."""
    lengths = lengths_of(config)
    done = operations(config, network(config, vocab_size), 1).model
    return done / (lengths.read + lengths.written)


def num_parameters(config: Config, vocab_size: int) -> int:
    return network(config, vocab_size).parameters


def _words(proxy: Proxy, found: Mapping[str, Any], spent: Mapping[str, Any]) -> list[str]:
    values = ", ".join(f"{path}={yaml_value(value)}" for path, value in found.items())
    if values:
        carried = f"For width {proxy.large_width}: {values}, found at width {proxy.width} and transferred by muP."
    else:
        carried = f"For width {proxy.large_width}: the recipe's own values; nothing better was found at {proxy.width}."
    through = f"{spent['trials']} trials and {spent['tokens']:,} tokens"
    if spent["share"] is None:
        return [carried, f"The search took {through}. Its cost in FLOPs is not known: {spent['unknown']}"]
    return [
        carried,
        f"The search took {spent['flops']:.3g} FLOPs: {through} through {spent['parameters']:,} parameters. The same "
        f"trials through {spent['large_parameters']:,} would have taken {spent['direct_flops']:.3g}: the search cost "
        f"{spent['share']:.1%} of that.",
        f"The large model processed no token of it, instead of {spent['tokens']:,}; training the large model once "
        f"takes {spent['large_run_tokens']:,} tokens and {spent['large_run_flops']:.3g} FLOPs.",
    ]
