"""What to do about the text itself: several languages, wrongly decoded characters, markup."""

from __future__ import annotations

from collections.abc import Iterator

from trainbook.data.report.leftovers import MARKUP
from trainbook.data.report.wording import Facts, counted, finding, has

SOME, MANY = 0.01, 0.05  # of the documents
FEW_DOCUMENTS = 3  # fewer may be chance: a name, a quotation


def languages(facts: Facts) -> Iterator[Facts]:
    for side, of_side in facts["sides"].items():
        found = of_side["languages"]["documents"]
        told = sum(found.values())
        others = told - max(found.values(), default=0)
        if others < FEW_DOCUMENTS or others < SOME * told:
            continue
        shares = ", ".join(f"{name} {count / told:.1%}" for name, count in list(found.items())[:4])
        example = of_side["languages"]["others"][0]
        yield finding(
            "languages",
            "warning" if others >= MANY * told else "info",
            f"Several languages in {side}: {shares} (of the {told:,} documents whose language was recognized), such "
            f"as {example['place']} ({example['language']}). Keep them only if the model should learn all of them.",
        )


def mojibake(facts: Facts) -> Iterator[Facts]:
    for side, of_side in facts["sides"].items():
        found = of_side["leftovers"]["mojibake"]
        if count := found["documents"]:
            first = found["examples"][0]
            meant = f" for '{first['meant']}'" if first["meant"] else ""
            yield finding(
                "mojibake",
                "warning",
                f"{counted(count, 'document')} of {side} {has(count)} UTF-8 that was decoded as Windows-1252 or "
                f"Latin-1 ('{first['excerpt']}'{meant}), first {first['place']}. Convert the original file again, or "
                "repair the text, for example with the Python package ftfy.",
            )


def markup(facts: Facts) -> Iterator[Facts]:
    for side, of_side in facts["sides"].items():
        looked_at = max(of_side["sampled_documents"], 1)
        parts = []
        for kind in MARKUP:
            found = of_side["leftovers"][kind]
            if found["documents"] >= max(1, SOME * looked_at):
                first = found["examples"][0]
                share = found["documents"] / looked_at
                parts.append(f"{kind} in {share:.1%} ({first['excerpt']!r} in {first['place']})")
        if parts:
            text = (
                f"Markup in the documents of {side}: {', '.join(parts)}. Remove it unless the model should generate it."
            )
            yield finding("markup", "info", text)
