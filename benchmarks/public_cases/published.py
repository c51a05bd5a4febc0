"""What the papers measured, as far as it could be read in them or in their artifacts, and which of TrainCheck's errors
can be re-made in one process."""

from __future__ import annotations

from dataclasses import dataclass

SOURCES = {
    "traincheck": "TrainCheck's silent errors",
    "autotrainer": "AutoTrainer's training problems",
    "default++": "DEFault++'s faults of transformers",
    "traps": "bugs of several public frameworks",
}


@dataclass(frozen=True)
class Figure:
    tool: str
    what: str  # how the tool works
    on: str  # what it was measured on
    found: str
    false_alarms: str
    source: str


FIGURES = (
    Figure(
        "TrainCheck (OSDI 2025)",
        "infers invariants of API calls and tensors from healthy programs, and checks them while a program runs",
        "20 real silent errors, reproduced with their own frameworks",
        "18 of 20 detected, within one iteration",
        "of invariants, on healthy programs: 31 % when learned from one program, 11 % from six; 4 % and 1 % after the "
        "paper, says its artifact",
        "[arXiv:2506.14813](https://arxiv.org/abs/2506.14813), "
        "[artifact](https://github.com/OrderLab/TrainCheck/blob/main/docs/ae.md)",
    ),
    Figure(
        "AutoTrainer (TDSC 2024)",
        "compares gradients, activations and accuracy of a Keras model with thresholds, and repairs",
        "701 models on six data sets, eight training problems",
        "100 % of problems detected; 98.42 % of the detected ones repaired",
        "none",
        "[doi:10.1109/TDSC.2024.3450951](https://doi.org/10.1109/tdsc.2024.3450951)",
    ),
    Figure(
        "DEFault (ICSE 2025)",
        "classifiers of features of a training, then of the program's layers",
        "52 real faulty programs; trained on about 14,500 mutated ones",
        "about 94 % detected, about 63 % with the right root cause",
        "not in the abstract",
        "[arXiv:2501.12560](https://arxiv.org/abs/2501.12560)",
    ),
    Figure(
        "DEFault++ (2026, preprint)",
        "a learned classifier of 1,390 features from inside a fine-tuned transformer",
        "3,739 mutated runs of seven models on nine tasks, 12 categories, 45 root causes",
        "detection AUROC above 0.96; macro-F1 0.85 for the category, 0.85 for the root cause",
        "in the AUROC",
        "[arXiv:2604.28118](https://arxiv.org/abs/2604.28118), "
        "[code](https://github.com/SigmaJahan/DEFaultplusplus-Transformer-Debugging)",
    ),
    Figure(
        "DeepFD and other fault localizers, as others measured them (2025)",
        "dynamic and static analysis of a network, learned or by rules",
        "real faults and mutated models",
        "best average recall of fault localization 0.33 (precision 0.21) against the one published fix; 0.55 (0.37, "
        "DeepFD) where other fixes that work count too",
        "in the precision",
        "[doi:10.1007/s10664-025-10657-7](https://doi.org/10.1007/s10664-025-10657-7)",
    ),
)

# Each of the 18 detected errors that the artifact lists, and what became of it here. The two errors that were not
# detected are not among them.
TRAINCHECK: tuple[tuple[str, str, str], ...] = (
    ("stackoverflow-60335387", "zero_grad() is missing", "zero-grad-missing"),
    ("pytorch-forum-84911", "all layers but the batch norms are frozen", "all-but-norms-frozen"),
    ("stackoverflow-67180955", "loader workers draw the same random numbers", "workers-alike"),
    ("pytorch-115607", "after one step without gradients nothing is updated", "updates-stop"),
    ("pytorch-84803", "data is lost between GPUs", "transfers-lost"),
    ("pytorch-96600", "data is lost between GPUs", "transfers-lost"),
    ("baichuan2-86", "data is lost between GPUs", "transfers-lost"),
    ("mmpretrain-702", "stages that should be frozen are trained", "freeze-forgotten"),
    ("pytorch-51800", "spectral norms are evaluated before they are ready", "spectral-norm-unready"),
    ("transformers-33844", "attention drops out in evaluation", "attention-dropout-in-evaluation"),
    ("transformers-34204", "a batch collapses to one row", "batch-of-one"),
    ("deepspeed-1801", "weights diverge between tensor-parallel ranks (BLOOM-176B)", "no: a difference between ranks"),
    ("pytorch-104336", "DDP stops synchronizing gradients", "no: a difference between ranks"),
    ("x-jxmnop-ddp-out-of-sync", "DDP replicas drift apart", "no: a difference between ranks"),
    ("deepspeed-5794", "mixture-of-experts training hangs", "no: a hang of several ranks"),
    ("lightning-thunder-725", "autocast is not applied to some operations", "no: the result is right, only slower"),
    ("transformers-17877", "weights are initialized repeatedly", "no: the result is right, only slower"),
    ("transformers-23723", "Whisper generates more tokens than it should", "no: generation, not training"),
)
