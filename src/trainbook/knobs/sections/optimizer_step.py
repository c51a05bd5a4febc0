"""The optimizer, its learning rate and its weight decay."""

from __future__ import annotations

from typing import Literal

from trainbook.knobs.bibliography import (
    ADAMW,
    BERT,
    BITSANDBYTES,
    CRITICAL_BATCH,
    DECAY_AS_AVERAGE,
    EIGHT_BIT_OPTIMIZERS,
    GPT_3,
    HF_TRAINER,
    LARGE_MINIBATCH_SGD,
    LION,
    LLAMA,
    MUON,
    MUON_AT_SCALE,
    OLMO_2,
    QLORA,
    SMALL_BATCHES,
    SMALL_SCALE_PROXIES,
    SQUARE_ROOT_RULE,
    STABLE_ADAMW,
    TUNING_PLAYBOOK,
    WHY_WEIGHT_DECAY,
)
from trainbook.knobs.knob import Case, SearchRange, Section, knob


class OptimizerStep(Section):
    """The optimizer, its learning rate and its weight decay."""

    type: Literal["adamw", "adamw_8bit", "paged_adamw_8bit", "stable_adamw", "lion", "muon", "sgd"] = knob(
        "adamw",
        what="The algorithm that turns gradients into weight updates.",
        why=(
            "Gradients in a transformer differ by orders of magnitude between its parts. AdamW scales each weight "
            "separately, so one learning rate works for all; SGD has a single scale and trains transformers poorly. "
            "Besides activations, the optimizer state is the largest part of training memory."
        ),
        raised=(
            "More memory per weight: adamw and stable_adamw keep two fp32 moments, 16 bytes per parameter in all "
            "(weight 4, gradient 4, moments 8). They converge fast and tolerate imperfect settings. stable_adamw also "
            "shortens updates that a sudden growth of gradients makes too long."
        ),
        lowered=(
            "Less memory, in bytes per parameter: muon 12 for hidden matrices and 16 for the rest, lion 12, "
            "adamw_8bit and paged_adamw_8bit about 10 (moments 2.03), sgd 12 with momentum and 8 without. The 8-bit "
            "variants use adamw's learning rate; lion and sgd need another one."
        ),
        values={
            "adamw": "Adam with decoupled weight decay; uses beta1, beta2, epsilon",
            "adamw_8bit": (
                "adamw with moments in 8-bit blocks of 256 (bitsandbytes), for parameters with 4,096 elements or "
                "more; the host reads the learning rate once per step"
            ),
            "paged_adamw_8bit": (
                "adamw_8bit whose moments move to host memory while the GPU has no room; the same as adamw_8bit on a "
                "CPU"
            ),
            "stable_adamw": (
                "adamw that divides a tensor's learning rate by the root mean square of gradient / scale where that "
                "exceeds 1; needs no max_grad_norm"
            ),
            "lion": (
                "moves each weight by exactly the learning rate, in the direction of the sign of a running mean; uses "
                "beta1, beta2 (default 0.99)"
            ),
            "muon": (
                "orthogonalizes the averaged gradient of each hidden matrix (default momentum 0.95); adamw for "
                "embeddings, output, norms and biases"
            ),
            "sgd": "stochastic gradient descent; uses momentum",
        },
        cases=(
            Case("transformers, from scratch or fine-tuning", "adamw"),
            Case("fine-tuning a model that barely fits on the GPU", "paged_adamw_8bit"),
            Case("the optimizer state does not fit, the rest does", "adamw_8bit"),
            Case("loss spikes despite gradient clipping", "stable_adamw", "same learning rate as adamw"),
            Case(
                "large batches, little memory", "lion", "learning rate 3 to 10 times lower, weight decay as much higher"
            ),
            Case("from scratch, fewest steps to a given loss", "muon", "learning rate and weight decay as for adamw"),
            Case("comparison with plain gradient descent", "sgd"),
        ),
        search=SearchRange("choice", choices=("adamw", "stable_adamw", "lion", "muon")),
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
        sources=(ADAMW, EIGHT_BIT_OPTIMIZERS, BITSANDBYTES, QLORA, STABLE_ADAMW, LION, MUON, MUON_AT_SCALE),
        correction=(
            "An 8-bit optimizer is not 8-bit training: weights, gradients and arithmetic keep their precision, and "
            "only the 8 of 16 bytes that hold the moments shrink. Paging saves nothing while everything fits; it "
            "keeps a rare memory peak from ending the run. And Muon is not for every matrix: embeddings and the "
            "output stay with adamw."
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
        what="The peak step size of an update, reached after warm-up and then lowered by the schedule.",
        why=(
            "No other hyperparameter matters as much. Under Adam, each weight moves by about this amount per update, "
            "whatever the scale of its gradient."
        ),
        raised=(
            "Faster progress up to a limit; beyond it the loss spikes, fluctuates or diverges. The best value is "
            "often not far below that limit."
        ),
        lowered="More stable and slower; if it is too low, the run ends before the loss has come down.",
        cases=(
            Case("from scratch, where nothing is known", 3e-4, "the default: raise it for small models, then tune it"),
            Case(
                "from scratch, about 100 million parameters",
                6e-4,
                "GPT-3's smallest model, batches of 0.5 million tokens",
            ),
            Case(
                "from scratch, tiny models (under 10 million parameters)",
                1e-3,
                "small models tolerate higher learning rates",
            ),
            Case("from scratch, 7 billion parameters", 3e-4, "Llama, batches of 4 million tokens"),
            Case("from scratch, 175 billion parameters", 6e-5, "GPT-3; large models need lower learning rates"),
            Case("fine-tuning all weights", 5e-5, "BERT was fine-tuned at 2e-5 to 5e-5"),
            Case("fine-tuning adapters only", 2e-4, "as in QLoRA up to 13B"),
            Case("stable_adamw, muon, adamw_8bit", 3e-4, "as for adamw"),
            Case("lion", 1e-4, "3 to 10 times lower than for adamw, with 3 to 10 times more weight_decay"),
            Case("sgd with momentum", 0.1, "far above any learning rate for Adam"),
        ),
        usual=(1e-5, 5e-3),
        search=SearchRange("log", 1e-5, 1e-2),
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
        sources=(GPT_3, LLAMA, BERT, QLORA, LION, MUON_AT_SCALE, TUNING_PLAYBOOK),
        correction=(
            "Under Adam, weights do not move by learning rate × gradient: the gradient is divided by its running "
            "scale, so multiplying the loss by 10 changes almost nothing. Search on a log scale. A range of 1e-4 to "
            "0.1 or 1 is for SGD; for AdamW search 1e-5 to 1e-2."
        ),
        aliases=("lr", "max_lr", "peak_lr"),
    )

    tuned_batch_size: int | None = knob(
        None,
        ge=1,
        what=(
            "The global batch size at which learning_rate was tuned; the learning rate is scaled to this run's batch. "
            "Null: no scaling."
        ),
        why=(
            "The gradient of a larger batch is less noisy and allows a larger step. Adam divides by the size of the "
            "gradient, noise included, so its learning rate scales with the square root of the batch size; SGD's "
            "scales in proportion."
        ),
        raised="A lower scaled learning rate: this run's batch is a smaller multiple of it.",
        lowered="A higher scaled learning rate.",
        cases=(
            Case("the learning rate was tuned at this batch size", None),
            Case("tuned on one GPU at 64, now 8 GPUs and 512", 64, "adamw: 2.8 times the learning rate; sgd: 8 times"),
        ),
        usual=(8, 4096),
        interacts=("optimizer.learning_rate", "batch.global_batch_size", "optimizer.type", "distributed.strategy"),
        symptoms=("loss not decreasing", "instability"),
        sources=(SQUARE_ROOT_RULE, LARGE_MINIBATCH_SGD, CRITICAL_BATCH, SMALL_BATCHES),
        correction=(
            "More devices are no reason to scale the learning rate: here they share the global batch. The rules hold "
            "only up to the critical batch size. With the batch multiplied by k, the full square-root rule for Adam "
            "also multiplies 1 − beta1 and 1 − beta2 by k and divides epsilon by √k (Malladi et al. 2022); this knob "
            "scales the learning rate only, and trainbook tune RECIPE --for-batch N gives the other values. Over wide "
            "ranges it may ask for too much: from batch 1 to 1,024, where the root is 32, Marek et al. 2025 found a "
            "factor of about 3 best for a language model of 30 million parameters."
        ),
        aliases=("reference_batch_size", "base_batch_size"),
    )

    weight_decay: float = knob(
        0.1,
        ge=0,
        what=(
            "How fast weights decay: each update multiplies matrices, not norms or biases, by 1 − learning rate × "
            "weight_decay (or as weight_decay_mode says). Under sgd it is added to the gradient instead."
        ),
        why=(
            "It balances the growth of the weights, so that they settle at a scale and each update keeps its relative "
            "effect. It averages over about 1 / (learning rate × weight_decay) updates: 33,000 at 3e-4 and 0.1."
        ),
        raised="Smaller weights and larger relative updates; too high underfits.",
        lowered="Weights grow during the run and updates matter less and less; 0 is fine for short runs.",
        cases=(
            Case("from scratch", 0.1, "GPT-3, Llama"),
            Case("fine-tuning", 0.01, "keeps the pretrained weights from shrinking"),
            Case("BERT from scratch", 0.01, "as published"),
            Case("overfitting on small data", 0.3, "worth a try after dropout and early stopping"),
            Case(
                "lion",
                1.0,
                "3 to 10 times adamw's value, because its learning rate is as much lower: the product matters",
            ),
            Case("weight_decay_mode independent", 1e-4, "not multiplied by the learning rate there"),
        ),
        usual=(0.0, 1.0),
        search=SearchRange("log", 1e-3, 0.5),
        interacts=(
            "optimizer.type",
            "optimizer.weight_decay_mode",
            "optimizer.learning_rate",
            "optimizer.decay_embeddings",
            "training.max_steps",
            "model.dropout",
        ),
        symptoms=("overfitting", "underfitting", "instability"),
        sources=(ADAMW, GPT_3, LLAMA, BERT, LION, WHY_WEIGHT_DECAY, DECAY_AS_AVERAGE),
        correction=(
            "In AdamW it is not L2 regularization: nothing is added to the loss or the gradient, and Adam does not "
            "rescale it. The two agree only for plain SGD. D'Angelo et al. 2023 conclude that it helps by changing "
            "the training dynamics, never as an explicit regularizer."
        ),
        aliases=("wd", "decay"),
    )

    weight_decay_mode: Literal["scaled", "independent"] = knob(
        "scaled",
        what="Whether weight decay is multiplied by the learning rate or is independent of the peak learning rate.",
        why=(
            "With scaled, a search over learning rates also searches over decay: ten times the learning rate means "
            "ten times the decay, and part of the damage of a high learning rate is due to decay. With independent, "
            "each update multiplies weights by 1 − weight_decay × (learning rate / peak): the schedule moves the "
            "decay, the peak does not. Wortsman et al. 2023 found that the loss then depends less on the learning "
            "rate."
        ),
        raised=(
            "independent: decay and learning rate are chosen separately. Set weight_decay again: 0.1 at a learning "
            "rate of 3e-4 corresponds to 3e-5 here, their product."
        ),
        lowered="scaled: AdamW as in PyTorch and nearly all published settings.",
        values={
            "scaled": "weights × (1 − learning rate × weight_decay); usual values of weight_decay are 0.01 to 0.1",
            "independent": (
                "weights × (1 − share × weight_decay), where share is learning rate / peak; usual values are 1e-5 to "
                "1e-3. Not for sgd"
            ),
        },
        cases=(
            Case("published settings", "scaled"),
            Case(
                "tuning the learning rate, or transferring it to other model sizes",
                "independent",
                "with weight_decay near 1e-4, as in Wortsman et al. 2023",
            ),
        ),
        search=SearchRange("choice", choices=("scaled", "independent")),
        interacts=("optimizer.weight_decay", "optimizer.learning_rate", "optimizer.type", "schedule.type"),
        symptoms=("instability", "underfitting"),
        sources=(ADAMW, SMALL_SCALE_PROXIES),
        correction=(
            "The AdamW paper defines the independent form: the schedule multiplies the decay, the learning rate does "
            "not. PyTorch's AdamW, for which most settings were chosen, multiplies by the learning rate too. Under "
            "stable_adamw, a tensor whose learning rate is reduced for an update is also decayed less, in either "
            "mode."
        ),
        aliases=("decay_mode", "weight_decay_type"),
        value_aliases={"coupled": "scaled", "fully_decoupled": "independent"},
    )

    decay_embeddings: bool = knob(
        False,
        what="Whether weight decay also applies to embeddings; with tied embeddings that includes the output matrix.",
        why=(
            "A rare token seldom gets a gradient but would be decayed at every update, so its vector shrinks between "
            "occurrences. Small embeddings in turn produce large gradients at the first norm."
        ),
        raised="On: embeddings stay small, and those of rare tokens shrink most, which can make training less stable.",
        lowered="Off: embeddings keep their scale; weight decay applies to the matrices of the blocks.",
        cases=(
            Case("from scratch", False, "OLMo 2 excludes embeddings from weight decay for stability"),
            Case("to match the Hugging Face Trainer", True, "it exempts only norms and biases"),
        ),
        search=SearchRange("choice", choices=(False, True)),
        interacts=("optimizer.weight_decay", "model.tie_embeddings"),
        symptoms=("instability", "loss spikes"),
        sources=(OLMO_2, HF_TRAINER),
        aliases=("weight_decay_embeddings",),
    )
