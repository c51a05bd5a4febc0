"""When the model is judged, by what, and when that ends the run."""

from __future__ import annotations

from typing import Literal

from trainbook.knobs.bibliography import (
    BASELINES_AND_BIGRAMS,
    BEAM_SEARCH,
    EARLY_STOPPING,
    HF_GENERATION_DOCS,
    SPELLING_TO_SOUND,
)
from trainbook.knobs.knob import Case, knob
from trainbook.knobs.sections.evaluation_times import EvaluationTimes


class Evaluation(EvaluationTimes):
    """When the model is judged, by what, and when that ends the run."""

    metric_for_best_model: Literal[
        "loss",
        "perplexity",
        "accuracy",
        "bits_per_token",
        "bits_per_byte",
        "f1_micro",
        "f1_macro",
        "exact_match",
        "word_error_rate",
        "phoneme_error_rate",
        "mean_squared_error",
        "mean_absolute_error",
        "pearson",
    ] = knob(
        "loss",
        what="The validation number that decides which checkpoint is best and when to stop early.",
        why="The best checkpoint is the best by this number only; loss and accuracy may disagree about where that is.",
        raised="accuracy, F1, exact_match, pearson: higher is better; all but pearson count only whether the answer is "
        "right, and move in jumps.",
        lowered="loss, perplexity, bits, error rates and errors: lower is better; those made from the loss weigh how "
        "sure the model was.",
        values={
            "loss": "the mean over the targets, without label smoothing or z-loss: cross entropy in nats; the mean "
            "squared error for numbers",
            "perplexity": "e to the power of the loss",
            "accuracy": "share of targets that the model ranks first; of several classes a sample, the whole set",
            "bits_per_token": "loss divided by ln 2",
            "bits_per_byte": "the same a byte of text, comparable across tokenizers; causal models",
            "f1_micro": "F1 of all classes counted together; with one class a sample it is the accuracy",
            "f1_macro": "mean of the F1 of each class: a rare class weighs as much as a common one",
            "exact_match": "share of written texts that equal a reference; needs evaluation.generate",
            "word_error_rate": "edits a word of the reference, or, of phonemes, share of words with any error; needs "
            "evaluation.generate",
            "phoneme_error_rate": "edits a phoneme of the reference; needs evaluation.generate and target_unit "
            "phonemes",
            "mean_squared_error": "for numbers",
            "mean_absolute_error": "for numbers: less swayed by a few large errors",
            "pearson": "for numbers: correlation with the truth, blind to scale and offset",
        },
        cases=(
            Case("language models", "loss"),
            Case("only the first guess counts", "accuracy", "over-confidence may raise the loss while accuracy holds"),
            Case("classes of unequal size", "f1_macro", "the commonest class alone gives a high accuracy"),
            Case("text that is written and judged as a whole", "exact_match", "the loss sees only the next token"),
        ),
        interacts=(
            "evaluation.early_stopping_patience",
            "evaluation.early_stopping_threshold",
            "evaluation.generate",
            "evaluation.target_unit",
            "checkpoint.save_total_limit",
            "training.label_smoothing",
        ),
        symptoms=("overfitting",),
        correction="Loss, perplexity, bits_per_token and bits_per_byte rank checkpoints alike: choosing between them "
        "changes only the unit of early_stopping_threshold. The others are other judges.",
        aliases=("monitor", "best_metric"),
        value_aliases={
            "eval_loss": "loss",
            "val_loss": "loss",
            "eval_accuracy": "accuracy",
            "eval_perplexity": "perplexity",
            "f1": "f1_macro",
            "eval_f1": "f1_macro",
            "bpb": "bits_per_byte",
            "wer": "word_error_rate",
            "eval_wer": "word_error_rate",
            "per": "phoneme_error_rate",
            "eval_per": "phoneme_error_rate",
            "mse": "mean_squared_error",
            "eval_mse": "mean_squared_error",
            "mae": "mean_absolute_error",
            "pearsonr": "pearson",
        },
    )

    generate: bool = knob(
        False,
        what="In evaluation, also let the model write its answer for each sample and judge the text.",
        why="The loss gives the model the right beginning of each answer and asks for the next token only. Used for "
        "real, it goes on from its own words, and an early mistake spoils the rest.",
        raised="On: exact_match and error rates of what the model really writes; evaluation takes many times longer, "
        "one pass of the decoder a token.",
        lowered="Off: quick; loss and accuracy with the right beginning given.",
        cases=(
            Case("translation, spelling to sound, answers", True, "what is used is what should be judged"),
            Case("pretraining by spans", False, "the loss is the aim"),
        ),
        interacts=(
            "evaluation.num_beams",
            "evaluation.max_new_tokens",
            "evaluation.target_unit",
            "evaluation.eval_max_samples",
            "evaluation.metric_for_best_model",
        ),
        symptoms=("too slow",),
        sources=(HF_GENERATION_DOCS,),
        correction="A high token accuracy does not mean good text: at 98 % a token, an answer of 35 tokens is wholly "
        "right in half of the cases, since 0.98^35 = 0.49.",
        aliases=("predict_with_generate",),
    )

    num_beams: int = knob(
        1,
        ge=1,
        what="How many continuations are kept side by side while an answer is written; 1 is greedy.",
        why="The likeliest first token need not begin the likeliest answer; a beam looks a little further.",
        raised="Answers of higher probability, at a cost in proportion; past about 5 little is gained.",
        lowered="1: the fastest, one token after the other without going back.",
        cases=(
            Case("judging along the way", 1, "ranks checkpoints about as well, several times faster"),
            Case("final scores of translation or spelling to sound", 4),
        ),
        usual=(1, 10),
        interacts=("evaluation.generate", "evaluation.max_new_tokens", "evaluation.per_device_eval_batch_size"),
        symptoms=("too slow", "out of memory"),
        sources=(BEAM_SEARCH,),
        correction="A wider beam finds more probable text, which is not always better text: quality in translation "
        "falls again at large beams, as short answers win.",
        aliases=("generation_num_beams", "beam_size", "beam_width"),
    )

    max_new_tokens: int | None = knob(
        None,
        ge=1,
        what="The most tokens of an answer that is written; None takes data.max_target_length.",
        why="A model that does not end its answer would go on for ever, and one such sample holds up its whole batch.",
        raised="Long answers are not cut; an untrained model, which seldom ends, makes evaluation slow.",
        lowered="A bounded cost; an answer longer than this is cut and counts as wrong.",
        cases=(
            Case("answers as long as the training targets", None),
            Case("short answers, long inputs", 32, "a little more than the longest reference"),
        ),
        usual=(1, 1024),
        interacts=("evaluation.generate", "evaluation.num_beams", "data.max_target_length"),
        symptoms=("too slow",),
        sources=(HF_GENERATION_DOCS,),
        aliases=("generation_max_length",),
    )

    target_unit: Literal["words", "phonemes"] = knob(
        "words",
        what="What the blank-separated symbols of a target are, which decides what an error rate counts.",
        why="The same name means two things: in speech recognition a word error rate counts words of a sentence; in "
        "turning spelling into sound, where a sample is one word, it counts samples that are not wholly right.",
        raised="phonemes: phoneme_error_rate is edits over phonemes, word_error_rate the share of samples that equal "
        "none of their references.",
        lowered="words: word_error_rate is edits over words of the nearest reference.",
        values={
            "words": "a target is a sentence, its symbols are words",
            "phonemes": "a target is the sound of one word, its symbols are phonemes",
        },
        cases=(
            Case("translation, transcription, summaries", "words"),
            Case("spelling to sound", "phonemes"),
        ),
        interacts=("evaluation.generate", "evaluation.metric_for_best_model"),
        sources=(SPELLING_TO_SOUND,),
        correction="A word error rate can be above 1: every surplus word is an edit. It is no share of wrong words.",
    )

    baseline: bool = knob(
        False,
        what="Fit a linear model on the words of the same texts before training, and show its accuracy beside the "
        "model's.",
        why="An accuracy means something only against what is cheap: TF-IDF and a linear classifier take seconds to "
        "minutes on a CPU and are hard to beat on topics.",
        raised="On: training starts a little later; every evaluation shows baseline_accuracy.",
        lowered="Off: nothing is fitted.",
        cases=(
            Case("a new set of labelled texts", True, "know what there is to win before spending a GPU"),
            Case("any other task", False, "only one label a text (training.task=classify) has this baseline"),
        ),
        interacts=("training.task", "data.label_field", "evaluation.metric_for_best_model"),
        symptoms=("underfitting",),
        sources=(BASELINES_AND_BIGRAMS,),
        aliases=("linear_baseline",),
    )

    early_stopping_patience: int | None = knob(
        None,
        ge=1,
        what="Stop after so many evaluations in a row without an improvement; None never stops early.",
        why="Once validation only gets worse, further training costs time and adds overfitting; waiting a few "
        "evaluations keeps one noisy value from ending the run.",
        raised="Sits out noise and plateaus; time is spent after the best point.",
        lowered="Stops soon after the turn; at 1 a single unlucky evaluation ends the run.",
        cases=(
            Case("pretraining with a decaying rate", None, "the length is planned; let the decay finish"),
            Case("fine-tuning on little data", 3, "overfitting comes within a few epochs"),
        ),
        usual=(2, 20),
        interacts=(
            "evaluation.eval_steps",
            "evaluation.early_stopping_threshold",
            "evaluation.metric_for_best_model",
            "schedule.type",
            "training.num_train_epochs",
        ),
        symptoms=("overfitting", "too slow"),
        sources=(EARLY_STOPPING,),
        correction="With a decaying learning rate a plateau in the middle is no end: much of the gain comes as the "
        "rate falls, and stopping early forgoes it. The best checkpoint is kept either way, so stopping saves time, "
        "not quality.",
        aliases=("patience",),
    )

    early_stopping_threshold: float = knob(
        0.0,
        ge=0,
        what="An evaluation counts as an improvement only if it is better by more than this than the last one that "
        "counted, in units of the metric.",
        why="A loss that creeps down by a ten-thousandth at a time would keep a run going for ever.",
        raised="Stops sooner; slow but real progress counts as standing still.",
        lowered="Any progress counts, chance included; the run goes on longer.",
        cases=(
            Case("loss, smooth curve", 0.0),
            Case("loss, slow creep at the end", 0.001, "below what anyone would notice"),
        ),
        usual=(0.0, 0.05),
        interacts=(
            "evaluation.early_stopping_patience",
            "evaluation.metric_for_best_model",
            "evaluation.eval_max_samples",
        ),
        symptoms=("overfitting", "too slow"),
        sources=(EARLY_STOPPING,),
        correction="It decides when to stop, and its unit is the metric's: 0.01 is much for a loss of 1.5 and nothing "
        "for a perplexity of 40.",
        aliases=("min_delta",),
    )
