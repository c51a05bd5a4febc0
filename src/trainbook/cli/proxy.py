"""trainbook transfer --proxy: a search on a small model, and the recipe of the large one."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainbook.terminal import echo

if TYPE_CHECKING:
    from trainbook.study.tune.trial import Trial


def find_with_proxy(
    recipe: str, changes: list[str], width: int, name: str | None, runs_dir: Path, quiet: bool, **options: Any
) -> dict[str, Any]:
    """`options` are those of a study. The same command again goes on where it was stopped."""
    from trainbook.study.tune.study_file import read_question

    asked = read_question(recipe, changes, **options)  # a mistake is answered before PyTorch is imported
    from trainbook.errors import Interrupted
    from trainbook.runs import name_of
    from trainbook.study.transfer.proxy import carry_over, proxy_for
    from trainbook.study.tune.run import Study, words_before

    proxy = proxy_for(asked, width)
    question, name = proxy.question, name or f"transfer-{name_of(recipe)}"
    say = (lambda line: None) if quiet else (lambda line: echo(line, err=True))
    lines = _TrialLines(say)
    job = Study(question, runs_dir / name, say=say, watch=lines.show)
    goes_on = job.prepare()
    say(f"{job.folder}{' (resumed)' if goes_on else ''}: {question.budget} with {question.method} at width {width}")
    for line in words_before(question):
        say(f"  {line}")
    try:
        trials = job.run()
    except Interrupted as stop:
        raise Interrupted(f"{stop}. To resume, run the same command with --name {shlex.quote(name)}") from None
    return carry_over(proxy, job.answer(trials), trials, job.folder)


def proxy_text(answer: dict[str, Any]) -> str:
    rows = [("recipe", answer["recipe"]), ("small one", answer["proxy_recipe"])]
    rows.append(("next", f"trainbook train {shlex.quote(answer['recipe'])}"))
    return "\n".join([*answer["conclusion"], "", *(f"{title:<10} {text}" for title, text in rows)])


class _TrialLines:
    """A line for each trial that ends."""

    def __init__(self, say: Any) -> None:
        self.say = say
        self.told: set[int] = set()

    def show(self, trials: Sequence[Trial], plan: dict[str, Any] | None) -> None:
        for each in trials:
            if each.is_over and each.number not in self.told:
                self.told.add(each.number)
                values = "  ".join(f"{path}={value}" for path, value in each.values.items())
                ended = f"{each.loss:.4f}" if each.state == "done" and each.loss is not None else each.state
                self.say(f"  {each.number:>4}  {ended:<10}  {values or 'the unchanged base'}")
