"""muP: the base that it is measured by, and the models whose layers follow it."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from trainbook.knobs.laws.model import IS_PYTHON_PATH
from trainbook.knobs.laws.registry import Broken, Settings, law, no_effect
from trainbook.knobs.scaling import head_width
from trainbook.knobs.sections.model_size import BUILT_IN

HEADS = {"model.num_attention_heads": "heads", "model.num_key_value_heads": "key and value heads"}

for name in ("base_hidden_size", "base_head_width", "base_num_hidden_layers", "depth_exponent"):
    no_effect(f"model.{name}", "model.parametrization", "mup")


@law("model.parametrization", "model.base_hidden_size")
def mup_has_a_base(s: Settings) -> Iterator[Broken]:
    """model.parametrization mup needs model.base_hidden_size: its rules are ratios to a base width."""
    if s.get("model.parametrization") == "mup" and s.get("model.base_hidden_size") is None:
        message = "mup needs model.base_hidden_size, the width of the small model whose settings are transferred."
        hint = (
            "At that width it equals the standard parametrization; model.hidden_size is "
            f"{s.show('model.hidden_size')} here."
        )
        yield ("model.parametrization", "model.base_hidden_size"), message, hint


@law(
    "model.base_hidden_size",
    "model.base_head_width",
    "model.num_attention_heads",
    "model.num_key_value_heads",
    "model.head_width",
    "model.hidden_size",
    "model.parametrization",
    "model.type",
)
def heads_of_the_base_are_whole(s: Settings) -> Iterator[Broken]:
    """Under mup the base has whole heads: num_attention_heads and num_key_value_heads / (width ratio / head ratio)."""
    base = s.get("model.base_hidden_size")
    if s.get("model.parametrization") != "mup" or base is None or s.get("model.type") not in BUILT_IN:
        return
    width = head_width(s.config)
    if width < 1:  # more heads than numbers, of which another law speaks
        return
    widened = Fraction(s.get("model.hidden_size"), base)
    more_heads = widened / Fraction(width, s.get("model.base_head_width") or width)
    for path in ("model.num_attention_heads", "model.num_key_value_heads"):
        heads = s.get(path)
        if heads is not None and (Fraction(heads) / more_heads).denominator != 1:
            message = (
                f"the base would have {float(heads / more_heads):.3g} of {heads} {HEADS[path]}: the model is "
                f"{float(widened):.3g} x as wide, with {float(more_heads):.3g} x as many heads."
            )
            stays = Fraction(width) / widened
            fits = f", {stays} if their number stayed" if stays.denominator == 1 else ""
            hint = (
                f"Increase {path} by the same factor, or set model.base_head_width to the head width of the base{fits}."
            )
            yield (path, "model.base_hidden_size", "model.base_head_width"), message, hint


@law(
    "model.base_num_hidden_layers",
    "model.num_decoder_layers",
    "model.num_hidden_layers",
    "model.depth_exponent",
    "model.parametrization",
)
def the_decoder_deepens_too(s: Settings) -> Iterator[Broken]:
    """With model.base_num_hidden_layers, num_decoder_layers grows by the same ratio from a whole number."""
    base, decoder = s.get("model.base_num_hidden_layers"), s.get("model.num_decoder_layers")
    if s.get("model.parametrization") != "mup" or s.get("model.depth_exponent") == 0 or base is None or decoder is None:
        return
    deepened = Fraction(s.get("model.num_hidden_layers"), base)
    if (decoder / deepened).denominator != 1:
        message = (
            f"the base would have {float(decoder / deepened):.3g} decoder layers: the model is {float(deepened):.3g} x "
            f"as deep, and model.num_decoder_layers is {s.show('model.num_decoder_layers')}."
        )
        hint = "Increase both by the same factor."
        yield ("model.base_num_hidden_layers", "model.num_decoder_layers"), message, hint


@law("model.depth_exponent", "model.base_num_hidden_layers", "model.parametrization", yields=True)
def depth_has_a_base_and_an_exponent(s: Settings) -> Iterator[Broken]:
    """model.depth_exponent is 0, or .5 to 1; model.base_num_hidden_layers and it have an effect only together."""
    if s.get("model.parametrization") != "mup":
        return
    exponent, base = s.get("model.depth_exponent"), s.get("model.base_num_hidden_layers")
    if 0 < exponent < 0.5:
        message = f"must be 0, or between .5 and 1, but got {s.show('model.depth_exponent')}."
        yield ("model.depth_exponent",), message, "Below .5 the residual stream grows with every added layer."
    if base is None and exponent > 0 and s.is_set("model.depth_exponent"):
        message = "has no effect unless model.base_num_hidden_layers is set."
        yield ("model.depth_exponent", "model.base_num_hidden_layers"), message, ""
    if exponent == 0 and s.is_set("model.base_num_hidden_layers"):
        message = "has no effect with model.depth_exponent 0."
        yield ("model.base_num_hidden_layers", "model.depth_exponent"), message, ""


@law("model.base_num_hidden_layers", "model.norm_position", "model.parametrization", "model.depth_exponent")
def depth_is_corrected_before_norms(s: Settings) -> Iterator[Broken]:
    """model.base_num_hidden_layers needs norm_position pre: a norm after the sum would undo the scale of a branch."""
    is_asked = s.get("model.parametrization") == "mup" and s.get("model.base_num_hidden_layers") is not None
    if is_asked and s.get("model.depth_exponent") > 0 and s.get("model.norm_position") == "post":
        message = (
            "needs model.norm_position pre, but that is post: there each sum is normalized, and no theory says how "
            "learning rates follow depth."
        )
        yield ("model.base_num_hidden_layers", "model.norm_position"), message, ""


@law("model.base_num_hidden_layers", "model.embedding_skip", "model.parametrization", "model.depth_exponent")
def depth_is_corrected_without_a_mixed_stream(s: Settings) -> Iterator[Broken]:
    """model.base_num_hidden_layers needs model.embedding_skip false: its numbers multiply the stream in every block."""
    is_asked = s.get("model.parametrization") == "mup" and s.get("model.base_num_hidden_layers") is not None
    if is_asked and s.get("model.depth_exponent") > 0 and s.get("model.embedding_skip"):
        message = (
            "needs model.embedding_skip false, but that is true: its numbers multiply the stream in every block, and "
            "no theory says how their learning rates follow depth."
        )
        yield ("model.base_num_hidden_layers", "model.embedding_skip"), message, ""


@law("model.parametrization", "model.type")
def mup_is_for_layers_of_ours(s: Settings) -> Iterator[Broken]:
    """model.parametrization mup works with model.type gpt, bert and t5, whose layers have its multipliers."""
    kind = s.get("model.type")
    if s.get("model.parametrization") != "mup" or kind in BUILT_IN:
        return
    whose = "a transformers model" if kind == "hf" else "your own model"
    message = (
        f"mup works with model.type gpt, bert and t5, not with {kind}, {whose}: its initialization, attention and "
        "logits would not be scaled, and learning rates alone are not muP."
    )
    yield ("model.parametrization", "model.type"), message, ""


@law("model.parametrization", "training.task")
def mup_is_for_heads_of_ours(s: Settings) -> Iterator[Broken]:
    """model.parametrization mup does not work with a custom training.task, whose logits it cannot scale."""
    if s.get("model.parametrization") == "mup" and IS_PYTHON_PATH.fullmatch(s.get("training.task")):
        message = "mup does not work with a custom task: its logits would not be divided by the width ratio."
        yield ("model.parametrization", "training.task"), message, ""


@law("model.parametrization", "model.lora_rank")
def mup_is_not_for_adapters(s: Settings) -> Iterator[Broken]:
    """model.parametrization mup does not work with model.lora_rank: one dimension of an adapter does not grow."""
    if s.get("model.parametrization") == "mup" and s.get("model.lora_rank") is not None:
        message = (
            "mup has no learning rates for adapters, whose rank does not grow with the width, so model.lora_rank "
            f"must be null, but it is {s.show('model.lora_rank')}."
        )
        yield ("model.parametrization", "model.lora_rank"), message, ""


@law("model.embedding_multiplier", "model.norm_position", "model.type", yields=True)
def a_norm_undoes_the_embedding_multiplier(s: Settings) -> Iterator[Broken]:
    """model.embedding_multiplier has no effect in gpt and bert with norm_position post, which normalizes embeddings."""
    is_undone = s.get("model.type") in ("gpt", "bert") and s.get("model.norm_position") == "post"
    if is_undone and s.is_set("model.embedding_multiplier"):
        message = "has no effect with model.norm_position 'post', which normalizes the embeddings."
        yield ("model.embedding_multiplier", "model.norm_position"), message, ""
