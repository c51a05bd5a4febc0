"""All kernels on all their cases, in the types in use, and what becomes of those that are wrong."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from trainbook.check.kernels import attention, layers, losses, optimizers, products
from trainbook.check.kernels.attention import AttentionCase
from trainbook.check.kernels.kernel import Case, Deviation, Kernel, NotTaken, deviations, is_lost
from trainbook.check.result import Check, CheckOutcome, CheckResult, failed, passed, remark, skipped
from trainbook.check.run import Begin, CheckReport, with_threads
from trainbook.errors import OutOfMemory, UserError
from trainbook.knobs.config import Config
from trainbook.knobs.derive import head_width, key_value_heads
from trainbook.knobs.sections.model_size import BUILT_IN
from trainbook.loop.device import choose_device, prepared_device
from trainbook.loop.kernel_verdicts import Verdict, machine_of, remember
from trainbook.nearest import did_you_mean
from trainbook.precision import resolve_compute
from trainbook.precision.precision import DTYPES

KERNELS: tuple[Kernel, ...] = (
    *attention.KERNELS,
    *products.KERNELS,
    *layers.KERNELS,
    *losses.KERNELS,
    *optimizers.KERNELS,
)
NAMES = {dtype: name for name, dtype in DTYPES.items()}
MOST_POSITIONS = 512  # of a recipe's attention: what is exact is worked out for every pair of them
LOST = "the GPU stopped answering when {name} ran: name this kernel with --only, to check it in a process of its own"


def selected_kernels(only: Sequence[str]) -> tuple[Kernel, ...]:
    """In their order; all, where none is named."""
    known = [kernel.name for kernel in KERNELS]
    for name in only:
        if name not in known:
            hint = did_you_mean(name, known, shown=str)
            raise UserError(f"--only: unknown kernel '{name}'.{hint} The kernels are {', '.join(known)}.")
    return tuple(kernel for kernel in KERNELS if not only or kernel.name in only)


def check_kernels(
    config: Config | None = None,
    *,
    only: Sequence[str] = (),
    begin: Begin = lambda name, number, total: None,
) -> CheckReport:
    """Of a configuration: in its types, and also on attention of its shape. Training reads the verdicts."""
    started = time.perf_counter()
    kernels = selected_kernels(only)
    settings = config or Config()
    device = choose_device(settings.training.device)
    dtypes = _types_in_use(config, device)
    if config is not None and config.model.type in BUILT_IN:
        cases = (*attention.CASES, *_as_configured(config))
        kernels = tuple(replace(each, cases=cases) if each.cases is attention.CASES else each for each in kernels)
    machine, names = machine_of(device), [NAMES[dtype] for dtype in dtypes]
    try:
        with prepared_device(settings, device, None), torch.random.fork_rng(devices=[]):
            tallies = _run(kernels, dtypes, device, begin)
    except torch.OutOfMemoryError:
        raise OutOfMemory("the GPU has too little free memory to check its kernels, which need about 1 GB") from None
    verdicts = [verdict for tally in tallies for verdict in tally.verdicts(dtypes)]
    is_kept = remember(machine, verdicts, {case.name for kernel in kernels for case in kernel.cases}) is not None
    results = [
        CheckResult(_as_check(tally.kernel, outcome), outcome, tally.seconds)
        for tally in tallies
        for outcome in [_outcome(tally, names, machine, is_kept)]
    ]
    summary = f"checked: kernels in {_joined(names)} on {_place(machine)}."
    model = {**machine, "types": names}
    return CheckReport(tuple(results), model, {}, time.perf_counter() - started, summary)


def _types_in_use(config: Config | None, device: torch.device) -> list[torch.dtype]:
    """Without a configuration, all that training computes in where it chooses by itself: fp16 is for GPUs."""
    if config is not None:
        knobs = config.precision
        names = {resolve_compute(knobs.compute, knobs.weights, device), knobs.weights}
        return [dtype for name, dtype in DTYPES.items() if name in names]
    if device.type != "cuda":
        return [torch.float32, torch.bfloat16]
    has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    return [dtype for dtype in DTYPES.values() if has_bf16 or dtype is not torch.bfloat16]


def _as_configured(config: Config) -> Iterator[AttentionCase]:
    """The whole shape in the name, so that a verdict on it is not mistaken for one on another."""
    heads, kv_heads, width = config.model.num_attention_heads, key_value_heads(config), head_width(config)
    length = min(config.data.max_seq_length, MOST_POSITIONS)
    shape = f"{heads} heads of {width}, {kv_heads} of keys, {length} positions"
    for sight in ("causal", "causal mask", "padding"):
        yield AttentionCase(
            f"{sight}, {shape}",
            length,
            sight,
            heads=heads,
            kv_heads=kv_heads,
            width=width,
            is_strided=heads == kv_heads,
        )


# One kernel, case by case.


@dataclass
class _Tally:
    kernel: Kernel
    found: list[Deviation] = field(default_factory=list)
    raised: list[tuple[str, torch.dtype, Exception]] = field(default_factory=list)
    num_cases: int = 0
    num_not_taken: int = 0
    seconds: float = 0.0
    stopped: str = ""  # why the rest was not run

    def note(self, case: Case, dtype: torch.dtype, answer: list[Deviation] | Exception) -> None:
        if isinstance(answer, NotTaken):
            self.num_not_taken += 1
            return
        self.num_cases += 1
        if isinstance(answer, Exception):
            self.raised.append((case.name, dtype, answer))
        else:
            self.found += answer

    @property
    def wrong(self) -> list[Deviation]:
        """The worst first."""
        return sorted((each for each in self.found if each.is_wrong and not each.is_remark), key=_badness)

    @property
    def is_wrong(self) -> bool:
        return bool(self.wrong or self.raised)

    def evidence(self) -> str:
        """Of a kernel that is wrong."""
        cases = {(each.case, each.dtype) for each in self.wrong} | {(case, dtype) for case, dtype, _ in self.raised}
        count = f"{len(cases)} of {self.num_cases} cases {'is' if len(cases) == 1 else 'are'} wrong"
        if self.wrong:
            return f"{_told(self.wrong[0])}; {count}"
        case, dtype, error = self.raised[0]
        said = (str(error).strip().splitlines() or [""])[0]
        return f"{case}, {NAMES[dtype]}: it raised {type(error).__name__}: {said}; {count}"

    def verdicts(self, dtypes: Sequence[torch.dtype]) -> Iterator[Verdict]:
        """One for each type; none for a type that the kernel never ran in."""
        for dtype in dtypes:
            part = _Tally(self.kernel, [each for each in self.found if each.dtype is dtype])
            part.raised = [each for each in self.raised if each[1] is dtype]
            part.num_cases = len({each.case for each in part.found}) + len(part.raised)
            if part.num_cases and (part.is_wrong or not self.stopped):
                case = (part.wrong[0].case if part.wrong else part.raised[0][0]) if part.is_wrong else ""
                evidence = part.evidence() if part.is_wrong else ""
                yield Verdict(self.kernel.name, NAMES[dtype], not part.is_wrong, case, evidence, self.kernel.backend)


def _run(kernels: Sequence[Kernel], dtypes: Sequence[torch.dtype], device: torch.device, begin: Begin) -> list[_Tally]:
    """Kernels with the same cases together: what is exact is worked out once for all of them."""
    tallies = {kernel.name: _Tally(kernel) for kernel in kernels}
    groups: dict[tuple[Any, Any], list[Kernel]] = {}
    for kernel in kernels:
        groups.setdefault((kernel.make, tuple(kernel.cases)), []).append(kernel)
    work = [
        (group, case, dtype)
        for group in groups.values()
        for dtype in dtypes
        if dtype in group[0].dtypes
        for case in group[0].cases
    ]
    for number, (group, case, dtype) in enumerate(work, start=1):
        begin(f"{_family(group)}: {case.name}, {NAMES[dtype]}", number, len(work))
        started = time.perf_counter()
        # On a CPU, threads wait for each other most of the time: all of them in one type is enough.
        with with_threads(torch.get_num_threads() if dtype is dtypes[0] else 1):
            answers = deviations(group, case, dtype, device)
        for name, answer in answers.items():
            tallies[name].note(case, dtype, answer)
            tallies[name].seconds += (time.perf_counter() - started) / len(answers)
        raised = [name for name, answer in answers.items() if isinstance(answer, RuntimeError)]
        if raised and is_lost(device):
            for name in {kernel.name for rest, _, _ in work[number - 1 :] for kernel in rest}:
                tallies[name].stopped = LOST.format(name=raised[0])
            break
    return list(tallies.values())


def _family(group: Sequence[Kernel]) -> str:
    return group[0].name if len(group) == 1 else f"{group[0].name} and {len(group) - 1} more"


# What is said of it.


def _outcome(tally: _Tally, names: Sequence[str], machine: Mapping[str, str], is_kept: bool) -> CheckOutcome:
    kernel = tally.kernel
    numbers: dict[str, Any] = {"cases": tally.num_cases, "not_taken": tally.num_not_taken, "types": list(names)}
    if tally.is_wrong:
        case, dtype = (tally.wrong[0].case, tally.wrong[0].dtype) if tally.wrong else tally.raised[0][:2]
        numbers |= _numbers(tally.wrong[0]) if tally.wrong else {"case": case, "type": NAMES[dtype]}
        numbers["wrong_cases"] = sorted({each.case for each in tally.wrong} | {case for case, *_ in tally.raised})
        numbers["excluded"] = kernel.backend if is_kept else None
        cause = f"the {kernel.name} kernel computes something else on {_place(machine)}"
        return failed(tally.evidence(), cause, _advice(kernel, is_kept), **numbers)
    if tally.stopped:
        return skipped(tally.stopped, **numbers)
    if not tally.found:
        return skipped("there is no such kernel for this device and these types", **numbers)
    remarks = sorted((each for each in tally.found if each.is_remark and each.is_wrong), key=_badness)
    if remarks:
        return remark(
            f"{_told(remarks[0])}; training reads no such row",
            "this kernel gives rows that see nothing a value of its own, where others give zero",
            "Hide the outputs of such rows, if code of yours reads them.",
            **{**numbers, **_numbers(remarks[0])},
        )
    worst = min((each for each in tally.found if not each.is_remark), key=_badness)
    return passed(
        f"{tally.num_cases} cases: the largest error is {worst.share:.0%} of what rounding explains ({_where(worst)})",
        **{**numbers, **_numbers(worst)},
    )


def _advice(kernel: Kernel, is_kept: bool) -> str:
    if kernel.backend is None:
        return kernel.instead
    if is_kept:
        return "Training on this machine does without it from now on: attention takes another kernel."
    return (
        "There is no place to remember it (set XDG_STATE_HOME), so training still uses it: call "
        f"torch.backends.cuda.enable_{'mem_efficient' if kernel.backend == 'efficient' else kernel.backend}_sdp(False)."
    )


def _told(worst: Deviation) -> str:
    if not worst.is_finite:
        return (
            f"{_where(worst)}: {worst.num_bad:,} of {worst.num_numbers:,} numbers are NaN or infinite, and the exact "
            "ones are finite"
        )
    return f"{_where(worst)}: the error is {worst.error:.3g}, and rounding explains at most {worst.bound:.3g}"


def _where(each: Deviation) -> str:
    return f"{each.case}, {NAMES[each.dtype]}, {each.part}"


def _numbers(each: Deviation) -> dict[str, Any]:
    place = {"case": each.case, "type": NAMES[each.dtype], "part": each.part}
    size = {"largest_error": each.error, "bound": each.bound, "share": each.share}
    return {**place, **size, "wrong_numbers": each.num_bad}


def _badness(each: Deviation) -> tuple[bool, float]:
    return each.is_finite, -each.share


def _as_check(kernel: Kernel, outcome: CheckOutcome) -> Check:
    def answer(subject: Any) -> CheckOutcome:
        return outcome

    return Check(kernel.name, kernel.proves, answer, computes=False)


def _place(machine: Mapping[str, str]) -> str:
    cudnn = f", cuDNN {machine['cudnn']}" if machine["cudnn"] else ""
    driver = f", driver {machine['driver']}" if machine["driver"] else ""
    return f"{machine['device']} (PyTorch {machine['torch']}{cudnn}{driver})"


def _joined(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
