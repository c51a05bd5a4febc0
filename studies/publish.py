"""From a finished ablation to the repository: `python studies/publish.py runs/ablate-gpt-parts`.

Writes studies/results/NAME.json (what was found, on which hardware, with which versions and at what cost; no curves),
and from all of these src/trainbook/knobs/measured.json, which `trainbook explain` shows. Without an argument, only the
latter. The commit is this tree's; `--commit 9c38331` names the one that a study ran with elsewhere. `--conclude` says
again in sentences what the published studies found, after a change of how it is said; their figures stay.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any

from trainbook.knobs.measured_on import MEASURED_ON
from trainbook.study.ablate.conclusion import conclude

HERE = Path(__file__).parent
RESULTS, MEASURED = HERE / "results", HERE.parent / "src" / "trainbook" / "knobs" / "measured.json"
DIGITS = 6
OBSERVING = ("evaluation.", "logging.")  # knobs that leave the training as it is

Facts = dict[str, Any]


def compact(folder: Path, commit: str | None) -> Facts:
    facts = json.loads((folder / "ablation.json").read_text(encoding="utf-8"))
    first = next(each for each in facts["trials"] if each["run"])
    manifest = json.loads((folder / "trials" / Path(first["run"]).name / "manifest.json").read_text(encoding="utf-8"))
    name = facts["study"].removeprefix("ablate-")
    hardware = {key: manifest["hardware"][key] for key in ("cpu", "cores", "gpus")}
    kept = {
        key: value for key, value in facts.items() if key not in ("study", "curves", "trials", "recipe", "pictures")
    }
    return _rounded(
        {
            "name": name,
            "commit": commit,
            "hardware": hardware,
            "versions": {key: manifest["versions"][key] for key in ("python", "torch")},
            **kept,
            "command": f"trainbook ablate studies/{name}.yaml",  # as anybody can run it here
        }
    )


def _commit() -> str | None:
    answer = subprocess.run(["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return answer.stdout.strip() or None


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list) else value


def concluded_again(path: Path) -> bool:
    """Whether the sentences of a results file are others now."""
    facts = json.loads(path.read_text(encoding="utf-8"))
    said = conclude(facts)
    is_new = said != facts["conclusion"]
    if is_new:
        path.write_text(json.dumps(facts | {"conclusion": said}, indent=1) + "\n", encoding="utf-8")
    return is_new


def measured() -> dict[str, list[Facts]]:
    """By knob, what each study found of another value than its base has; without arms whose loss is measured on
    something else than the control's."""
    found: dict[str, list[Facts]] = {}
    for path in sorted(RESULTS.glob("*.json")):
        study = json.loads(path.read_text(encoding="utf-8"))
        for arm in study["arms"]:
            if arm["effect"] is None or set(arm["values"]) & set(MEASURED_ON):
                continue
            changed = {knob: value for knob, value in arm["values"].items() if not knob.startswith(OBSERVING)}
            for knob, value in changed.items():
                others = {each: other for each, other in changed.items() if each != knob}
                entry = {
                    "value": value,
                    "with": others,
                    "verdict": arm["verdict"],
                    "metric": study["metric"],
                    "scale": study["scale"],
                    **{key: arm["effect"][key] for key in ("mean", "low", "high", "pairs")},
                    "base": study["base"],
                    "data": study["data"],
                    "by_data": {
                        each["data"]: [each["effect"][key] for key in ("mean", "low", "high")]
                        for each in arm["by_data"]
                        if each["effect"] is not None
                    },
                    "command": study["command"],
                }
                found.setdefault(knob, []).append(entry)
    return dict(sorted(found.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="*")
    parser.add_argument("--commit", default=_commit())
    parser.add_argument("--conclude", action="store_true", help="refresh the sentences of all published studies")
    asked = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    for folder in asked.folders:
        facts = compact(folder, asked.commit)
        path = RESULTS / f"{facts['name']}.json"
        path.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        print(f"{path.relative_to(HERE.parent)}: {len(facts['arms'])} arms")
    for path in sorted(RESULTS.glob("*.json")) if asked.conclude else ():
        if concluded_again(path):
            print(f"{path.relative_to(HERE.parent)}: said again")
    MEASURED.write_text(json.dumps(measured(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
