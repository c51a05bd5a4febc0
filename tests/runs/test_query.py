from __future__ import annotations

import math
from typing import Any

import pytest

from trainbook.errors import UserError
from trainbook.runs.query import parse_query, select, sort_rows, value_of


def row(name: str, **facts: Any) -> dict[str, Any]:
    return {
        "name": name,
        "tags": [],
        "status": "finished",
        "origin": "trainbook",
        "settings": {},
        "metrics": {},
        **facts,
    }


ROWS = [
    row(
        "baseline",
        tags=["good", "paper 2"],
        settings={"optimizer.learning_rate": 3e-3, "data.source": ["a.txt", "b.txt"]},
        metrics={"loss": 2.0, "eval_loss": 2.5, "eval_accuracy": 0.5, "my_score": 7.0},
        metric={"name": "accuracy", "value": 0.5, "greater_is_better": True},
        loss=2.0,
        started="2026-07-21T08:00:00+00:00",
        findings={"error": 0, "warning": 2},
        parameters=1_500_000,
    ),
    row(
        "lr=1e-4",
        status="failed",
        settings={"optimizer.learning_rate": 1e-4, "optimizer.type": "lion"},
        metrics={"loss": math.nan},
        loss=math.nan,
        started="2026-07-22T23:59:59+00:00",
        findings={"error": 1, "warning": 0},
    ),
    row("theirs", status="W&B", origin="wandb", loss="Infinity", seed=3, note="from Ann", archived=True),
]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("", ["baseline", "lr=1e-4", "theirs"]),
        ("BASE", ["baseline"]),
        ("-base", ["lr=1e-4", "theirs"]),
        ("paper", ["baseline"]),
        ('"lr=1e-4"', ["lr=1e-4"]),
        ("rate>1e-3", ["baseline"]),
        ("learning_rate<=1e-4 status:failed -tag:good", ["lr=1e-4"]),
        ("lr=3e-3,1e-4", ["baseline", "lr=1e-4"]),
        ("optimizer.learning_rate!=3e-3", ["lr=1e-4", "theirs"]),
        ("optimizer=adamw", ["baseline"]),  # a default of ours, unknown of theirs
        ("optimizer:lion,adam", ["baseline", "lr=1e-4"]),
        ("data.source:a.txt", ["baseline"]),
        ('tag:"paper 2"', ["baseline"]),
        ("tag:paper", []),  # a tag is named whole
        ("tags=GOOD", ["baseline"]),
        ("status:fin,fail", ["baseline", "lr=1e-4"]),
        ("-status:fin,fail", ["theirs"]),
        ("accuracy>=0.5", ["baseline"]),
        ("eval_accuracy>=0.5", ["baseline"]),
        ("my_score>6", ["baseline"]),
        ("loss=nan", ["lr=1e-4"]),
        ("loss>1e9", ["theirs"]),
        ("loss<1e9", ["baseline"]),
        ("warnings>1", ["baseline"]),
        ("findings>=1", ["baseline", "lr=1e-4"]),
        ("parameters>1M", ["baseline"]),
        ("parameters>1.5M", []),
        ("started>2026-07-21", ["lr=1e-4"]),
        ("started>=2026-07-21", ["baseline", "lr=1e-4"]),
        ("started:2026-07", ["baseline", "lr=1e-4"]),
        ("started<2026-07-21T09", ["baseline"]),
        ("seed=none", ["baseline", "lr=1e-4"]),
        ("note:ann archived:yes", ["theirs"]),
        ("archived:false", ["baseline", "lr=1e-4"]),
    ],
)
def test_a_query_finds_what_it_asks_for(query: str, names: list[str]):
    assert [found["name"] for found in select(ROWS, query)] == names


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("good rat>1e-3", "query, character 6, 'rat>1e-3': there is no field 'rat'. Did you mean 'rate'?"),
        ("accuarcy>1", "Did you mean 'accuracy'?"),
        ("my_scoer>1", "Did you mean 'my_score'?"),
        ("lr=1x", None),
        ("lr>fast", "optimizer.learning_rate must be compared with a number, but got 'fast'."),
        ("step:two", "step must be compared with a number, but got 'two'."),
        ("status>3", "status has no order: use status:3 or status=3."),
        ("type=gpt", "several knobs have the name 'type': model.type, optimizer.type, schedule.type."),
        ("started>yesterday", "started must be compared with a date such as 2026-07-21"),
        ("tag:", "a value must follow, as in tag:text."),
        ("lr>1,2", "> takes one value."),
        ('name:"gpt', "character 1, 'name:\"gpt': the closing double quote is missing."),
        ("-", "must be a word, or a field with a value"),
        ("a=b", 'To look for the text itself, put it in double quotes: "a=b".'),
        ("x" * 2_000, "must have at most 1,000 characters, but has 2,000."),
        ("x " * 60, "must have at most 50 terms, but has 60."),
    ],
)
def test_a_mistake_is_told_with_its_place_and_the_nearest_name(query: str, told: str | None):
    if told is None:
        assert select(ROWS, query) == []
        return
    with pytest.raises(UserError) as error:
        select(ROWS, query)
    assert told in str(error.value)


@pytest.mark.parametrize(
    "hostile",
    [
        '<script>alert("x")</script>',
        "\x1b[31m",
        "a" * 900,
        "(" * 500,
        "{}",
        "%s%n",
        "=",
        "::",
        ">=1",
        '"',
        '""',
        "-" * 99,
        "\0",
    ],
)
def test_hostile_words_are_words_or_mistakes(hostile: str):
    try:
        assert all(found in ROWS for found in select(ROWS, hostile))
    except UserError as error:
        assert str(error).startswith("query, character ")


def test_hostile_rows_are_rows():
    odd = [{}, {"name": None, "tags": None, "settings": None, "metrics": None, "findings": None, "metric": None}]
    odd += [
        {"name": ["x"], "tags": [1, {}], "settings": {"optimizer.learning_rate": {"a": 1}}, "started": 5, "loss": "x"}
    ]
    for query in ("x", "lr>1", "lr:1", "tag:1", "loss>1", "started>2026", "errors>0", "accuracy>1", "metric>1"):
        assert all(found in odd for found in select(odd, query))
    for by in ("name", "-lr", "loss", "metric", "tag", "started"):
        assert len(sort_rows(odd, by)) == len(odd)


def names_by(field: str) -> list[str]:
    return [found["name"] for found in sort_rows(ROWS, field)]


def test_rows_are_sorted_and_those_without_a_value_come_last():
    assert names_by("name") == ["baseline", "lr=1e-4", "theirs"]
    assert names_by("-name") == ["theirs", "lr=1e-4", "baseline"]
    assert names_by("loss") == ["baseline", "theirs", "lr=1e-4"]  # infinite, then not a number
    assert names_by("-loss") == ["theirs", "baseline", "lr=1e-4"]
    assert names_by("rate") == ["lr=1e-4", "baseline", "theirs"]
    with pytest.raises(UserError, match=r"sort: there is no field 'los'\. Did you mean 'loss'\?"):
        sort_rows(ROWS, "los")


def test_by_metric_the_best_comes_first_whichever_way_is_better():
    rows = [
        row("a", metric={"name": "accuracy", "value": 0.4, "greater_is_better": True}),
        row("b", metric={"name": "accuracy", "value": 0.9, "greater_is_better": True}),
        row("c", metric=None),
    ]
    assert [found["name"] for found in sort_rows(rows, "metric")] == ["b", "a", "c"]
    for each in rows[:2]:
        each["metric"]["greater_is_better"] = False
    assert [found["name"] for found in sort_rows(rows, "metric")] == ["a", "b", "c"]
    assert [found["name"] for found in sort_rows(rows, "-metric")] == ["b", "a", "c"]


def test_a_default_counts_for_our_runs_only():
    assert value_of(row("a"), "beta1") == 0.9
    assert value_of(row("a", origin="fit"), "beta1") == 0.9
    assert value_of(row("a", origin="fit"), "hidden_size") is None
    assert value_of(row("a", origin="csv"), "beta1") is None
    assert parse_query("lr>1 x status:failed").names == ["optimizer.learning_rate", "status"]


@pytest.mark.parametrize(
    ("spaced", "plain"),
    [
        ("learning_rate > 0.001", "learning_rate>0.001"),
        ("lr >= 1e-3 good", "lr>=1e-3 good"),
        ("lr >=1e-3", "lr>=1e-3"),
        ("lr> 1e-3", "lr>1e-3"),
        ("-status : failed", "-status:failed"),
        ("status:failed, finished seed != 1", "status:failed,finished seed!=1"),
        ('note: "two words" first', 'note:"two words" first'),
    ],
)
def test_spaces_may_stand_around_a_sign_and_after_a_comma(spaced: str, plain: str):
    def told(query: str) -> list[Any]:
        return [
            (term.field and term.field.name, term.sign, term.operands, term.is_turned)
            for term in parse_query(query).terms
        ]

    assert told(spaced) == told(plain)


def test_words_beside_a_term_stay_words():
    assert [term.sign for term in parse_query('first seed>1 "a > b" second').terms] == ["", ">", "", ""]
    with pytest.raises(UserError, match=r"a value must follow, as in optimizer\.learning_rate>1"):
        parse_query("lr >")


def test_the_two_losses_have_names_that_tell_them_apart():
    row = {"loss": 2.5, "eval_loss": 2.4, "settings": {}}
    for text, is_found in (("validation_loss < 2.45", True), ("training_loss < 2.45", False), ("loss < 2.45", False)):
        assert bool(select([row], text)) is is_found
