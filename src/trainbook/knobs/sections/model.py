"""The network: its kind, its size and its parts."""

from __future__ import annotations

from typing import Literal

from trainbook.knobs.knob import Case, Search, Section, knob


class Model(Section):
    """The network: its kind, its size and its parts."""

    type: Literal["gpt"] = knob(
        "gpt",
        what="The kind of transformer.",
        why=(
            "The kind settles what a token may look at and what is learned: a decoder predicts the next "
            "token from those before it, and so can generate. Encoders (BERT) read both directions and suit "
            "classification; encoder-decoders (T5) suit text in, text out."
        ),
        raised="There is one kind, so nothing to switch to.",
        lowered="There is one kind, so nothing to switch to.",
        values={"gpt": "decoder only, causal attention, trained on the next token"},
        interacts=("model.position", "data.samples"),
        sources=("playbook notes", "Radford et al. 2019 (GPT-2)"),
        aliases=("model_type", "architecture"),
        value_aliases={"gpt2": "gpt"},
    )

    num_hidden_layers: int = knob(
        6,
        ge=1,
        what="How many transformer blocks are stacked.",
        why=(
            "Parameters, compute and kept activations all grow in proportion to depth: a block of width h "
            "holds about 12 h² parameters. Blocks run one after another, so depth also costs time that "
            "width does not."
        ),
        raised=(
            "More capacity; memory and time per step grow in proportion, and a learning rate that was safe "
            "may no longer be: depth raises sensitivity to the rate faster than width does."
        ),
        lowered="Faster, smaller, easier to train; too few layers underfit even when they are wide.",
        cases=(
            Case("first experiments on one device", 6),
            Case("BERT-base, GPT-2 124M, T5-base (each stack)", 12, "with width 768"),
            Case("BERT-large, GPT-2 medium", 24, "with width 1024"),
        ),
        usual=(2, 128),
        search=Search("linear", 2, 24),
        rank=3,
        interacts=(
            "model.hidden_size",
            "optimizer.learning_rate",
            "memory.gradient_checkpointing",
            "model.initializer_range",
        ),
        symptoms=("underfitting", "out of memory", "too slow", "instability"),
        sources=("playbook notes", "Wortsman et al. 2023 (small-scale proxies)"),
        correction=(
            "Depth as such does not overfit: parameters against distinct tokens, and the number of passes "
            "over them, do. In a single pass over a large corpus there is little to overfit."
        ),
        aliases=("num_layers", "n_layer", "n_layers", "layers"),
    )

    hidden_size: int = knob(
        384,
        ge=1,
        what="The width: how many numbers represent one token between blocks (a multiple of num_attention_heads).",
        why=(
            "Parameters and compute of the blocks grow with its square (about 12 h² per layer), the "
            "embedding in proportion. It is the main lever on capacity."
        ),
        raised=(
            "More capacity; memory and time grow quadratically, and the best learning rate falls: roughly "
            "halved with each doubling in the standard parametrization."
        ),
        lowered=(
            "Smaller and faster, tolerates a higher rate; too low underfits. In a narrow model the "
            "embedding takes most of the parameters."
        ),
        cases=(
            Case("first experiments on one device", 384),
            Case("base models (BERT-base, GPT-2 124M, T5-base)", 768, "with 12 layers"),
            Case("large models (BERT-large, GPT-2 medium)", 1024, "with 24 layers"),
            Case("GPUs with tensor cores", 768, "any multiple of 64; other sizes run slower"),
        ),
        usual=(64, 16384),
        search=Search("choice", choices=(192, 384, 576, 768)),
        rank=2,
        interacts=(
            "model.num_attention_heads",
            "model.intermediate_size",
            "optimizer.learning_rate",
            "model.initializer_range",
            "model.parametrization",
        ),
        symptoms=("underfitting", "out of memory", "too slow"),
        sources=("playbook notes", "Yang et al. 2022 (muTransfer)", "Megatron-LM muP sweep"),
        aliases=("n_embd", "d_model", "width", "hidden_dim"),
    )

    intermediate_size: int | None = knob(
        None,
        ge=1,
        what="The inner width of each feed-forward network; unset, 4 × hidden_size.",
        why=(
            "With 4 × it holds two thirds of a block's parameters (8 of 12 h²), so it sets most of the "
            "cost. A gated activation has three matrices instead of two: at the same inner width it holds "
            "half as much again."
        ),
        raised="More capacity per layer; parameters, compute and activations of the feed-forward grow in proportion.",
        lowered="Smaller and faster; less capacity where most of the parameters were.",
        cases=(
            Case("gelu, gelu_tanh, relu, silu at width 768", 3072, "4 × hidden_size, as in BERT-base and GPT-2"),
            Case(
                "swiglu, geglu at width 384",
                1024,
                ("8/3 × hidden_size keeps the parameter count of 4 × without a gate; set it yourself, unset stays 4 ×"),
            ),
            Case("swiglu, geglu at width 768", 2048, "8/3 × hidden_size; round up to a multiple of 64"),
        ),
        usual=(128, 65536),
        interacts=("model.hidden_size", "model.activation"),
        symptoms=("underfitting", "out of memory"),
        sources=("playbook notes", "Shazeer 2020 (GLU variants)"),
        correction=(
            "Four times the width is the rule for ungated networks. Carried over to swiglu or geglu it "
            "makes the feed-forward 1.5 times larger, so a comparison of activations at equal inner width "
            "is not one at equal size."
        ),
        aliases=("n_inner", "d_ff", "ffn_dim", "ffn_hidden_size"),
    )

    num_attention_heads: int = knob(
        6,
        ge=1,
        what="How many attention patterns each layer computes side by side; it divides hidden_size.",
        why=(
            "The width is split among the heads, so parameters stay the same; what changes is the size of a "
            "head, hidden_size / num_attention_heads. Heads of 64 to 128 are the field's habit, and what "
            "fast kernels are built for."
        ),
        raised="More, narrower patterns; very narrow heads (under 32) can express little each and run inefficiently.",
        lowered="Fewer, wider heads; less variety in what a layer can attend to at once.",
        cases=(
            Case("width 384", 6, "heads of 64"),
            Case("width 768 (BERT-base, GPT-2 124M, T5-base)", 12, "heads of 64"),
            Case("width 1024 (BERT-large, GPT-2 medium)", 16, "heads of 64"),
            Case("width 4096", 32, "heads of 128, as in Llama 7B"),
        ),
        usual=(1, 128),
        search=Search("choice", choices=(3, 6, 12)),
        interacts=("model.hidden_size", "model.num_key_value_heads", "model.qk_norm"),
        symptoms=("too slow",),
        sources=("Vaswani et al. 2017", "Radford et al. 2019 (GPT-2)", "Touvron et al. 2023 (Llama)"),
        correction="More heads do not make a larger model: the projections keep their size, only the split changes.",
        aliases=("n_head", "n_heads", "num_heads"),
    )

    num_key_value_heads: int | None = knob(
        None,
        ge=1,
        what=(
            "How many heads the keys and values have, each shared by a group of query heads; unset, as many "
            "as query heads."
        ),
        why=(
            "While generating, the cache of keys and values shrinks by num_attention_heads / "
            "num_key_value_heads. In training it saves only the parameters and activations of those two "
            "projections."
        ),
        raised="Closer to full attention: best quality, largest cache.",
        lowered=(
            "Smaller cache and faster generation, a little worse loss; 1 (multi-query) is the extreme and "
            "the likeliest to cost quality. It must divide num_attention_heads."
        ),
        cases=(
            Case("small models, or no generation at scale", None, "full attention; little to save"),
            Case("large models made to generate", 8, "grouped queries, as in Llama 2 70B, Llama 3 and Mistral 7B"),
        ),
        usual=(1, 128),
        interacts=("model.num_attention_heads",),
        symptoms=("out of memory", "too slow"),
        sources=("Shazeer 2019 (multi-query)", "Ainslie et al. 2023 (grouped-query)"),
        correction="It is an aid to generation; as a cure for running out of memory in training it does little.",
        aliases=("n_kv_head", "num_kv_heads"),
    )

    dropout: float = knob(
        0.0,
        ge=0,
        lt=1,
        what=(
            "The share of activations set to zero at random in training (the rest are scaled up to make "
            "good); off in evaluation."
        ),
        why=(
            "It stops units from relying on one another, which helps when the same examples return many "
            "times. Where each token is seen once there is nothing to memorise, and it only slows learning."
        ),
        raised=(
            "Less overfitting, slower learning, and a training loss that reads higher than the evaluation "
            "loss of the same weights; too high underfits."
        ),
        lowered="Faster learning and lower training loss; overfits sooner when data repeats.",
        cases=(
            Case("pretraining, about one pass over the data", 0.0, "PaLM and the cramming study trained without"),
            Case("small data, many epochs", 0.1, "raise to 0.2 if validation still turns upwards"),
            Case("fine-tuning", 0.1),
            Case("BERT and the first T5, as published", 0.1),
        ),
        usual=(0.0, 0.3),
        search=Search("linear", 0.0, 0.3),
        interacts=("training.num_train_epochs", "optimizer.weight_decay", "training.label_smoothing"),
        symptoms=("overfitting", "underfitting"),
        sources=(
            "playbook notes",
            "Srivastava et al. 2014",
            "Chowdhery et al. 2022 (PaLM)",
            "Geiping & Goldstein 2023 (cramming)",
        ),
        correction=(
            "0.1 is often named as the default for everything. It comes from models trained for many "
            "epochs; single-epoch pretraining usually leaves it at 0."
        ),
        aliases=("hidden_dropout_prob", "dropout_rate", "resid_pdrop"),
    )

    bias: bool = knob(
        False,
        what="Whether linear layers add a bias and norms a shift.",
        why=(
            "Biases are a tiny share of the parameters and add little in a transformer, but can grow "
            "unchecked in long runs. The key bias adds the same amount to every score of a query and "
            "cancels in the softmax (with learned positions and no qk_norm): its gradient is only rounding "
            "noise, which Adam can still turn into steps."
        ),
        raised="On: a few more parameters (none of them decayed) and the layout that BERT and GPT-2 weights need.",
        lowered="Off: slightly faster, reported as more stable for large models. The norms lose their shift as well.",
        cases=(
            Case("from scratch", False, "T5, PaLM, Llama"),
            Case("to match BERT or GPT-2 as published", True),
        ),
        search=Search("choice", choices=(False, True)),
        interacts=("model.norm", "optimizer.weight_decay"),
        symptoms=("instability", "loss spikes"),
        sources=("playbook notes", "Chowdhery et al. 2022 (PaLM)", "Geiping & Goldstein 2023 (cramming)"),
        aliases=("use_bias", "add_bias_linear"),
    )

    norm: Literal["layernorm", "rmsnorm"] = knob(
        "layernorm",
        what="How activations are normalised inside the network.",
        why=(
            "Normalising keeps activations at one scale through depth; without it deep stacks do not train. "
            "The two kinds differ only in whether the mean is taken out first."
        ),
        raised="To layernorm: the mean is removed too; a little more work.",
        lowered="To rmsnorm: only the scale is normalised, fewer operations; quality is about the same.",
        values={
            "layernorm": (
                "subtract the mean, divide by the standard deviation, multiply by a learned gain (and add a "
                "shift if bias is on)"
            ),
            "rmsnorm": "divide by the root mean square, multiply by a learned gain; no mean, never a shift",
        },
        cases=(
            Case("BERT, GPT-2", "layernorm"),
            Case("T5, Llama, OLMo 2, Gemma", "rmsnorm"),
        ),
        search=Search("choice", choices=("layernorm", "rmsnorm")),
        interacts=("model.norm_epsilon", "model.bias"),
        symptoms=("instability", "too slow"),
        sources=("playbook notes", "Ba et al. 2016", "Zhang & Sennrich 2019", "OLMo 2 (2024)"),
        correction=(
            "That RMSNorm lets activations grow through depth, so that LayerNorm is safer, is a rumour "
            "without a published measurement behind it; most large models use RMSNorm. Measure it on your "
            "own model."
        ),
        aliases=("norm_type", "normalization"),
        value_aliases={"layer_norm": "layernorm", "rms_norm": "rmsnorm", "rms": "rmsnorm"},
    )

    norm_epsilon: float = knob(
        1e-5,
        gt=0,
        lt=1,
        what="A small number added to the variance (or mean square) before the norm divides by its root.",
        why=(
            "It keeps the division finite for a nearly constant input. It matters only where the variance "
            "is itself that small."
        ),
        raised="Safer in low precision; too high damps real signals of small scale.",
        lowered=(
            "More exact for tiny activations; below about 6e-8 it is zero in fp16, and then protects nothing there."
        ),
        cases=(
            Case("GPT-2, Llama 2", 1e-5),
            Case("T5, the first Llama", 1e-6),
            Case("BERT as published", 1e-12, "norms computed in fp32"),
        ),
        usual=(1e-12, 1e-5),
        interacts=("model.norm", "precision.compute"),
        symptoms=("NaN gradients",),
        sources=("published configurations of BERT, GPT-2, T5 and Llama",),
        aliases=("layer_norm_eps", "rms_norm_eps", "layer_norm_epsilon"),
    )

    activation: Literal["gelu", "gelu_tanh", "relu", "silu", "swiglu", "geglu"] = knob(
        "gelu",
        what="The non-linearity of the feed-forward networks.",
        why=(
            "The gated kinds (swiglu, geglu) multiply two projections and reach a lower loss at equal "
            "parameters; they need a third matrix, so the inner width must shrink to keep the size."
        ),
        raised=(
            "To a gated kind: better loss for the same parameters if intermediate_size is set to 8/3 × "
            "hidden_size; at the unset 4 × the feed-forward becomes 1.5 times larger."
        ),
        lowered=(
            "To an ungated kind: two matrices and fewer activations kept; relu is the cheapest and can "
            "leave units dead."
        ),
        values={
            "gelu": "x Φ(x), exact; BERT",
            "gelu_tanh": "the tanh approximation of gelu; GPT-2 weights expect it",
            "relu": "max(x, 0); the first T5",
            "silu": "x sigmoid(x), also called swish",
            "swiglu": "silu(gate) × up, three matrices; PaLM, Llama",
            "geglu": "gelu(gate) × up, three matrices; T5 v1.1",
        },
        cases=(
            Case("BERT, small GPT", "gelu"),
            Case("GPT-2 as published", "gelu_tanh"),
            Case("T5 v1.1", "geglu"),
            Case("large models from scratch", "swiglu", "with intermediate_size at 8/3 × hidden_size"),
        ),
        search=Search("choice", choices=("gelu", "swiglu")),
        interacts=("model.intermediate_size",),
        symptoms=("underfitting",),
        sources=("Hendrycks & Gimpel 2016", "Shazeer 2020 (GLU variants)"),
        aliases=("hidden_act", "activation_function"),
        value_aliases={"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "swish": "silu"},
    )

    position: Literal["learned", "rotary", "none"] = knob(
        "learned",
        what="How the model knows the order of tokens.",
        why=(
            "Attention itself ignores order. Learned vectors tie the model to the length it was trained on; "
            "rotary encodes distance inside the attention scores and adds no parameters."
        ),
        raised="To learned: simple and fast, one vector per position up to max_seq_length, nothing beyond it.",
        lowered=(
            "To rotary: relative distances, often a lower loss, a little more work per layer. To none: only "
            "the causal mask hints at order."
        ),
        values={
            "learned": "a trained vector for each position, added to the embedding",
            "rotary": "queries and keys are turned by an angle that grows with position; see rope_theta",
            "none": "no position signal; a causal decoder can still infer some order",
        },
        cases=(
            Case("BERT, GPT-2", "learned"),
            Case("large models from scratch (PaLM, Llama)", "rotary"),
        ),
        search=Search("choice", choices=("learned", "rotary")),
        interacts=("data.max_seq_length", "model.rope_theta"),
        sources=("Vaswani et al. 2017", "Su et al. 2021 (RoFormer)", "Kazemnejad et al. 2023"),
        correction=(
            "Rotary does not by itself carry a model past its trained length: without a change of base or "
            "further training, loss climbs there too."
        ),
        aliases=("position_embedding_type", "positional_encoding"),
        value_aliases={"absolute": "learned", "rope": "rotary"},
    )

    rope_theta: float = knob(
        10000.0,
        gt=0,
        what=(
            "The base of the rotary angles (position: rotary only): the slowest pair of a head takes "
            "somewhat under 2π × rope_theta positions for one turn."
        ),
        why=(
            "It fixes how far apart two tokens can be before their angles repeat, so longer contexts want a "
            "larger base."
        ),
        raised="Slower rotation: distant tokens stay distinguishable, near ones differ a little less.",
        lowered="Faster rotation: sharper near by, ambiguous far away.",
        cases=(
            Case("sequences up to about 4096 tokens", 10000.0, "RoFormer, Llama, Llama 2"),
            Case("sequences of 8192 tokens", 500000.0, "Llama 3"),
            Case("long-context training", 1000000.0, "Code Llama"),
        ),
        usual=(1000.0, 10000000.0),
        interacts=("model.position", "data.max_seq_length"),
        sources=("Su et al. 2021 (RoFormer)", "Rozière et al. 2023 (Code Llama)", "Llama 3 (2024)"),
        aliases=("rotary_emb_base", "rope_base"),
    )

    tie_embeddings: bool = knob(
        True,
        what="Whether input embedding and output matrix are one and the same.",
        why=(
            "Each holds vocabulary × hidden_size numbers: in GPT-2 124M that is 39 million, nearly a third "
            "of the model. Small models gain more from sharing than from the freedom."
        ),
        raised=(
            "On: fewer parameters and less optimizer memory; the matrix gets gradients from both ends and "
            "counts as an embedding for weight decay."
        ),
        lowered=(
            "Off: one more matrix of vocabulary × hidden_size; large models hardly notice the cost and can "
            "gain a little."
        ),
        cases=(
            Case("small models, BERT, GPT-2, the first T5", True),
            Case("large models (Llama), T5 v1.1", False),
        ),
        search=Search("choice", choices=(True, False)),
        interacts=("model.hidden_size", "data.vocab_size", "optimizer.decay_embeddings", "model.initializer_range"),
        symptoms=("out of memory",),
        sources=("Press & Wolf 2017",),
        aliases=("tie_word_embeddings", "weight_tying"),
    )

    qk_norm: bool = knob(
        False,
        what="Whether queries and keys are normalised before their dot product.",
        why=(
            "At high learning rates attention scores can grow until the softmax picks one token and its "
            "gradient vanishes; in the small-scale study every run whose largest score passed about 10,000 "
            "diverged. Normalising bounds the scores."
        ),
        raised=(
            "On: training survives much higher learning rates, and the choice of rate matters less; one "
            "more norm of queries and keys per layer."
        ),
        lowered=(
            "Off: slightly faster and compatible with GPT-2 or Llama weights; the highest safe rate falls "
            "as the model grows."
        ),
        cases=(
            Case("small model, moderate rate", False),
            Case("large model, high rate, or scores that keep growing", True, "OLMo 2, Gemma 3"),
        ),
        search=Search("choice", choices=(False, True)),
        interacts=("optimizer.learning_rate", "training.z_loss", "model.logit_soft_cap"),
        symptoms=("instability", "loss spikes", "NaN gradients"),
        sources=(
            "Henry et al. 2020",
            "Dehghani et al. 2023 (ViT-22B)",
            "Wortsman et al. 2023 (small-scale proxies)",
            "OLMo 2 (2024)",
        ),
        aliases=("qk_layernorm", "use_qk_norm"),
    )

    logit_soft_cap: float | None = knob(
        None,
        gt=0,
        what="A smooth bound c on the output logits, c × tanh(logit / c); unset, no bound.",
        why=(
            "Output logits can drift upwards late in training; bounding them keeps the loss and its "
            "gradients in range, most of all in low precision."
        ),
        raised="Weaker bound: logits well below c pass almost unchanged.",
        lowered=(
            "Stronger bound: confident predictions are flattened, and gradients of capped logits vanish; "
            "too low and the loss suffers."
        ),
        cases=(
            Case("usual", None, "z_loss treats the same drift without changing the model"),
            Case("large model whose logits keep growing", 30.0, "Gemma 2's value for the output"),
        ),
        usual=(10.0, 100.0),
        search=Search("choice", choices=(None, 15.0, 30.0, 50.0)),
        interacts=("training.z_loss", "model.qk_norm", "precision.compute"),
        symptoms=("instability", "loss spikes"),
        sources=("Gemma 2 (2024)",),
        correction=(
            "This caps output logits only. Caps on attention scores are another device, which Gemma 3 gave "
            "up in favour of qk-norm."
        ),
        aliases=("final_logit_softcapping", "logit_softcap"),
    )

    initializer_range: float = knob(
        0.02,
        gt=0,
        what=(
            "The standard deviation of the normal distribution from which weights start; matrices that "
            "write to the residual stream start smaller by 1/√(2 × layers)."
        ),
        why=(
            "It sets the scale of the first logits, about initializer_range × √hidden_size, and with it the "
            "first loss, which should lie close to ln(vocabulary). The smaller residual outputs keep the "
            "sum over layers at the scale of one."
        ),
        raised="First loss above ln(vocabulary), larger first gradients, early instability.",
        lowered="Safer start, slower first steps; far too small and signals vanish between layers.",
        cases=(
            Case("width up to about 1024 (BERT, GPT-2)", 0.02),
            Case("width 4096", 0.011, "√(2 / (5 × width)): wider matrices sum more terms"),
            Case("width 12288", 0.0052, "√(1 / (3 × width))"),
        ),
        usual=(0.004, 0.05),
        search=Search("log", 0.005, 0.05),
        interacts=("model.hidden_size", "model.num_hidden_layers", "schedule.warmup_steps", "model.tie_embeddings"),
        symptoms=("instability", "NaN gradients", "loss not decreasing"),
        sources=("Radford et al. 2019 (GPT-2)", "ml-engineering (Bekman)"),
        aliases=("init_std",),
    )

    vocab_multiple: int = knob(
        1,
        ge=1,
        what="The embedding's rows are padded up to a multiple of this; padded rows never get probability.",
        why=(
            "GPU kernels for the output matrix run best on sizes divisible by 64 or 128, and this is often "
            "the largest matrix of a small model. 50,257 tokens become 50,304."
        ),
        raised=(
            "At most that many unused rows, less one; often a faster output layer on GPUs. Loss and "
            "predictions do not change."
        ),
        lowered="1: no unused row; an odd vocabulary can run noticeably slower on tensor cores.",
        cases=(
            Case("CPU, tiny vocabulary", 1),
            Case("GPU", 64, "128 is also common, as in Megatron-LM"),
        ),
        usual=(1, 256),
        interacts=("data.vocab_size", "data.tokenizer", "precision.compute"),
        symptoms=("too slow",),
        sources=("nanoGPT", "Megatron-LM"),
        aliases=("pad_vocab_size_multiple", "make_vocab_size_divisible_by", "pad_to_multiple_of"),
    )

    parametrization: Literal["standard"] = knob(
        "standard",
        what="The rule by which initial scales and learning rates depend on width.",
        why=(
            "In the standard rule nothing is corrected for width, so the best learning rate falls as the "
            "model widens: in Megatron-LM's sweep from 9.8e-4 at width 128 to 6.1e-5 at 2048, halving with "
            "each doubling. A rate found on a small model must be lowered or searched again."
        ),
        raised="There is one rule, so nothing to switch to.",
        lowered="There is one rule, so nothing to switch to.",
        values={"standard": "one learning rate and one initial scale for all matrices, whatever the width"},
        interacts=("model.hidden_size", "optimizer.learning_rate", "model.initializer_range"),
        symptoms=("instability",),
        sources=("playbook notes", "Yang et al. 2022 (muTransfer)", "Megatron-LM muP sweep"),
    )
