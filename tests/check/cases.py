"""Runs that are wrong in a known way, and runs that are not: what `check` says of each is counted.

A case is a configuration with its data and, where it needs some, a model or task of its own. `names` are the checks
that say what is wrong with it; any other failure is a hint at best.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Row = dict[str, Any]
SYLLABLES = ["ba", "do", "ki", "lu", "mer", "na", "pos", "ra", "sel", "ti", "vo", "wen"]
CLASSES: tuple[str, ...] = ("sport", "music", "trade")


def words(count: int, seed: int) -> list[str]:
    """Made-up ones, all different."""
    draw, found = np.random.default_rng(seed), {}
    while len(found) < count:
        found["".join(draw.choice(SYLLABLES, int(draw.integers(2, 5))))] = None
    return list(found)


COMMON = words(400, 1)
TOPICAL: dict[str, Any] = dict(zip(CLASSES, np.array_split(np.array(words(75, 2)), 3), strict=True))


def sentence(draw: np.random.Generator, label: str | None = None, topical: int = 3, length: int = 10) -> str:
    """Common words, and some that are typical of a class; no word of a class is in most of its texts."""
    chosen = [COMMON[min(399, int(draw.exponential(80)))] for _ in range(length)]
    for _ in range(topical if label else 0):
        source = str(label if draw.random() < 0.9 else draw.choice(CLASSES))
        chosen.insert(int(draw.integers(len(chosen))), str(draw.choice(TOPICAL[source])))
    return " ".join(chosen)


def labelled(count: int = 300, seed: int = 0, classes: Iterable[str] = CLASSES, **options: Any) -> list[Row]:
    draw = np.random.default_rng(seed)
    labels = [str(label) for label in draw.choice(list(classes), count)]
    return [{"text": sentence(draw, label, **options), "label": label} for label in labels]


def plain(count: int = 120, seed: int = 0, length: int = 14) -> list[Row]:
    draw = np.random.default_rng(seed)
    return [{"text": sentence(draw, length=length)} for _ in range(count)]


@dataclass(frozen=True)
class Case:
    files: dict[str, list[Row] | str]  # the first one is the source
    overrides: tuple[str, ...] = ()
    model: str = "bert"
    names: frozenset[str] = frozenset()  # of the checks that name the fault; none in a healthy run
    cause: str = ""  # words that the answer has then

    def base(self, folder: Path) -> dict[str, Any]:
        """The configuration, with its files written into a folder."""
        for name, rows in self.files.items():
            write(folder / name, rows)
        source = next(iter(self.files))
        return {
            "model": {
                "type": self.model,
                "num_hidden_layers": 1,
                "hidden_size": 16,
                "num_attention_heads": 2,
                **({"position": "relative", "norm": "rmsnorm"} if self.model == "t5" else {}),
            },
            "data": {"source": str(folder / source), "max_seq_length": 128, "validation_ratio": 0.2},
            "batch": {"global_batch_size": 8},
            "training": {"max_steps": 100},
            "optimizer": {"learning_rate": 1e-2},
            "schedule": {"type": "cosine", "warmup_steps": 5},
        }

    def given(self, folder: Path) -> list[str]:
        return [each.replace("{folder}", str(folder)) for each in self.overrides]


def write(path: Path, rows: list[Row] | str) -> None:
    if isinstance(rows, str):
        path.write_text(rows)
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


OWN = '''
import torch
import torch.nn.functional as F
from torch import nn
from trainbook.tasks.causal import CausalLanguageModel
from trainbook.tasks.labels import LabelCollate, TextClassifier


class Recurrent(nn.Module):
    def __init__(self, config, facts):
        super().__init__()
        width = config.model.hidden_size
        self.embedding = nn.Embedding(facts.vocab_size, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, facts.vocab_size)

    def forward(self, input_ids, attention_mask=None):
        return self.head(self.lstm(self.embedding(input_ids))[0])


class BothWays(Recurrent):
    def __init__(self, config, facts):
        super().__init__(config, facts)
        width = config.model.hidden_size
        self.lstm = nn.LSTM(width, width // 2, batch_first=True, bidirectional=True)


class AlwaysDropping(Recurrent):
    def forward(self, input_ids, attention_mask=None):
        return self.head(F.dropout(self.lstm(self.embedding(input_ids))[0], 0.2))


class Detached(Recurrent):
    def forward(self, input_ids, attention_mask=None):
        return self.head(self.lstm(self.embedding(input_ids).detach())[0])


class Frozen(Recurrent):
    def __init__(self, config, facts):
        super().__init__(config, facts)
        self.embedding.requires_grad_(False)
        self.lstm.requires_grad_(False)


class Counting(Recurrent):
    calls = 0

    def forward(self, input_ids, attention_mask=None):
        self.calls += self.training
        return super().forward(input_ids) * (1 + 0.01 * self.calls)


class Wandering(Recurrent):
    """Keeps an average of what it has read, also where it is evaluated."""

    def __init__(self, config, facts):
        super().__init__(config, facts)
        self.register_buffer("average", torch.zeros(config.model.hidden_size))

    def forward(self, input_ids, attention_mask=None):
        embedded = self.embedding(input_ids)
        with torch.no_grad():
            self.average.lerp_(embedded.mean((0, 1)), 0.1)
        return self.head(self.lstm(embedded)[0] + self.average)


class Probabilities(Recurrent):
    def forward(self, input_ids, attention_mask=None):
        return super().forward(input_ids).softmax(-1)


class Deaf(Recurrent):
    def forward(self, input_ids, attention_mask=None):
        return super().forward(torch.zeros_like(input_ids))


class Pooled(nn.Module):
    def __init__(self, config, facts):
        super().__init__()
        self.embedding = nn.Embedding(facts.vocab_size, 32)
        self.inner = nn.Linear(32, 32)
        self.head = nn.Linear(32, len(facts.label_names))

    def pool(self, hidden, attention_mask):
        mask = attention_mask[..., None].to(hidden.dtype)
        return (hidden * mask).sum(1) / mask.sum(1)

    def forward(self, input_ids, attention_mask):
        return self.head(F.gelu(self.inner(self.pool(self.embedding(input_ids), attention_mask))))


class PooledOverPadding(Pooled):
    def pool(self, hidden, attention_mask):
        return hidden.mean(1)


class Normed(Pooled):
    def __init__(self, config, facts):
        super().__init__(config, facts)
        self.norm = nn.BatchNorm1d(32)

    def pool(self, hidden, attention_mask):
        return self.norm(super().pool(hidden, attention_mask))


class Careful(TextClassifier):
    def forward(self, targets, **inputs):
        losses = F.cross_entropy(self.logits(**inputs).float(), targets, reduction="none")
        return {"cross_entropy": torch.where(targets != 0, 3 * losses, losses).sum()}


class Mean(TextClassifier):
    def forward(self, targets, **inputs):
        return {"cross_entropy": F.cross_entropy(self.logits(**inputs).float(), targets)}


class EvaluatedByMeans(TextClassifier):
    def evaluation_sums(self, targets, **inputs):
        sums = super().evaluation_sums(targets, **inputs)
        return {**sums, "cross_entropy": sums["cross_entropy"] / len(targets)}


class Remembering(TextClassifier):
    """Adds the gradient of the last step to that of this one."""

    def __init__(self, config, facts):
        super().__init__(config, facts)
        self.kept = {}

    def initialize(self, seed):
        super().initialize(seed)
        for name, parameter in self.named_parameters():
            parameter.register_post_accumulate_grad_hook(lambda each, name=name: self.add(name, each))

    def add(self, name, parameter):
        self.kept[name] = self.kept.get(name, 0.0) + parameter.grad.clone()
        parameter.grad.copy_(self.kept[name])


class TwiceBackward(TextClassifier):
    """Computes its gradients by itself, before the loop does so again."""

    def forward(self, targets, **inputs):
        loss = F.cross_entropy(self.logits(**inputs).float(), targets, reduction="sum")
        if torch.is_grad_enabled():
            loss.backward(retain_graph=True)
        return {"cross_entropy": loss}


class RepeatingCollate(LabelCollate):
    def __call__(self, batch):
        made = super().__call__(batch)
        for entries in made.micro_batches:
            for name in ("input_ids", "targets", "document_ids", "positions"):
                if name in entries:
                    entries[name] = entries[name][:1].expand_as(entries[name]).clone()
        return made


class Repeating(TextClassifier):
    @classmethod
    def collate(cls, config, data, rows_each):
        return RepeatingCollate(rows_each, super().collate(config, data, rows_each).pad)


class Failing(TextClassifier):
    def forward(self, targets, **inputs):
        raise ValueError("no such thing")


class ShiftedTwice(CausalLanguageModel):
    def forward(self, targets, **inputs):
        later = torch.full_like(targets, -100)
        later[:, :-1] = targets[:, 1:]
        return self.losses_of(self.logits(**inputs), later)
'''


# What is wrong.


def shuffled() -> list[Row]:
    rows = labelled()
    order = np.random.default_rng(5).permutation(len(rows))
    return [{**row, "label": rows[other]["label"]} for row, other in zip(rows, order, strict=True)]


def off_by_one() -> list[Row]:
    rows = labelled()
    return [{**row, "label": rows[number - 1]["label"]} for number, row in enumerate(rows)]


def flipped(share: float, seed: int = 6) -> list[Row]:
    draw, rows = np.random.default_rng(seed), labelled(400)
    others = {name: [other for other in CLASSES if other != name] for name in CLASSES}
    return [
        {**row, "label": str(draw.choice(others[row["label"]])) if draw.random() < share else row["label"]}
        for row in rows
    ]


def contradicting() -> list[Row]:
    rows = labelled(200)
    others = [{**row, "label": CLASSES[(CLASSES.index(row["label"]) + 1) % 3]} for row in rows[:60]]
    return [row for pair in zip(rows[:60], others, strict=True) for row in pair] + rows[60:]


def swapped(rows: list[Row]) -> list[Row]:
    return [{**row, "label": CLASSES[(CLASSES.index(row["label"]) + 1) % 3]} for row in rows]


def doubled() -> list[Row]:
    rows = labelled(150)
    return rows + rows


def broken(share: float, count: int = 300) -> str:
    rows, every = labelled(count), round(1 / share)
    lines = [json.dumps(row) for row in rows]
    return "\n".join(line[:-9] if number % every == 0 else line for number, line in enumerate(lines)) + "\n"


def conversations(count: int, before: int) -> list[Row]:
    draw = np.random.default_rng(3)
    return [
        {
            "messages": [
                {"role": "user", "content": sentence(draw, length=before)},
                {"role": "assistant", "content": sentence(draw, length=5)},
            ]
        }
        for _ in range(count)
    ]


def rated(in_text: bool) -> list[Row]:
    draw, rows = np.random.default_rng(4), []
    for _ in range(200):
        score = round(float(draw.normal(5, 2)), 2)
        text = sentence(draw, CLASSES[0] if score > 5 else CLASSES[1])
        rows.append({"text": f"{text} rated {score} overall" if in_text else text, "score": score})
    return rows


def sorted_rows() -> list[Row]:
    return sorted(labelled(), key=lambda row: row["label"])


def nearly(rows: list[Row]) -> list[Row]:
    return [{**row, "text": row["text"] + " indeed"} for row in rows]


CLASSIFY = ("training.task=classify",)
PLAIN = {"own_text.jsonl": plain()}
LABELLED = {"rows.jsonl": labelled()}


def harmful(name: str, rows: Any, *overrides: str, cause: str = "", model: str = "bert", task: bool = True) -> Case:
    files = rows if isinstance(rows, dict) else {"rows.jsonl": rows}
    given = (*CLASSIFY, *overrides) if task else overrides
    return Case(files, given, model, frozenset(name.split()), cause)


HARMFUL: dict[str, Callable[[], Case]] = {
    # Labels
    "labels in random order": lambda: harmful("label_signal", shuffled()),
    "labels of the row before": lambda: harmful("label_signal", off_by_one(), cause="row"),
    "validation labels mean something else": lambda: harmful(
        "label_signal",
        {"rows.jsonl": labelled(300), "other.jsonl": swapped(labelled(120, seed=9))},
        "data.validation={folder}/other.jsonl",
        cause="validation",
    ),
    "two labels in five are wrong": lambda: harmful("label_noise", flipped(0.4)),
    "equal texts with different labels": lambda: harmful("label_noise", contradicting()),
    "the label's name ends each text": lambda: harmful(
        "label_in_input", [{**row, "text": f"{row['text']} label: {row['label']}"} for row in labelled()]
    ),
    "a code of the label is in each text": lambda: harmful(
        "label_in_input",
        {"rows.csv": [{**row, "text": f"[C{CLASSES.index(row['label'])}] {row['text']}"} for row in labelled()]},
    ),
    "only one class has a word that no other has": lambda: harmful(
        "label_in_input",
        [
            {**row, "text": row["text"] + (" sent by scanner" if row["label"] == "sport" else "")}
            for row in labelled(classes=("sport", "music"))
        ],
    ),
    "the number to predict is in the text": lambda: harmful(
        "label_in_input", rated(True), "training.task=regress", "data.label_field=score", task=False
    ),
    "the target is the input": lambda: harmful(
        "label_in_input",
        [{"input": row["text"], "target": row["text"]} for row in plain()],
        "training.task=seq2seq",
        model="t5",
        task=False,
    ),
    "the target ends the input": lambda: harmful(
        "label_in_input",
        [
            {
                "input": f"{row['text']} answer: {row['text'].split()[3]} {number}",
                "target": f"{row['text'].split()[3]} {number}",
            }
            for number, row in enumerate(plain())
        ],
        "training.task=seq2seq",
        model="t5",
        task=False,
    ),
    # Classes and records
    "nearly all rows are of one class": lambda: harmful(
        "class_balance", labelled(500, classes=("sport",)) + labelled(4, seed=8, classes=("music",))
    ),
    "a label that is an id": lambda: harmful(
        "class_balance", [{**row, "label": f"id-{number // 1.2:.0f}"} for number, row in enumerate(labelled(200))]
    ),
    "the end of a sorted file is the validation split": lambda: harmful(
        "class_balance",
        {"rows.jsonl": sorted_rows()[:220] + labelled(9, 11, ("trade",)), "end.jsonl": sorted_rows()[-50:]},
        "data.validation={folder}/end.jsonl",
    ),
    "classes in several spellings": lambda: harmful(
        "class_balance",
        [
            {**row, "label": (row["label"], row["label"].title(), row["label"].upper())[n % 3]}
            for n, row in enumerate(labelled())
        ],
    ),
    "every fourth line is broken and skipped": lambda: harmful(
        "dropped", {"rows.jsonl": broken(0.25)}, "data.bad_lines=skip"
    ),
    "most texts are empty": lambda: harmful(
        "dropped", [{**row, "text": row["text"] if n % 3 == 0 else " "} for n, row in enumerate(labelled(360))]
    ),
    "answers stand behind the last position": lambda: harmful(
        "dropped token_rates",
        conversations(30, 6) + conversations(70, 60),
        "training.task=chat",
        "data.samples=documents",
        "data.max_seq_length=160",
        model="gpt",
        task=False,
    ),
    "texts that are too long where nothing may be cut": lambda: harmful(
        "dropped token_rates", labelled(length=40), "data.max_seq_length=96", "data.truncation=false"
    ),
    "texts that are mostly cut off": lambda: harmful("token_rates", labelled(), "data.max_seq_length=16"),
    # Splits, copies, batches
    "validation is training": lambda: harmful("overlap", {"rows.csv": labelled()}, "data.validation={folder}/rows.csv"),
    "validation is nearly training": lambda: harmful(
        "overlap",
        {"rows.jsonl": labelled(), "near.jsonl": nearly(labelled()[:60])},
        "data.validation={folder}/near.jsonl",
    ),
    "a source that was added twice": lambda: harmful("duplicates", doubled()),
    "each row eight times in a row": lambda: harmful(
        "duplicates batch_rows", [row for row in labelled(50) for _ in range(8)], "data.shuffle=false"
    ),
    "sorted by class and not shuffled": lambda: harmful("batch_rows", sorted_rows(), "data.shuffle=false"),
    "a batch that is larger than the data": lambda: harmful("batch_rows", labelled(60), "batch.global_batch_size=256"),
    "a collate that repeats its first row": lambda: harmful(
        "batch_rows", LABELLED, "training.task=own_parts:Repeating", task=False
    ),
    # The model and the step
    "dropout that ignores eval": lambda: harmful(
        "evaluation", PLAIN, "model.type=own_parts:AlwaysDropping", model="gpt", task=False
    ),
    "an average that evaluation moves": lambda: harmful(
        "evaluation", PLAIN, "model.type=own_parts:Wandering", model="gpt", task=False
    ),
    "evaluation sums that are means": lambda: harmful(
        "evaluation evaluation_parts", LABELLED, "training.task=own_parts:EvaluatedByMeans", task=False
    ),
    "gradients that are never zeroed": lambda: harmful(
        "gradients_zeroed", LABELLED, "training.task=own_parts:Remembering", task=False
    ),
    "a backward pass of its own": lambda: harmful(
        "gradients_zeroed", LABELLED, "training.task=own_parts:TwiceBackward", task=False
    ),
    "a mean where a sum belongs": lambda: harmful("accumulation", LABELLED, "training.task=own_parts:Mean", task=False),
    "a model that looks ahead": lambda: harmful(
        "causal_leak", PLAIN, "model.type=own_parts:BothWays", model="gpt", task=False
    ),
    "a mean over padding": lambda: harmful("padding", LABELLED, "model.type=own_parts:PooledOverPadding"),
    "a batch norm": lambda: harmful("sample_leak", LABELLED, "model.type=own_parts:Normed"),
    "a detached embedding": lambda: harmful(
        "gradients", PLAIN, "model.type=own_parts:Detached", model="gpt", task=False
    ),
    "new weights that are frozen": lambda: harmful(
        "gradients", PLAIN, "model.type=own_parts:Frozen", model="gpt", task=False
    ),
    "a softmax before the loss": lambda: harmful(
        "overfit", PLAIN, "model.type=own_parts:Probabilities", cause="softmax", model="gpt", task=False
    ),
    "a model that does not read its input": lambda: harmful(
        "causal_leak", PLAIN, "model.type=own_parts:Deaf", cause="read", model="gpt", task=False
    ),
    "state that no checkpoint has": lambda: harmful(
        "resume", PLAIN, "model.type=own_parts:Counting", model="gpt", task=False
    ),
    "targets that are shifted twice": lambda: harmful(
        "shift", PLAIN, "training.task=own_parts:ShiftedTwice", model="gpt", task=False
    ),
    "code that raises": lambda: harmful(
        "gradients initial_loss precision", LABELLED, "training.task=own_parts:Failing", cause="raise", task=False
    ),
    "first weights that are too large": lambda: harmful(
        "initial_loss", PLAIN, "model.initializer_range=1.0", model="gpt", task=False
    ),
    "a warm-up that fills the run": lambda: harmful(
        "schedule", PLAIN, "schedule.warmup_steps=80", model="gpt", task=False
    ),
    "a learning rate a thousand times too high": lambda: harmful(
        "learning_rate schedule", PLAIN, "optimizer.learning_rate=10", model="gpt", task=False
    ),
}


# What is not.


def healthy(rows: Any, *overrides: str, model: str = "bert", task: str | None = "classify") -> Case:
    files = rows if isinstance(rows, dict) else {"rows.jsonl": rows}
    return Case(files, (*((f"training.task={task}",) if task else ()), *overrides), model)


def keyword(share: float) -> list[Row]:
    """A word that most texts of one class have, and some of the other."""
    draw, rows = np.random.default_rng(7), labelled(400, classes=("sport", "music"))
    return [
        {**row, "text": f"{row['text']} excellent"}
        if draw.random() < (share if row["label"] == "sport" else 0.08)
        else row
        for row in rows
    ]


def tagged() -> list[Row]:
    draw = np.random.default_rng(8)
    rows = [sentence(draw, length=8).split() for _ in range(120)]
    return [{"words": row, "tags": ["VERB" if word.endswith(("ti", "ra")) else "NOUN" for word in row]} for row in rows]


def small_overlap() -> dict[str, list[Row]]:
    """3 of 300 records are copies, and 4 of 200 validation texts are in training."""
    rows = labelled(297)
    return {"rows.csv": rows + rows[:3], "other.csv": labelled(196, seed=12) + rows[10:14]}


def extracted() -> list[Row]:
    draw, rows = np.random.default_rng(9), []
    for row in plain(160):
        found = row["text"].split()
        place = int(draw.integers(len(found) - 1))
        rows.append({"input": f"word after {found[place]} : {row['text']}", "target": found[place + 1]})
    return rows


def several() -> list[Row]:
    draw, rows = np.random.default_rng(10), []
    for _ in range(200):
        names = [name for name in CLASSES if draw.random() < 0.5]
        text = " ".join(
            [sentence(draw, length=6), *(str(draw.choice(TOPICAL[name])) for name in names for _ in range(2))]
        )
        rows.append({"text": text, "labels": names})
    return rows


HEALTHY: dict[str, Callable[[], Case]] = {
    "a language model of windows": lambda: healthy(
        {"text.txt": "\n".join(r["text"] for r in plain(400))}, model="gpt", task=None
    ),
    "a masked language model": lambda: healthy({"text.txt": "\n".join(r["text"] for r in plain(400))}, task=None),
    "spans": lambda: healthy(
        {"text.txt": "\n".join(r["text"] for r in plain(400))}, "data.max_target_length=32", model="t5", task=None
    ),
    "packed documents": lambda: healthy(
        plain(200), "data.samples=documents", "data.padding=packed", model="gpt", task=None
    ),
    "classes with typical words": lambda: healthy(labelled(400)),
    "one class in ten": lambda: healthy(labelled(360, classes=("sport",)) + labelled(40, seed=8, classes=("music",))),
    "a word that predicts most labels": lambda: healthy(keyword(0.85)),
    "a weak signal": lambda: healthy(labelled(400, topical=1, classes=("sport", "music"))),
    "a rule that no single word shows": lambda: healthy(
        [{"text": f"{n} {sentence(np.random.default_rng(n), length=6)}", "label": "abc"[n % 3]} for n in range(240)]
    ),
    "few rows": lambda: healthy(labelled(70)),
    "a hundredth of copies and of overlap": lambda: healthy(small_overlap(), "data.validation={folder}/other.csv"),
    "a line in fifty is broken and skipped": lambda: healthy({"rows.jsonl": broken(0.02)}, "data.bad_lines=skip"),
    "several labels": lambda: healthy(several(), task="classify_many"),
    "numbers": lambda: healthy(rated(False), "data.label_field=score", task="regress"),
    "tags": lambda: healthy(tagged(), task="tag"),
    "sums": lambda: healthy(
        [{"input": f"{a} plus {b}", "target": str(a + b)} for a in range(12) for b in range(12)],
        "data.max_target_length=8",
        model="t5",
        task="seq2seq",
    ),
    "answers that are taken from the input": lambda: healthy(
        extracted(), "data.max_target_length=24", model="t5", task="seq2seq"
    ),
    "conversations": lambda: healthy(
        conversations(100, 6), "data.samples=documents", "data.max_seq_length=160", model="gpt", task="chat"
    ),
    "a recurrent model of one's own": lambda: healthy(PLAIN, "model.type=own_parts:Recurrent", model="gpt", task=None),
    "a classifier of one's own": lambda: healthy(LABELLED, "model.type=own_parts:Pooled"),
    "a weighted loss of one's own": lambda: healthy(LABELLED, "training.task=own_parts:Careful", task=None),
    "dropout and label smoothing": lambda: healthy(LABELLED, "model.dropout=0.2", "training.label_smoothing=0.1"),
}
