"""docs/runs.md: its commands are typed in order and its programs run, on runs as the page has them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from tests.conftest import needs
from tests.run_folders import make_run

PAGE = Path(__file__).parents[2] / "docs" / "runs.md"
ENDED = [{"step": 3, "segment": 0, "kind": "finish"}]
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


@needs("matplotlib", "pandas", "pyarrow", "tensorboard", "wandb")
def test_the_page_works_as_it_is_shown(terminal):
    losses = {2: {"loss": 2.5, "best": True}}
    for name in ("first", "second", "third", "tune-gpt-tiny/trials/trial-1"):
        make_run(
            Path("runs") / name,
            evaluations=losses,
            events=ENDED,
            settings={"optimizer__learning_rate": 1e-3 * len(name)},
        )
    Path("runs/tune-gpt-tiny/base.yaml").touch()
    for kind, block in BLOCKS:
        if kind == "python":
            exec(compile(block, PAGE.name, "exec"), {})
        for command, below in re.findall(r"^\$ trainbook (.*)\n((?:error: .*\n)?)", block, flags=re.MULTILINE):
            answer = terminal(*shlex.split(re.sub(r"\s+#.*", "", command)), code=2 if below else 0)
            assert answer.stderr.replace("\n", " ").strip() == below.strip() if below else True, command
    written = {"first.csv", "first-metrics.parquet", "first-tensorboard", "first-wandb", "comparison.html"}
    assert written <= {path.name for path in Path().iterdir()} and not Path("runs/second").exists()


def test_every_link_leads_somewhere():
    for target in re.findall(r"\]\(([^)#]+)", PAGE.read_text(encoding="utf-8")):
        assert target == "board.md" or (PAGE.parent / target).exists(), target
