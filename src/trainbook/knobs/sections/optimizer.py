"""How gradients become weight updates."""

from __future__ import annotations

from trainbook.knobs.bibliography import (
    ADAM,
    BERT,
    GPT_3,
    LION,
    LLAMA,
    LLAMA_2,
    MUON,
    OLMO_2,
    ROBERTA,
    SGD_MOMENTUM,
    SMALL_BATCHES,
    SMALL_SCALE_PROXIES,
    SQUARE_ROOT_RULE,
    STABLE_ADAMW,
    TUNING_PLAYBOOK,
)
from trainbook.knobs.knob import Case, SearchRange, knob
from trainbook.knobs.sections.optimizer_step import OptimizerStep


class OptimizerKnobs(OptimizerStep):
    """How gradients become weight updates."""

    beta1: float = knob(
        0.9,
        ge=0,
        lt=1,
        what=(
            "Adam's momentum: the decay of the running mean of gradients. In lion, the weight of that mean in the sign."
        ),
        why=(
            "The update follows the mean of about the last 1 / (1 − beta1) gradients: 10 at 0.9, 100 at 0.99. This "
            "filters noise between batches but reacts later. In lion, beta2 sets the memory and beta1 sets how much "
            "of the update comes from it."
        ),
        raised="A smoother direction and a slower reaction; overshoots, and needs a lower learning rate near 0.99.",
        lowered="Reacts immediately and is noisier; at 0 only the scaling by beta2 remains.",
        cases=(Case("nearly always, from scratch or fine-tuning", 0.9),),
        usual=(0.8, 0.98),
        search=SearchRange("log_one_minus", 0.8, 0.99),
        rank=2,
        interacts=("optimizer.learning_rate", "optimizer.beta2", "batch.global_batch_size"),
        symptoms=("fluctuating validation", "instability"),
        sources=(ADAM, SQUARE_ROOT_RULE, TUNING_PLAYBOOK),
        correction=(
            "The averaging length is 1 / (1 − β): 0.9 means 10 updates and 0.999 means 1,000, not 10,000. With a "
            "budget of 10 to 25 trials, beta1 is the second hyperparameter to tune after the learning rate: 0.9 is "
            "usual, but in our short runs of gpt-tiny 0.8 was better on each of three data sets (see Measured)."
        ),
        aliases=("adam_beta1",),
    )

    beta2: float = knob(
        0.95,
        ge=0,
        lt=1,
        what="The decay of Adam's running mean of squared gradients; in lion, of its single mean of gradients.",
        why=(
            "It sets how long Adam remembers the scale of each weight's gradient: about 1 / (1 − beta2) updates, 20 "
            "at 0.95 and 1,000 at 0.999. When gradients suddenly grow, a long memory divides by the old, smaller "
            "scale: by our calculation the update peaks at 6.6 times the learning rate with 0.999 and at 1.1 times "
            "with 0.95 (beta1 0.9)."
        ),
        raised=(
            "A steadier scale and somewhat faster convergence in a stable run; larger and longer disturbances after "
            "the gradient scale changes, and a longer warm-up."
        ),
        lowered=(
            "Adapts within tens of updates and causes fewer spikes; the scale is noisier, so small batches converge "
            "worse."
        ),
        cases=(
            Case("large models, large batches, from scratch", 0.95, "GPT-3, Llama"),
            Case("fine-tuning, small batches, BERT", 0.999, "Adam's default"),
            Case("in between", 0.98, "RoBERTa"),
            Case("lion", 0.99, "its default here"),
        ),
        usual=(0.9, 0.999),
        search=SearchRange("log_one_minus", 0.9, 0.999),
        rank=4,
        interacts=(
            "optimizer.type",
            "optimizer.beta1",
            "schedule.warmup_steps",
            "batch.global_batch_size",
            "batch.max_grad_norm",
            "optimizer.learning_rate",
            "optimizer.epsilon",
        ),
        symptoms=("loss spikes", "instability"),
        sources=(ADAM, GPT_3, LLAMA, BERT, ROBERTA, STABLE_ADAMW, LION, SMALL_BATCHES),
        correction=(
            "0.999 averages about 1,000 updates, 1 / (1 − β), not 10,000. Search 1 − β on a log scale: from 0.9990 to "
            "0.9995 the memory doubles; from 0.9000 to 0.9005 nothing changes. A smaller batch needs a larger beta2 "
            "to average over the same number of tokens (Marek et al. 2025). In our short runs 0.999 gained nothing: no "
            "evidence either way at 400 steps of gpt-tiny and bert-tiny against 0.99, and 5 % worse than 0.98 at 600 "
            "steps of a small t5-cmudict (see Measured)."
        ),
        aliases=("adam_beta2",),
    )

    epsilon: float = knob(
        1e-8,
        gt=0,
        what="A small constant added to the root of the mean squared gradient before Adam divides by it.",
        why=(
            "It limits the scaling of weights whose gradients are nearly zero. In large models gradients shrink with "
            "size; where their root mean square approaches epsilon, updates shrink and learning stalls."
        ),
        raised=(
            "Damps weights with tiny gradients; where epsilon is much larger than the gradients, Adam becomes SGD "
            "with momentum."
        ),
        lowered="Full scaling even for tiny gradients, which is harmless with fp32 moments.",
        cases=(
            Case("nearly always", 1e-8, "Adam, GPT-3 and OLMo 2"),
            Case("Llama 2", 1e-5),
            Case("RoBERTa", 1e-6, "with beta2 0.98"),
            Case(
                "very large models whose gradients fall to about 1e-8",
                1e-15,
                "lower loss than 1e-8 for 4.8 billion parameters at a very high learning rate (Wortsman et al. 2023)",
            ),
        ),
        usual=(1e-15, 1e-5),
        search=SearchRange("log", 1e-10, 1e-5),
        rank=4,
        interacts=("optimizer.learning_rate", "optimizer.beta2", "batch.max_grad_norm", "precision.weights"),
        symptoms=("instability", "loss not decreasing"),
        sources=(ADAM, GPT_3, ROBERTA, LLAMA_2, OLMO_2, SMALL_SCALE_PROXIES),
        correction=(
            "It does more than prevent a division by zero: it is the gradient scale below which Adam stops adapting. "
            "Llama 2 used 1e-5; OLMo 2 lowered it from 1e-5 to 1e-8, and gradient norms settled sooner and stayed "
            "lower."
        ),
        aliases=("eps", "adam_epsilon", "adam_eps"),
    )

    momentum: float = knob(
        0.9,
        ge=0,
        lt=1,
        what="How much of the previous update SGD or Muon carries into the next (type: sgd, muon).",
        why=(
            "Under sgd a steady gradient is amplified by 1 / (1 − momentum), 10 times at 0.9, so momentum and "
            "learning rate are chosen together. Under muon the size of an update is fixed, and momentum sets over how "
            "many gradients its direction is averaged: 20 at 0.95."
        ),
        raised=(
            "Faster along steady directions; overshoots and oscillates near 0.99 unless the learning rate is lowered "
            "too."
        ),
        lowered="Plain, slower descent; at 0, raise the learning rate about tenfold to keep the pace.",
        cases=(
            Case("sgd, nearly always", 0.9),
            Case("sgd, very noisy gradients, low learning rate", 0.99, "lower the learning rate about tenfold"),
            Case("muon", 0.95, "its default here, in Nesterov's form"),
        ),
        usual=(0.8, 0.99),
        search=SearchRange("log_one_minus", 0.8, 0.99),
        rank=2,
        interacts=("optimizer.type", "optimizer.learning_rate", "batch.global_batch_size"),
        symptoms=("too slow", "fluctuating validation", "instability"),
        sources=(SGD_MOMENTUM, MUON),
        correction="The averaging length is 1 / (1 − momentum): 0.999 means about 1,000 updates, not 10,000.",
        aliases=("sgd_momentum",),
    )
