"""Rules across the parts of the training settings: combinations that cannot work, or would break a guarantee.

Each error states the arithmetic or the reason, and the change that helps. Standard library only. Not here: checks of a
single part (setting_parts), machines and clusters (`resources.launcher`).
"""

from resources.job.setting_parts import BatchSettings, CheckpointSettings, Parallel, PrecisionSettings


def require_compatible(
    batch: BatchSettings, parallel: Parallel, precision: PrecisionSettings, checkpoint: CheckpointSettings
) -> None:
    """Raise `ValueError` if parts contradict each other."""
    _require_whole_models(batch, parallel)
    if precision.determinism == "bitwise":
        _require_bitwise(batch, parallel, precision, checkpoint)
    _require_rows_for_each_pass(batch, parallel)
    if not parallel.has_replicas:
        _refuse_what_needs_replicas(parallel, precision)
    if precision.precision == "fp16" and precision.device == "cpu":
        raise ValueError(
            "precision fp16 needs GPUs, and device is cpu: use precision bf16 or fp32, or device auto"
        )
    if precision.precision == "fp16" and precision.gradient_compression == "powersgd":
        raise ValueError(
            "gradient_compression powersgd carries the error of each gradient over to the next step, and an overflow "
            "in fp16 would make that error infinite for ever: use precision bf16, or gradient_compression bf16"
        )


def _require_whole_models(batch: BatchSettings, parallel: Parallel) -> None:
    workers, each = batch.workers, parallel.model_workers
    if workers % each:
        raise ValueError(
            f"workers {workers} cannot be divided into models of parallel.tensor x pipeline = {each} workers: "
            f"{workers} / {each} = {workers / each:g}; use {-(-workers // each) * each}"
        )
    if workers > batch.lane_count * each:
        per_model = f" / {each} that read the same rows" * (each > 1)
        raise ValueError(
            f"workers {workers}{per_model} are more than lanes {batch.lane_count}, and each worker needs a "
            f"lane: lower workers, or set lanes to a divisor of global_batch {batch.global_batch} that is at least "
            f"{workers // each}"
        )


def _require_rows_for_each_pass(batch: BatchSettings, parallel: Parallel) -> None:
    passes, stages = batch.gradient_accumulation_steps, parallel.pipeline
    lanes = batch.lane_count // (batch.workers // parallel.model_workers)
    rows = batch.global_batch // batch.lane_count * lanes
    if passes > rows:
        raise ValueError(
            f"gradient_accumulation_steps {passes} is more than the {rows} rows of a worker's share: global_batch "
            f"{batch.global_batch} / lanes {batch.lane_count} × {lanes} lanes of a worker; use {rows} at most"
        )
    if passes < stages:
        good = 4 * stages
        raise ValueError(
            f"parallel.pipeline {stages} with gradient_accumulation_steps {passes} leaves workers idle: each "
            f"computes in {passes} of {passes + stages - 1} turns. Use at least {stages}; with {good} it computes "
            f"{good} / {good + stages - 1} = {good / (good + stages - 1):.0%} of the time"
        )


def _require_bitwise(
    batch: BatchSettings, parallel: Parallel, precision: PrecisionSettings, checkpoint: CheckpointSettings
) -> None:
    if parallel != Parallel():
        raise ValueError(
            "determinism bitwise adds up the gradients of whole models, lane by lane, and with parallel no worker "
            "has a whole model: use determinism tolerance, or leave parallel out"
        )
    if checkpoint.checkpoint_storage == "bf16":
        raise ValueError(
            "checkpoint_storage bf16 rounds the state from which training resumes, but determinism bitwise promises "
            "that a resume changes no bit: set checkpoint_storage to compressed, or determinism to tolerance"
        )
    passes, lanes = batch.gradient_accumulation_steps, batch.lane_count
    compression = precision.gradient_compression
    for is_set, setting, why in (
        (
            passes > 1,
            f"gradient_accumulation_steps {passes}",
            f"a step already has a pass for each of the {lanes} lanes. Use more lanes",
        ),
        (
            precision.precision == "fp16",
            "precision fp16",
            "the scale of the loss decides which small gradients vanish. Use bf16",
        ),
        (
            compression != "none",
            f"gradient_compression {compression}",
            "the error of a compressed gradient depends on the number of workers. Use none",
        ),
        (
            precision.compile,
            "compile",
            "compiled code depends on the number of rows of a worker, and adds up in its own order. Use false",
        ),
    ):
        if is_set:
            raise ValueError(
                f"determinism bitwise cannot be combined with {setting}: {why}, or determinism tolerance"
            )


def _refuse_what_needs_replicas(parallel: Parallel, precision: PrecisionSettings) -> None:
    compression = precision.gradient_compression
    for is_set, setting, why in (
        (
            precision.precision == "fp16",
            "precision fp16",
            "a worker does not see an overflow in another worker's part of a gradient. Use bf16",
        ),
        (
            compression != "none",
            f"gradient_compression {compression}",
            "workers send parts of a model. Use none",
        ),
        (precision.compile, "compile", "workers load and free parts of a model while it computes. Use false"),
    ):
        if is_set:
            raise ValueError(
                f"parallel with shard {parallel.shard}, tensor {parallel.tensor} and pipeline "
                f"{parallel.pipeline} cannot be combined with {setting}: {why}, or leave parallel out"
            )
