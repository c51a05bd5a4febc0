"""Bugs that several public frameworks had, and that leave a trace in a run."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from strangers.data import tokens
from strangers.data.table import Table
from strangers.models import MLP, ConvNet, Encoder
from torch import Tensor, nn
from torch.nn import functional as F

import trainbook
from public_cases.autotrainer import adam, blobs, digits, loop, sgd
from public_cases.cases import Run, Score, case
from public_cases.huggingface import continued, train_with_trainer
from public_cases.loop import Loop, Order, Pair, evaluated, halves, next_token, norm_and_clip, usual

SOURCE = "traps"


def chains(seed: int, rows: int = 1500, length: int = 16) -> tuple[Pair, Pair]:
    rng = np.random.default_rng(seed)
    return halves(tokens.chain(rng, rows, length, symbols=20), 300, rng)


# Accumulation


@case("accumulation-undivided", SOURCE, "accumulation: summed, not averaged", "accumulation-wrong")
def accumulation_undivided(run: Run) -> Score:
    """The losses of sixteen micro-batches are summed, although the rate was chosen for their mean."""
    torch.manual_seed(run.seed)
    model = MLP(64, 10, width=48, depth=2)
    optimizer = sgd(model, 0.1)
    train, valid = digits(run.seed)
    rng = np.random.default_rng(run.seed)
    with trainbook.watch(
        model, optimizer, total_steps=160, settings={"gradient_accumulation_steps": 16, "batch_size": 64}, **run.place
    ) as watch:
        for step in range(1, 161):
            batch: Any = None
            for _ in range(16):
                rows = torch.from_numpy(rng.integers(len(train[0]), size=4))
                batch = train[0][rows], train[1][rows]
                loss = F.cross_entropy(model(batch[0]), batch[1])
                watch.add_loss(loss)
                (loss if run.is_faulty else loss / 16).backward()
            optimizer.step()
            optimizer.zero_grad()
            watch.step(batch=batch)
            if step % 20 == 0:
                watch.evaluation(lambda: evaluated(model, valid, usual, F.cross_entropy))
    return evaluated(model, valid, usual, F.cross_entropy)


@case("accumulation-means", SOURCE, "accumulation: mean of means", "accumulation-wrong")
def accumulation_means(run: Run) -> Score:
    """Micro-batches of very different lengths count alike: the mean of their means, not the mean over tokens."""
    rng = np.random.default_rng(run.seed)
    table = tokens.chain(rng, 2000, 24, symbols=20)
    lengths = np.where(rng.random(len(table)) < 0.25, 24, rng.integers(2, 5, size=len(table)))
    x = np.where(np.arange(24) < lengths[:, None], table.x, tokens.PAD)
    train, valid = halves(Table(x), 300, rng)
    torch.manual_seed(run.seed)
    model = Encoder(28, 28, width=32, depth=1, each=True, causal=True)
    optimizer = adam(model, 4e-3)

    def loss_of(rows: Tensor, reduction: str) -> Tensor:
        targets = rows[:, 1:].masked_fill(rows[:, 1:] == tokens.PAD, -100)
        return F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), targets.flatten(), reduction=reduction)

    def judge() -> Score:
        with torch.no_grad():
            return {"loss": float(loss_of(valid[0], "mean"))}

    with trainbook.watch(
        model, optimizer, total_steps=200, settings={"gradient_accumulation_steps": 8, "batch_size": 8}, **run.place
    ) as watch:
        for step in range(1, 201):
            micro = [train[0][torch.from_numpy(rng.integers(len(train[0]), size=1))] for _ in range(8)]
            total = sum(int((rows[:, 1:] != tokens.PAD).sum()) for rows in micro)
            for rows in micro:
                loss = loss_of(rows, "mean") / 8 if run.is_faulty else loss_of(rows, "sum") / total
                watch.add_loss(8 * loss)
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            watch.step(batch=micro[-1])
            if step % 20 == 0:
                watch.evaluation(judge)
    return judge()


# Precision, clipping and skipped updates


@case(
    "clip-before-unscale", SOURCE, "fp16: clipped before the loss scale is removed", "clipping-tight learning-rate-low"
)
def clip_before_unscale(run: Run) -> Score:
    """Gradients are clipped to 1 while they are still multiplied by a loss scale of 65,536."""
    torch.manual_seed(run.seed)
    model = MLP(64, 10, width=48, depth=2)
    optimizer = sgd(model, 0.1)
    train, valid = digits(run.seed)
    scale, rng = 65536.0, np.random.default_rng(run.seed)
    with trainbook.watch(
        model, optimizer, total_steps=200, settings={"max_grad_norm": 1.0, "batch_size": 32}, **run.place
    ) as watch:
        for step in range(1, 201):
            rows = torch.from_numpy(rng.integers(len(train[0]), size=32))
            x, y = train[0][rows], train[1][rows]
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            (scale * loss).backward()
            norm = norm_and_clip(model, 1.0) if run.is_faulty else None
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad.div_(scale)
            if not run.is_faulty:
                norm = norm_and_clip(model, 1.0)
            optimizer.step()
            watch.step(loss, batch=(x, y), grad_norm=norm)
            if step % 20 == 0:
                watch.evaluation(lambda: evaluated(model, valid, usual, F.cross_entropy))
    return evaluated(model, valid, usual, F.cross_entropy)


@case("warmup-burned", SOURCE, "schedule: moves on while updates are skipped", "warmup-short learning-rate-high")
def warmup_burned(run: Run) -> Score:
    """The first 30 updates are skipped as fp16 overflows, and the warm-up of 30 steps is over when the first is
    made."""
    torch.manual_seed(run.seed)
    model = Encoder(28, 28, width=48, depth=3, heads=4, each=True, causal=True, post=True)
    optimizer = adam(model, 2e-2)

    def factor(step: int) -> float:
        applied = step if run.is_faulty else max(0, step - 30)
        return min(1.0, applied / 30)

    def before_update(step: int) -> None:
        if step <= 30:
            optimizer.zero_grad(set_to_none=True)

    data = chains(run.seed)
    return Loop(
        model, optimizer, *data, pair=next_token, factor=factor, before_update=before_update, steps=220, seed=run.seed
    ).run(run)


@case(
    "nan-times-zero",
    SOURCE,
    "skipping a step: the update is multiplied by 0",
    "data-not-finite non-finite bad-samples",
    guard=True,
)
def nan_times_zero(run: Run) -> Score:
    """One row in the data is NaN. Its update is multiplied by 0, which leaves NaN; the twin has no such row."""
    torch.manual_seed(run.seed)
    model = MLP(8, 4, width=48, depth=2)
    (x, y), valid = blobs(run.seed)
    if run.is_faulty:
        x = x.clone()
        x[700] = float("nan")

    def before_update(step: int) -> None:
        if not run.is_guarded and not all(
            torch.isfinite(each.grad).all() for each in model.parameters() if each.grad is not None
        ):
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(0)

    return loop(run, model, adam(model, 2e-3), ((x, y), valid), before_update=before_update)


@case(
    "nan-filtered",
    SOURCE,
    "logging: NaN hidden by a filter",
    "non-finite learning-rate-high",
    "huggingface",
    guard=False,
)
def nan_filtered(run: Run) -> Score:
    """The learning rate is so high that losses become NaN, and the trainer's log leaves those out."""
    rng = np.random.default_rng(run.seed)
    train, valid = halves(tokens.chain(rng, 1200, 16, symbols=20), 200, rng)
    return train_with_trainer(
        run,
        tiny_gpt(run.seed),
        train,
        valid,
        score=continued,
        learning_rate=1e4 if run.is_faulty else 5e-3,
        max_grad_norm=0.0 if run.is_faulty else 1.0,
        logging_nan_inf_filter=True,
        steps=120,
    )


def tiny_gpt(seed: int) -> nn.Module:
    import transformers as hf

    torch.manual_seed(seed)
    return hf.GPT2LMHeadModel(
        hf.GPT2Config(vocab_size=32, n_positions=32, n_embd=32, n_layer=2, n_head=2, bos_token_id=3, eos_token_id=3)
    )


# Schedules, batches and resuming


@case("schedule-per-micro-batch", SOURCE, "schedule: moves on with every micro-batch", "schedule-ends-early")
def schedule_per_micro_batch(run: Run) -> Score:
    """The schedule is stepped four times for each update, and is at zero after a quarter of the run."""
    torch.manual_seed(run.seed)
    model = ConvNet(10, width=8)

    def factor(step: int) -> float:
        done = min(1.0, (4 if run.is_faulty else 1) * step / 240)
        return 0.5 * (1 + math.cos(math.pi * done))

    return loop(run, model, sgd(model, 2e-3), digits(run.seed), factor=factor, steps=240)


@case("memory-retry", SOURCE, "out-of-memory retry: the effective batch shrinks", "batch-small batch-changed")
def memory_retry(run: Run) -> Score:
    """After running out of memory at step 100 the batch is 2 in place of 64, without accumulation."""
    torch.manual_seed(run.seed)
    model = ConvNet(10, width=8, norm="")
    rng = np.random.default_rng(run.seed)
    data = digits(run.seed)

    def rows(step: int) -> Tensor:
        size = 2 if run.is_faulty and step > 100 else 64
        return torch.from_numpy(rng.permutation(len(data[0][0]))[:size])

    return loop(run, model, sgd(model, 0.1), data, rows=rows, batch_size=64, steps=250)


def resumed(run: Run, *, keeps_state: bool, keeps_order: bool, optimizer_of: Any, steps: int, data: Any) -> Score:
    """Half a run, a new process, the other half."""
    torch.manual_seed(run.seed)
    model = MLP(64, 10, width=48, depth=3)
    optimizer = optimizer_of(model)
    first = Loop(model, optimizer, *data, steps=steps, until=steps // 2, seed=run.seed)
    first.run(run)
    again = optimizer_of(model)
    if keeps_state:
        again.load_state_dict(optimizer.state_dict())
    second = Loop(model, again, *data, steps=steps, start=steps // 2, seed=run.seed)
    if not keeps_order:
        order = Order(len(data[0][0]), 32, run.seed)
        second.rows = lambda step: order.next()
    return second.run(run)


@case("resume-without-state", SOURCE, "resume: the optimizer's state is lost", "optimizer-state-lost", misleads=True)
def resume_without_state(run: Run) -> Score:
    """Weights are loaded, Adam's moments are not; the rate is high, as at the end of a long warm-up."""

    def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=5e-3, betas=(0.9, 0.999))

    keeps = not run.is_faulty
    return resumed(
        run, keeps_state=keeps, keeps_order=True, optimizer_of=optimizer_of, steps=200, data=digits(run.seed)
    )


@case(
    "resume-from-the-start", SOURCE, "resume: data starts again", "data-order-restarted batches-repeat", misleads=True
)
def resume_from_the_start(run: Run) -> Score:
    """After the resume the data loader starts with the first batch of the first epoch again."""
    keeps = not run.is_faulty
    data = digits(run.seed)
    return resumed(
        run, keeps_state=True, keeps_order=keeps, optimizer_of=lambda model: adam(model, 1e-3), steps=72, data=data
    )


# Language models


@case(
    "labels-shifted-twice",
    SOURCE,
    "shift: labels are shifted in the data, and again in the model",
    "targets-shifted-twice",
    "huggingface",
)
def labels_shifted_twice(run: Run) -> Score:
    """The data set shifts its labels, and the model of transformers does so again."""
    rng = np.random.default_rng(run.seed)
    train, valid = halves(tokens.chain(rng, 1200, 16, symbols=20), 200, rng)

    def shifted(data: Pair) -> Pair:
        x = data[0]
        return x, torch.cat([x[:, 1:], torch.full_like(x[:, :1], -100)], 1)

    datas = (shifted(train), shifted(valid)) if run.is_faulty else (train, valid)
    return train_with_trainer(run, tiny_gpt(run.seed), *datas, score=continued, learning_rate=5e-3)


@case(
    "padding-as-labels",
    SOURCE,
    "padding: counted in the loss",
    "padding-as-targets",
    "huggingface",
    misleads=True,
)
def padding_as_labels(run: Run) -> Score:
    """Labels are the inputs, padding included: three of four targets are padding."""
    rng = np.random.default_rng(run.seed)
    table = tokens.chain(rng, 1500, 24, symbols=20)
    lengths = rng.integers(3, 10, size=len(table))
    x = np.where(np.arange(24) < lengths[:, None], table.x, tokens.PAD)
    train, valid = halves(Table(x), 200, rng)

    def labelled(data: Pair) -> Pair:
        x = data[0]
        return x, x if run.is_faulty else x.masked_fill(x == tokens.PAD, -100)

    return train_with_trainer(
        run,
        tiny_gpt(run.seed),
        labelled(train),
        labelled(valid),
        score=lambda model, data: continued(model, data, tokens.PAD),
        learning_rate=5e-3,
    )


def masked(x: Tensor, generator: torch.Generator, *, labels_all: bool = False) -> Pair:
    """Inputs with 15 % of tokens masked, and the labels: those tokens alone."""
    chosen = torch.rand(x.shape, generator=generator) < 0.15
    return x.masked_fill(chosen, tokens.MASK), x if labels_all else x.masked_fill(~chosen, -100)


def masked_model(run: Run, *, labels_all: bool, fixed: bool) -> Score:
    train, valid = chains(run.seed, rows=1500, length=10)
    valid = (valid[0][:40], valid[1][:40])
    torch.manual_seed(run.seed)
    model = Encoder(28, 28, width=48, depth=2, heads=4, each=True)
    anew = torch.Generator().manual_seed(run.seed)

    def pair(network: nn.Module, x: Tensor, y: Tensor) -> Pair:
        inputs, labels = masked(x, anew, labels_all=labels_all)
        return network(inputs).flatten(0, 1), labels.flatten()

    @torch.no_grad()
    def evaluate() -> Score:
        generator = torch.Generator().manual_seed(7) if fixed else anew
        model.eval()
        inputs, labels = masked(valid[0], generator, labels_all=labels_all)
        loss = F.cross_entropy(model(inputs).flatten(0, 1), labels.flatten())
        model.train()
        return {"loss": float(loss)}

    @torch.no_grad()
    def truth() -> Score:
        model.eval()
        inputs, labels = masked(valid[0], torch.Generator().manual_seed(7))
        logits = model(inputs)
        kept = labels != -100
        accuracy = (logits.argmax(-1) == labels)[kept].float().mean()
        return {"loss": float(F.cross_entropy(logits[kept], labels[kept])), "accuracy": float(accuracy)}

    return Loop(
        model,
        adam(model, 4e-3),
        train,
        valid,
        pair=pair,
        evaluate=evaluate,
        true_score=truth,
        steps=500,
        eval_every=50,
        seed=run.seed,
    ).run(run)


@case(
    "masks-drawn-anew",
    SOURCE,
    "MLM: evaluation masks differ each time",
    "evaluation-noisy dropout-in-evaluation",
    misleads=True,
)
def masks_drawn_anew(run: Run) -> Score:
    """Each evaluation draws its masks anew, on 40 sequences."""
    return masked_model(run, labels_all=False, fixed=not run.is_faulty)


@case(
    "loss-on-all-tokens",
    SOURCE,
    "MLM: loss on tokens that are not masked",
    "future-leaks targets-not-shifted",
    misleads=True,
)
def loss_on_all_tokens(run: Run) -> Score:
    """Labels are all tokens, so that most of the loss is about copying the input."""
    return masked_model(run, labels_all=run.is_faulty, fixed=True)
