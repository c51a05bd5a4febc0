"""Thirty and more families of transformers, small and with random weights: trained for five steps, exported, compared.

    python benchmarks/families.py                     all of them; writes results/families.json and docs/families.md
    python benchmarks/families.py llama qwen2 bart    some of them; prints only

Each is saved as transformers saves it, with a small tokenizer, and goes through `trainbook train gpt-tiny
model.pretrained=DIR` and `trainbook export`. The exported folder is loaded by transformers, and must give the logits of
the run's model, as the class that came in, with as many parameters, positions and vocabulary rows.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import os
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from trainbook.cli.main import app as trainbook
from trainbook.loop.load_task import load_task
from trainbook.models.formats.checking import AUTO_CLASSES, largest_difference, token_rows
from trainbook.models.formats.tokenizing import ordinary_tokens, real_tokens
from trainbook.runs import RunFolder
from trainbook.tasks.adapters import merged

ROWS = 336  # of a vocabulary whose tokenizer has fewer tokens
POSITIONS, LENGTH = 96, 48  # of the model, and of the training
STEPS = 5
SPECIALS = ("<pad>", "<s>", "</s>", "<unk>", "<mask>")
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
PAIRS = ("data.text_field=source", "data.target_field=target", "data.max_target_length=24")
TOLERANCE = 1e-4
ROOT = Path(__file__).parents[1]

WIDTH = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
LLAMA = WIDTH | {"num_key_value_heads": 2, "max_position_embeddings": POSITIONS}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": POSITIONS}
BERT = WIDTH | {"max_position_embeddings": POSITIONS + 2}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
BART = {
    "d_model": 32,
    **{f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in
       (("layers", 2), ("attention_heads", 4), ("ffn_dim", 64))},
    "max_position_embeddings": POSITIONS,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": 2,
}  # fmt: skip


def rope(kind: str, **more: Any) -> dict[str, Any]:
    return LLAMA | {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **more}}


LLAMA3 = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 24}


@dataclass(frozen=True)
class Family:
    kind: str  # causal, masked or seq2seq
    model_type: str
    settings: dict[str, Any]


FAMILIES: dict[str, Family] = {
    name: Family(kind, model_type, settings)
    for kind, families in {
        "causal": {
            "gpt2": ("gpt2", GPT2),
            "llama": ("llama", LLAMA),
            "llama, llama3 rope": ("llama", rope("llama3", **LLAMA3)),
            "llama, yarn rope": ("llama", rope("yarn", factor=4.0, original_max_position_embeddings=24)),
            "llama, linear rope": ("llama", rope("linear", factor=2.0)),
            "llama, dynamic rope": ("llama", rope("dynamic", factor=2.0)),
            "mistral": ("mistral", LLAMA | {"sliding_window": None}),
            "mistral, sliding window": ("mistral", LLAMA | {"sliding_window": 8}),
            "qwen2": ("qwen2", LLAMA),
            "qwen3": ("qwen3", LLAMA | {"head_dim": 16}),
            "qwen2_moe": ("qwen2_moe", LLAMA | {"num_experts": 4, "num_experts_per_tok": 2,
                "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32}),
            "mixtral": ("mixtral", LLAMA | {"num_local_experts": 4, "sliding_window": None}),
            "gemma": ("gemma", LLAMA | {"head_dim": 8}),
            "gemma2": ("gemma2", LLAMA | {"head_dim": 8, "sliding_window": 16}),
            "gemma3": ("gemma3_text", LLAMA | {"head_dim": 8, "sliding_window": 16}),
            "phi": ("phi", LLAMA),
            "phi3": ("phi3", LLAMA),
            "gpt_neox": ("gpt_neox", WIDTH | {"max_position_embeddings": POSITIONS}),
            "gptj": ("gptj", GPT2 | {"rotary_dim": 4}),
            "gpt_neo": ("gpt_neo", {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "intermediate_size": 64,
                "max_position_embeddings": POSITIONS, "attention_types": [[["global", "local"], 1]],
                "window_size": 16}),
            "opt": ("opt", {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 64,
                "max_position_embeddings": POSITIONS, "word_embed_proj_dim": 32}),
            "bloom": ("bloom", {"hidden_size": 32, "n_layer": 2, "n_head": 4}),
            "falcon": ("falcon", WIDTH | {"num_kv_heads": 1, "ffn_hidden_size": 64}),
            "mpt": ("mpt", {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": POSITIONS}),
            "stablelm": ("stablelm", LLAMA),
            "olmo": ("olmo", LLAMA),
            "olmo2": ("olmo2", LLAMA),
            "starcoder2": ("starcoder2", LLAMA | {"sliding_window": 16}),
            "cohere": ("cohere", LLAMA),
            "granite": ("granite", LLAMA),
            "codegen": ("codegen", GPT2 | {"rotary_dim": 4}),
            "gpt_bigcode": ("gpt_bigcode", GPT2),
        },
        "masked": {
            "bert": ("bert", BERT),
            "roberta": ("roberta", BERT),
            "xlm-roberta": ("xlm-roberta", BERT),
            "distilbert": ("distilbert", {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64,
                "max_position_embeddings": POSITIONS}),
            "electra": ("electra", BERT | {"embedding_size": 16}),
            "albert": ("albert", BERT | {"embedding_size": 16}),
            "deberta-v2": ("deberta-v2", BERT | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}),
            "mpnet": ("mpnet", BERT),
            "modernbert": ("modernbert", WIDTH | {"max_position_embeddings": POSITIONS, "local_attention": 16,
                "cls_token_id": 1, "sep_token_id": 2}),
        },
        "seq2seq": {
            "t5": ("t5", T5 | {"n_positions": 512}),
            "flan-t5 (gated)": ("t5", T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
            "mt5": ("mt5", T5 | {"feed_forward_proj": "gated-gelu"}),
            "longt5": ("longt5", T5 | {"local_radius": 7, "encoder_attention_type": "local"}),
            "bart": ("bart", BART),
            "mbart": ("mbart", BART),
            "pegasus": ("pegasus", BART | {"decoder_start_token_id": 0}),
            "marian": ("marian", BART | {"decoder_start_token_id": 0}),
        },
    }.items()
    for name, (model_type, settings) in families.items()
}  # fmt: skip


@dataclass
class Row:
    family: str
    kind: str
    architecture: str
    outcome: str = "failed"  # native | fallback | refused | failed
    reason: str = ""  # why transformers computes it, why it was refused, or what failed
    first_loss: float | None = None
    last_loss: float | None = None
    largest_difference: float | None = None  # of logits
    keeps: dict[str, bool] = field(default_factory=dict)  # class, parameters, positions and vocabulary rows


def measure(name: str, place: Path) -> Row:
    family, folder, runs = FAMILIES[name], place / "model", place / "runs"
    with quiet_transformers():
        base = make_model(family, folder)
    make_tokenizer(folder, family.kind)
    source = make_data(place, family.kind)
    row = Row(name, family.kind, type(base).__name__)
    knobs = (
        *(f"model.pretrained={folder}", f"data.source={source}", f"data.max_seq_length={LENGTH}"),
        *(f"training.max_steps={STEPS}", "schedule.warmup_steps=1", "logging.logging_steps=1"),
        *("batch.global_batch_size=4", "evaluation.eval_strategy=no", "data.num_workers=0", "memory.compile=off"),
        *(
            ("data.text_field=source", "data.target_field=target", "data.max_target_length=24")
            if family.kind == "seq2seq"
            else ()
        ),
    )
    code, said = run("train", "gpt-tiny", *knobs, "--runs-dir", str(runs), "--name", "tuned")
    if code != 0:
        row.outcome, row.reason = ("refused" if code == 2 else "failed"), last_line(said)
        return row
    tuned = RunFolder.open(runs / "tuned", str(runs))
    losses = [line["loss"] for line in tuned.metrics("train")]
    row.first_loss, row.last_loss = losses[0], losses[-1]
    reasons = (line.partition("because ")[2] for line in said.splitlines() if "model.type: hf" in line)
    row.reason = next(reasons, "").removesuffix(".")
    code, said = run("export", str(tuned.path), "--to", str(place / "out"))
    if code != 0:
        row.outcome, row.reason = "failed", last_line(said)
        return row
    restored = load_task(tuned, "best", torch.device("cpu"))
    pad = restored.tokenizer.special("pad") or 0
    tokens = token_rows(ordinary_tokens(restored.tokenizer), real_tokens(restored.tokenizer), LENGTH, seed=5)
    row.largest_difference = largest_difference(merged(restored.task), family.kind, place / "out", tokens, pad)
    row.keeps = what_is_kept(base, place / "out", family.kind)
    is_right = all(row.keeps.values()) and row.largest_difference <= TOLERANCE and row.last_loss == row.last_loss
    row.outcome = "failed" if not is_right else "fallback" if restored.config.model.type == "hf" else "native"
    if not is_right:
        row.reason = f"not kept: {', '.join(key for key, is_kept in row.keeps.items() if not is_kept)}"
    return row


def make_model(family: Family, folder: Path) -> Any:
    torch.manual_seed(0)
    settings = TOKENS | {"vocab_size": ROWS} | family.settings
    config = transformers.AutoConfig.for_model(family.model_type, **settings)
    model = getattr(transformers, AUTO_CLASSES[family.kind]).from_config(config).eval()
    if family.settings.get("tie_word_embeddings") is False and hasattr(model, "shared"):
        model.lm_head.weight = torch.nn.Parameter(model.shared.weight.detach().clone())  # as published
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))  # far from first values: a mistake shows in the logits
    model.save_pretrained(folder)
    return model


def what_is_kept(base: Any, folder: Path, kind: str) -> dict[str, bool]:
    with quiet_transformers():
        loaded = getattr(transformers, AUTO_CLASSES[kind]).from_pretrained(folder)
    names = ("max_position_embeddings", "n_positions", "sliding_window", "rope_parameters", "rms_norm_eps")
    same = {name: getattr(base.config, name, None) == getattr(loaded.config, name, None) for name in names}
    rows = [len(model.get_input_embeddings().weight) for model in (base, loaded)]
    counts = [sum(parameter.numel() for parameter in model.parameters()) for model in (base, loaded)]
    return {
        "class": type(base) is type(loaded),
        "rows": rows[0] == rows[1],
        "parameters": counts[0] == counts[1],
        **same,
    }


def make_tokenizer(folder: Path, kind: str) -> None:
    library = Tokenizer(models.BPE(unk_token="<unk>"))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=list(SPECIALS), initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    library.train_from_iterator(sentences(), trainer)
    if kind != "causal":
        names = [("<s>", 1), ("</s>", 2)]
        library.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=names)
    library.save(str(folder / "tokenizer.json"))
    named = {"pad": 0, "bos": 1, "eos": 2, "unk": 3, "mask": 4, "cls": 1, "sep": 2}
    settings = {f"{role}_token": SPECIALS[number] for role, number in named.items()}
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": POSITIONS, **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))


def sentences() -> list[str]:
    who, what, where = ("the fox", "a dog", "my cat", "one bird"), ("sees", "likes", "hears"), ("here", "there", "now")
    return [f"{a} {b} {c} {d}" for a in who for b in what for c in who for d in where]


def make_data(place: Path, kind: str) -> Path:
    if kind != "seq2seq":
        (place / "text.txt").write_text("\n".join(3 * sentences()))
        return place / "text.txt"
    pairs = ({"source": text, "target": " ".join(reversed(text.split()))} for text in sentences())
    (place / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    return place / "pairs.jsonl"


def run(*words: str) -> tuple[int, str]:
    """A command's exit code and all that it says."""
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        try:
            code = trainbook(list(words))
        except SystemExit as ended:
            code = ended.code
        except Exception:
            traceback.print_exc()
            code = 1
    return (code if isinstance(code, int) else 0 if code is None else 1), said.getvalue()


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "said nothing"


@contextmanager
def quiet_transformers() -> Iterator[None]:
    transformers.utils.logging.disable_progress_bar()
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(level)


def page(rows: list[Row]) -> str:
    """docs/families.md"""
    count: Callable[[str], int] = lambda outcome: sum(row.outcome == outcome for row in rows)  # noqa: E731
    lines = [
        "# Which families of models work",
        "",
        f"{len(rows)} small models of transformers {transformers.__version__} with random weights, made by",
        f"`python benchmarks/families.py`. Each was saved by transformers, trained for {STEPS} steps with",
        "`trainbook train gpt-tiny model.pretrained=DIR`, exported, and loaded by transformers again. It works if the",
        "class, the number of parameters, the positions and the vocabulary rows are those that came in, and if the",
        f"logits of the exported model differ from those of the run by at most {TOLERANCE:g}.",
        "",
        f"- **native** ({count('native')}): the built-in models support it.",
        f"- **fallback** ({count('fallback')}): transformers computes it (`model.type=hf`), and the run says why.",
        f"- **refused** ({count('refused')}): an error message before anything is trained.",
        f"- **failed** ({count('failed')}): something is wrong.",
        "",
        "| family | class | outcome | largest difference of logits | reason |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        difference = "" if row.largest_difference is None else f"{row.largest_difference:.1e}"
        lines.append(f"| {row.family} | `{row.architecture}` | {row.outcome} | {difference} | {row.reason} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", help="names, or their beginnings; none: all")
    chosen = parser.parse_args().families
    rows = []
    for name in FAMILIES:
        if chosen and not any(name == each or name.startswith(f"{each},") for each in chosen):
            continue
        with tempfile.TemporaryDirectory() as place:
            row = measure(name, Path(place))
        print(
            f"{row.outcome:9} {row.family:26} {row.architecture:32} {row.largest_difference} {row.reason}", flush=True
        )
        rows.append(row)
    if not chosen:
        about = {"transformers": transformers.__version__, "torch": torch.__version__, "steps": STEPS}
        content = {**about, "families": [asdict(row) for row in rows]}
        (ROOT / "benchmarks/results/families.json").write_text(json.dumps(content, indent=1) + "\n")
        (ROOT / "docs/families.md").write_text(page(rows))


if __name__ == "__main__":
    main()
