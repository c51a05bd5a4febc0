"""How the frequencies of rotary positions are changed for texts that are longer than those of training."""

from __future__ import annotations

from typing import Any, Literal

from trainbook.knobs.bibliography import HF_CONFIGS, LLAMA_3, POSITION_INTERPOLATION, QWEN_2_5, YARN
from trainbook.knobs.knob import Case, Section, knob

LLAMA_3_1, PUBLISHED = "Llama 3.1 and 3.2", "YaRN as published"


def _bound(
    turns: float,
    scaling: str,
    side: Literal["slow", "fast"],
    other: str,
    alias: str,
    case: str,
    usual: tuple[float, float],
    sources: tuple[str, ...],
) -> Any:
    """A number of turns over the trained length, on one side of which pairs of channels are slow, or fast."""
    what, why, raised, lowered = {
        "slow": (
            "turn less often than this over rope_original_positions are slowed down in full.",
            "These are the ones whose angles would be new beyond the trained length.",
            "More pairs are slowed down in full.",
            "Fewer are",
        ),
        "fast": (
            "turn more often than this over rope_original_positions stay as they are.",
            "Fast pairs tell near positions apart, and have met all their angles in training.",
            "Fewer pairs stay as they are.",
            "More do",
        ),
    }[side]
    return knob(
        turns,
        gt=0,
        what=f"With {scaling}: pairs of channels that {what}",
        why=why,
        raised=raised,
        lowered=f"{lowered}; it must stay {'below' if side == 'slow' else 'above'} {other}.",
        cases=(Case(case, turns),),
        usual=usual,
        interacts=("model.rope_scaling", f"model.{other}"),
        sources=sources,
        aliases=(alias,),
    )


class ModelRope(Section):
    """How rotary positions are scaled."""

    rope_scaling: Literal["none", "linear", "llama3", "yarn"] = knob(
        "none",
        what="How the frequencies of rotary positions are changed, so that a model reads further than it was trained.",
        why=(
            "Beyond the trained length, slow pairs of channels meet angles that they have never seen. Scaling makes "
            "them turn more slowly, by rope_factor at most, so that the longer text falls into known angles."
        ),
        raised="Set: longer texts, best after some training at the longer length.",
        lowered="none: angles as rope_theta alone says.",
        values={
            "none": "no change",
            "linear": "all frequencies are divided by rope_factor (position interpolation)",
            "llama3": "slow frequencies are divided by rope_factor, fast ones stay, others are blended; Llama 3.1",
            "yarn": "the same idea with other bounds, and attention logits that are slightly sharpened; YaRN, Qwen2.5",
        },
        cases=(
            Case("from scratch", "none"),
            Case("Llama 3.1 and 3.2 as published", "llama3", "factors 8 and 32 over 8192 positions"),
            Case("Qwen2.5 beyond 32,768 tokens", "yarn", "factor 4"),
        ),
        interacts=("model.position", "model.rope_theta", "model.rope_factor", "model.num_positions"),
        symptoms=("loss not decreasing",),
        sources=(POSITION_INTERPOLATION, YARN, LLAMA_3, QWEN_2_5, HF_CONFIGS),
        correction="It changes what is computed on short texts too: it belongs to the weights.",
        value_aliases={"default": "none"},
    )

    rope_factor: float = knob(
        1.0,
        ge=1,
        what="By how much rope_scaling slows rotary positions down: about how many times longer texts become readable.",
        why="The longest readable text grows with it, and near positions become harder to tell apart.",
        raised="Longer texts; below the trained length a little worse.",
        lowered="1: no scaling.",
        cases=(
            Case("no scaling", 1.0),
            Case("Llama 3.1", 8.0),
            Case("Llama 3.2", 32.0),
            Case("Qwen2.5 up to 131,072 tokens", 4.0),
        ),
        usual=(1.0, 64.0),
        interacts=("model.rope_scaling", "model.rope_original_positions", "data.max_seq_length"),
        sources=(YARN, LLAMA_3, QWEN_2_5, HF_CONFIGS),
    )

    rope_original_positions: int | None = knob(
        None,
        ge=1,
        what="With llama3 and yarn: the length that was trained on before scaling; null: model.num_positions.",
        why="It decides which frequencies are slow: those that turn less than about once over this length.",
        raised="More frequencies count as fast, and stay as they are.",
        lowered="More frequencies are slowed down.",
        cases=(
            Case("Llama 3.1 and 3.2", 8192),
            Case("Qwen2.5", 32768),
        ),
        usual=(32, 1048576),
        interacts=("model.rope_scaling", "model.rope_factor", "model.num_positions"),
        sources=(LLAMA_3, QWEN_2_5, HF_CONFIGS),
        aliases=("original_max_position_embeddings",),
    )

    rope_low_frequency: float = _bound(
        1.0, "llama3", "slow", "rope_high_frequency", "low_freq_factor", LLAMA_3_1, (0.5, 4.0), (LLAMA_3, HF_CONFIGS)
    )

    rope_high_frequency: float = _bound(
        4.0, "llama3", "fast", "rope_low_frequency", "high_freq_factor", LLAMA_3_1, (2.0, 16.0), (LLAMA_3, HF_CONFIGS)
    )

    rope_beta_fast: float = _bound(
        32.0, "yarn", "fast", "rope_beta_slow", "beta_fast", PUBLISHED, (8.0, 128.0), (YARN,)
    )

    rope_beta_slow: float = _bound(1.0, "yarn", "slow", "rope_beta_fast", "beta_slow", PUBLISHED, (0.5, 4.0), (YARN,))

    rope_attention_factor: float | None = knob(
        None,
        gt=0,
        what="With yarn: turned queries and keys are multiplied by this; null: 0.1 ln(rope_factor) + 1.",
        why="Over longer texts attention spreads over more tokens; slightly larger logits keep it as sharp as before.",
        raised="Sharper attention.",
        lowered="1: logits as they are.",
        cases=(Case("YaRN as published", None),),
        usual=(0.5, 2.0),
        interacts=("model.rope_scaling", "model.rope_factor"),
        sources=(YARN,),
        aliases=("attention_factor",),
    )


ROPE = tuple(f"model.{name}" for name in ModelRope.__annotations__)
