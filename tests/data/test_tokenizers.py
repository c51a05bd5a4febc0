from __future__ import annotations

import hashlib
import json
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainbook.data.tokenizers import (
    ByteTokenizer,
    CharTokenizer,
    Tokenizer,
    WordTokenizer,
    check_specials,
    check_vocab_size,
    load_tokenizer,
    tokenizer_config,
    train_bpe,
)
from trainbook.data.tokenizers.plain import byte_characters
from trainbook.errors import DataError, MissingExtra, UserError

ODD_TEXTS = (
    "",
    "plain",
    "é ü ß Ελληνικά 中文 한국어 עברית",
    "👩‍👩‍👧 🇩🇪 e\u0301 \u200d\ufeff",
    "tabs\tand\r\nnewlines\n\n\n  and   spaces   ",
    "\x00\x01\x7f\x85\u2028",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 \U0010ffff",
)


ROLES = ("pad", "begin", "separator", "mask", "sentinels")


def make(kind: str, specials: tuple[str, ...] = ()) -> Tokenizer:
    if kind == "byte":
        return ByteTokenizer(specials)
    if kind == "char":
        return CharTokenizer("".join(ODD_TEXTS) + "<|endoftext|>", with_end_of_text=True, specials=specials)
    return train_bpe(iter(["the cat sat on the mat, the end\n"] * 20), 280, specials)


@pytest.fixture(params=["byte", "char", "bpe"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return make(request.param)


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_odd_text_comes_back_as_it_was(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert ids.dtype == "int64"
    assert all(0 <= token < tokenizer.vocab_size for token in ids)


def test_text_that_spells_the_end_of_text_does_not_end(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("plain<|endoftext|>plain")
    assert tokenizer.end_of_text not in ids
    assert tokenizer.decode(ids) == "plain<|endoftext|>plain"


def test_the_end_of_text_is_shown_where_it_stands(tokenizer: Tokenizer) -> None:
    assert tokenizer.end_of_text is not None
    p = list(tokenizer.encode("p"))
    end = tokenizer.end_of_text
    assert tokenizer.decode([*p, end, *p, end]) == "p<|endoftext|>p<|endoftext|>"


def test_ids_beyond_the_vocabulary_say_nothing(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode([*tokenizer.encode("pl"), tokenizer.vocab_size, 10**6]) == "pl"


def test_many_texts_encode_as_each_alone(tokenizer: Tokenizer) -> None:
    for text, ids in zip(ODD_TEXTS, tokenizer.encode_many(ODD_TEXTS), strict=True):
        assert ids.tolist() == tokenizer.encode(text).tolist()


def test_saving_gives_the_same_bytes_and_loading_the_same_tokenizer(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "one")
    loaded = load_tokenizer(tmp_path / "one")
    loaded.save(tmp_path / "two")
    content = (tmp_path / "one" / "tokenizer.json").read_bytes()
    assert (tmp_path / "two" / "tokenizer.json").read_bytes() == content
    assert loaded.fingerprint == tokenizer.fingerprint == hashlib.sha256(content).hexdigest()
    assert (loaded.vocab_size, loaded.end_of_text) == (tokenizer.vocab_size, tokenizer.end_of_text)
    for copy in (loaded, pickle.loads(pickle.dumps(tokenizer))):
        text = "plain <|endoftext|>" + ODD_TEXTS[2]
        assert copy.encode(text).tolist() == tokenizer.encode(text).tolist()


def test_tokenizers_of_different_kinds_or_alphabets_have_different_fingerprints() -> None:
    made = [ByteTokenizer(), CharTokenizer("ab", True), CharTokenizer("ab", False), CharTokenizer("abc", True)]
    assert len({tokenizer.fingerprint for tokenizer in made}) == 4


def test_bytes_are_utf8_and_the_end_of_text_comes_after_them() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.encode("aé").tolist() == [97, 0xC3, 0xA9]
    assert (tokenizer.vocab_size, tokenizer.end_of_text) == (257, 256)


def test_characters_are_numbered_in_order_with_the_end_of_text_last() -> None:
    tokenizer = CharTokenizer("bca\n", with_end_of_text=True)
    assert tokenizer.encode("\nabc").tolist() == [0, 1, 2, 3]
    assert (tokenizer.vocab_size, tokenizer.end_of_text) == (5, 4)
    without = CharTokenizer("bca\n", with_end_of_text=False)
    assert (without.vocab_size, without.end_of_text) == (4, None)


@pytest.mark.parametrize(
    ("text", "shown"), [("abé", "'é' (U+00E9)"), ("a👍é", "'👍' (U+1F44D)"), ("\x00", "'\\x00' (U+0000)")]
)
def test_an_unknown_character_is_named(text: str, shown: str) -> None:
    with pytest.raises(UserError) as caught:
        CharTokenizer("abz", with_end_of_text=False).encode(text)
    assert str(caught.value) == (
        f"the char tokenizer has no token for {shown}: it has only the 3 characters of its training data."
    )


def test_training_bpe_twice_gives_the_same_bytes(long_text: str) -> None:
    text = long_text[:200_000]
    one, two = (train_bpe(iter([text]), 400) for _ in range(2))
    assert one.fingerprint == two.fingerprint
    assert one.vocab_size == 400
    assert len(one.encode(text)) < len(text) / 1.3
    assert one.decode(one.encode(text)) == text


def test_bpe_on_little_text_has_fewer_tokens_than_asked_for() -> None:
    assert 257 <= train_bpe(iter(["abab"]), 4096).vocab_size < 270


@pytest.mark.parametrize(
    ("name", "meant"), [("bytes", "byte"), ("cahr", "char"), ("sentencpiece", "bpe"), ("BPE", "bpe")]
)
def test_an_unknown_tokenizer_names_the_nearest(name: str, meant: str) -> None:
    with pytest.raises(DataError) as caught:
        tokenizer_config(name, None)
    assert str(caught.value) == (
        "data.tokenizer: must be byte, char, word, bpe, the path of a tokenizer.json, or that of a folder with a "
        f"tokenizer, but got '{name}'. Did you mean {meant}?"
    )


def test_a_name_on_the_hub_is_answered_with_where_to_put_it() -> None:
    with pytest.raises(DataError) as caught:
        tokenizer_config("openai-community/gpt2", None)
    assert str(caught.value) == (
        "data.tokenizer: 'openai-community/gpt2' does not exist. A tokenizer from the Hugging Face hub comes with its "
        "model: set model.pretrained=openai-community/gpt2."
    )


def test_a_missing_tokenizer_file_names_the_similar_one(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError) as caught:
        tokenizer_config(f"{tmp_path}/tokenizr.json", None)
    assert str(caught.value) == (
        f"data.tokenizer: '{tmp_path}/tokenizr.json' does not exist. Did you mean 'tokenizer.json'?"
    )


@pytest.mark.parametrize("content", ["{}", "[1]", "not json", '{"version": "1.0"}'])
def test_a_file_that_is_no_tokenizer_is_a_users_mistake(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(DataError, match=f"the tokenizer '{tmp_path}/tokenizer.json' is not "):
        load_tokenizer(tmp_path)


def test_a_tokenizer_file_is_known_by_its_contents_and_not_by_its_path(tmp_path: Path) -> None:
    tokenizer = make("bpe")
    tokenizer.save(tmp_path / "a")
    tokenizer.save(tmp_path / "b")
    by_folder, by_file = (
        tokenizer_config(str(tmp_path / "a"), None),
        tokenizer_config(f"{tmp_path}/b/tokenizer.json", None),
    )
    assert by_folder["kind"] == by_file["kind"] == "file"
    assert by_folder["sha256"] == by_file["sha256"]


def test_somebody_elses_tokenizer_keeps_its_end_and_admits_what_it_loses(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Library
    from tokenizers import models, pre_tokenizers

    library = Library(models.WordLevel({"[UNK]": 0, "[SEP]": 1, "hello": 2, "world": 3, "far": 9}, unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.enable_truncation(1)
    library.enable_padding(length=8)
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path)
    assert (tokenizer.end_of_text, tokenizer.vocab_size, tokenizer.is_lossless) == (1, 10, False)
    assert tokenizer.encode("hello\nworld").tolist() == [2, 3]


def test_only_bpe_has_a_size_to_choose() -> None:
    with pytest.raises(DataError) as caught:
        tokenizer_config("bpe", 256)
    assert str(caught.value) == (
        "data.vocab_size: must be >= 257 for data.tokenizer=bpe (256 bytes and the end-of-text token), but got 256."
    )
    check_vocab_size("byte", 257, ByteTokenizer())
    check_vocab_size("byte", None, ByteTokenizer())
    with pytest.raises(DataError) as caught:
        check_vocab_size("byte", 4096, ByteTokenizer())
    assert str(caught.value) == (
        "data.vocab_size: only data.tokenizer=bpe has a configurable size; data.tokenizer=byte has 257 tokens, but "
        "got 4096."
    )


KINDS = pytest.mark.parametrize("kind", ["byte", "char", "bpe"])


@KINDS
def test_asked_for_tokens_come_behind_the_others_and_nothing_else_changes(kind: str) -> None:
    plain, with_roles = make(kind), make(kind, ("sentinels", "mask", "pad", "begin", "separator"))
    size = plain.vocab_size
    assert [with_roles.special(role) for role in ROLES[:-1]] == [size, size + 1, size + 2, size + 3]
    assert with_roles.sentinels == tuple(range(size + 4, size + 104))
    assert with_roles.vocab_size == size + 104
    assert with_roles.special("unknown") is None
    assert with_roles.end_of_text == plain.end_of_text
    for text in ODD_TEXTS:
        assert with_roles.encode(text).tolist() == plain.encode(text).tolist()
    assert [plain.special(role) for role in ROLES[:-1]] == [None] * 4 and plain.sentinels == ()
    assert with_roles.decode([size, *plain.encode("p"), size + 5]) == "<|pad|>p<|sentinel_1|>"
    assert with_roles.special_names[size + 3] == "<|mask|>"
    check_specials(kind, ROLES, with_roles)


@KINDS
def test_text_that_spells_a_special_token_is_text(kind: str) -> None:
    tokenizer = make(kind, ("mask",)) if kind != "char" else CharTokenizer("<|mask|>a", True, ("mask",))
    assert tokenizer.special("mask") not in tokenizer.encode("a<|mask|>")
    assert tokenizer.decode(tokenizer.encode("a<|mask|>")) == "a<|mask|>"


@KINDS
def test_special_tokens_are_saved(kind: str, tmp_path: Path) -> None:
    tokenizer = make(kind, ROLES)
    tokenizer.save(tmp_path)
    for copy in (load_tokenizer(tmp_path), pickle.loads(pickle.dumps(tokenizer))):
        assert copy.fingerprint == tokenizer.fingerprint != make(kind).fingerprint
        assert [copy.special(role) for role in ROLES[:-1]] == [tokenizer.special(role) for role in ROLES[:-1]]
        assert (copy.sentinels, copy.vocab_size) == (tokenizer.sentinels, tokenizer.vocab_size)
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]


@pytest.mark.parametrize(
    ("content", "fingerprint"),
    [
        ('{"trainbook": "byte"}', "22ab5171892b50c74a7b5200eb4adc0b90f6b1a41f57d8aa2be3cf68ee657122"),
        (
            '{"trainbook": "char", "characters": "\\nab\\u00e9", "end_of_text": true}',
            "13a67667ea06cf12694281400bc843c4b417a479e50d6a10066c077e07d919f3",
        ),
    ],
)
def test_tokenizers_saved_without_special_tokens_are_the_same_ever_since(
    tmp_path: Path, content: str, fingerprint: str
) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    assert load_tokenizer(tmp_path).fingerprint == fingerprint


def test_an_unknown_character_may_have_a_token() -> None:
    tokenizer = CharTokenizer("ab", False, ("unknown",))
    assert tokenizer.encode("aéb").tolist() == [0, 2, 1]
    assert tokenizer.to_library().encode("aéb").ids == [0, 2, 1]
    assert tokenizer.decode([0, 2, 1]) == "a<|unknown|>b"


def test_a_role_that_there_is_not_is_a_programmers_mistake() -> None:
    with pytest.raises(ValueError, match="but got \\['mark'\\]"):
        ByteTokenizer(("mark",))
    with pytest.raises(ValueError, match="but got 'sentinels'"):
        ByteTokenizer().special("sentinels")


def test_what_a_task_asks_for_is_part_of_a_tokenizers_description_only_if_it_asks() -> None:
    assert tokenizer_config("byte", None) == {"kind": "byte"}
    asked = {"kind": "bpe", "vocab_size": 300, "specials": ["pad", "mask"]}
    assert tokenizer_config("bpe", 300, ("mask", "pad")) == asked


TEXTS = ("Über die Brücke\n\n\tgehen  sie.", "👩‍👩‍👧 e\u0301", " x", "a\r\nb ", "", "12 don't!")


@KINDS
@pytest.mark.parametrize("specials", [(), (*ROLES, "unknown")])
def test_the_library_and_transformers_give_the_same_ids(kind: str, specials: tuple[str, ...], tmp_path: Path) -> None:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    tokenizer = CharTokenizer("".join(TEXTS), True, specials) if kind == "char" else make(kind, specials)
    library = tokenizer.to_library()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer.to_library()).save_pretrained(str(tmp_path))
    theirs = AutoTokenizer.from_pretrained(str(tmp_path))
    ours = load_tokenizer(tmp_path)
    assert len(theirs) == library.get_vocab_size() == ours.vocab_size == tokenizer.vocab_size
    for text in TEXTS:
        ids = tokenizer.encode(text).tolist()
        assert library.encode(text, add_special_tokens=False).ids == ids
        assert theirs(text, add_special_tokens=False)["input_ids"] == ids
        assert ours.encode(text).tolist() == ids
        assert theirs.decode(ids, clean_up_tokenization_spaces=False) == text
    for number, name in tokenizer.special_names.items():
        assert theirs.convert_tokens_to_ids(name) == number
    assert (ours.end_of_text, ours.sentinels) == (tokenizer.end_of_text, tokenizer.sentinels)


@settings(max_examples=100, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_has_the_same_bytes_in_the_library(text: str) -> None:
    assert LIBRARY_BYTES.encode(text, add_special_tokens=False).ids == ByteTokenizer().encode(text).tolist()


LIBRARY_BYTES = ByteTokenizer().to_library()


@KINDS
def test_tokens_know_where_they_begin(kind: str) -> None:
    tokenizer = CharTokenizer("".join(ODD_TEXTS) + "the ct", True) if kind == "char" else make(kind)
    for text in (*ODD_TEXTS, "the é cat  the"):
        ((ids, starts),) = tokenizer.encode_with_starts([text])
        assert ids.tolist() == tokenizer.encode(text).tolist()
        assert starts.tolist() == sorted(starts) and len(starts) == len(ids)
        if kind == "char":
            assert starts.tolist() == list(range(len(text)))
        if kind == "byte":
            assert starts.tolist() == [i for i, c in enumerate(text) for _ in c.encode("utf-8", "replace")]
    assert len(tokenizer.encode_with_starts(["the", "cat"])) == 2


def test_a_blank_is_not_counted_to_the_word_behind_it() -> None:
    tokenizer = make("bpe")
    ((ids, starts),) = tokenizer.encode_with_starts(["the cat  the"])
    pieces = [tokenizer.decode([number]) for number in ids]
    assert list(zip(pieces, starts.tolist(), strict=True)) == [("the", 0), (" cat", 4), (" ", 7), (" the", 9)]


def words(tokenizer: Tokenizer, text: str) -> list[str]:
    """The text in groups of tokens that belong to one word."""
    glued, ends_in_letter = tokenizer.joined_words()
    assert len(glued) == len(ends_in_letter) == tokenizer.vocab_size
    groups: list[list[int]] = []
    for number in tokenizer.encode(text).tolist():
        if groups and glued[number] and ends_in_letter[groups[-1][-1]]:
            groups[-1].append(number)
        else:
            groups.append([number])
    return [tokenizer.decode(group) for group in groups]


@KINDS
def test_tokens_of_a_word_belong_together(kind: str) -> None:
    tokenizer = CharTokenizer("über, tothem! 42", False) if kind == "char" else make(kind)
    found = words(tokenizer, "über, to them! 42")
    assert "".join(found) == "über, to them! 42"
    assert [word.strip() for word in found if word.strip()] == ["über", ",", "to", "them", "!", "42"]


def word_piece(folder: Path) -> Tokenizer:
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, models, normalizers, pre_tokenizers

    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "play", "##ing", "##s", ",", "we"]
    library = Library(models.WordPiece({name: i for i, name in enumerate(names)}, unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer()
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece()
    library.save(str(folder / "tokenizer.json"))
    return load_tokenizer(folder)


def sentence_piece(folder: Path) -> Tokenizer:
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, models, pre_tokenizers

    scores = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -3.0), ("▁we", -2.0), ("▁play", -2.0), ("ing", -2.5)]
    scores += [(",", -3.0), ("<0xE2>", -9.0), *((f"<extra_id_{n}>", 0.0) for n in reversed(range(100)))]
    library = Library(models.Unigram(scores, unk_id=2))
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.decoder = decoders.Metaspace()
    library.save(str(folder / "tokenizer.json"))
    return load_tokenizer(folder)


def test_special_tokens_of_others_are_found_by_their_usual_names(tmp_path: Path) -> None:
    bert = word_piece(tmp_path)
    assert [bert.special(role) for role in ("pad", "unknown", "begin", "separator", "mask")] == [0, 1, 2, 3, 4]
    assert (bert.end_of_text, bert.sentinels) == (3, ())
    check_specials("bert", ("pad", "begin", "separator", "mask"), bert)
    t5 = sentence_piece(tmp_path)
    assert (t5.special("pad"), t5.end_of_text, t5.special("unknown"), t5.special("mask")) == (0, 1, 2, None)
    # The first sentinel is the last token, as T5 numbers them.
    assert t5.sentinels == tuple(range(108, 8, -1))


def test_words_of_others_are_told_by_their_marks(tmp_path: Path) -> None:
    bert = word_piece(tmp_path)
    assert words(bert, "We playings, plays") == ["we", "playings", ",", "plays"]
    assert not np.stack(bert.joined_words())[:, :5].any()
    t5 = sentence_piece(tmp_path)
    assert words(t5, "we playing, play") == ["we", "playing", ",", "play"]
    glued, ends_in_letter = t5.joined_words()
    assert glued[8] and ends_in_letter[8] and not glued[9:].any()


def test_starts_of_others_count_no_blanks(tmp_path: Path) -> None:
    for make_it in (word_piece, sentence_piece):
        ((_, starts),) = make_it(tmp_path).encode_with_starts(["we playing, play"])
        assert starts.tolist() == [0, 3, 7, 10, 12]


def test_a_tokenizer_without_what_a_task_needs_does_not_fit(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        check_specials("bert/", ("pad", "sentinels"), word_piece(tmp_path))
    assert str(caught.value) == (
        "data.tokenizer: 'bert/' does not fit: the task needs sentinel tokens, such as <|sentinel_0|>, <extra_id_0>, "
        "but the tokenizer has none. Name one in the tokenizer_config.json next to it, or use byte, char or bpe."
    )
    wanted = r"a token for the role 'mask', such as <\|mask\|>, \[MASK\], <mask>, but the tokenizer"
    with pytest.raises(DataError, match=wanted):
        check_specials("byte", ("mask",), ByteTokenizer())


def test_settings_beside_a_tokenizer_say_what_its_tokens_are_for(tmp_path: Path) -> None:
    make("bpe").save(tmp_path)
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"pad_token": "a", "mask_token": {"content": "b"}}))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "e", "pad_token": "c", "bos_token": None, "chat_template": "{{ messages }}", "x": 1})
    )
    tokenizer = load_tokenizer(tmp_path)
    letter = {name: int(tokenizer.encode(name)[0]) for name in "abce"}
    assert (tokenizer.special("pad"), tokenizer.special("mask")) == (letter["c"], letter["b"])
    assert tokenizer.end_of_text == letter["e"]
    assert tokenizer.chat_template == "{{ messages }}"
    assert make("bpe").chat_template is None

    tokenizer.save(tmp_path / "copy")
    for copy in (load_tokenizer(tmp_path / "copy"), pickle.loads(pickle.dumps(tokenizer))):
        assert copy.fingerprint == tokenizer.fingerprint != make("bpe").fingerprint
        assert (copy.special("pad"), copy.end_of_text) == (letter["c"], letter["e"])
        assert copy.chat_template == "{{ messages }}"
    # Beside a file of another name, they may belong to another tokenizer.
    (tmp_path / "mine.json").write_bytes((tmp_path / "tokenizer.json").read_bytes())
    assert load_tokenizer(tmp_path / "mine.json").special("pad") is None


@pytest.mark.parametrize(
    "template", ["{{ a }}", [{"name": "tools", "template": "x"}, {"name": "default", "template": "{{ a }}"}]]
)
def test_a_template_of_conversations_is_found_wherever_it_is_kept(tmp_path: Path, template: Any) -> None:
    make("bpe").save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    assert load_tokenizer(tmp_path).chat_template == "{{ a }}"
    (tmp_path / "chat_template.jinja").write_text("{{ b }}\n")
    assert load_tokenizer(tmp_path).chat_template == "{{ b }}\n"


def test_a_tokenizer_is_another_with_other_settings_beside_it(tmp_path: Path) -> None:
    make("bpe").save(tmp_path)
    digests = [tokenizer_config(str(tmp_path), None)["sha256"]]
    for name, content in (("tokenizer_config.json", '{"pad_token": "a"}'), ("chat_template.jinja", "x")):
        (tmp_path / name).write_text(content)
        digests.append(tokenizer_config(str(tmp_path), None)["sha256"])
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    assert tokenizer_config(str(tmp_path), None)["sha256"] == digests[-1]
    assert len(set(digests)) == 3


@pytest.mark.parametrize(("content", "message"), [("no", "is not valid JSON"), ("[]", "but holds a list")])
def test_settings_that_cannot_be_read_are_named(tmp_path: Path, content: str, message: str) -> None:
    make("bpe").save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(DataError, match=f"'{tmp_path}/tokenizer_config.json' .*{message}"):
        load_tokenizer(tmp_path)


def old_gpt(folder: Path) -> None:
    vocabulary = [*byte_characters(), "he", "Ġhe", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({piece: number for number, piece in enumerate(vocabulary)}))
    (folder / "merges.txt").write_text("#version: 0.2\nh e\nĠ he\n")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')


def test_a_folder_of_vocabulary_files_is_converted(tmp_path: Path) -> None:
    old_gpt(tmp_path)
    config = tokenizer_config(str(tmp_path), None)
    assert (config["kind"], config["path"]) == ("file", str(tmp_path))
    tokenizer = load_tokenizer(config["path"])
    assert tokenizer.encode("he he\n").tolist() == [256, 257, 10]
    assert (tokenizer.vocab_size, tokenizer.end_of_text) == (259, 258)
    tokenizer.save(tmp_path / "copy")
    assert load_tokenizer(tmp_path / "copy").fingerprint == tokenizer.fingerprint

    bert = tmp_path / "bert"
    bert.mkdir()
    (bert / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "we", "##ll"]) + "\n")
    (bert / "config.json").write_text('{"model_type": "bert"}')
    tokenizer = load_tokenizer(bert)
    assert tokenizer.encode("Well").tolist() == [5, 6]
    assert [tokenizer.special(role) for role in ("pad", "begin", "separator", "mask")] == [0, 2, 3, 4]


def test_a_folder_that_cannot_be_converted_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old_gpt(tmp_path)
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "transformers", None)
        with pytest.raises(MissingExtra, match=r"which has no tokenizer\.json, needs the package 'transformers'"):
            load_tokenizer(tmp_path)
    (tmp_path / "vocab.json").write_text("junk")
    with pytest.raises(DataError, match=r"transformers cannot convert vocab\.json, merges\.txt: "):
        load_tokenizer(tmp_path)
    pieces = tmp_path / "pieces"
    pieces.mkdir()
    (pieces / "spiece.model").write_text("junk")
    with pytest.raises(DataError, match=r"spiece\.model"):
        load_tokenizer(pieces)


def test_a_text_that_a_tokenizer_cannot_write_is_a_users_mistake(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Library
    from tokenizers import models

    Library(models.WordLevel({"a": 0}, unk_token="[UNK]")).save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path)
    assert not tokenizer.is_lossless
    with pytest.raises(DataError, match=r"^the tokenizer cannot encode the text: .*UNK"):
        tokenizer.encode("b")


WORDS = WordTokenizer(["HH", "AH0", "L", "OW1", "h", "e", "l", "o"], with_end_of_text=True, specials=("pad",))


def test_the_word_tokenizer_has_one_token_for_each_word_between_blanks() -> None:
    ids = WORDS.encode("h e l  l\to HH")
    assert [WORDS.words[number] for number in ids] == ["h", "e", "l", "l", "o", "HH"]
    assert WORDS.decode(ids) == "h e l l o HH"
    assert WORDS.end_of_text is not None and WORDS.decode([*ids, WORDS.end_of_text]) == "h e l l o HH <|endoftext|>"
    (_, starts), (nothing, none) = WORDS.encode_with_starts(["  h\u00a0 el o", ""])
    assert starts.tolist() == [2, 5, 8] and len(nothing) == len(none) == 0


def test_a_word_that_is_not_there_becomes_the_unknown_token() -> None:
    unknown = WORDS.special("unknown")
    assert unknown is not None and WORDS.encode("h zz").tolist()[1] == unknown
    assert WORDS.special("pad") not in (None, unknown, WORDS.end_of_text)


def test_the_word_tokenizer_is_saved_and_is_the_same_in_the_library(tmp_path: Path) -> None:
    WORDS.save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded.fingerprint == WORDS.fingerprint and loaded.vocab_size == WORDS.vocab_size
    text = "h e l l  o zz\nHH OW1"
    assert loaded.encode(text).tolist() == WORDS.encode(text).tolist() == WORDS.to_library().encode(text).ids


def test_every_byte_beyond_ascii_is_part_of_a_word() -> None:
    tokenizer = ByteTokenizer()
    glued, ends_in_letter = tokenizer.joined_words()
    for word in ("À", "naïve", "Ā", "日本", "€uro"):  # Ā ends in the byte 0x80, and À begins with 0xC3
        assert glued[tokenizer.encode(word)].all() and ends_in_letter[tokenizer.encode(word)].all(), word
    assert not glued[tokenizer.encode(" ,.\n")].any() and not glued[tokenizer.end_of_text]
