"""A small DistilBERT that knows one task is fine-tuned for another with the Hugging Face trainer."""

import warnings

import torch
import transformers
from transformers import DistilBertConfig, DistilBertForSequenceClassification, Trainer, TrainingArguments

from trainbook.watching.huggingface import WatchCallback

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
torch.manual_seed(0)


def texts(count: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Half of the words of a text belong to its class."""
    labels = torch.randint(0, classes, (count,))
    own = 4 + labels[:, None] + classes * torch.randint(0, 60 // classes, (count, 12))
    return torch.where(torch.rand(count, 12) < 0.5, own, torch.randint(4, 64, (count, 12))), labels


config = DistilBertConfig(vocab_size=64, dim=48, n_layers=2, n_heads=4, hidden_dim=96, max_position_embeddings=16)
config.num_labels = 3
pretrained = DistilBertForSequenceClassification(config)
optimizer = torch.optim.AdamW(pretrained.parameters(), lr=1e-3)
for _ in range(150):
    words, labels = texts(32, 3)
    loss = pretrained(input_ids=words, labels=labels).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
pretrained.save_pretrained("pretrained")

model = DistilBertForSequenceClassification.from_pretrained("pretrained", num_labels=4, ignore_mismatched_sizes=True)
words, labels = texts(1400, 4)
rows = [{"input_ids": text, "labels": label} for text, label in zip(words, labels, strict=True)]


def compute_metrics(prediction) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


arguments = TrainingArguments(
    output_dir="out",
    num_train_epochs=4,
    per_device_train_batch_size=16,
    learning_rate=5e-4,
    warmup_steps=20,
    weight_decay=0.01,
    eval_strategy="epoch",
    logging_steps=10,
    save_strategy="no",
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
)
Trainer(
    model,
    arguments,
    train_dataset=rows[:1200],  # pyright: ignore[reportArgumentType]
    eval_dataset=rows[1200:],  # pyright: ignore[reportArgumentType]
    compute_metrics=compute_metrics,
    callbacks=[WatchCallback(name="huggingface-finetuning")],
).train()
