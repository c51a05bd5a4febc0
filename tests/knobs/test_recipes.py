from __future__ import annotations

import pytest

from trainbook.errors import UserError
from trainbook.knobs import load, recipes


@pytest.mark.parametrize("name", recipes.names())
def test_a_packaged_recipe_loads_and_has_a_header(name: str) -> None:
    loaded = load(name)
    assert all(origin.kind in ("default", "recipe", "derived", "pretrained") for origin in loaded.origins.values())
    assert recipes.path(name).read_text(encoding="utf-8").startswith("# ")


def test_large_scale_is_packaged_and_says_that_it_states_no_length() -> None:
    assert "large-scale" in recipes.names()
    assert load("large-scale").config.training.max_steps is None
    assert "states no length" in recipes.path("large-scale").read_text(encoding="utf-8")


def test_what_looks_like_a_file_is_not_taken_for_a_recipe() -> None:
    for name in ("runs/x", "large-scal.yaml"):
        with pytest.raises(UserError) as error:
            recipes.path(name)
        assert str(error.value) == f"{name}: no such file."


def test_an_unknown_recipe_lists_those_that_exist() -> None:
    with pytest.raises(UserError, match=r"^zzz: no such recipe or file\. Packaged recipes: .*large-scale"):
        recipes.path("zzz")


def test_a_file_that_is_not_there_is_compared_with_those_in_its_folder(tmp_path):
    (tmp_path / "clf.yaml").write_text("model: {type: bert}")
    for name in ("clff.yaml", "clf.yml"):
        with pytest.raises(UserError) as error:
            recipes.path(str(tmp_path / name))
        assert str(error.value) == f"{tmp_path / name}: no such file. Did you mean {tmp_path / 'clf.yaml'}?"
    with pytest.raises(UserError) as error:
        recipes.path(str(tmp_path / "other.yaml"))
    assert str(error.value).endswith("no such file.")
