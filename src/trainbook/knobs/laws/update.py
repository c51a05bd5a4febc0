"""How an update is made: the optimizer, clipping, number types."""

from __future__ import annotations

from collections.abc import Iterator

from trainbook.knobs.laws.registry import Broken, Settings, law, no_effect, no_effect_with
from trainbook.knobs.values import show

no_effect("optimizer.momentum", "optimizer.type", "sgd", "muon")
no_effect_with("optimizer.beta1", "optimizer.type", "sgd")
no_effect_with("optimizer.beta2", "optimizer.type", "sgd")
no_effect_with("optimizer.epsilon", "optimizer.type", "sgd", "lion")
no_effect("batch.zclip_threshold", "batch.clipping", "zclip")
no_effect("batch.zclip_alpha", "batch.clipping", "zclip")
no_effect("precision.loss_scale", "precision.compute", "fp16")
no_effect("precision.initial_scale_power", "precision.compute", "fp16")
no_effect("precision.growth_interval", "precision.compute", "fp16")


@law("precision.weights", "model.lora_rank", yields=True)
def only_frozen_weights_are_fp16(s: Settings) -> Iterator[Broken]:
    """precision.weights fp16 needs model.lora_rank: trained fp16 weights lose updates and overflow."""
    if s.get("precision.weights") == "fp16" and s.get("model.lora_rank") is None:
        message = (
            "fp16 is only for frozen weights, so it needs model.lora_rank: trainable fp16 weights lose updates "
            "and overflow."
        )
        hint = "For fp16 training use precision.compute=fp16 with fp32 weights."
        yield ("precision.weights", "model.lora_rank"), message, hint


@law("precision.weights", "optimizer.type", "optimizer.beta2", "model.lora_rank")
def narrow_averages_still_move(s: Settings) -> Iterator[Broken]:
    """With precision.weights bf16, AdamW's second moment is bf16 too: beta2 above .996 rounds its updates away."""
    is_narrow = s.get("precision.weights") == "bf16" and s.get("model.lora_rank") is None
    if is_narrow and s.get("optimizer.type") in ("adamw", "muon") and s.get("optimizer.beta2") > 0.996:
        message = (
            f"must be at most 0.996 with precision.weights bf16, but it is {s.show('optimizer.beta2')}: bf16 has 8 "
            "significant bits, and the update of the second moment would be rounded away."
        )
        hint = "Use 0.99 or 0.95, or optimizer.type=stable_adamw, which keeps the second moment in fp32."
        yield ("optimizer.beta2", "precision.weights", "optimizer.type"), message, hint


LARGEST_INDEPENDENT_DECAY = 0.01  # weights would be forgotten within 100 updates


@law("optimizer.weight_decay_mode", "optimizer.weight_decay", "optimizer.learning_rate", "optimizer.type")
def independent_decay_is_small(s: Settings) -> Iterator[Broken]:
    """With weight_decay_mode independent, weight_decay is at most 0.01 per update; sgd has no such mode."""
    if s.get("optimizer.weight_decay_mode") != "independent":
        return
    if s.get("optimizer.type") == "sgd":
        message = (
            "independent does not work with optimizer.type sgd, whose weight decay is part of the gradient and the "
            "momentum."
        )
        yield ("optimizer.weight_decay_mode", "optimizer.type"), message, ""
    decay, rate = s.get("optimizer.weight_decay"), s.get("optimizer.learning_rate")
    if decay > LARGEST_INDEPENDENT_DECAY:
        message = (
            f"must be at most {LARGEST_INDEPENDENT_DECAY} with weight_decay_mode independent, but it is "
            f"{s.show('optimizer.weight_decay')}: each update removes that fraction of every weight, whatever the "
            "learning rate."
        )
        hint = f"Use 1e-4, or {show(float(f'{rate * decay:.3g}'))}: what scaled removes, learning rate x weight_decay."
        yield ("optimizer.weight_decay", "optimizer.weight_decay_mode"), message, hint


@law("precision.loss_scale", "precision.initial_scale_power", "precision.growth_interval", yields=True)
def fixed_scale_does_not_move(s: Settings) -> Iterator[Broken]:
    """A fixed precision.loss_scale has neither an initial_scale_power nor a growth_interval."""
    if s.get("precision.loss_scale") == "dynamic":
        return
    for path in ("precision.initial_scale_power", "precision.growth_interval"):
        if s.is_set(path):
            scale = s.show("precision.loss_scale")
            yield (
                (path, "precision.loss_scale"),
                f"has no effect unless precision.loss_scale is 'dynamic', but that is {scale}.",
                "",
            )


@law("precision.weights", "precision.compute", yields=True)
def narrow_weights_compute_narrowly(s: Settings) -> Iterator[Broken]:
    """precision.weights bf16 or fp16 needs the same precision.compute (or auto)."""
    weights, compute = s.get("precision.weights"), s.get("precision.compute")
    if weights != "fp32" and compute not in (weights, "auto"):
        yield (
            ("precision.weights", "precision.compute"),
            f"{weights} needs precision.compute {weights}, but that is {s.show('precision.compute')}.",
            "",
        )
