"""Which languages the texts are in: by script, and of the Latin script by their most frequent words.

A tenth or more of the words of running text are the articles, prepositions and pronouns of its language. A text is
counted for the language that has clearly the most of these; where none has, or where different words are few, nothing
is said: a name that comes again and again may be a word of another language.
Languages that are not in the list, and text without sentences (tables, names, code), stay unnamed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

MOST_CHARACTERS = 20_000  # of a document that are looked at: its language is in its first pages
MIN_LETTERS = 20
MIN_WORDS = 6  # different ones
MIN_SHARE, MIN_FREQUENT = 0.15, 3  # of the words are frequent words of the language, and so many different ones of it
CLEARLY = 1.5  # times as many as of the next one
MAX_EXAMPLES = 3

_SCRIPTS = {
    "Latin": "A-Za-zÀ-ÖØ-öø-ɏḀ-ỿ",
    "Cyrillic": "Ѐ-ԯ",
    "Greek": "Ͱ-Ͽἀ-῿",
    "Arabic": "\u0600-\u06ff\u0750-\u077f",
    "Hebrew": "\u0590-\u05ff",
    "Devanagari": "\u0900-\u097f",
    "Bengali": "\u0980-\u09ff",
    "Tamil": "\u0b80-\u0bff",
    "Thai": "\u0e00-\u0e7f",
    "Georgian": "\u10a0-\u10ff",
    "Armenian": "\u0530-\u058f",
    "Korean": "\u1100-\u11ff\uac00-\ud7af",
    "Kana": "\u3040-\u30ff",
    "Han": "\u3400-\u9fff",
}
_OF_SCRIPT = {script: re.compile(f"[{ranges}]") for script, ranges in _SCRIPTS.items()}

_FREQUENT = {
    "English": "the of and to in a is that it for was on are as with his they at be this from have or by "
    "had not but what were when we there been who their which you would will an has",
    "German": "der die und das den von zu mit sich des auf für ist im dem nicht ein eine als auch es an "
    "werden aus er hat dass sie nach wird bei einer um am sind noch wie einem über ich wir war sehr aber "
    "nur oder waren hatte wurde mir uns kein keine nichts immer schon ganz",
    "French": "le la les et des est du une dans que pour qui sur pas au avec ce il sont par plus se ne "
    "en mais ou nous cette vous ses elle aux été leur un de être",
    "Spanish": "el la los las y de que en un una es por con para del se no su al lo como más pero sus le "
    "ya este sí porque esta entre cuando muy sin sobre ser también fue ha",
    "Italian": "il la di che è e un per una non sono si del con da della dei le gli al nel come più ma "
    "anche questo alla delle lo ha sono suo stato essere ai",
    "Portuguese": "o os e de que do da em um uma para com não por mais dos como mas ao ele das à seu sua ou "
    "quando muito nos já também pelo pela até isso são foi é as",
    "Dutch": "de het een en van ik te dat die in is niet zijn op aan met als voor had er maar om hem "
    "dan zou wat mijn men dit zo door over ze zich bij ook tot je mij uit der naar",
    "Swedish": "och det att i en jag hon som han på den med var sig för så till är men ett om hade de av "
    "icke mig du henne då sin nu har inte hans från",
    "Danish or Norwegian": "og i det at en den til er som på de med han av af ikke der var jeg seg sig men et har om "
    "vi min ham hun nå over da fra du ut ved for",
    "Polish": "i w na z do się nie że to jest o jak ale po co tak za od przez jego go przy był tym czy "
    "była jej dla już są tylko może ich oraz ze",
    "Czech": "a se na je že s z v to do o i k ve jsem by ale si jako za po pro tak jeho které jsou "
    "nebo který bylo byl jen už když však",
    "Turkish": "ve bir bu da de için ile çok daha ne gibi olarak olan kadar sonra ama o mi her en var ki "
    "değil ben diye şey nasıl",
    "Indonesian": "yang dan di ini itu dengan untuk dari pada adalah tidak ke dalam akan mereka juga oleh "
    "saya ada atau sebagai karena bisa telah kami anda",
}
# Single letters are initials, variables and what an apostrophe leaves: they tell nothing.
_BY_LANGUAGE = {name: frozenset(word for word in words.split() if len(word) > 1) for name, words in _FREQUENT.items()}
_WORD = re.compile(r"[^\W\d_]{2,}")


def language_of(text: str) -> str | None:
    """A language, or a script that has no list of words; None where there is too little to tell."""
    text = text[:MOST_CHARACTERS]
    letters = {}
    if not text.isascii():
        letters = {script: len(pattern.findall(text)) for script, pattern in _OF_SCRIPT.items()}
    if letters and max(letters.values()) > letters["Latin"]:
        if letters["Kana"] > 0.1 * (letters["Kana"] + letters["Han"]) > 0:
            return "Japanese"
        script = max(letters, key=lambda name: letters[name])
        least = MIN_LETTERS // 4 if script in ("Han", "Korean") else MIN_LETTERS  # a letter is half a word
        return {"Han": "Chinese"}.get(script, script) if letters[script] >= least else None
    words = _WORD.findall(text.lower())
    counts = Counter(words)
    if len(counts) < MIN_WORDS:
        return None
    found = {name: sum(counts[word] for word in known) for name, known in _BY_LANGUAGE.items()}
    (best, most), (_, next_one) = sorted(found.items(), key=lambda each: -each[1])[:2]
    is_enough = most >= MIN_SHARE * len(words) and len(counts.keys() & _BY_LANGUAGE[best]) >= MIN_FREQUENT
    is_clear = is_enough and most >= CLEARLY * next_one
    return best if is_clear else None


MIN_POOLED = 20  # short texts, which together tell what each of them cannot
MOST_POOLED = 500


def languages_of(texts: Iterable[str]) -> list[str | None]:
    """Of each text. One that is too short to tell belongs to the language of all short texts taken together, if they
    have one and none of another language has more of its frequent words."""
    kept, found = [], []
    for text in texts:
        found.append(language_of(text))
        kept.append(None if found[-1] is not None else _frequent_words(text))
    short = [counts for counts in kept if counts is not None]
    if len(short) < MIN_POOLED:
        return found
    pooled: Counter[str] = Counter()
    for counts in short[:MOST_POOLED]:
        pooled.update(counts)
    ranked = pooled.most_common(2)
    if not ranked or (len(ranked) > 1 and ranked[0][1] < CLEARLY * ranked[1][1]):
        return found
    main = ranked[0][0]
    return [
        main if language is None and counts and counts[main] == max(counts.values()) else language
        for language, counts in zip(found, kept, strict=True)
    ]


def _frequent_words(text: str) -> Counter[str]:
    """How many words of a short text are frequent words of each language."""
    words = _WORD.findall(text[:MOST_CHARACTERS].lower())
    counts = {name: sum(word in known for word in words) for name, known in _BY_LANGUAGE.items()}
    return Counter({name: count for name, count in counts.items() if count})


def describe_languages(texts: Iterable[str], places: Sequence[str]) -> dict[str, Any]:
    """How many documents are in each language, the most frequent first, and where others than that are."""
    found = languages_of(texts)
    counts = Counter(language for language in found if language is not None)
    main = counts.most_common(1)[0][0] if counts else None
    others = [(place, name) for place, name in zip(places, found, strict=True) if name not in (None, main)]
    return {
        "documents": dict(counts.most_common()),
        "undecided": found.count(None),
        "others": [{"place": place, "language": name} for place, name in others[:MAX_EXAMPLES]],
    }
