"""Every source has a link, and a knob that names a model or a paper cites it. Of rules: doctor/test_sources.py."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trainbook.doctor.rule import all_rules
from trainbook.knobs import bibliography, declarations
from trainbook.knobs.explain import explain_knob

ROOT = Path(__file__).parents[2]
ENTRIES = {name: text for name, text in vars(bibliography).items() if name.isupper()}
LINK = re.compile(r"(?:.+, https://[\w.-]+\.\w+/\S*[^\s.,;:]|measured: \S+\.md)")
ARXIV, DOI = re.compile(r"https://arxiv\.org/abs/\d{4}\.\d{4,5}"), re.compile(r"https://doi\.org/10\.\d{4,}/\S+")
# What a text may name, and the entries of which one must be among the knob's sources.
NAMED = {
    r"GPT-3": ["GPT_3"],
    r"GPT-2": ["GPT_2", "HF_CONFIGS"],
    r"(?<!Ro)BERT": ["BERT", "HF_CONFIGS"],
    r"RoBERTa": ["ROBERTA"],
    r"T5": ["T5", "T5_1_1", "HF_CONFIGS"],
    r"PaLM": ["PALM"],
    r"Chinchilla": ["CHINCHILLA"],
    r"(?<!Code )Llama(?! [23])": ["LLAMA", "LLAMA_2", "LLAMA_3", "HF_CONFIGS"],
    r"Llama 2": ["LLAMA_2", "HF_CONFIGS"],
    r"Llama 3": ["LLAMA_3"],
    r"Code Llama": ["CODE_LLAMA"],
    r"OLMo 2": ["OLMO_2"],
    r"OLMo-core": ["OLMO_CORE"],
    r"OPT-175B": ["OPT", "OPT_CHRONICLES"],
    r"GLM-130B": ["GLM_130B"],
    r"Gemma 2": ["GEMMA_2"],
    r"Gemma 3": ["GEMMA_3"],
    r"Mistral": ["MISTRAL_7B"],
    r"MiniCPM": ["MINICPM"],
    r"Gopher": ["GOPHER"],
    r"(?<!Q)LoRA's paper": ["LORA"],
    r"QLoRA": ["QLORA"],
    r"CompleteP": ["COMPLETEP"],
    r"Depth-muP": ["DEPTH_MUP"],
    r"ZClip": ["ZCLIP"],
    r"Megatron-LM": ["MEGATRON_LM", "MEGATRON_MUP"],
    r"Inception-v3": ["INCEPTION_V3"],
    r"Muon": ["MUON", "MUON_AT_SCALE"],
    r"Qwen(?!\d)": ["QWEN", "QWEN_2", "QWEN_2_5", "HF_CONFIGS"],
    r"tuning playbook": ["TUNING_PLAYBOOK"],
}
PAPER = re.compile(r"([A-Z][\w'ä]+)(?: & [A-Z]\w+| et al\.) (\d{4})")


def texts(path: str) -> str:
    facts = explain_knob(path)
    parts = [facts[part] for part in ("what", "why", "raised", "lowered", "correction")]
    parts += [*facts["values"].values(), *(case["when"] for case in facts["cases"])]
    return "\n".join([*parts, *(case["why"] for case in facts["cases"])])


def test_every_entry_has_one_link_and_leads_somewhere() -> None:
    assert [name for name, text in ENTRIES.items() if not LINK.fullmatch(text)] == []
    assert len(set(ENTRIES.values())) == len(ENTRIES)
    for text in ENTRIES.values():
        link = text.rpartition(" ")[2]
        assert ("arxiv" in link.lower()) == bool(ARXIV.fullmatch(link)), text
        assert ("doi.org" in link) == bool(DOI.fullmatch(link)), text
    measured = [text.removeprefix("measured: ") for text in ENTRIES.values() if text.startswith("measured")]
    assert [page for page in measured if not (ROOT / page).is_file()] == []


def test_every_source_of_a_knob_is_an_entry_and_every_entry_is_cited() -> None:
    cited = {source for declaration in declarations() for source in declaration.knob.sources}
    assert cited <= set(ENTRIES.values())
    judged = "\n".join(rule.source for rule in all_rules().values())
    assert {text for text in ENTRIES.values() if text not in judged} <= cited


@pytest.mark.parametrize("path", [declaration.path for declaration in declarations()])
def test_a_knob_cites_what_its_texts_name(path: str) -> None:
    text, sources = texts(path), explain_knob(path)["sources"]
    for named, entries in NAMED.items():
        if re.search(named, text):
            assert {ENTRIES[entry] for entry in entries} & set(sources), f"{path} names {named}"
    for author, year in PAPER.findall(text):
        assert any(author in source and year in source for source in sources), f"{path} names {author} {year}"
