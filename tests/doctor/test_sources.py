"""A rule whose thresholds come from elsewhere says from where, with a link of the bibliography."""

from __future__ import annotations

import re

import pytest

from trainbook.doctor.rule import all_rules
from trainbook.knobs import bibliography

ENTRIES = [text for name, text in vars(bibliography).items() if name.isupper()]
# What a text of our own does not name: papers, their authors, models and guides.
NAMED = re.compile(
    r"et al\.|\b(?:19|20)\d\d\b|arXiv|https?:|playbook|Karpathy|stas00|AutoTrainer|SageMaker|"
    r"CS231n|PaLM|BERT|GPT-\d|Llama|OPT"
)


@pytest.mark.parametrize("name", all_rules())
def test_what_a_rule_names_has_a_link(name: str) -> None:
    own = all_rules()[name].source
    for entry in ENTRIES:
        own = own.replace(entry, "")
    assert not NAMED.search(own), f"{name} names a source that is not in the bibliography: {own}"
