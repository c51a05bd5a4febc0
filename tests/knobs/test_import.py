from __future__ import annotations

import subprocess
import sys

import trainbook.knobs


def test_importing_the_knobs_brings_neither_torch_nor_a_terminal() -> None:
    code = "import sys, trainbook.knobs; print(len(sys.modules), *{name.split('.')[0] for name in sys.modules})"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "numpy", "rich", "typer", "transformers"} & set(answer[1:])
    assert int(answer[0]) < 400


def test_what_is_public_exists_and_is_listed_in_order() -> None:
    assert all(hasattr(trainbook.knobs, name) for name in trainbook.knobs.__all__)
    assert len(set(trainbook.knobs.__all__)) == len(trainbook.knobs.__all__)
