"""What a rank holds of the model itself: weights, gradients, optimizer state, and the guard's copies; and what an
update takes while it is computed."""

from __future__ import annotations

from collections.abc import Iterable

from trainbook.knobs.config import Config
from trainbook.plan.machines import Cluster, DeviceLayout
from trainbook.plan.types import Types
from trainbook.plan.weights import Network, Weight
from trainbook.roles import Kind

SMALL, BLOCK = 4096, 256  # 8-bit averages: smaller tensors stay fp32; one fp32 scale for each block
PAGED = 10**5  # numbers from which bitsandbytes pages them
BUCKET = 2**25  # numbers that our own optimizers update at a time; one tensor may be larger
# Copies in fp32 of a bucket at the end of its update, of fp32 weights and of 16-bit ones, which are widened first.
COPIES = {"lion": (3, 6), "sgd": (3, 4), "stable_adamw": (6, 8), "muon": (6, 9)}
MIB = 2**20
AVERAGES = {"adamw": 2, "stable_adamw": 2, "lion": 1, "sgd": 1, "muon": 1}  # tensors as large as the weight
SNAPSHOTS, SHARE_OF_DEVICE = 4, 0.1  # of the guard: three and the best one, if they take no more of a GPU than this


def held_states(config: Config, model: Network, who: DeviceLayout, types: Types) -> dict[str, int]:
    """Bytes of weights, gradients (once they are there) and optimizer state that the fullest rank holds."""
    weights = gradients = states = 0
    for weight, times in model.grouped():
        # DeepSpeed deals out single numbers, FSDP2 rows.
        part = weight.dealt if who.strategy == "deepspeed" else weight.cut
        weights += times * types.size(weight, part(who.weights_over))
        if weight.is_frozen:
            continue
        gradients += times * types.of(weight) * part(who.gradients_over)
        count, kept = part(who.states_over), types.states if types.master else types.of(weight)
        states += times * (types.master * count + _state_bytes(config, weight, count, kept))
    if who.offloads_states:
        states = 0  # they lie in the host's memory
    if who.offloads_gradients:
        gradients = 0
    if who.zero_stage == 3 and config.distributed.offload_parameters != "none":
        weights = 0
    return {"weights": weights, "gradients": gradients, "optimizer state": states}


def _state_bytes(config: Config, weight: Weight, count: int, kept: int) -> int:
    """What the optimizer keeps of so many numbers of a weight."""
    match config.optimizer.type:
        case "adamw":
            return 2 * kept * count
        case "stable_adamw":
            return (kept + 4) * count  # the average of squares is always fp32
        case "lion":
            return kept * count
        case "sgd":
            return kept * count if config.optimizer.momentum > 0 else 0
        case "muon":
            return (1 if weight.kind is Kind.HIDDEN else 2) * kept * count
        case "paged_adamw_8bit" if count >= PAGED:
            return 0  # shared with the host, which takes them where the GPU has no room
        case "adamw_8bit" | "paged_adamw_8bit":
            return 8 * count if count < SMALL else 2 * count + 2 * 4 * -(-count // BLOCK)


def update_bytes(config: Config, model: Network, who: DeviceLayout, types: Types) -> int:
    """What comes and goes in an update. PyTorch's AdamW and the 8-bit one write in place."""
    copies = COPIES.get(config.optimizer.type)
    if copies is None or who.strategy == "deepspeed":
        return 0
    groups: dict[str, list[tuple[int, int]]] = {}  # numbers of each tensor, and how often it is there
    for weight, times in model.grouped():
        if not weight.is_frozen:
            groups.setdefault(_group(config, weight), []).append((weight.cut(who.states_over), times))
    if config.optimizer.type == "muon":  # its other weights are AdamW's
        groups = {name: members for name, members in groups.items() if name == "hidden"}
    buckets = (
        max(max(members)[0], min(BUCKET, sum(count * times for count, times in members))) for members in groups.values()
    )
    return 4 * copies[types.kept < 4] * max(buckets, default=0)


def _group(config: Config, weight: Weight) -> str:
    """Weights that are updated together."""
    if config.optimizer.type == "muon" and weight.kind is Kind.HIDDEN:
        return "hidden"
    is_decayed = weight.kind in (Kind.HIDDEN, Kind.OUTPUT) or (
        weight.kind is Kind.EMBEDDING and config.optimizer.decay_embeddings
    )
    return "decayed" if is_decayed else "not decayed"


def snapshot_bytes(config: Config, held: dict[str, int], model: Network, types: Types, cluster: Cluster) -> int:
    """Of one of the guard's copies of what is trained and of its averages; 0 where they do not lie on the GPU."""
    if not config.guard.enabled:
        return 0
    frozen = sum(times * types.size(weight, weight.count) for weight, times in model.grouped() if weight.is_frozen)
    # A tied matrix has two names, and so two copies.
    tied = types.kept * model.num_outputs * model.hidden_size if model.is_tied and not model.is_adapted else 0
    has_tied_head = tied if all(weight.name != "head.weight" for weight in model.rest) else 0
    one = max(0, held["weights"] - frozen) + has_tied_head + held["optimizer state"]
    return one if SNAPSHOTS * one <= SHARE_OF_DEVICE * cluster.memory else 0


def rounding_bytes(config: Config, model: Network, who: DeviceLayout, types: Types) -> tuple[int, int]:
    """What PyTorch's allocator adds to weights and averages, and to gradients, because of the sizes it deals in."""
    if who.strategy == "deepspeed":
        return 0, 0  # its tensors are parts of a few large ones
    kept = gradients = 0
    for weight, times in model.grouped():
        lost = lost_to_rounding(types.size(weight, weight.cut(who.weights_over)))
        averages = 0 if weight.is_frozen else AVERAGES.get(config.optimizer.type, 0)
        kept += times * (1 + averages) * lost
        gradients += 0 if weight.is_frozen else times * lost
    return kept, gradients


def lost_to_rounding(size: int) -> int:
    """Large blocks are taken in multiples of 2 MiB, those below 10 MiB out of 20 MiB; what is left of one is used for
    others only if it is more than 1 MiB."""
    if size <= MIB:
        return -size % 512
    if size >= 10 * MIB:
        left = -size % (2 * MIB)
        return left if left <= MIB else 0
    in_one, left = divmod(20 * MIB, size)
    return left // in_one if left <= MIB else 0


def head_bytes(model: Network, types: Types) -> int:
    """Of the gradient of what reads the last hidden states: the head, which may be the embedding."""
    own = sum(types.of(weight) * weight.count for weight in model.rest if weight.multiplies and not weight.is_frozen)
    is_shared = model.is_tied and not any(weight.name == "head.weight" for weight in model.rest)
    return own + (types.kept * model.num_outputs * model.hidden_size if is_shared and not model.is_adapted else 0)


def embedding_bytes(model: Network, types: Types) -> int:
    """Of the gradient of the largest table of rows."""
    tables = [weight for weight in model.rest if weight.kind is Kind.EMBEDDING and not weight.is_frozen]
    return max((types.of(weight) * weight.count for weight in tables), default=0)


def bytes_of(weights: Iterable[Weight], bytes_each: int, *, trained: bool = False) -> int:
    return bytes_each * sum(weight.count for weight in weights if not (trained and weight.is_frozen))
