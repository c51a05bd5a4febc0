"""The other side: the Hugging Face Trainer on its own model of the same size, on the same rows, timed."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from typing import Any

import torch
from common import (
    BETA2,
    LEARNING_RATE,
    MAX_GRAD_NORM,
    WEIGHT_DECAY,
    Setup,
    Timing,
    free_memory,
    random_data,
    read_clock,
    torch_switches_restored,
    trainbook_config,
)

from trainbook.data.batches.plan import eval_batches
from trainbook.tasks import StepBatch, task_class
from trainbook.tasks.losses import IGNORED

Row = dict[str, torch.Tensor]


def measure_hugging_face(setup: Setup, *, activation: str = "gelu_new", onednn: bool = True) -> Timing:
    """The Trainer with its defaults, but for what `Setup` fixes; nothing logged, saved or evaluated."""
    with torch_switches_restored(), tempfile.TemporaryDirectory() as folder:
        torch.backends.mkldnn.enabled = onednn  # pyright: ignore[reportAttributeAccessIssue]
        timing = _train(setup, activation, folder)
    free_memory(setup.device)
    return timing


def hugging_face_model(setup: Setup, activation: str = "gelu_new") -> Any:
    """Without dropout; attention is what transformers takes by itself, PyTorch's fused one where the model has it."""
    from transformers import (
        BertConfig,
        BertForMaskedLM,
        GPT2Config,
        GPT2LMHeadModel,
        T5Config,
        T5ForConditionalGeneration,
    )

    if setup.kind == "bert":
        return BertForMaskedLM(
            BertConfig(
                vocab_size=setup.vocab,
                hidden_size=setup.width,
                num_hidden_layers=setup.layers,
                num_attention_heads=setup.heads,
                intermediate_size=4 * setup.width,
                max_position_embeddings=setup.context,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
            )
        )
    if setup.kind == "t5":
        return T5ForConditionalGeneration(
            T5Config(
                vocab_size=setup.vocab,
                d_model=setup.width,
                d_kv=setup.width // setup.heads,
                d_ff=4 * setup.width,
                num_layers=setup.layers,
                num_heads=setup.heads,
                dropout_rate=0.0,
                pad_token_id=0,
                eos_token_id=1,
                decoder_start_token_id=0,  # pyright: ignore[reportCallIssue]
                scale_decoder_outputs=True,  # pyright: ignore[reportCallIssue]
            )
        )
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=setup.vocab,
            n_positions=setup.context,
            n_embd=setup.width,
            n_layer=setup.layers,
            n_head=setup.heads,
            activation_function=activation,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=0,
            attn_implementation="sdpa",  # pyright: ignore[reportCallIssue]
        )
    )


def first_batches(setup: Setup, rows: int) -> StepBatch:
    """So many rows as Trainbook's loop is given them, in micro-batches."""
    config = trainbook_config(setup)
    data = random_data(setup, config)
    batch = next(eval_batches(data.train, rows, rows))
    return task_class(config).collate(config, data, setup.micro_batch)(batch)


def hugging_face_rows(setup: Setup, step: StepBatch) -> list[Row]:
    """The same rows as transformers reads them. What BERT is to guess is hidden already."""
    rows: list[Row] = []
    for batch in step.micro_batches:
        inputs = batch["input_ids"]
        labels = inputs  # GPT-2 of transformers shifts its labels itself, and T5 what its decoder reads
        if setup.kind == "bert":
            labels = torch.full_like(inputs, IGNORED)
            labels.view(-1)[batch["chosen"]] = batch["targets"]
        elif setup.kind == "t5":
            labels = batch["targets"]
        rows += [{"input_ids": read, "labels": label} for read, label in zip(inputs, labels, strict=True)]
    return rows


def _train(setup: Setup, activation: str, folder: str) -> Timing:
    import transformers
    from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

    transformers.logging.set_verbosity_error()

    class Stopwatch(TrainerCallback):
        started = stopped = 0.0

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == setup.warmup:
                if setup.device == "cuda":
                    torch.cuda.reset_peak_memory_stats()
                self.started = read_clock(setup)
            elif state.global_step == setup.warmup + setup.steps:
                self.stopped = read_clock(setup)

    torch.manual_seed(0)
    model = hugging_face_model(setup, activation)
    needed = setup.global_batch * (setup.warmup + setup.steps)
    given = hugging_face_rows(setup, first_batches(setup, needed))
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=setup.warmup + setup.steps,
        per_device_train_batch_size=setup.micro_batch,
        gradient_accumulation_steps=setup.accumulation,
        gradient_checkpointing=setup.recompute == "full",
        gradient_checkpointing_kwargs={"use_reentrant": False} if setup.recompute == "full" else None,
        learning_rate=LEARNING_RATE,
        weight_decay=WEIGHT_DECAY,
        adam_beta2=BETA2,
        max_grad_norm=MAX_GRAD_NORM,
        optim="adamw_torch_fused",
        bf16=setup.precision == "bf16",
        torch_compile=setup.compile,
        use_cpu=setup.device == "cpu",
        dataloader_num_workers=setup.workers,
        dataloader_pin_memory=setup.device == "cuda",
        logging_strategy="no",
        save_strategy="no",
        eval_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    stopwatch = Stopwatch()
    trainer = Trainer(model=model, args=arguments, train_dataset=given, callbacks=[stopwatch])  # pyright: ignore[reportArgumentType]
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    peak = torch.cuda.max_memory_allocated() if setup.device == "cuda" else None
    parameters = sum(parameter.numel() for parameter in model.parameters())
    trainer.accelerator.free_memory()
    timing = Timing.of(setup, stopwatch.stopped - stopwatch.started, parameters, peak)
    return replace(timing, attention=model.config._attn_implementation)
