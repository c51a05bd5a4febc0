"""How gradients become updates."""

from __future__ import annotations

from trainbook.knobs.knob import Case, Search, knob
from trainbook.knobs.sections.optimizer_step import OptimizerStep


class Optimizer(OptimizerStep):
    """How gradients become updates."""

    beta1: float = knob(
        0.9,
        ge=0,
        lt=1,
        what=(
            "Adam's momentum: the share of the running mean of gradients that survives each update. In lion, "
            "the weight of that mean in the sign."
        ),
        why=(
            "The step follows the mean of about the last 1 / (1 − beta1) gradients: 10 at 0.9, 100 at 0.99. "
            "It filters noise between batches at the price of reacting late. lion remembers by beta2, and beta1 "
            "says how much of the step is memory."
        ),
        raised="Smoother direction, slower reaction: overshoots, and needs a lower rate near 0.99.",
        lowered="Reacts at once, noisier; 0 leaves only the scaling by beta2.",
        cases=(Case("nearly always, from scratch or fine-tuning", 0.9),),
        usual=(0.8, 0.98),
        search=Search("log_one_minus", 0.8, 0.99),
        rank=2,
        interacts=("optimizer.learning_rate", "optimizer.beta2", "batch.global_batch_size"),
        symptoms=("fluctuating validation", "instability"),
        sources=("playbook notes", "Kingma & Ba 2015 (Adam)", "Google Deep Learning Tuning Playbook 2023"),
        correction=(
            "The averaging length is 1 / (1 − β): 0.9 means 10 updates, 0.999 means 1,000, not 10,000. And "
            "momentum cannot be both second in importance and never tuned: beta1 is Adam's momentum, and "
            "with 10 to 25 trials it is the one to tune beside the rate."
        ),
        aliases=("adam_beta1",),
    )

    beta2: float = knob(
        0.95,
        ge=0,
        lt=1,
        what=(
            "The share of Adam's running mean of squared gradients that survives each update; in lion, that of "
            "its one mean of gradients."
        ),
        why=(
            "It is the memory of each weight's scale, about 1 / (1 − beta2) updates: 20 at 0.95, 1,000 at "
            "0.999. When gradients suddenly grow, a long memory divides by yesterday's scale: the update "
            "peaks at 6.6 times the rate with 0.999, 1.1 times with 0.95 (beta1 0.9)."
        ),
        raised=(
            "A steadier scale and somewhat faster convergence while all is calm; larger, longer jolts after "
            "a change of gradient scale, and a longer warm-up needed."
        ),
        lowered="Adapts in tens of updates, fewer spikes; a noisier scale, so small batches converge worse.",
        cases=(
            Case("large models, large batches, from scratch", 0.95, "GPT-3, Llama"),
            Case("fine-tuning, small batches, BERT", 0.999, "Adam's own default"),
            Case("in between", 0.98, "RoBERTa"),
            Case("lion", 0.99, "what it is there, unless stated"),
        ),
        usual=(0.9, 0.999),
        search=Search("log_one_minus", 0.9, 0.999),
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
        sources=(
            "playbook notes",
            "Kingma & Ba 2015 (Adam)",
            "Brown et al. 2020 (GPT-3)",
            "Liu et al. 2019 (RoBERTa)",
            "Wortsman et al. 2023 (StableAdamW)",
            "Chen et al. 2023 (Lion)",
        ),
        correction=(
            "0.999 averages about 1,000 updates, 1 / (1 − β), not 10,000. Search 1 − β on a log scale: "
            "0.9990 to 0.9995 doubles the memory, 0.9000 to 0.9005 changes nothing."
        ),
        aliases=("adam_beta2",),
    )

    epsilon: float = knob(
        1e-8,
        gt=0,
        what="A small number added to the root of the mean squared gradient before Adam divides by it.",
        why=(
            "It caps the scaling of weights whose gradients are nearly zero. In large models gradients "
            "shrink with size; where their root mean square nears epsilon, updates shrink and learning "
            "stalls."
        ),
        raised="Damps weights with tiny gradients; where it dwarfs the gradients, Adam becomes SGD with momentum.",
        lowered="Pure scaling even for tiny gradients; with clean fp32 averages that is harmless.",
        cases=(
            Case("nearly always", 1e-8),
            Case("RoBERTa", 1e-6, "with beta2 0.98"),
            Case("very large models whose gradients fall to about 1e-8", 1e-15, "small-scale proxies study"),
        ),
        usual=(1e-15, 1e-6),
        search=Search("log", 1e-10, 1e-5),
        rank=4,
        interacts=("optimizer.learning_rate", "optimizer.beta2", "batch.max_grad_norm", "precision.weights"),
        symptoms=("instability", "loss not decreasing"),
        sources=(
            "playbook notes",
            "Kingma & Ba 2015 (Adam)",
            "Liu et al. 2019 (RoBERTa)",
            "Wortsman et al. 2023 (small-scale proxies)",
            "OLMo 2 (2024)",
        ),
        correction=(
            "It does more than prevent a division by zero: it is the gradient scale below which Adam stops "
            "adapting. OLMo 2 went from 1e-5 down to 1e-8."
        ),
        aliases=("eps", "adam_epsilon", "adam_eps"),
    )

    momentum: float = knob(
        0.9,
        ge=0,
        lt=1,
        what="How much of the previous step SGD or Muon carries into the next (type: sgd, muon).",
        why=(
            "Under sgd a steady gradient is amplified by 1 / (1 − momentum), 10 times at 0.9, so that momentum and "
            "learning rate are chosen together. Under muon the size of a step is fixed, and momentum only says over "
            "how many gradients its direction is averaged: 20 at 0.95."
        ),
        raised="Faster along steady directions; overshoots and oscillates near 0.99 unless the rate falls in step.",
        lowered="Plain, slower descent; at 0 raise the rate about tenfold to keep the pace.",
        cases=(
            Case("sgd, nearly always", 0.9),
            Case("sgd, very noisy gradients, low rate", 0.99, "cut the rate about tenfold"),
            Case("muon", 0.95, "what it is there, unless stated; Nesterov's form"),
        ),
        usual=(0.8, 0.99),
        search=Search("log_one_minus", 0.8, 0.99),
        rank=2,
        interacts=("optimizer.type", "optimizer.learning_rate", "batch.global_batch_size"),
        symptoms=("too slow", "fluctuating validation", "instability"),
        sources=("playbook notes", "Sutskever et al. 2013", "Jordan et al. 2024 (Muon)"),
        correction="The averaging length is 1 / (1 − momentum): 0.999 means about 1,000 updates, not 10,000.",
        aliases=("sgd_momentum",),
    )
