"""How gradients become updates."""

from __future__ import annotations

from typing import Literal

from trainbook.knobs.knob import Case, Search, Section, knob


class Optimizer(Section):
    """How gradients become updates."""

    type: Literal["adamw", "adamw_8bit", "paged_adamw_8bit", "stable_adamw", "lion", "muon", "sgd"] = knob(
        "adamw",
        what="The rule that turns gradients into weight updates.",
        why=(
            "Gradients of a transformer differ by orders of magnitude between its parts. AdamW gives each "
            "weight its own scale, so one learning rate serves all; SGD has one scale for everything and "
            "trains transformers poorly. What a rule remembers of each weight is, beside activations, most "
            "of the memory of training."
        ),
        raised=(
            "More memory for each weight: adamw and stable_adamw keep two fp32 averages, 16 bytes a parameter "
            "in all (weight 4, gradient 4, averages 8); fast, forgiving progress. stable_adamw also shortens "
            "the steps that a sudden growth of gradients makes too long."
        ),
        lowered=(
            "Less memory: muon 12 for hidden matrices and 16 for the rest, lion 12, adamw_8bit and paged_adamw_8bit "
            "about 10 (averages 2.03), sgd 12 with momentum and 8 without. The 8-bit ones train as adamw does; "
            "lion and sgd need another rate, so set learning_rate anew."
        ),
        values={
            "adamw": "Adam with decoupled weight decay; uses beta1, beta2, epsilon",
            "adamw_8bit": (
                "adamw with its averages in 8-bit blocks of 256 (bitsandbytes), for parameters of 4,096 numbers "
                "and more; the host reads the rate once a step"
            ),
            "paged_adamw_8bit": (
                "adamw_8bit whose averages move to host memory while the GPU has no room; on a CPU there is no "
                "difference"
            ),
            "stable_adamw": (
                "adamw that divides a tensor's rate by the root mean square of gradient / scale where that "
                "exceeds 1; no max_grad_norm needed"
            ),
            "lion": "moves each weight by exactly the rate, by the sign of a mean; uses beta1, beta2 (0.99 by default)",
            "muon": (
                "makes the averaged gradient of each hidden matrix nearly orthogonal (momentum 0.95 by default); "
                "adamw for embeddings, output, norms, biases"
            ),
            "sgd": "stochastic gradient descent; uses momentum",
        },
        cases=(
            Case("transformers, from scratch or fine-tuning", "adamw"),
            Case("fine-tuning a model that hardly fits the GPU", "paged_adamw_8bit"),
            Case("the averages do not fit, the rest does", "adamw_8bit"),
            Case("loss spikes although gradients are clipped", "stable_adamw", "same rate as adamw"),
            Case("large batches, little memory", "lion", "rate 3 to 10 times lower, decay as much higher"),
            Case("from scratch, fewest steps to a loss", "muon", "rate and decay as for adamw"),
            Case("comparison with plain gradient descent", "sgd"),
        ),
        search=Search("choice", choices=("adamw", "stable_adamw", "lion", "muon")),
        interacts=(
            "optimizer.learning_rate",
            "optimizer.beta1",
            "optimizer.beta2",
            "optimizer.momentum",
            "optimizer.weight_decay",
            "batch.max_grad_norm",
            "precision.weights",
        ),
        symptoms=("out of memory", "loss not decreasing", "loss spikes", "instability"),
        sources=(
            "playbook notes",
            "Loshchilov & Hutter 2019 (AdamW)",
            "Dettmers et al. 2022 (8-bit optimizers)",
            "Dettmers et al. 2023 (paged optimizers)",
            "Wortsman et al. 2023 (StableAdamW)",
            "Chen et al. 2023 (Lion)",
            "Jordan et al. 2024 (Muon)",
            "Liu et al. 2025 (Muon is scalable)",
        ),
        correction=(
            "An 8-bit optimizer is no 8-bit training: weights, gradients and the arithmetic stay as they are, only "
            "the averages are stored in 8 bits, and only the 8 of 16 bytes that they take shrink. Paging saves "
            "nothing while all fits; it prevents the rare peak from ending the run. And Muon is not for every "
            "matrix: embeddings and the output stay with adamw."
        ),
        aliases=("optim", "optimizer_type"),
        value_aliases={
            "adamw_torch": "adamw",
            "adamw_torch_fused": "adamw",
            "adamw_hf": "adamw",
            "adamw_apex_fused": "adamw",
            "adamw_bnb_8bit": "adamw_8bit",
            "adamw8bit": "adamw_8bit",
            "pagedadamw8bit": "paged_adamw_8bit",
            "stableadamw": "stable_adamw",
            "lion_32bit": "lion",
        },
    )

    learning_rate: float = knob(
        3e-4,
        gt=0,
        what="The peak size of an update, reached after warm-up and lowered by the schedule from there.",
        why=(
            "It decides more than any other knob whether and how fast a model learns. Under Adam a weight "
            "moves by about this amount per update, whatever the scale of its gradient."
        ),
        raised=(
            "Faster progress up to an edge; past it the loss spikes, fluctuates or diverges. The best value "
            "often lies not far below that edge."
        ),
        lowered="Calmer, slower; too low and the budget ends before the loss has come down.",
        cases=(
            Case("from scratch", 1e-4, "a safe start; raise it for small models"),
            Case("from scratch, about 100 million parameters", 6e-4, "GPT-3's smallest, batches of 0.5 million tokens"),
            Case("from scratch, tiny models (under 10 million)", 1e-3, "small models bear higher rates"),
            Case("from scratch, 7 billion parameters", 3e-4, "Llama, batches of 4 million tokens"),
            Case("from scratch, 175 billion parameters", 6e-5, "GPT-3: large models need lower rates"),
            Case("fine-tuning all weights", 5e-5, "BERT was fine-tuned at 2e-5 to 5e-5"),
            Case("fine-tuning adapters only", 2e-4),
            Case("stable_adamw, muon, adamw_8bit", 3e-4, "as adamw: a rate found for one serves the others"),
            Case("lion", 1e-4, "3 to 10 times lower than for adamw, with 3 to 10 times more weight_decay"),
            Case("sgd with momentum", 0.1, "far above any rate for Adam"),
        ),
        usual=(1e-5, 5e-3),
        search=Search("log", 1e-5, 1e-2),
        rank=1,
        interacts=(
            "optimizer.type",
            "batch.global_batch_size",
            "schedule.type",
            "schedule.warmup_steps",
            "optimizer.beta1",
            "optimizer.weight_decay",
            "model.hidden_size",
            "batch.max_grad_norm",
        ),
        symptoms=(
            "loss not decreasing",
            "instability",
            "fluctuating validation",
            "loss spikes",
            "NaN gradients",
            "underfitting",
            "too slow",
        ),
        sources=(
            "playbook notes",
            "Google Deep Learning Tuning Playbook 2023",
            "Brown et al. 2020 (GPT-3)",
            "Touvron et al. 2023 (Llama)",
            "Devlin et al. 2019 (BERT)",
            "Chen et al. 2023 (Lion)",
            "Liu et al. 2025 (Muon is scalable)",
        ),
        correction=(
            "Weights do not move by rate × gradient under Adam: it divides by the gradient's running size, "
            "so multiplying the loss by 10 changes almost nothing. Search on a log scale; a range of 1e-4 "
            "to 0.1 or 1 is one for SGD, for AdamW look between 1e-5 and 1e-2."
        ),
        aliases=("lr", "max_lr", "peak_lr"),
    )

    weight_decay: float = knob(
        0.1,
        ge=0,
        what=(
            "How fast weights shrink: each update also multiplies the matrices, not norms or biases, by 1 − "
            "rate × weight_decay; under sgd it is added to the gradient instead."
        ),
        why=(
            "It balances growth, so weights settle at a size and each update keeps its relative effect. Its "
            "memory is 1 / (rate × weight_decay) updates: 33,000 at 3e-4 and 0.1."
        ),
        raised="Smaller weights, larger relative updates, somewhat less overfitting; too high underfits.",
        lowered="Weights grow through the run and updates matter less and less; 0 is fine for short runs.",
        cases=(
            Case("from scratch", 0.1, "GPT-3, Llama"),
            Case("fine-tuning", 0.01, "the start is good; do not pull it to zero"),
            Case("BERT from scratch", 0.01, "as published"),
            Case("overfitting on small data", 0.3, "after dropout and early stopping"),
            Case("lion", 1.0, "3 to 10 times adamw's, because its rate is as much lower: their product decides"),
        ),
        usual=(0.0, 1.0),
        search=Search("log", 1e-3, 0.5),
        interacts=(
            "optimizer.type",
            "optimizer.learning_rate",
            "optimizer.decay_embeddings",
            "training.max_steps",
            "model.dropout",
        ),
        symptoms=("overfitting", "underfitting", "instability"),
        sources=(
            "playbook notes",
            "Loshchilov & Hutter 2019 (AdamW)",
            "D'Angelo et al. 2024 (why weight decay)",
            "Wang & Aitchison 2024",
            "Chen et al. 2023 (Lion)",
        ),
        correction=(
            "In AdamW it is not L2 regularisation: nothing is added to the loss or the gradient, and Adam "
            "does not rescale it. The two agree only for plain SGD. In single-epoch pretraining it steers "
            "the training dynamics more than it prevents overfitting."
        ),
        aliases=("wd", "decay"),
    )

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
            "peaks at about 6.5 times the rate with 0.999, 1.1 times with 0.95 (beta1 0.9)."
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

    decay_embeddings: bool = knob(
        False,
        what="Whether weight decay also acts on embeddings; with tied embeddings that includes the output matrix.",
        why=(
            "A rare token gets a gradient seldom but would be decayed at every update, so its vector fades "
            "between sightings. Small embeddings in turn make large gradients at the first norm."
        ),
        raised="On: embeddings stay small, those of rare tokens shrink most, which can make training less stable.",
        lowered="Off: embeddings keep their scale; weight decay acts on the blocks' matrices.",
        cases=(
            Case("from scratch", False, "OLMo 2 left embeddings undecayed for stability"),
            Case("to match the Hugging Face trainer", True, "it exempts norms and biases only"),
        ),
        search=Search("choice", choices=(False, True)),
        interacts=("optimizer.weight_decay", "model.tie_embeddings"),
        symptoms=("instability", "loss spikes"),
        sources=("OLMo 2 (2024)", "Hugging Face Trainer"),
        aliases=("weight_decay_embeddings",),
    )
