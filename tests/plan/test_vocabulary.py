from __future__ import annotations

from pathlib import Path

import pytest

from trainbook.data.tokenizers import ByteTokenizer, CharTokenizer, WordTokenizer, train_bpe
from trainbook.errors import UserError
from trainbook.knobs import Config, load
from trainbook.plan.vocabulary import assumption, labels, vocabulary
from trainbook.tasks import task_class

TEXT = "the quick brown fox jumps over the lazy dog " * 20


def config_of(tokenizer: str, *knobs: str) -> Config:
    base = {"data": {"source": "text", "tokenizer": tokenizer}, "training": {"max_steps": 1}}
    return load(base, knobs).config


@pytest.mark.parametrize("kind", ["gpt", "bert", "t5"])
def test_of_bytes_and_pairs_it_is_what_the_tokenizer_has(kind: str):
    config = config_of("byte", f"model.type={kind}")
    specials = task_class(config).specials
    assert vocabulary(config) == ByteTokenizer(specials).vocab_size
    trained = train_bpe(iter([TEXT]), 270, specials)
    assert vocabulary(config_of("bpe", f"model.type={kind}", "data.vocab_size=270")) == trained.vocab_size


@pytest.mark.parametrize("specials", [(), ("pad", "mask"), ("pad", "sentinels")])
def test_a_tokenizer_that_was_saved_says_it_itself(tmp_path: Path, specials: tuple[str, ...]):
    for name, tokenizer in {
        "byte": ByteTokenizer(specials),
        "char": CharTokenizer(sorted(set(TEXT)), True, specials),
        "word": WordTokenizer(TEXT.split(), False, specials),
        "bpe": train_bpe(iter([TEXT]), 270, specials),
    }.items():
        folder = tmp_path / name
        tokenizer.save(folder)
        assert vocabulary(config_of(str(folder))) == tokenizer.vocab_size, name
        assert vocabulary(config_of(str(folder / "tokenizer.json"))) == tokenizer.vocab_size


def test_what_paper_cannot_say_is_asked_for():
    for tokenizer in ("char", "word", "not-here.json"):
        with pytest.raises(UserError, match=r"must be known, but data\.tokenizer=.* Pass --vocab-size N"):
            vocabulary(config_of(tokenizer))
        assert vocabulary(config_of(tokenizer), stated=65) == 65
    with pytest.raises(UserError, match="--vocab-size: must be >= 1, but got 0"):
        vocabulary(config_of("byte"), stated=0)


def test_a_file_that_is_no_tokenizer_is_told(tmp_path: Path):
    file = tmp_path / "tokenizer.json"
    file.write_text("[]", encoding="utf-8")
    with pytest.raises(UserError, match=r"must be a tokenizer\.json, but it cannot be read"):
        vocabulary(config_of(str(file)))


def test_labels_are_counted_as_two_with_a_remark_unless_they_are_stated():
    config = config_of("byte", "model.type=bert", "training.task=classify")
    assert labels(config, stated=45) == (45, None)
    number, remark = labels(config)
    assert number == 2 and remark is not None and "--num-labels" in remark
    assert labels(config_of("byte")) == (1, None)
    with pytest.raises(UserError, match="--num-labels: must be >= 1, but got 0"):
        labels(config, stated=0)


@pytest.mark.parametrize(
    ("recipe", "entries"), [("gpt2-124m", 50257), ("bert-base", 30522), ("t5-base", 32100), ("llama-1b", 32000)]
)
def test_a_recipe_is_planned_before_its_tokenizer_is_there(
    recipe: str, entries: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    config = load(recipe).config
    assert vocabulary(config) == entries and f"assumed to have {entries:,} tokens" in str(assumption(config))
    assert vocabulary(config, 99) == 99 and assumption(config, 99) is None
    ByteTokenizer().save(tmp_path)
    assert vocabulary(config) == 257 and assumption(config) is None
