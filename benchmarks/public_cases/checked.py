"""What `trainbook check` finds of the transformers' faults before any run: each broken model as the user's own in a
configuration. `public_cases.checked:mask_broken` is a model with that fault; `public_cases.checked:healthy` has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from public_cases.networks import Transformer

# The fault of each case, as networks.py names it. Encoders answer once for a whole text.
DECODERS = {
    "mask-broken": "mask-broken",
    "mask-over": "mask-over",
    "zero-query": "zero-query",
    "tied-heads": "tied-heads",
    "score-scale": "score-scale",
    "positions-missing": "positions-missing",
    "kernel-dropout": "kernel-dropout",
    "embedding-zero": "embedding-zero",
    "neuron-drop": "neuron-drop",
    "norm-gamma": "gamma",
    "residual-drop": "residual-drop",
    "output-rows": "output-rows",
}
ENCODERS = {"padding-shown": "padding-shown", "variant-causal": "variant-causal", "pooler-zero": "pooler-zero"}
HEALTHY = "healthy"
CHECKS = ("initial_loss", "causal_leak", "sample_leak", "padding", "gradients", "overfit", "inputs", "evaluation")


def __getattr__(name: str) -> Callable[[Any, Any], Transformer]:
    """A model by the name of its case, as a configuration names it."""
    case = name.replace("_", "-")
    if case != HEALTHY and case not in DECODERS | ENCODERS:
        raise AttributeError(name)

    def build(config: Any, facts: Any) -> Transformer:
        is_decoder = not facts.label_names
        fault = (DECODERS | ENCODERS).get(case, "")
        outputs = facts.vocab_size if is_decoder else len(facts.label_names)
        depth = 6 if fault == "residual-drop" else 2
        return Transformer(facts.vocab_size, outputs, causal=is_decoder, each=is_decoder, fault=fault, depth=depth)

    return build


def reviews() -> Iterator[dict[str, str]]:
    """Short texts of two kinds."""
    rng = np.random.default_rng(0)
    words = (("good", "fine", "great", "nice"), ("bad", "poor", "awful", "sad"))
    for _ in range(400):
        label = int(rng.integers(2))
        chosen = [words[label][rng.integers(4)] if rng.random() < 0.6 else "film" for _ in range(rng.integers(2, 9))]
        yield {"text": " ".join(chosen), "label": ("praise", "blame")[label]}


def failed_checks(case: str, *, is_encoder: bool) -> list[str]:
    from trainbook.check import run_checks
    from trainbook.knobs import load

    model = f"model.type=public_cases.checked:{case.replace('-', '_')}"
    if is_encoder:
        source = ["data.source=public_cases.checked:reviews", "training.task=classify", "data.max_seq_length=48"]
        config = load("bert-tiny", [model, *source, "data.tokenizer=byte"]).config
    else:
        config = load("gpt-tiny", [model]).config
    results = run_checks(config, only=CHECKS).results
    return [result.check.name for result in results if result.outcome.status == "failed"]


def all_failed_checks(say: Callable[[str], None] = print) -> dict[str, list[str]]:
    """For each case, and for a healthy decoder and encoder."""
    found = {}
    for case in (*DECODERS, HEALTHY):
        found[case] = failed_checks(case, is_encoder=False)
        say(f"{case}: {', '.join(found[case]) or 'passes'}")
    for case in (*ENCODERS, HEALTHY):
        name = case if case in ENCODERS else "healthy encoder"
        found[name] = failed_checks(case, is_encoder=True)
        say(f"{name}: {', '.join(found[name]) or 'passes'}")
    return found
