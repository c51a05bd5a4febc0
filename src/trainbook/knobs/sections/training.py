"""How long, from which seed, on what device, with which extra losses."""

from __future__ import annotations

from typing import Literal

from trainbook.knobs.bibliography import (
    BERT,
    CHINCHILLA,
    GPT_2,
    INCEPTION_V3,
    MASK_RATIO,
    MEASURED_COSTS,
    OLMO_2,
    PALM,
    REPEATED_DATA,
    SCALING_LAWS,
    SMALL_SCALE_PROXIES,
    T5,
    TORCH_REPRODUCIBILITY_DOCS,
    TRANSFORMER,
    TUNING_PLAYBOOK,
    VARIANCE,
    WHOLE_WORD_MASKING,
)
from trainbook.knobs.knob import Case, Search, Section, knob


class Training(Section):
    """How long, from which seed, on what device, with which extra losses."""

    task: str = knob(
        "auto",
        min_length=1,
        what="What is learned: the next token, masked tokens, corrupted spans, a target text, labels, or your own.",
        why="The task owns head, loss and metrics. auto reads it off the model and the data: a label_field makes it "
        "classify, a target_field seq2seq (t5) or chat; otherwise gpt learns the next token, bert masked tokens and t5 "
        "spans.",
        raised="No direction: choose what you want to predict.",
        lowered="No direction: choose what you want to predict.",
        values={
            "auto": "from model.type, data.label_field and data.target_field",
            "causal": "each next token",
            "chat": "the answers of conversations, or of prompts with answers, token by token; see data.mask_prompt",
            "masked": "tokens that were hidden, from both sides; see mask_ratio and whole_word_masking",
            "span": "spans that were cut out, written by the decoder; see mask_ratio and span_length",
            "seq2seq": "a target text from an input text; data.target_field",
            "classify": "one label of several for each text; data.label_field",
            "classify_many": "any number of labels for each text",
            "regress": "a number for each text",
            "tag": "a label for each word",
        },
        cases=(
            Case("pretraining", "auto"),
            Case("BERT, one label a text", "classify"),
            Case("BERT, named entities", "tag"),
            Case("T5, pairs of texts", "seq2seq"),
            Case("GPT, instructions with answers", "chat"),
        ),
        interacts=("model.type", "data.label_field", "data.target_field", "evaluation.metric_for_best_model"),
        symptoms=("loss not decreasing",),
        sources=(GPT_2, BERT, T5),
        aliases=("objective", "task_type"),
        value_aliases={
            "clm": "causal",
            "mlm": "masked",
            "causal_lm": "causal",
            "masked_lm": "masked",
            "span_corruption": "span",
            "seq_2_seq_lm": "seq2seq",
            "text2text": "seq2seq",
            "seq_cls": "classify",
            "sequence_classification": "classify",
            "single_label_classification": "classify",
            "multi_label_classification": "classify_many",
            "regression": "regress",
            "token_cls": "tag",
            "token_classification": "tag",
            "ner": "tag",
            "sft": "chat",
            "instruct": "chat",
        },
    )

    max_steps: int | None = knob(
        None,
        ge=1,
        le=10_000_000,
        what="Length of the run in applied updates; a skipped one does not count towards it.",
        why="Exactly one of max_steps, num_train_epochs and max_tokens sets the length, and the schedule is stretched "
        "over it: the length decides not only when training ends but how fast the learning rate falls.",
        raised="More updates and a slower decay; the loss usually ends lower, at a cost in time that grows in "
        "proportion. Once the data repeats often, the validation loss turns up (overfitting).",
        lowered="The run ends sooner and decays faster. Too short: the loss is still falling at the end "
        "(underfitting), and warm-up takes a large share of the run.",
        cases=(
            Case("trying out a recipe", 200, "enough to see the loss fall and the speed settle"),
            Case("the example schedule of the notes", 50000, "with 500 steps of warm-up"),
        ),
        usual=(100, 1_000_000),
        interacts=(
            "training.num_train_epochs",
            "training.max_tokens",
            "batch.global_batch_size",
            "schedule.type",
            "schedule.warmup_steps",
            "schedule.warmup_ratio",
        ),
        symptoms=("underfitting", "overfitting", "too slow"),
        sources=(TUNING_PLAYBOOK,),
        correction="Do not search over the length: a longer run nearly always wins and the search learns nothing else. "
        "Fix it, tune, then look where the best evaluation fell: in the first tenth, shorten; in the last quarter, "
        "lengthen.",
        aliases=("num_training_steps", "max_iters", "num_steps", "total_steps", "train_steps"),
    )

    num_train_epochs: float | None = knob(
        None,
        gt=0,
        what="Length of the run in passes over the training data; fractions are allowed.",
        why="It says how often each text is seen, which is what decides between underfitting and overfitting on a "
        "small data set. The number of steps follows from the data and the global batch.",
        raised="Each text is seen more often: the training loss keeps falling, the validation loss falls, flattens and "
        "then rises (overfitting). Time grows in proportion.",
        lowered="Less time and less memorising; with too few passes the model has not learned what the data could "
        "teach (underfitting).",
        cases=(
            Case("pretraining with plenty of text", 1.0, "new text teaches more than repeated text"),
            Case("pretraining with little text", 4.0, "up to about 4 passes cost almost nothing against fresh text"),
            Case("fine-tuning", 3.0, "the notes use 5; watch the validation loss and keep the best checkpoint"),
        ),
        usual=(0.5, 20),
        interacts=(
            "training.max_steps",
            "training.max_tokens",
            "batch.global_batch_size",
            "data.source",
            "evaluation.early_stopping_patience",
            "model.dropout",
        ),
        symptoms=("overfitting", "underfitting", "too slow"),
        sources=(REPEATED_DATA,),
        correction="An epoch is no fixed amount of training: the same 5 epochs are 50 updates on one data set and "
        "500 000 on another. Compare runs by steps and tokens.",
        aliases=("epochs", "num_epochs", "max_epochs"),
    )

    max_tokens: int | None = knob(
        None,
        ge=1,
        what="Length of the run in training tokens.",
        why="Tokens are the measure in which language-model budgets are stated: compute is about 6 x parameters x "
        "tokens, whatever the batch.",
        raised="A better model for the same size, in proportionally more time; past the size of the data, tokens "
        "repeat.",
        lowered="A cheaper run whose loss has not come down as far as this size of model could bring it.",
        cases=(
            Case("compute-optimal, 10M parameters", 200_000_000, "about 20 tokens a parameter"),
            Case("compute-optimal, 124M parameters", 2_500_000_000, "about 20 tokens a parameter"),
        ),
        usual=(100_000, 20_000_000_000_000),
        interacts=(
            "training.max_steps",
            "training.num_train_epochs",
            "batch.global_batch_size",
            "data.max_seq_length",
            "model.hidden_size",
            "model.num_hidden_layers",
        ),
        symptoms=("underfitting", "overfitting", "too slow"),
        sources=(CHINCHILLA, SCALING_LAWS),
        correction="20 tokens a parameter is where a fixed training budget is best spent, not where learning stops: a "
        "small model that will be used a lot is worth training far longer.",
        aliases=("train_tokens", "num_tokens", "token_budget"),
    )

    seed: int = knob(
        1337,
        ge=0,
        what="The number from which initial weights, data order and dropout are drawn.",
        why="The same seed repeats a run; several seeds show how much of a difference between two settings is chance.",
        raised="Nothing has a direction here: another number is another draw, neither better nor worse.",
        lowered="As for raising: another draw.",
        cases=(
            Case("comparing two settings", 1337, "the same seeds for both, several of them, and paired differences"),
        ),
        interacts=("training.deterministic", "data.shuffle", "model.initializer_range", "model.dropout"),
        symptoms=("fluctuating validation",),
        sources=(VARIANCE,),
        correction="The best of several seeds is luck, not a tuned value: it does not carry over to the next run. "
        "Report the mean and the spread.",
        aliases=("random_seed", "manual_seed"),
    )

    deterministic: bool = knob(
        False,
        what="Allow only kernels that give the same bits each time.",
        why="Parallel sums add in a varying order, and rounding makes that visible: two runs from one seed drift "
        "apart. Bit-equal runs let a change of code, a resume or a fault be judged exactly.",
        raised=(
            "On: the same machine, versions, thread count and seed reproduce a run bit for bit, resumed or not. Some "
            "GPU kernels are slower: on one H200, a GPT of 124M parameters reaches 0.92 times the tokens per second."
        ),
        lowered="Off: the fastest kernels; runs from one seed agree closely at first and drift apart later.",
        cases=(
            Case("hunting a bug, golden losses", True, "every difference then has a cause"),
            Case("ordinary training", False, "speed; chance is judged by several seeds"),
        ),
        interacts=("training.seed", "precision.tf32", "memory.compile", "data.num_workers"),
        symptoms=("loss spikes", "instability"),
        sources=(TORCH_REPRODUCIBILITY_DOCS, MEASURED_COSTS),
        correction="Going back to an older checkpoint after a blow-up works because the second try rounds differently "
        "or sees other data. A bit-exact run walks into the same blow-up again: change something. And determinism "
        "does not reach across hardware: 1 and 2 CPU threads already differ in the last bits of a sum.",
        aliases=("full_determinism", "determinism", "deterministic_mode"),
    )

    mask_ratio: float = knob(
        0.15,
        gt=0,
        lt=1,
        what="Share of the tokens that are hidden and predicted, by masking (bert) or by cutting out spans (t5).",
        why="Only hidden tokens teach. More of them: more targets from each text, but less left to predict them from.",
        raised="More targets a step, harder ones; large models gain from up to .4, small ones suffer sooner.",
        lowered="Easy targets, and few: much computing for little learning.",
        cases=(
            Case("BERT and T5 as published", 0.15),
            Case("large encoders, short budgets", 0.3, "reported to help; try it after the rate"),
        ),
        usual=(0.1, 0.5),
        search=Search("linear", 0.1, 0.4),
        interacts=("training.task", "training.whole_word_masking", "training.span_length"),
        symptoms=("underfitting",),
        sources=(BERT, T5, MASK_RATIO),
        correction="Of masked tokens 80 % are replaced by the mask, 10 % by a random token, 10 % stay, and all of them "
        "are predicted: a loss on the mask alone lets the model ignore what it can see.",
        aliases=("mlm_probability", "noise_density", "masking_ratio"),
    )

    whole_word_masking: bool = knob(
        False,
        what="Hide whole words instead of single tokens.",
        why="A word cut into pieces is guessed from its own remaining pieces; hidden whole, it must be guessed from "
        "the sentence.",
        raised="On: harder, more meaningful targets; the masked loss is higher and cannot be compared with the other.",
        lowered="Off: tokens are hidden one by one.",
        cases=(
            Case("BERT as first published", False),
            Case("small vocabularies, many pieces a word", True),
        ),
        interacts=("training.mask_ratio", "data.tokenizer", "training.task"),
        symptoms=("underfitting",),
        sources=(BERT, WHOLE_WORD_MASKING),
        aliases=("wwm", "mlm_whole_word"),
    )

    span_length: float = knob(
        3.0,
        ge=1,
        what="Mean number of tokens in a span that is cut out (t5).",
        why="Longer spans make fewer sentinels and shorter targets, so steps are cheaper; too long, and they cannot be "
        "guessed.",
        raised="Fewer, longer gaps: cheaper steps, harder guesses.",
        lowered="At 1, single tokens are cut out, much like masking.",
        cases=(Case("T5 as published", 3.0),),
        usual=(1, 10),
        interacts=("training.mask_ratio", "training.task"),
        sources=(T5,),
        aliases=("mean_noise_span_length",),
    )

    label_smoothing: float = knob(
        0.0,
        ge=0,
        lt=1,
        what="Share of the target probability spread evenly over the whole vocabulary, in training only.",
        why="A one-hot target asks for ever larger logits; a smoothed one is reached at finite logits, which tempers "
        "over-confidence. Evaluation stays plain cross entropy.",
        raised="Less confident predictions and less overfitting on small or noisily labelled data; perplexity often "
        "gets worse even where accuracy gets better, because the model is taught to be unsure.",
        lowered="Towards 0 the training loss is the plain cross entropy and comparable with the validation loss.",
        cases=(
            Case("language-model pretraining", 0.0, "perplexity is the goal, and smoothing works against it"),
            Case("translation, classification", 0.1, "the value of the original Transformer and of Inception-v3"),
        ),
        usual=(0.0, 0.2),
        search=Search("linear", low=0.0, high=0.2),
        interacts=("training.z_loss", "model.dropout", "optimizer.weight_decay", "evaluation.metric_for_best_model"),
        symptoms=("overfitting",),
        sources=(INCEPTION_V3, TRANSFORMER),
        correction="A smoothed training loss has a floor well above 0 and cannot be set beside the validation loss: a "
        "training loss above the validation loss is then no sign of anything.",
        aliases=("label_smoothing_factor",),
    )

    z_loss: float = knob(
        0.0,
        ge=0,
        what="Coefficient of the mean of (log Z)^2 added to the loss, Z being the denominator of the softmax.",
        why="Cross entropy does not change when all logits shift together, so nothing holds them; late in long runs "
        "they drift away and 16-bit arithmetic suffers. The term pulls log Z towards 0. It is reported apart and "
        "never counted in perplexity.",
        raised="log Z is held closer to 0; far above 1e-4 it costs cross entropy (toy GPT: 1e-2 took |log Z| from 5.0 "
        "to 1.6 for +0.02 nats, 1e-1 to 0.2 for +0.07).",
        lowered="Less pull; at 0 logits are free to drift, which short runs hardly notice.",
        cases=(
            Case("small model, short run", 0.0, "at 1e-4 no effect was visible in 120 steps"),
            Case("large model, OLMo 2", 1e-5, "with QK norm"),
            Case("large model, PaLM", 1e-4, "cures logit drift late in training"),
        ),
        usual=(0.0, 1e-3),
        search=Search("choice", choices=(0.0, 1e-5, 1e-4)),
        interacts=("model.logit_soft_cap", "model.qk_norm", "optimizer.learning_rate", "precision.compute"),
        symptoms=("instability", "loss spikes", "NaN gradients"),
        sources=(PALM, OLMO_2, SMALL_SCALE_PROXIES),
        correction="It is the square of log Z that is added, not of Z itself. It does not cure growing attention "
        "logits: that is what model.qk_norm is for.",
        aliases=("z_loss_multiplier", "z_loss_weight", "z_loss_coefficient"),
    )

    device: Literal["auto", "cpu", "cuda"] = knob(
        "auto",
        what="Where the model is trained.",
        why="A GPU multiplies matrices orders of magnitude faster than a CPU; a tiny model or a test may still be "
        "quicker on the CPU, where starting costs nothing.",
        raised="cuda: fast matrix products and 16-bit arithmetic; the limit is the memory of the GPU.",
        lowered="cpu: slow but everywhere, with the memory of the whole machine; enough for the tiny recipes.",
        values={
            "auto": "cuda where there is a CUDA GPU, else cpu",
            "cpu": "the processor, even where there is a GPU",
            "cuda": "the GPU; an error where there is none",
        },
        cases=(
            Case("anything that should run everywhere", "auto"),
            Case("a test or a bit-exact comparison", "cpu", "no GPU kernels in between"),
        ),
        interacts=("precision.compute", "memory.compile", "data.pin_memory", "distributed.strategy"),
        symptoms=("too slow", "out of memory"),
        aliases=("accelerator",),
        value_aliases={"gpu": "cuda"},
    )
