"""Tiny models of transformers with random weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from strangers.data.tokens import PAD
from strangers.job import Job

LONGEST, END = 140, 3


def build(job: Job) -> nn.Module:
    import transformers as hf

    torch.manual_seed(job.seed)
    settings = BY_NETWORK[job.network](job)
    network: nn.Module = {
        "bert": lambda: hf.BertForSequenceClassification(hf.BertConfig(**settings)),
        "bert-masked": lambda: hf.BertForMaskedLM(hf.BertConfig(**settings)),
        "roberta": lambda: hf.RobertaForSequenceClassification(hf.RobertaConfig(**settings)),
        "distilbert": lambda: hf.DistilBertForSequenceClassification(hf.DistilBertConfig(**settings)),
        "gpt2": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**settings)),
        "gpt2-classify": lambda: hf.GPT2ForSequenceClassification(hf.GPT2Config(**settings)),
        "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**settings)),
        "t5": lambda: hf.T5ForConditionalGeneration(hf.T5Config(**settings)),
    }[job.network]()
    for change in job.surgery:
        change(network)
    return network


def _common(job: Job) -> dict[str, Any]:
    found: dict[str, Any] = {"vocab_size": job.vocab, "pad_token_id": PAD}
    if "initializer_range" in job.shape:
        found["initializer_range"] = job.shape["initializer_range"]
    if job.task in ("classify", "regress"):
        found["num_labels"] = max(1, job.num_classes)
    if job.task == "regress":
        found["problem_type"] = "regression"
    return found


def _heads(job: Job) -> int:
    return 2 if job.shape["width"] % 4 == 0 else 1


def _encoder(job: Job) -> dict[str, Any]:
    shape = job.shape
    return {
        **_common(job),
        "hidden_size": shape["width"],
        "num_hidden_layers": shape["depth"],
        "num_attention_heads": _heads(job),
        "intermediate_size": 2 * shape["width"],
        "max_position_embeddings": LONGEST,
        "hidden_dropout_prob": shape["dropout"],
        "attention_probs_dropout_prob": min(shape["dropout"], 0.3),
    }


def _roberta(job: Job) -> dict[str, Any]:
    return {**_encoder(job), "bos_token_id": END, "eos_token_id": END}


def _distilbert(job: Job) -> dict[str, Any]:
    shape = job.shape
    return {
        **_common(job),
        "dim": shape["width"],
        "n_layers": shape["depth"],
        "n_heads": _heads(job),
        "hidden_dim": 2 * shape["width"],
        "dropout": shape["dropout"],
        "seq_classif_dropout": shape["dropout"],
    }


def _gpt2(job: Job) -> dict[str, Any]:
    shape = job.shape
    return {
        **_common(job),
        "n_positions": LONGEST,
        "n_embd": shape["width"],
        "n_layer": shape["depth"],
        "n_head": _heads(job),
        "resid_pdrop": shape["dropout"],
        "embd_pdrop": shape["dropout"],
        "attn_pdrop": min(shape["dropout"], 0.3),
        "bos_token_id": END,
        "eos_token_id": END,
    }


def _llama(job: Job) -> dict[str, Any]:
    found = _roberta(job)
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
        del found[name]
    return found


def _t5(job: Job) -> dict[str, Any]:
    found = _common(job)
    factor = found.pop("initializer_range", 0.02) / 0.02
    return {
        **found,
        "initializer_factor": factor,
        "d_model": job.shape["width"],
        "d_kv": 16,
        "d_ff": 2 * job.shape["width"],
        "num_layers": job.shape["depth"],
        "num_heads": 2,
        "dropout_rate": job.shape["dropout"],
        "decoder_start_token_id": PAD,
    }


BY_NETWORK = {
    "bert": _encoder,
    "bert-masked": _encoder,
    "roberta": _roberta,
    "distilbert": _distilbert,
    "gpt2": _gpt2,
    "gpt2-classify": _gpt2,
    "llama": _llama,
    "t5": _t5,
}
