"""The source is walked: files are parsed in `trainbook.bounded` only, and printed on in `trainbook.terminal` only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "trainbook"

PARSERS = {
    "json.load",
    "json.loads",
    "json.JSONDecoder",
    "YAML",
    "csv.reader",
    "csv.DictReader",
    "safe_open",
    "np.load",
    "np.fromfile",
    "numpy.load",
    "pickle.load",
    "pickle.loads",
    "torch.load",
}
PACKAGES = {"gzip", "bz2", "lzma", "zipfile", "tarfile", "pyarrow", "ruamel.yaml", "csv", "tomllib"}
READS = {"read_text", "read_bytes"}

# Why each of these is no way in for a file that somebody handed over.
EXCEPTIONS = {
    "plan/roofline.py": {"read_text": "a file of the package itself"},
    "board/app.py": {"read_bytes": "the files of the pages, of the package itself"},
    "board/plan_view.py": {"read_text": "a recipe of the package itself"},
    "plan/pages.py": {"read_text": "a page of this repository, written by make pages"},
    "knobs/deepspeed/contract.py": {"read_text": "a page of this repository, written by make pages"},
    "knobs/text.py": {"ruamel.yaml": "types of nodes; bounded.yaml_text makes them"},
    "runs/manifest.py": {"read_text": "/proc/cpuinfo"},
    "checkpoints/folder.py": {"open": "of a regular file, behind open_no_link, hashed in blocks; its size is sealed"},
    "runs/jsonl.py": {"open": "the rows that a run has written, hashed in blocks"},
    "runs/trust.py": {"open": "a file of the user's own, which nobody else can write"},
    "loop/device.py": {"open": "/proc"},
    "study/rehearsal.py": {"open": "/proc"},
    "data/prepare/cached.py": {"np.fromfile": "tokens, in chunks: no more is asked for than a chunk"},
    "data/prepare/surveys.py": {"zipfile": "an exception of bounded.arrays"},
    "data/report/kept.py": {"pickle.loads": "a temporary file of this process, deleted when it is opened"},
    "data/tokenizers/training.py": {"read_text": "the messages of a process of our own"},
    "loop/data_workers.py": {"pickle.loads": "what the ranks of one run tell each other"},
    "models/formats/folder.py": {"torch.load": "weights_only=True, of a regular file"},
    "guard/huggingface.py": {"torch.load": "weights_only=True; the user's own trainer wrote it"},
    "report/metrics_out.py": {"csv": "written, not read", "pyarrow": "written, not read"},
    "parallel/native.py": {"torch.load": "DeepSpeed's pickles: only after --trust"},
}
PRINTS = {"print", "typer.echo", "click.echo", "Console", "sys.stdout.write", "sys.stderr.write", "escape"}
MAY_PRINT = {"knobs/pages.py", "doctor/pages.py", "plan/pages.py"}  # tools of this repository, with nothing to read


def test_files_are_parsed_in_one_place():
    found = [
        f"{name}:{line}: {what}"
        for name, tree in _modules("bounded")
        for what, line in _ways_in(tree)
        if what not in EXCEPTIONS.get(name, {})
    ]
    assert not found, "\n".join(["read these with trainbook.bounded:", *found])


def test_terminals_are_written_to_in_one_place():
    found = [
        f"{name}:{node.lineno}: {what}"
        for name, tree in _modules("terminal.py")
        for what, node in _called(tree)
        if what in PRINTS and name not in MAY_PRINT
    ]
    assert not found, "\n".join(["print these with trainbook.terminal:", *found])


def test_markup_of_strings_is_never_switched_on():
    for name, tree in _modules("terminal.py"):
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in ("from_markup", "from_ansi"):
                raise AssertionError(f"{name}:{node.lineno}: use trainbook.terminal.marked")
            if isinstance(node, ast.keyword) and node.arg == "markup":
                assert isinstance(node.value, ast.Constant) and node.value.value is False, f"{name}: markup is off"


def test_no_exception_is_left_over():
    used = {name: {what for what, _ in _ways_in(tree)} for name, tree in _modules("bounded")}
    assert {name: set(allowed) - used[name] for name, allowed in EXCEPTIONS.items() if set(allowed) - used[name]} == {}


def _ways_in(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Parsers, methods that read a file whole, `open` for reading, and imports of packages that read formats."""
    for what, node in _called(tree):
        owner, _, method = what.rpartition(".")
        if what in PARSERS:
            yield what, node.lineno
        elif method in READS and owner not in ("", "files"):
            yield method, node.lineno
        elif method == "open" and _mode(node, owner) in ("r", "rt", "rb"):
            yield "open", node.lineno
    for what, line in _imported(tree):
        package = next((name for name in PACKAGES if what == name or what.startswith(f"{name}.")), None)
        if package is not None:
            yield package, line


def _mode(call: ast.Call, owner: str) -> str:
    """Of builtin `open` and of a path's; empty for other methods of that name."""
    given = [*call.args[(0 if owner else 1) :], *(each.value for each in call.keywords if each.arg == "mode")]
    modes = [each.value for each in given if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return modes[0] if modes else "" if owner else "r"


def _modules(but: str) -> list[tuple[str, ast.Module]]:
    return [(name, tree) for name, tree in _all_modules() if not name.startswith(but)]


@cache
def _all_modules() -> list[tuple[str, ast.Module]]:
    paths = sorted(SOURCE.rglob("*.py"))
    return [(path.relative_to(SOURCE).as_posix(), ast.parse(path.read_text(encoding="utf-8"))) for path in paths]


def _called(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    """Functions and methods, with the name of what they are of, such as json.loads; of anything else as x.name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield _dotted(node.func), node


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "x"


def _imported(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module, node.lineno
