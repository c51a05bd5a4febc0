"""How text is tokenized, and how tokens form samples."""

from __future__ import annotations

from typing import Literal

from trainbook.knobs.bibliography import BERT, BPE, GPT_2, GPT_3, HF_CONFIGS, HF_TRUNCATION_DOCS, PACKING
from trainbook.knobs.knob import Case, Section, knob


class DataShape(Section):
    """How text is tokenized, and how tokens form samples."""

    tokenizer: str = knob(
        "byte",
        min_length=1,
        what="How text becomes tokens: byte, char, word, bpe, or the path of a tokenizer.json or of a folder that has "
        "one, such as a Hugging Face model's.",
        why=(
            "It sets how much text a token carries, and so how much a window of max_seq_length covers and how large "
            "the embedding and the logits are."
        ),
        raised=(
            "From byte towards a large bpe: fewer tokens for the same text, so more context and faster epochs; more "
            "embedding parameters and more memory for logits."
        ),
        lowered=(
            "Towards byte: nothing to train, no unknown tokens, a tiny embedding; sequences are several times longer."
        ),
        values={
            "byte": "the bytes of the UTF-8 text; can represent any text",
            "char": "the characters that occur in the source and in data.validation",
            "word": "the words between spaces that occur there: for symbols, such as phonemes; all others are unknown",
            "bpe": "byte-pair encoding trained on the source, data.vocab_size entries (4096 unless set)",
        },
        cases=(
            Case("small model, small text", "byte", "no parameters spent on a vocabulary"),
            Case("sequences of symbols: phonemes, moves, notes", "word", "each symbol is one token"),
            Case("natural language, more than a few megabytes", "bpe", "more text in each window"),
            Case("continuing with an existing vocabulary", "tokenizer.json", "the path of the file"),
            Case("a pretrained model", "path/to/model", "its folder: a model works only with its own tokenizer"),
        ),
        interacts=("data.vocab_size", "data.max_seq_length", "model.vocab_multiple", "model.tie_embeddings"),
        symptoms=("too slow", "out of memory", "underfitting"),
        sources=(BPE,),
        correction=(
            "Loss and perplexity are per token, so they are not comparable between tokenizers: at 3 bytes per token, "
            "a bpe loss of 3.0 equals a byte loss of 1.0. Compare the loss per byte of text. Special tokens (padding, "
            "mask, separator, sentinels) need no knob: these four tokenizers get those that the task needs; in other "
            "tokenizers they are found by name or by tokenizer_config.json, and a missing one is reported before the "
            "run starts."
        ),
        aliases=("tokenizer_name", "tokenizer_path", "tokenizer_file"),
    )

    vocab_size: int | None = knob(
        None,
        ge=2,
        what=(
            "The vocabulary size of a bpe tokenizer trained on the source; null: 4096. Special tokens, such as the "
            "mask or 100 sentinels, are added where the task needs them."
        ),
        why=(
            "Longer tokens make shorter sequences, but each entry costs hidden_size parameters and a logit at every "
            "position: logits take 10-14 bytes per position and entry, often the largest item of a small model."
        ),
        raised=(
            "Shorter sequences and more context; more embedding parameters, more memory for logits, and rare entries "
            "that are hardly trained."
        ),
        lowered="A smaller embedding and smaller logits; longer sequences for the same text.",
        cases=(
            Case("a few megabytes, small model", 4096),
            Case("gigabytes of text, 100M parameters and more", 32768, "Llama's and T5's have about 32,000"),
        ),
        usual=(512, 262144),
        interacts=(
            "data.tokenizer",
            "data.max_seq_length",
            "model.hidden_size",
            "model.vocab_multiple",
            "model.tie_embeddings",
        ),
        symptoms=("out of memory", "too slow"),
        sources=(BPE, HF_CONFIGS),
        correction=(
            "A larger vocabulary raises the loss per token by itself, because there are more choices: at the start it "
            "is ln(vocab_size), 8.3 for 4096 and 5.5 for 256."
        ),
        aliases=("vocabulary_size",),
    )

    max_seq_length: int = knob(
        256,
        ge=1,
        what="The sequence length: the number of tokens that the model sees at once.",
        why=(
            "It limits how far back a prediction can look. Activations and logits grow in proportion to it, the "
            "compute of attention with its square."
        ),
        raised=(
            "More context and more tokens per update at the same batch; more memory, slower steps. Little gain beyond "
            "the length of the documents."
        ),
        lowered="Fits more easily and runs faster; dependencies longer than the window cannot be learned.",
        cases=(
            Case("tiny model on a CPU", 256),
            Case("BERT-like, fine-tuning", 512, "BERT's maximum"),
            Case("GPT of 100M parameters and more", 1024, "GPT-2's length"),
            Case("large model", 2048, "GPT-3's length"),
        ),
        usual=(64, 8192),
        interacts=(
            "batch.global_batch_size",
            "batch.per_device_train_batch_size",
            "memory.gradient_checkpointing",
            "data.samples",
            "data.padding",
            "data.truncation",
            "data.tokenizer",
            "model.position",
            "model.rope_theta",
        ),
        symptoms=("out of memory", "too slow", "underfitting"),
        sources=(BERT, GPT_2, GPT_3),
        correction=(
            "Memory grows with the square of the length only where attention scores are stored; with a fused "
            "attention kernel it grows in proportion, and only the time is quadratic. Doubling the length also "
            "doubles the tokens per batch: halve the number of sequences for a fair comparison."
        ),
        aliases=(
            "sequence_length",
            "seq_length",
            "seq_len",
            "block_size",
            "context_length",
            "max_length",
            "n_positions",
            "max_position_embeddings",
        ),
    )

    samples: Literal["windows", "documents"] = knob(
        "windows",
        what=(
            "What one sample is: a window of the stream of all text, or a document. Labelled records, pairs and "
            "conversations are always documents."
        ),
        why=(
            "Windows are always full, so no computation is wasted; documents keep unrelated texts apart, at the price "
            "of padding and truncation."
        ),
        raised=(
            "documents: each text starts at position 0 and sees no other text; short ones are padded or packed, long "
            "ones truncated."
        ),
        lowered="windows: no padding; a window may contain the end of one text and the beginning of the next.",
        values={
            "windows": (
                "all text as one stream, cut into windows of max_seq_length at an offset that is drawn again each "
                "epoch if shuffled"
            ),
            "documents": "each document is a sample, truncated and padded as data.truncation and data.padding say",
        },
        cases=(
            Case("language-model pretraining", "windows", "every position has a target"),
            Case("short texts that must not mix", "documents", "dialogues, records, questions with answers"),
        ),
        interacts=("data.max_seq_length", "data.padding", "data.truncation", "memory.compile"),
        symptoms=("too slow", "overfitting"),
        correction=(
            "Fixed cuts would show the same windows every epoch; the new offset moves the cuts, so a second epoch "
            "does not repeat the first exactly. If the text has a fixed period that fits the windows (records of "
            "equal width), the offset also moves within an epoch: otherwise every window of an epoch would start at "
            "the same place of a record, and the loss would jump when the next epoch starts at another."
        ),
        aliases=("sample_by",),
    )

    padding: Literal["longest", "max_length", "bucketed", "packed"] = knob(
        "longest",
        what=(
            "How documents of different lengths are batched: padded, sorted by length first, or packed; applies to "
            "data.samples=documents only."
        ),
        why=(
            "A batch is a rectangle, so short documents are padded. Padding is excluded from the loss but not from "
            "the computation: it costs time and memory. If lengths have a long tail, most of a random batch is "
            "padding."
        ),
        raised=(
            "packed: hardly any padding, so more documents per second. packed counts rows, so a batch of the same "
            "size holds several times as many documents: lower batch.global_batch_size, or expect fewer, larger "
            "updates."
        ),
        lowered="max_length: the simplest shapes and the most waste.",
        values={
            "longest": "to the longest document of the micro-batch; documents are drawn at random",
            "max_length": "always to max_seq_length: one shape, and peak memory shows at once",
            "bucketed": (
                "to the longest document of the micro-batch, whose documents have similar lengths: drawn at random, "
                "sorted within large chunks, with the micro-batches in random order"
            ),
            "packed": (
                "several documents in a row of max_seq_length, each isolated: attention, positions and targets stop "
                "at its boundaries. One shape, hardly any padding; a sample is a row"
            ),
        },
        cases=(
            Case("documents of similar length, or few of them", "longest"),
            Case("fine-tuning on texts of mixed length", "bucketed", "the same documents per update, far less padding"),
            Case("many short documents, compiled model", "packed", "one shape and almost every position used"),
            Case("compiled model, documents nearly all full", "max_length", "one shape, compiled once"),
        ),
        interacts=(
            "data.samples",
            "data.max_seq_length",
            "data.max_target_length",
            "data.truncation",
            "data.shuffle",
            "batch.per_device_train_batch_size",
            "batch.global_batch_size",
            "memory.compile",
        ),
        symptoms=("too slow", "out of memory"),
        sources=(PACKING,),
        correction=(
            '"longest" and "dynamic padding" are the same thing, and padding never truncates: documents that are too '
            "long are handled by data.truncation. Packing that resets positions but lets attention cross into the "
            "next document is not the same training; here the packed loss equals the unpacked one. Evaluation sorts "
            "by length instead of packing, so its number of samples means samples."
        ),
        aliases=("pad_to",),
        value_aliases={
            True: "longest",
            "dynamic": "longest",
            "group_by_length": "bucketed",
            "length_grouped": "bucketed",
            "packing": "packed",
        },
    )

    truncation: bool = knob(
        True,
        what="Truncate documents longer than max_seq_length; applies to data.samples=documents only.",
        why=(
            "The model has no positions beyond max_seq_length. Truncation loses part of a text; an error makes you "
            "notice."
        ),
        raised="On: long documents are truncated, and one side of them is never seen.",
        lowered="Off: a longer document is an error.",
        cases=(
            Case("a few documents are too long", True),
            Case("the end of a document holds the answer", False, "truncation would silently remove the target"),
        ),
        interacts=(
            "data.samples",
            "data.max_seq_length",
            "data.max_target_length",
            "data.truncation_side",
            "data.padding",
        ),
        symptoms=("underfitting", "loss not decreasing"),
        correction=(
            "Truncation is not a harmless default: look at the lengths of your documents before choosing "
            "max_seq_length."
        ),
        aliases=("truncate",),
    )

    truncation_side: Literal["right", "left"] = knob(
        "right",
        what="Which side of a document that is too long is cut off; applies to data.samples=documents only.",
        why=(
            "What a task needs may be at the end: the last turn of a conversation, a verdict, the question after a "
            "long passage. Special tokens that the task adds are never cut off."
        ),
        raised="left: the end of each document is kept.",
        lowered="right: the beginning is kept.",
        values={
            "right": (
                "keeps the beginning of a document; a causal model sees no end of text after it, because the text "
                "goes on"
            ),
            "left": "keeps the end of a document; it starts in the middle",
        },
        cases=(
            Case("articles, reviews", "right", "the important part tends to come first"),
            Case("conversations, logs, stack traces", "left", "the important part comes last"),
        ),
        interacts=("data.truncation", "data.max_seq_length", "data.samples"),
        symptoms=("underfitting", "loss not decreasing"),
        sources=(HF_TRUNCATION_DOCS,),
        correction="It applies to inputs only: a target text is always cut at its end.",
        value_aliases={"start": "left", "end": "right"},
    )

    max_target_length: int | None = knob(
        None,
        ge=1,
        what="The maximum length of a target text in tokens, for a text-to-text model; null: max_seq_length.",
        why=(
            "Summaries and labels are shorter than their inputs: a separate limit saves memory and time in the decoder."
        ),
        raised="Longer targets can be learned; more memory, and more padding with data.padding=max_length or packed.",
        lowered="Cheaper; longer targets are cut, and the model learns to stop early.",
        cases=(
            Case("classes written as text", 16),
            Case("summaries", 128),
            Case("translation", None, "about as long as the input"),
        ),
        usual=(8, 1024),
        interacts=("data.max_seq_length", "data.truncation", "data.padding"),
        symptoms=("out of memory", "too slow", "underfitting"),
        correction=(
            "A target that is cut still ends with the end-of-text token, as is usual for these models, so many cut "
            "targets teach the model to stop there: look at the lengths of your targets."
        ),
        aliases=("target_length", "max_output_length"),
    )
