"""trainbook tune --rate-range and --for-batch: answers that need no study."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainbook.cli.shared import print_json
from trainbook.terminal import echo

if TYPE_CHECKING:
    from trainbook.study.rate_range import RateRange


def tell_rate_range(recipe: str, changes: list[str], picture: Path | None, as_json: bool) -> None:
    from trainbook.knobs import load, require_length
    from trainbook.knobs.derive import batch_shape, rate_scale
    from trainbook.study.rate_range import range_test

    if picture is not None:
        from trainbook.charts.figure import check_path

        check_path(picture)
    loaded = load(recipe, changes)
    require_length(loaded)
    config = loaded.config
    scale = rate_scale(config, batch_shape(config).global_batch)  # the rate that is trained with is the knob times this
    found = range_test(config)
    answer: dict[str, Any] = {
        "steepest": found.steepest,
        "stops_falling": found.stops_falling,
        "lowest": found.lowest,
        "breaks_at": found.breaks_at,
        "search": found.search,
        "configured": config.optimizer.learning_rate * scale,
        "rates": found.rates,
        "losses": found.losses,
        "smooth": found.smooth,
    }
    # First: a picture that cannot be written takes no answer with it.
    if as_json:
        print_json(answer)
    else:
        _tell_range(found, config.optimizer.learning_rate, scale)
    if picture is not None:
        from trainbook.charts.study import draw_rate_range

        draw_rate_range(answer, picture)
        if not as_json:
            echo(f"  picture    {picture}")


def _tell_range(found: RateRange, knob: float, scale: float) -> None:
    from trainbook.study.rate_range import BELOW

    highest = found.rates[-1]
    echo(f"  {len(found.rates)} steps, the learning rate growing from {found.rates[0]:.2g} to {highest:.2g}")
    if found.search is None:
        echo("  the loss never fell: check the data, the model and the number of steps first")
        return
    low, high = found.search
    diverges = f", and diverges at {found.breaks_at:.2g}" if found.breaks_at else ""
    echo(f"  the loss falls fastest at {found.steepest:.2g}, stops falling clearly at {high:.2g}{diverges}")
    if not diverges:
        echo(f"  it did not diverge up to {highest:.2g} in these few steps; a longer run may, even far below")
    echo(
        f"  search     {low:.2g} to {high:.2g} (from {BELOW} times below the fastest fall to the end of the clear fall)"
    )
    configured = knob * scale
    where = "within" if low <= configured <= high else "below" if configured < low else "above"
    scaled = "" if scale == 1 else f" (optimizer.learning_rate {knob:g}, scaled by {scale:.3g})"
    echo(f"  configured {configured:g}{scaled}, {where} that range")


def tell_for_batch(recipe: str, changes: list[str], batch: int, measured: Path | None, as_json: bool) -> None:
    from trainbook.knobs import load
    from trainbook.study.batch import for_batch

    noise, tokens_per_row = (None, None) if measured is None else _noise_of(measured)
    answer = for_batch(load(recipe, changes).config, batch, noise, tokens_per_row)
    if as_json:
        return print_json(answer)
    echo(f"  from a batch of {answer['from']:,} sequences to {answer['to']:,}, over the same number of tokens")
    for each in answer["changes"]:
        echo(f"  {each['knob']:<30} {each['old']} -> {each['new']}   ({each['why']})")
    for remark in answer["remarks"]:
        echo(f"  {remark}")
    kept = _not_among(changes, {each["knob"] for each in answer["changes"]})
    echo(f"  next       trainbook train {shlex.join([recipe, *kept, *answer['overrides']])}")


def _not_among(changes: list[str], paths: set[str]) -> list[str]:
    """What the user wrote of other knobs: one that is given twice is refused."""
    from trainbook.knobs.aliases import knobs_named

    return [
        change for change in changes if paths.isdisjoint(each.path for each in knobs_named(change.partition("=")[0]))
    ]


def _noise_of(file: Path) -> tuple[float, float | None]:
    """In tokens, perhaps infinite; and the tokens of a row, where the file has them."""
    from trainbook.errors import UserError
    from trainbook.knobs.text import read_file
    from trainbook.knobs.values import show
    from trainbook.runs import jsonl

    try:
        content = jsonl.loads(read_file(file))
        noise, tokens_per_row = content.get("noise_scale_tokens"), content.get("noise_tokens_per_row")
    except (ValueError, AttributeError):
        raise UserError(f"--measured: {file} was not written by `trainbook plan --measure --measured`.") from None
    if noise is None:
        raise UserError(f"--measured: {file} has no noise scale: measure it with --noise-after.")
    given = {"noise_scale_tokens": noise, "noise_tokens_per_row": tokens_per_row}
    for name, value in given.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (is_number and value > 0):
            raise UserError(f"--measured: {file}: {name} must be a number > 0, but got {show(value)}.")
    return float(noise), tokens_per_row
