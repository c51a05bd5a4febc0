from __future__ import annotations

import pytest

from trainbook.errors import ConfigError
from trainbook.knobs import section_types
from trainbook.knobs.aliases import (
    INSTEAD,
    NEEDS_SECTION,
    PLAIN_VALUE,
    SECTION_ALIASES,
    SPECIAL,
    WRAPPERS,
    by_name,
    by_path,
    knobs_named,
    nearest_path,
)
from trainbook.knobs.loading import load
from trainbook.knobs.values import choices

AMBIGUOUS = {"type", "quarantine"}


def test_a_name_stands_for_one_knob_unless_it_is_declared_to_need_its_section() -> None:
    several = {name for name, owners in by_name().items() if len(owners) > 1}
    assert several == AMBIGUOUS
    assert by_name().keys() >= NEEDS_SECTION


def test_a_name_is_not_listed_twice_by_its_own_knob() -> None:
    for declaration in by_path().values():
        names = [declaration.name, *declaration.knob.aliases]
        assert len(names) == len(set(names)), declaration.path


def test_no_knobs_name_hides_a_section() -> None:
    names = set(by_name()) | SPECIAL.keys()
    assert not names & section_types().keys()
    # A section's alias may also be a knob's, if a plain value means that knob either way.
    for alias in names & SECTION_ALIASES.keys():
        section = SECTION_ALIASES[alias]
        knob = PLAIN_VALUE.get(section, "source")
        assert [owner.path for owner in by_name()[alias]] == [f"{section}.{knob}"]
    assert not SECTION_ALIASES.keys() & WRAPPERS.keys()


def test_tables_of_names_point_to_what_exists() -> None:
    assert set(SECTION_ALIASES.values()) <= section_types().keys()
    assert set(WRAPPERS.values()) - {None} <= section_types().keys()
    assert {f"{section}.{name}" for section, name in PLAIN_VALUE.items()} <= by_path().keys()
    assert {path for paths in SPECIAL.values() for path in paths} <= by_path().keys()


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("classification", "classify"),
        ("text-classification", "classify"),
        ("multi_label", "classify_many"),
        ("token-classification", "tag"),
        ("fill-mask", "masked"),
    ],
)
def test_tasks_by_the_names_of_pipelines(name: str, task: str) -> None:
    assert load("bert-tiny", [f"training.task={name}"]).config.training.task == task


def test_a_misspelt_classification_is_one_of_a_single_class() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'classify'"):
        load("bert-tiny", ["training.task=classificaton"])


def test_value_aliases_are_lower_case_and_lead_to_a_choice() -> None:
    for declaration in by_path().values():
        for foreign, own in declaration.knob.value_aliases.items():
            assert not isinstance(foreign, str) or foreign == foreign.lower(), declaration.path
            words = own if isinstance(own, tuple) else (own,)
            # A knob that also takes names of the user's own has its words in `values`.
            assert set(words) <= {*choices(declaration), *declaration.knob.values}, declaration.path


def test_every_name_with_and_without_its_section_finds_its_knob() -> None:
    for path, declaration in by_path().items():
        for name in (declaration.name, *declaration.knob.aliases):
            assert declaration in knobs_named(name)
            assert [found.path for found in knobs_named(f"{declaration.section}.{name}")] == [path]


def test_the_nearest_name_is_told_by_its_path() -> None:
    assert nearest_path("learnig_rate") == "optimizer.learning_rate"
    assert nearest_path("warmup_step", section="schedule") == "schedule.warmup_steps"
    assert nearest_path("zzz") is None


def test_no_knob_has_a_name_that_is_said_to_be_none() -> None:
    assert not INSTEAD.keys() & by_name().keys()
