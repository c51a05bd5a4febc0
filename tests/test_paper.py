"""The paper's numbers come from results files, and its claims and references from what exists."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import slow

ROOT = Path(__file__).parents[1]
PAPER = ROOT / "paper"


@pytest.fixture(scope="module")
def evidence() -> Any:
    sys.path.insert(0, str(PAPER))
    yield importlib.import_module("evidence")
    sys.path.remove(str(PAPER))


def test_each_claim_is_decided_in_one_way_that_exists(evidence: Any):
    claims = evidence.claims()
    assert len(claims) > 80 and len({each["note"] for each in claims}) == 5
    for claim in claims:
        ways = {"arms", "measured", "test", "untested"} & set(claim)
        assert len(ways) == 1, claim["claim"]
        assert claim["verdict"] in evidence.VERDICTS and claim["text"].endswith(".")
        assert all(evidence.is_planned(place) for place in claim.get("arms", ())), claim["arms"]
        if "test" in claim:
            path, _, name = claim["test"].partition("::")
            assert f"\ndef {name}(" in (ROOT / path).read_text(encoding="utf-8"), claim["test"]


def test_the_readme_counts_the_claims_as_the_paper_does(evidence: Any):
    verdicts = [each["verdict"] for each in evidence.claims()]
    holds, false, undecided, not_tested = (verdicts.count(each) for each in evidence.VERDICTS)
    told = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"{len(verdicts)} claims of common training notes against our own studies: {holds} hold, {false} are" in told
    assert f"are false, {undecided} are undecided, and {not_tested} could not be tested here." in told
    assert holds + false + undecided + not_tested == len(verdicts)


def test_no_claim_stands_twice(evidence: Any):
    said = [(each["note"], each["claim"]) for each in evidence.claims()]
    assert len(said) == len(set(said))


@pytest.mark.parametrize(
    ("verdicts", "expect", "of_claim"),
    [
        (["better"], "better", "holds"),
        (["worse"], "better", "false"),
        (["equivalent"], "better", "false"),
        (["no evidence"], "better", "undecided"),
        (["worse"], "worse", "holds"),
        (["equivalent", "equivalent"], "equivalent", "holds"),
        (["equivalent", "better"], "equivalent", "false"),
        (["equivalent", "no evidence"], "equivalent", "undecided"),
        (["better", "no evidence"], "better", "undecided"),
        ([None], "better", "not tested"),
    ],
)
def test_a_claim_follows_from_the_verdicts_of_its_arms(
    evidence: Any, monkeypatch: pytest.MonkeyPatch, verdicts: list[str | None], expect: str, of_claim: str
):
    found = {f"study/{place}": verdict for place, verdict in enumerate(verdicts)}
    monkeypatch.setattr(evidence, "arm_of", lambda place: found[place] and {"verdict": found[place]})
    assert evidence.verdict_of_arms(list(found), expect) == of_claim


def test_a_sentence_on_an_arm_has_the_figures_of_its_results(evidence: Any):
    arm = evidence.arm_of("gpt-parts/post-norm")
    text = evidence.arm_text("gpt-parts/post-norm")
    assert f"{100 * arm['effect']['mean']:+.1f} %" in text and f"{arm['effect']['pairs']} pairs" in text
    assert evidence.arm_text("gpt-parts/no-such-arm") == "no-such-arm: not measured yet."


@pytest.mark.parametrize(
    ("half", "eight_times", "of_claim"),
    [
        ((0.001, 0.002), (0.004, 0.004), "holds"),
        ((0.004, 0.004), (0.001, 0.002), "false"),
        ((0.008, 0.001), (0.001, 0.002), "undecided"),  # by data set it falls and rises
        ((0.002, 0.002), (0.002, 0.002), "undecided"),
    ],
)
def test_a_best_rate_that_data_sets_move_both_ways_decides_nothing_of_batches(
    evidence: Any,
    monkeypatch: pytest.MonkeyPatch,
    half: tuple[float, float],
    eight_times: tuple[float, float],
    of_claim: str,
):
    def arm(name: str, rates: tuple[float, float]) -> dict[str, Any]:
        return {"name": name, "by_data": [{"rate": each} for each in rates]}

    middle = [arm("double", (0.002, 0.002)), arm("half", half), arm("eight-times", eight_times)]
    study = {"control": arm("control", (0.002, 0.002)), "arms": middle, "data": ["one", "two"]}
    monkeypatch.setattr(evidence, "studies", lambda: {"gpt-batch": study})
    answer = evidence.batch_moves_the_rate()
    assert answer.verdict == of_claim and f"8 times: {eight_times[0]:g} and {eight_times[1]:g}" in answer.text


def test_the_check_of_the_method_has_the_sensitivities_of_its_study(evidence: Any):
    answer, table = evidence.qk_norm_sensitivity(), evidence.sensitivities("gpt-sensitivity")
    control, arm = (next(row for row in table["rows"] if row[0] == name) for name in ("control", "qk-norm"))
    found = [each["sensitivity"] for each in evidence.arm_of("gpt-sensitivity/qk-norm")["by_data"]]
    assert arm[1:] == [f"{each:.2f}" for each in found] and answer.verdict == evidence.HOLDS
    for row in (control, arm):
        assert f"{row[1]}, {row[2]} and {row[3]}" in answer.text


def test_an_unconfirmed_difference_is_not_called_no_evidence(evidence: Any):
    assert "qk-norm: not confirmed;" in evidence.arm_text("gpt-sensitivity/qk-norm")
    assert "z-loss: no evidence either way;" in evidence.arm_text("gpt-sensitivity/z-loss")


def test_a_study_tells_how_often_the_best_rate_was_an_outermost_one(evidence: Any):
    build = importlib.import_module("build")
    study = evidence.studies()["t5-parts"]
    edges = [cell["edge"] for arm in (study["control"], *study["arms"]) for cell in arm["by_data"]]
    assert f"In {len(edges) - edges.count(None)} of 9 searches" in build._study(study)["remark"]
    assert build._study(evidence.studies()["gpt-sensitivity"])["remark"] == ""


def test_each_citation_is_in_the_bibliography_and_each_entry_can_be_found():
    entries = re.split(r"^@", (PAPER / "references.bib").read_text(encoding="utf-8"), flags=re.M)[1:]
    keys = {re.match(r"\w+\{([^,]+),", each)[1] for each in entries}  # type: ignore[index]
    assert len(keys) == len(entries) > 100
    for each in entries:
        assert re.search(r"^\s*(doi|url)\s*=\s*\{+\S+\}+", each, re.M), each[:60]
        assert re.search(r"^\s*title\s*=", each, re.M) and re.search(r"^\s*(year|date)\s*=", each, re.M), each[:60]
    text = "".join((PAPER / name).read_text(encoding="utf-8") for name in ("paper.typ", "techniques.typ"))
    cited = set(re.findall(r"@([a-z]+\d{4}[a-z]*)\b", text))
    assert not cited - keys, cited - keys


def test_each_technique_names_knobs_arms_and_facts_that_exist(evidence: Any):
    from trainbook.knobs import declarations

    text = (PAPER / "techniques.typ").read_text(encoding="utf-8")
    heads = re.findall(r"#technique\((.*?)\)\[", text, re.S)
    assert len(heads) >= 40
    named = {"knobs": set(), "arms": set(), "facts": set()}
    for head in heads:
        for kind, values in re.findall(r"(knobs|arms|facts): \((.*?)\)", head, re.S):
            named[kind] |= set(re.findall(r'"([^"]+)"', values))
    assert named["knobs"] <= {each.path for each in declarations()}
    assert named["facts"] <= set(evidence.MEASURED), named["facts"] - set(evidence.MEASURED)
    assert all(evidence.is_planned(place) for place in named["arms"])


TEXT_WIDTH, TEXT_HEIGHT, CAPTION = 21.0 - 2 * 2.3, 29.7 - 2 * 2.4, 2.0  # cm


def _height_on_page(drawing: Path) -> float:
    """In cm, as lib.typ scales it."""
    found = re.search(r'<svg[^>]* width="([\d.]+)pt" height="([\d.]+)pt"', drawing.read_text(encoding="utf-8"))
    assert found is not None
    width, height = float(found[1]), float(found[2])
    return height / width * TEXT_WIDTH * min(1.0, width / 72 / 8.5)


ONE_OF_EACH_KIND = r"(effects|rates)-gpt-parts|transfer-gpt|[a-z]+"


@pytest.mark.parametrize("figures", [ONE_OF_EACH_KIND, slow(".*")])
def test_the_paper_builds_from_the_results(evidence: Any, monkeypatch: pytest.MonkeyPatch, figures: str):
    pytest.importorskip("typst", reason="the extra paper is not installed")
    pytest.importorskip("matplotlib", reason="the extra charts is not installed")
    build = importlib.import_module("build")
    monkeypatch.setattr(build, "PDF", PAPER / "build" / "test.pdf")
    monkeypatch.setattr(build, "HTML", PAPER / "build" / "test.html")
    drawn = {name: draw for name, draw in build.figures._figures().items() if re.fullmatch(figures, name)}
    monkeypatch.setattr(build.figures, "_figures", lambda: drawn)
    build.main()
    assert build.PDF.read_bytes().startswith(b"%PDF") and build.PDF.stat().st_size < 5e6
    for drawing in (PAPER / "build").glob("*.svg"):
        assert _height_on_page(drawing) < TEXT_HEIGHT - CAPTION, drawing.name
    page = build.HTML.read_text(encoding="utf-8")
    for claim in (each["claim"] for each in evidence.claims() if each["verdict"] == evidence.FALSE):
        assert page.count(claim.replace("'", "’")) >= 2, claim  # in the list of false claims, and in its table
    assert "put to the test" in page and "http-equiv" not in page and "<script" not in page


def test_the_noise_of_a_gradient_falls_as_the_root_of_the_batch():
    torch.manual_seed(0)
    inputs, weights = torch.randn(4096, 8), torch.zeros(8, requires_grad=True)
    targets = inputs @ torch.randn(8) + torch.randn(4096)

    def deviation(size: int) -> float:
        found = []
        for rows in torch.randint(4096, (400, size)):
            loss = ((inputs[rows] @ weights - targets[rows]) ** 2).mean()
            found.append(torch.autograd.grad(loss, weights)[0])
        return float(torch.stack(found).std(0).mean())

    assert deviation(4) / deviation(64) == pytest.approx(4.0, rel=0.1)
