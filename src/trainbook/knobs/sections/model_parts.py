"""The parts of the network."""

from __future__ import annotations

from typing import Literal

from trainbook.knobs.bibliography import (
    BERT,
    CODE_LLAMA,
    CRAMMING,
    DROPOUT,
    GELU,
    GEMMA_2,
    GEMMA_3,
    GLU,
    GPT_2,
    HF_CONFIGS,
    LAYER_NORM,
    LLAMA,
    LLAMA_2,
    LLAMA_3,
    NO_POSITIONS,
    OLMO_2,
    PALM,
    PRE_NORM,
    PRIMER,
    QK_NORM,
    QWEN,
    QWEN_2,
    RMS_NORM,
    ROFORMER,
    SMALL_SCALE_PROXIES,
    T5,
    T5_1_1,
    TIED_EMBEDDINGS,
    TRANSFORMER,
    VIT_22B,
)
from trainbook.knobs.knob import Case, SearchRange, Section, knob


class ModelParts(Section):
    """The parts of the network."""

    dropout: float = knob(
        0.0,
        ge=0,
        lt=1,
        what=(
            "The share of activations set to zero at random in training (the rest are scaled up to compensate); off "
            "in evaluation."
        ),
        why=(
            "It keeps units from relying on each other, which helps when the same examples are seen many times. Where "
            "each token is seen once, there is nothing to memorize, and dropout only slows learning."
        ),
        raised=(
            "Less overfitting, slower learning, and a training loss above the evaluation loss of the same weights; "
            "too high underfits."
        ),
        lowered="Faster learning and a lower training loss; overfits sooner when data repeats.",
        cases=(
            Case("pretraining, about one epoch", 0.0, "PaLM and the cramming study pretrained without dropout"),
            Case("small data, many epochs", 0.1, "raise to 0.2 if the validation loss still rises"),
            Case("fine-tuning", 0.1),
            Case("BERT and the first T5, as published", 0.1),
        ),
        usual=(0.0, 0.3),
        search=SearchRange("linear", 0.0, 0.3),
        interacts=("training.num_train_epochs", "optimizer.weight_decay", "training.label_smoothing"),
        symptoms=("overfitting", "underfitting"),
        sources=(DROPOUT, BERT, T5, PALM, CRAMMING),
        correction=(
            "0.1 is often given as a universal default. It comes from models trained for many epochs, such as BERT; "
            "single-epoch pretraining usually leaves it at 0. In our short runs, which see no sample twice, 0.1 raised "
            "the loss by about a quarter (gpt-tiny at 400 steps, a small t5-cmudict at 600; see Measured)."
        ),
        aliases=("hidden_dropout_prob", "dropout_rate", "resid_pdrop"),
    )

    bias: bool = knob(
        False,
        what="Whether linear layers have a bias and norms a shift.",
        why=(
            "Biases are a tiny share of the parameters and add little in a transformer. The key bias adds the same "
            "amount to every score of a query and cancels in the softmax (with learned positions and no qk_norm), so "
            "its gradient is only rounding noise, which Adam can still turn into updates."
        ),
        raised="On: a few more parameters (never decayed), and the layout that BERT and GPT-2 weights need.",
        lowered=(
            "Off: slightly faster; PaLM reports better stability for large models. The norms lose their shift too."
        ),
        cases=(
            Case("from scratch", False, "T5, PaLM, Llama"),
            Case("to match BERT or GPT-2 as published", True),
        ),
        search=SearchRange("choice", choices=(False, True)),
        interacts=("model.norm", "optimizer.weight_decay"),
        symptoms=("instability", "loss spikes"),
        sources=(PALM, CRAMMING, T5, LLAMA, HF_CONFIGS),
        aliases=("use_bias", "add_bias_linear"),
    )

    qkv_bias: bool | None = knob(
        None,
        what="Whether the products that give queries, keys and values have a bias; null: as model.bias. Only for gpt.",
        why="Qwen and Qwen2 have biases there and nowhere else: their authors report that it helps with longer texts.",
        raised="On: a vector for each of the three; layout of Qwen2's weights.",
        lowered="Off: no bias there, whatever model.bias says.",
        cases=(
            Case("from scratch", None),
            Case("to match Qwen2 as published", True, "with model.bias off"),
        ),
        search=SearchRange("choice", choices=(None, True)),
        interacts=("model.bias", "model.qk_norm"),
        symptoms=("instability",),
        sources=(QWEN, QWEN_2),
        aliases=("add_qkv_bias",),
    )

    norm: Literal["layernorm", "rmsnorm"] = knob(
        "layernorm",
        what="The kind of normalization inside the network.",
        why=(
            "Normalization keeps activations at one scale through depth; without it deep networks do not train. The "
            "two kinds differ only in whether the mean is subtracted first."
        ),
        raised="layernorm: also subtracts the mean; slightly more work.",
        lowered="rmsnorm: normalizes only the scale, with fewer operations; quality is about the same.",
        values={
            "layernorm": (
                "subtract the mean, divide by the standard deviation, multiply by a learned gain (and add a shift if "
                "bias is on)"
            ),
            "rmsnorm": "divide by the root mean square, multiply by a learned gain; no mean, never a shift",
        },
        cases=(
            Case("BERT, GPT-2", "layernorm"),
            Case("T5, Llama, OLMo 2", "rmsnorm"),
        ),
        search=SearchRange("choice", choices=("layernorm", "rmsnorm")),
        interacts=("model.norm_epsilon", "model.norm_position", "model.bias", "precision.weights"),
        symptoms=("instability", "too slow"),
        sources=(LAYER_NORM, RMS_NORM, LLAMA, OLMO_2, HF_CONFIGS),
        correction=(
            "The claim that RMSNorm lets activations grow through depth, so that LayerNorm is safer, has no published "
            "measurement that we know of. OLMo 2 saw no difference between RMSNorm and a LayerNorm without gains. "
            "Measure it on your own model."
        ),
        aliases=("norm_type", "normalization"),
        value_aliases={"layer_norm": "layernorm", "rms_norm": "rmsnorm", "rms": "rmsnorm"},
    )

    norm_epsilon: float = knob(
        1e-5,
        gt=0,
        lt=1,
        what="A small constant added to the variance (or mean square) before the norm divides by its root.",
        why=(
            "It keeps the division finite for a nearly constant input. It matters only where the variance itself is "
            "that small."
        ),
        raised="Safer in low precision; too high damps real signals of small scale.",
        lowered="More accurate for tiny activations; below about 6e-8 it is zero in fp16 and protects nothing there.",
        cases=(
            Case("GPT-2, Llama 2", 1e-5),
            Case("T5, the first Llama", 1e-6),
            Case("BERT as published", 1e-12, "norms computed in fp32"),
        ),
        usual=(1e-12, 1e-5),
        interacts=("model.norm", "precision.compute"),
        symptoms=("NaN gradients",),
        sources=(HF_CONFIGS,),
        aliases=("layer_norm_eps", "rms_norm_eps", "layer_norm_epsilon"),
    )

    norm_position: Literal["pre", "post"] = knob(
        "pre",
        what="Whether a block normalizes its input or the sum that it outputs.",
        why=(
            "With pre, the residual stream runs unchanged from the first block to the last, and so do the gradients. "
            "With post, every block rescales the stream: gradients near the output are large at first, and training "
            "needs warm-up and care."
        ),
        raised="post: the layout of BERT as published; needs warm-up, and depth makes it harder to train.",
        lowered="pre: stable at higher learning rates and in deeper models; a final norm precedes the head.",
        values={
            "pre": "x + part(norm(x)), and a final norm; GPT-2, T5, Llama",
            "post": "norm(x + part(x)), and a norm after the embedding; BERT",
        },
        cases=(
            Case("from scratch", "pre"),
            Case("BERT weights, or BERT as published", "post"),
        ),
        search=SearchRange("choice", choices=("pre", "post")),
        interacts=("schedule.warmup_steps", "optimizer.learning_rate", "model.num_hidden_layers", "model.norm"),
        symptoms=("instability", "loss not decreasing"),
        sources=(PRE_NORM, GPT_2, BERT, T5, LLAMA),
        aliases=("norm_placement",),
        value_aliases={"pre_norm": "pre", "post_norm": "post", "prenorm": "pre", "postnorm": "post"},
    )

    activation: Literal["gelu", "gelu_tanh", "relu", "relu2", "silu", "swiglu", "geglu", "geglu_tanh"] = knob(
        "gelu",
        what="The activation function of the feed-forward networks.",
        why=(
            "The gated kinds (swiglu, geglu) multiply two projections and reach a lower loss with the same number of "
            "parameters (Shazeer 2020). They need a third matrix, so the inner width must shrink to keep the size."
        ),
        raised=(
            "A gated kind: a better loss for the same parameters if intermediate_size is 8/3 × hidden_size; at the "
            "default 4 × the feed-forward network becomes 1.5 times larger."
        ),
        lowered=(
            "An ungated kind: two matrices and fewer stored activations; relu is the cheapest and can leave units dead."
        ),
        values={
            "gelu": "x Φ(x), exact; BERT",
            "gelu_tanh": "the tanh approximation of gelu; GPT-2 weights need it",
            "relu": "max(x, 0); the first T5",
            "relu2": "max(x, 0)², found by Primer; modded-nanoGPT and Nemotron-4 use it",
            "silu": "x sigmoid(x), also called swish",
            "swiglu": "silu(gate) × up, three matrices; PaLM, Llama",
            "geglu": "gelu(gate) × up, three matrices",
            "geglu_tanh": "geglu with the tanh approximation; T5 1.1 weights need it",
        },
        cases=(
            Case("BERT, small GPT", "gelu"),
            Case("GPT-2 as published", "gelu_tanh"),
            Case("T5 1.1", "geglu_tanh"),
            Case("small GPT, trained for the lowest loss in a given time", "relu2", "two matrices, no gate"),
            Case("large models from scratch", "swiglu", "with intermediate_size at 8/3 × hidden_size"),
        ),
        search=SearchRange("choice", choices=("gelu", "swiglu")),
        interacts=("model.intermediate_size",),
        symptoms=("underfitting",),
        sources=(GELU, GLU, PRIMER, GPT_2, BERT, T5, T5_1_1, PALM, LLAMA),
        correction=(
            "A gated kind is not always better: in our short runs of gpt-tiny, swiglu had the lower loss on two data "
            "sets and the higher one on a third. In a small t5-cmudict, relu with as many parameters ended 15 % above "
            "geglu_tanh after 600 steps (see Measured)."
        ),
        aliases=("hidden_act", "activation_function"),
        value_aliases={
            "gelu_new": "gelu_tanh",
            "gelu_pytorch_tanh": "gelu_tanh",
            "swish": "silu",
            "gated-gelu": "geglu_tanh",
            "gated-silu": "swiglu",
        },
    )

    position: Literal["learned", "rotary", "relative", "none"] = knob(
        "learned",
        what="How the model represents the order of tokens.",
        why=(
            "Attention itself ignores order. Learned vectors tie the model to the length it was trained on; rotary "
            "encodes distance in the attention scores and adds no parameters."
        ),
        raised="learned: simple and fast, one vector per position up to max_seq_length and nothing beyond.",
        lowered=(
            "rotary: relative distances, slightly more work per layer; PaLM chose it for long sequences. none: only "
            "the causal mask gives a hint of order."
        ),
        values={
            "learned": "a trained vector per position, added to the embedding",
            "rotary": "queries and keys are rotated by an angle that grows with the position; see rope_theta",
            "relative": "a learned number per head and distance, added to the attention logits; shared by a stack",
            "none": "no position signal; a causal decoder can still infer some order",
        },
        cases=(
            Case("BERT, GPT-2", "learned"),
            Case("large models from scratch (PaLM, Llama)", "rotary"),
            Case("T5", "relative", "32 buckets; all distances from 128 on share one"),
        ),
        search=SearchRange("choice", choices=("learned", "rotary")),
        interacts=("data.max_seq_length", "model.rope_theta"),
        sources=(TRANSFORMER, ROFORMER, NO_POSITIONS, GPT_2, BERT, T5, PALM, LLAMA),
        correction=(
            "Rotary does not carry a model past its trained length by itself: without a larger base or further "
            "training, the loss rises there too. Within it, learned vectors take longer to learn: after 400 steps, "
            "rotary ended 18 % below learned in gpt-tiny, and learned 47 % above rotary in bert-tiny (see Measured); "
            "longer runs were not compared."
        ),
        aliases=("position_embedding_type", "positional_encoding"),
        value_aliases={"absolute": "learned", "rope": "rotary"},
    )

    attention_scale: Literal["inverse_sqrt", "none"] = knob(
        "inverse_sqrt",
        what="The factor by which attention logits are multiplied before the softmax.",
        why=(
            "The dot product of two random vectors grows with the square root of their size (head_width). Dividing by "
            "it keeps the softmax from starting flat or concentrated on one token."
        ),
        raised="none: T5's way; its queries start smaller by the same factor instead, so the weights must match.",
        lowered="inverse_sqrt: what every other architecture here expects.",
        values={
            "inverse_sqrt": "1/√head_width",
            "none": "1; T5, with its own initialization",
        },
        cases=(
            Case("BERT, GPT-2, Llama", "inverse_sqrt"),
            Case("T5 as published", "none"),
        ),
        interacts=("model.head_width", "model.qk_norm", "model.initializer_range"),
        symptoms=("instability", "loss not decreasing"),
        sources=(TRANSFORMER, T5, HF_CONFIGS),
        correction="Keeping the scale with T5 weights is a silent mistake: the model runs, but worse.",
    )

    token_types: int = knob(
        0,
        ge=0,
        le=16,
        what="The number of token types with a vector of their own, added to the embedding; 0: none.",
        why=(
            "BERT uses them to distinguish the first text of a pair from the second. For single texts they carry no "
            "information."
        ),
        raised="2: the layout that BERT weights need.",
        lowered="0: one table less.",
        cases=(
            Case("from scratch", 0),
            Case("BERT weights", 2),
        ),
        interacts=("model.type", "model.pretrained"),
        sources=(BERT,),
        aliases=("type_vocab_size",),
    )

    rope_theta: float = knob(
        10000.0,
        gt=0,
        what=(
            "The base of the rotary angles (position: rotary only). The slowest pair of a head needs just under 2π × "
            "rope_theta positions for one turn."
        ),
        why=(
            "It sets how far apart two tokens can be before their angles repeat, so longer contexts need a larger base."
        ),
        raised="Slower rotation: distant tokens stay distinguishable, nearby ones differ slightly less.",
        lowered="Faster rotation: sharper for nearby tokens, ambiguous for distant ones.",
        cases=(
            Case("sequences up to about 4096 tokens", 10000.0, "RoFormer, Llama, Llama 2"),
            Case("sequences of 8192 tokens", 500000.0, "Llama 3"),
            Case("fine-tuning on long contexts", 1000000.0, "Code Llama"),
        ),
        usual=(1000.0, 10000000.0),
        interacts=("model.position", "data.max_seq_length"),
        sources=(ROFORMER, LLAMA, LLAMA_2, LLAMA_3, CODE_LLAMA),
        aliases=("rotary_emb_base", "rope_base"),
    )

    tie_embeddings: bool = knob(
        True,
        what="Whether the input embedding and the output matrix share their weights.",
        why=(
            "Each has vocabulary × hidden_size parameters: 39 million in GPT-2 124M, nearly a third of the model. "
            "Press & Wolf 2017 found a lower perplexity with sharing; small models save the largest share."
        ),
        raised=(
            "On: fewer parameters and less optimizer state. The matrix gets gradients from both ends and counts as an "
            "embedding for weight decay."
        ),
        lowered=(
            "Off: another matrix of vocabulary × hidden_size. The first Qwen untied them for better results, at the "
            "price of memory."
        ),
        cases=(
            Case("small models, BERT, GPT-2, the first T5", True),
            Case("large models (Llama), T5 1.1", False),
        ),
        search=SearchRange("choice", choices=(True, False)),
        interacts=("model.hidden_size", "data.vocab_size", "optimizer.decay_embeddings", "model.initializer_range"),
        symptoms=("out of memory",),
        sources=(TIED_EMBEDDINGS, GPT_2, BERT, T5, T5_1_1, LLAMA, QWEN),
        aliases=("tie_word_embeddings", "weight_tying"),
    )

    qk_norm: bool = knob(
        False,
        what="Whether queries and keys are normalized before their dot product.",
        why=(
            "At high learning rates attention logits can grow until the softmax picks a single token and its gradient "
            "vanishes: every run in Wortsman et al. 2023 whose attention logits exceeded about 10,000 diverged. "
            "Normalization bounds the logits."
        ),
        raised=(
            "On: training tolerates much higher learning rates, and the exact learning rate matters less; one more "
            "norm of queries and keys per layer."
        ),
        lowered=(
            "Off: slightly faster and compatible with GPT-2 or Llama weights; the highest safe learning rate falls as "
            "the model grows."
        ),
        cases=(
            Case("small model, moderate learning rate", False),
            Case("large model, high learning rate, or growing attention logits", True, "OLMo 2, Gemma 3"),
        ),
        search=SearchRange("choice", choices=(False, True)),
        interacts=(
            "optimizer.learning_rate",
            "schedule.warmup_steps",
            "training.z_loss",
            "model.logit_soft_cap",
            "batch.max_grad_norm",
            "precision.compute",
        ),
        symptoms=("instability", "loss spikes", "NaN gradients"),
        sources=(QK_NORM, VIT_22B, SMALL_SCALE_PROXIES, OLMO_2, GEMMA_3, HF_CONFIGS),
        correction=(
            "It bounds attention logits, at √head_width while its gains are 1, and nothing else: for output logits "
            "use z_loss or logit_soft_cap, for single bad batches clipping and the guard. If the learning rate is "
            "simply too high, it limits the damage but does not make that learning rate a good one: over learning "
            "rates from 1.25e-4 to 0.128, 400 steps of gpt-tiny lost on average about half as much to a badly chosen "
            "one, while at the best one qk_norm was no better on two texts and better on a sorting task (see Measured)."
        ),
        aliases=("qk_layernorm", "use_qk_norm"),
    )

    logit_soft_cap: float | None = knob(
        None,
        gt=0,
        what="A smooth bound c on the output logits, c × tanh(logit / c); unset: no bound.",
        why=(
            "Output logits can drift upwards late in training. Bounding them keeps the loss and its gradients in "
            "range, above all in low precision."
        ),
        raised="A weaker bound: logits well below c pass almost unchanged.",
        lowered=(
            "A stronger bound: confident predictions are flattened and the gradients of capped logits vanish; too low "
            "hurts the loss."
        ),
        cases=(
            Case("usual", None, "z_loss treats the same drift without changing the model"),
            Case("large model whose logits keep growing", 30.0, "Gemma 2's value for the output"),
        ),
        usual=(10.0, 100.0),
        search=SearchRange("choice", choices=(None, 15.0, 30.0, 50.0)),
        interacts=("training.z_loss", "model.qk_norm", "optimizer.learning_rate", "precision.compute"),
        symptoms=("instability", "loss spikes", "NaN gradients"),
        sources=(GEMMA_2, GEMMA_3),
        correction=(
            "It caps output logits only. Gemma 2 also capped attention logits, which Gemma 3 replaced with qk-norm."
        ),
        aliases=("final_logit_softcapping", "logit_softcap"),
    )
