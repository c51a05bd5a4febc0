"""The names of a DeepSpeed file: which are passed on to the engine, and which are not honoured, with the reason."""

from __future__ import annotations

TAKEN_APART = {
    "zero_optimization",
    "zero_optimization.offload_optimizer",
    "zero_optimization.offload_param",
    "optimizer",
    "optimizer.params",
    "fp16",
    "bf16",
}

# DeepSpeed's spelling -> ours. Its Adam decays weights as AdamW does, unless it is told otherwise.
OPTIMIZERS = {"adam": "adamw", "adamw": "adamw", "sgd": "sgd", "lion": "lion"}

PASSED = (
    "aio",
    "comet",
    "comms_logger",
    "communication_data_type",
    "csv_monitor",
    "disable_python_gc",
    "dump_state",
    "flops_profiler",
    "gradient_predivide_factor",
    "log_level",
    "memory_breakdown",
    "prescale_gradients",
    "steps_per_print",
    "tensorboard",
    "timers",
    "wall_clock_breakdown",
    "wandb",
)

_OWN = "is set from Trainbook's knobs."
_LAID_OUT = "splits the model; this integration supports data parallelism only."
_DATA = "belongs to DeepSpeed's data loader, which is not used."
_BATCHES = "is set by Trainbook: it tells the engine which micro-batch is the last."

REFUSED = {
    "scheduler": "would change the learning rate beside schedule.type. Remove it, and set schedule.*.",
    "optimizer.legacy_fusion": "belongs to DeepSpeed's optimizers, which are not used.",
    "optimizer.params.torch_adam": "belongs to DeepSpeed's optimizers, which are not used.",
    "optimizer.params.adam_w_mode": "belongs to DeepSpeed's optimizers, which are not used; adamw is AdamW.",
    "torch_autocast": "is set from precision.compute.",
    "zero_allow_untested_optimizer": _OWN,
    "zero_force_ds_cpu_optimizer": "selects DeepSpeed's CPU optimizer, which is not used.",
    "managed_gradient_accumulation": _BATCHES,
    "gradient_allreduce_op": "is set by Trainbook: gradients are of the sum over all targets of the global batch.",
    "data_types": "is set from precision.compute and precision.weights.",
    "activation_checkpointing": "is not used: set memory.gradient_checkpointing.",
    "compile": "is not used: memory.compile is off with deepspeed.",
    "checkpoint": "belongs to DeepSpeed's checkpoints; runs are saved according to checkpoint.*.",
    "datastates": "belongs to DeepSpeed's checkpoints; runs are saved according to checkpoint.*.",
    "data_efficiency": _DATA,
    "dataloader_drop_last": _DATA,
    "autotuning": "starts training runs by itself, which `trainbook train` does not allow.",
    "hybrid_engine": "is for reinforcement learning with generation, which is not supported.",
    "pipeline": _LAID_OUT,
    "tensor_parallel": _LAID_OUT,
    "expert_parallel": _LAID_OUT,
    "sequence_parallel_size": _LAID_OUT,
    "data_parallel_size": _LAID_OUT,
    "seq_parallel_communication_data_type": _LAID_OUT,
    "use_data_before_expert_parallelism": _LAID_OUT,
    "weight_quantization": "changes weights in a way that Trainbook's checkpoints do not support.",
    "disable_allgather": "would leave ranks without the weights that other ranks updated.",
    "zero_optimization": "must be an object.",
    "optimizer": "must be an object.",
    "optimizer.params": "must be an object.",
    "fp16": "must be an object.",
    "bf16": "must be an object.",
}

ZERO_PASSED = (
    "allgather_bucket_size",
    "allgather_partitions",
    "contiguous_gradients",
    "enable_sanity_checks",
    "ignore_unused_parameters",
    "leaf_module",
    "log_trace_cache_warnings",
    "memory_efficient_linear",
    "overlap_comm",
    "override_module_apply",
    "parameter_alignment",
    "reduce_scatter",
    "round_robin_gradients",
    "stage3_allgather_sequential",
    "stage3_max_live_parameters",
    "stage3_max_reuse_distance",
    "stage3_model_persistence_threshold",
    "stage3_module_granularity_threshold",
    "stage3_param_persistence_threshold",
    "stage3_prefetch_bucket_size",
    "stage3_use_all_reduce_for_fetch_params",
    "sub_group_size",
    "use_multi_rank_bucket_allreduce",
)

_SAVED = "belongs to DeepSpeed's checkpoints; runs are saved according to checkpoint.*."
_ROUNDS = "rounds the communication between ranks: losses would differ from those of one device."

ZERO_REFUSED = {
    "compute_grad_norm": "cannot be set: the guard needs the gradient norm, so it is always computed.",
    "cpu_offload": "is an old name: set distributed.offload_optimizer.",
    "cpu_offload_param": "is an old name: set distributed.offload_parameters.",
    "cpu_offload_use_pin_memory": "is an old name: use offload_optimizer.pin_memory.",
    "elastic_checkpoint": _SAVED,
    "gather_16bit_weights_on_model_save": _SAVED,
    "stage3_gather_16bit_weights_on_model_save": _SAVED,
    "stage3_gather_fp16_weights_on_model_save": _SAVED,
    "load_from_fp32_weights": _SAVED,
    "pipeline_loading_checkpoint": _SAVED,
    "legacy_stage1": "belongs to an older version of DeepSpeed.",
    "save_muon_momentum_buffer_in_memory": "belongs to DeepSpeed's Muon, which is not used.",
    "zenflow": "applies delayed updates with its own optimizer, which the guard cannot judge.",
    "zero_hpz_partition_size": "keeps a second copy of the weights that Trainbook's checkpoints do not support.",
    "zero_quantized_gradients": _ROUNDS,
    "zero_quantized_nontrainable_weights": _ROUNDS,
    "zero_quantized_weights": _ROUNDS,
    "offload_optimizer": "must be an object with a device.",
    "offload_param": "must be an object with a device.",
}
