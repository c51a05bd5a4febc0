from __future__ import annotations

import pytest

from trainbook.data.report.languages import describe_languages, language_of
from trainbook.data.report.leftovers import MARKUP, describe_leftovers, repaired

SENTENCES = {
    "English": "The committee decided on Tuesday that it would not change the rules for this year.",
    "German": "Der Ausschuss hat am Dienstag entschieden, dass die Regeln in diesem Jahr nicht geändert werden.",
    "French": "Le comité a décidé mardi que les règles ne seraient pas modifiées pour cette année.",
    "Spanish": "El comité decidió el martes que las reglas no se cambiarían para este año.",
    "Italian": "Il comitato ha deciso martedì che le regole non saranno cambiate per quest'anno.",
    "Portuguese": "O comitê decidiu que as regras não serão alteradas para este ano, mas isso é incerto.",
    "Dutch": "De commissie heeft dinsdag besloten dat de regels voor dit jaar niet worden veranderd.",
    "Swedish": "Kommittén beslutade på tisdagen att reglerna inte ska ändras för det här året och att det är bra.",
    "Danish or Norwegian": "Komiteen besluttede tirsdag at reglerne ikke skal ændres i år, og det er godt for alle.",
    "Polish": "Komitet zdecydował we wtorek, że zasady nie zostaną zmienione w tym roku i to jest dobre.",
    "Czech": "Výbor v úterý rozhodl, že se pravidla v tomto roce nezmění a že to je pro všechny dobré.",
    "Turkish": "Komite salı günü bu yıl için kuralların değişmeyeceğine karar verdi ve bu çok iyi bir karar.",
    "Indonesian": "Komite memutuskan pada hari Selasa bahwa peraturan itu tidak akan diubah untuk tahun ini.",
    "Cyrillic": "Комитет решил во вторник, что правила в этом году не изменятся.",
    "Chinese": "委员会星期二决定今年不改变规则。",
    "Japanese": "委員会は火曜日に今年は規則を変えないことを決めました。",
    "Korean": "위원회는 화요일에 올해 규칙을 바꾸지 않기로 결정했다.",
}


@pytest.mark.parametrize("language", SENTENCES)
def test_a_sentence_is_enough_to_tell_its_language(language: str):
    assert language_of(SENTENCES[language]) == language


@pytest.mark.parametrize("text", ["", "x = 1", "Paris Berlin Madrid Lisboa Roma Wien Oslo", "\u0430\u0431", "9 10 11"])
def test_what_has_too_little_to_tell_is_left_undecided(text: str):
    assert language_of(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "I am Dan. What is 2+4? 6, Dan. Who am I? Dan",
        "I am Dan. What is 2+4?",
        "Dan is here. Dan is there. Dan is gone. Dan is home. Dan is late.",
        "who who who is is is",
    ],
)
def test_a_name_that_is_a_word_of_another_language_does_not_decide(text: str):
    assert language_of(text) in (None, "English")


def test_languages_are_counted_and_the_rarer_ones_shown_with_their_place():
    facts = describe_languages([SENTENCES["English"]] * 3 + [SENTENCES["German"], "?"], list("abcde"))
    assert facts == {
        "documents": {"English": 3, "German": 1},
        "undecided": 1,
        "others": [{"place": "d", "language": "German"}],
    }


@pytest.mark.parametrize("codec", ["cp1252", "latin-1"])
@pytest.mark.parametrize(
    "text",
    [
        "caf\u00e9",
        "\u00d6l",
        "\u017c\u00f3\u0142w",
        "it\u2019s",
        "na\u00efve",
        "\u4f60\u597d",
        "\u043e\u043d\u0430",
        "\U0001f600",
    ],
)
def test_utf_8_that_was_read_as_another_encoding_is_found(text: str, codec: str):
    try:
        wrong = text.encode().decode(codec)
    except UnicodeDecodeError:
        wrong = text.encode().decode("latin-1")
    found = describe_leftovers([f"before {wrong} after", text], ["bad", "good"])["mojibake"]
    assert found["documents"] == 1 and found["examples"][0]["place"] == "bad"
    meant = found["examples"][0]["meant"]
    assert meant is not None and meant in text
    assert repaired(wrong) == text


@pytest.mark.parametrize(
    "text",
    [
        "\u201cAMANH\u00c3\u201d",
        "\u00abN\u00c3O\u00bb",
        "\u00c5ngstr\u00f6m",
        "\u00c2ngela",
        "\u00e2\u2019",
        "\u20ac 5",
        *SENTENCES.values(),
    ],
)
def test_rightly_decoded_text_is_left_alone(text: str):
    assert describe_leftovers([text], [""])["mojibake"]["documents"] == 0


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("HTML tags", "one<br/>two"),
        ("HTML tags", '<a href="x">link</a>'),
        ("HTML entities", "Tom &amp; Jerry"),
        ("HTML entities", "it&#39;s"),
        ("Markdown", "## Heading"),
        ("Markdown", "see [this](https://example.org)"),
        ("Markdown", "very **important** words"),
        ("LaTeX", "\\begin{equation}"),
        ("LaTeX", "where $\\alpha > 0$ holds"),
    ],
)
def test_markup_is_told_by_its_kind(kind: str, text: str):
    found = describe_leftovers([text], ["x"])
    assert [name for name in MARKUP if found[name]["documents"]] == [kind]


@pytest.mark.parametrize(
    "text", ["if a < b and c > d:", "AT&T; R&D", "# a comment", "costs $5 or $6", "2 ** 3 ** 4", "a<b>c" * 0]
)
def test_text_without_markup_has_none(text: str):
    found = describe_leftovers([text], ["x"])
    assert not any(found[name]["documents"] for name in MARKUP)


def test_the_report_tells_of_all_three(report_of):
    train = [f"{SENTENCES['English']} {number}" for number in range(40)]
    train += [f"{SENTENCES['German']} {number}" for number in range(8)] + ["caf\u00c3\u00a9 <br> here"] * 2
    found = {each["rule"]: each for each in report_of(train)["findings"]}
    assert found["languages"]["severity"] == "warning"
    assert found["languages"]["text"].startswith("Several languages in train: English 83.3%, German 16.7% (of the 48 ")
    assert "'\u00c3\u00a9' for '\u00e9'" in found["mojibake"]["text"]
    assert found["markup"]["text"].startswith("Markup in the documents of train: HTML tags in 4.0% ('<br>' in file:48)")


def test_short_texts_are_of_the_language_that_they_have_together():
    short = [
        f"{noun} war {how} {what}."
        for noun in ("Das Essen", "Der Kaffee", "Die Aussicht")
        for how in ("sehr", "wirklich", "leider", "etwas")
        for what in ("gut", "kalt", "freundlich", "schlecht")
    ]
    texts = [*short, "Madrid Lisboa Roma", SENTENCES["English"]]
    assert language_of(short[0]) is None
    found = describe_languages(texts, [str(number) for number in range(len(texts))])
    assert found["documents"] == {"German": len(short), "English": 1} and found["undecided"] == 1
    assert describe_languages(["Madrid Lisboa Roma"] * 50, [""] * 50)["undecided"] == 50
