"""The rule of an update, how far it goes, and how weights shrink beside it."""

from __future__ import annotations

from typing import Literal

from trainbook.knobs.knob import Case, Search, Section, knob


class OptimizerStep(Section):
    """The rule of an update, how far it goes, and how weights shrink beside it."""

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
            "optimizer.weight_decay_mode",
            "batch.max_grad_norm",
            "batch.clipping",
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
            "optimizer.weight_decay_mode",
            "model.hidden_size",
            "model.qk_norm",
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

    tuned_batch_size: int | None = knob(
        None,
        ge=1,
        what="The global batch at which learning_rate was found; the rate is scaled to the batch of this run. Null: "
        "the rate is taken as it stands.",
        why="A larger batch has less noise in its gradient and bears a longer step. Adam already divides by the size "
        "of the gradient, noise included: its rate goes with the square root of the batch. That of sgd goes with the "
        "batch itself.",
        raised="A smaller scaled rate: the batch of this run is a smaller multiple of it.",
        lowered="A larger scaled rate.",
        cases=(
            Case("the batch is the one that the rate was tuned at", None),
            Case("a rate found on one GPU at 64, now 8 GPUs and 512", 64, "adamw: 2.8 times the rate; sgd: 8 times"),
        ),
        usual=(8, 4096),
        interacts=("optimizer.learning_rate", "batch.global_batch_size", "optimizer.type", "distributed.strategy"),
        symptoms=("loss not decreasing", "instability"),
        sources=("Malladi et al. 2022 (square root rule), arXiv 2205.10287", "Goyal et al. 2017, arXiv 1706.02677"),
        correction="More devices are no reason to scale the rate: here they share the batch that was asked for. And "
        "the rules end where noise does: past the critical batch a longer step gains nothing.",
        aliases=("reference_batch_size", "base_batch_size"),
    )

    weight_decay: float = knob(
        0.1,
        ge=0,
        what=(
            "How fast weights shrink: each update also multiplies the matrices, not norms or biases, by 1 − "
            "rate × weight_decay (or as weight_decay_mode says); under sgd it is added to the gradient instead."
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
            Case("weight_decay_mode independent", 1e-4, "it counts by itself there: rate × weight_decay of the other"),
        ),
        usual=(0.0, 1.0),
        search=Search("log", 1e-3, 0.5),
        interacts=(
            "optimizer.type",
            "optimizer.weight_decay_mode",
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

    weight_decay_mode: Literal["scaled", "independent"] = knob(
        "scaled",
        what="Whether the weight decay of an update is weight_decay × the rate, or does not depend on the peak rate.",
        why=(
            "With scaled, a search over learning rates is one over decay as well: ten times the rate is ten times the "
            "decay, and part of what a high rate breaks is the decay's doing. With independent each update multiplies "
            "weights by 1 − weight_decay × (rate / peak rate): the schedule moves the decay, the peak does not. In the "
            "small-scale study the loss then depended less on the choice of the rate."
        ),
        raised=(
            "To independent: decay and rate can be chosen one by one. Set weight_decay anew: what was 0.1 at a rate of "
            "3e-4 is 3e-5 now, their product."
        ),
        lowered="To scaled: the AdamW of PyTorch and of nearly every published setting.",
        values={
            "scaled": "weights × (1 − rate × weight_decay); usual values of weight_decay are 0.01 to 0.1",
            "independent": (
                "weights × (1 − share × weight_decay), share being rate / peak rate; usual values are 1e-5 to 1e-3. "
                "Not for sgd"
            ),
        },
        cases=(
            Case("settings published elsewhere", "scaled"),
            Case("tuning the rate, or carrying it over to other sizes", "independent", "with weight_decay near 1e-4"),
        ),
        search=Search("choice", choices=("scaled", "independent")),
        interacts=("optimizer.weight_decay", "optimizer.learning_rate", "optimizer.type", "schedule.type"),
        symptoms=("instability", "underfitting"),
        sources=(
            "Loshchilov & Hutter 2019 (AdamW)",
            "Wortsman et al. 2023 (small-scale proxies), arXiv 2309.14322",
        ),
        correction=(
            "The AdamW paper has this form: its decay is multiplied by the schedule alone. PyTorch's AdamW, which most "
            "settings are made for, multiplies by the learning rate too. Under stable_adamw a tensor whose rate is "
            "held back for an update is decayed less by it, in either mode."
        ),
        aliases=("decay_mode", "weight_decay_type"),
        value_aliases={"coupled": "scaled", "fully_decoupled": "independent"},
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
