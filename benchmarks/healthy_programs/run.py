"""Twenty healthy programs as users write them: what does the doctor say of each?

    python benchmarks/healthy_programs/run.py                       all, in a temporary folder
    python benchmarks/healthy_programs/run.py gan regression --out DIR
    python benchmarks/healthy_programs/run.py --json FILE

Each program is a file of its own in programs/, and records its run with `trainbook.watch`, `trainbook.fit` or a
configuration. It runs in a folder of its own, on one core, for some seconds. Nothing is wrong with any of them, so
every error and every warning is a false alarm; the exit code is 1 if there is an error. Needs
`pip install -e '.[benchmarks,lightning]'`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).resolve().parent / "programs"
COMMAND = "python benchmarks/healthy_programs/run.py --json FILE"
SOURCE = Path(__file__).resolve().parents[2] / "src"


def names() -> list[str]:
    return sorted(path.stem for path in PROGRAMS.glob("*.py"))


def run(name: str, folder: Path) -> list[Path]:
    """Runs a program in `folder`. Gives the run folders that it wrote."""
    folder.mkdir(parents=True, exist_ok=True)
    places = [str(SOURCE), str(PROGRAMS), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, places))}
    ended = subprocess.run([sys.executable, "-m", name], cwd=folder, env=environment, capture_output=True, text=True)
    if ended.returncode:
        raise RuntimeError(f"{name} failed:\n{ended.stdout}{ended.stderr}")
    return sorted(path.parent for path in folder.glob("runs/*/manifest.json"))


def findings(record: Path) -> list[dict[str, Any]]:
    """What the doctor says of a run, in its order."""
    from trainbook.doctor.causes import CAUSES
    from trainbook.doctor.diagnose import diagnose, open_subject

    found = diagnose(open_subject(str(record), record.parent)).findings
    return [
        {
            "severity": each.severity,
            "cause": each.cause,
            "rule": each.rule,
            "confidence": round(each.confidence, 3),
            "says": f"{CAUSES[each.cause].sentence} {each.evidence}",
        }
        for each in found
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", help="these only")
    parser.add_argument("--out", type=Path, help="where the runs are kept")
    parser.add_argument("--json", type=Path, help="write what was found to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        out = (options.out or Path(temporary)).resolve()
        said = {}
        for name in options.programs or names():
            for record in run(name, out / name):
                said[record.name] = findings(record)
                show(record.name, said[record.name])
    errors = sum(each["severity"] == "error" for its in said.values() for each in its)
    warnings = sum(each["severity"] == "warning" for its in said.values() for each in its)
    print(f"{len(said)} runs: {errors} errors, {warnings} warnings")
    if options.json is not None:
        found = {"measured": date.today().isoformat(), "command": COMMAND, "runs": said}
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 1 if errors else 0


def show(name: str, its: list[dict[str, Any]]) -> None:
    print(name)
    for each in its:
        print(f"  {each['severity']:<8}{each['cause']:<24}{each['confidence']:>5.0%}  {each['says']}")


if __name__ == "__main__":
    sys.path.insert(0, str(SOURCE))
    sys.exit(main())
