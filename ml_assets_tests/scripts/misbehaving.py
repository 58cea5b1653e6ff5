"""A script that does what its argument says, most of it wrong."""

import argparse
import sys
import threading

import numpy as np
import onnx
from onnx import TensorProto, helper

from ml_assets.model.training.script import attach

training = attach()

WAYS = [
    "well",
    "twice",
    "weighted",
    "silent",
    "nan",
    "import",
    "words",
    "code",
    "error",
    "holdout",
    "list",
    "pickled",
    "unfit",
    "memory",
    "still",
    "alone",
    "after_a_checkpoint",
    "later_each_time",
    "network",
    "uneven",
]


def mean_of_columns(columns: int) -> onnx.ModelProto:
    """Return the plainest graph of a matrix: `[rows, columns]` → `[rows, 1]` in 0…1, missing values count as 0."""
    nodes = [
        helper.make_node("IsNaN", ["x"], ["missing"]),
        helper.make_node("Where", ["missing", "nothing", "x"], ["known"]),
        helper.make_node("ReduceMean", ["known"], ["mean"], axes=[1], keepdims=1),
        helper.make_node("Sigmoid", ["mean"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "mean",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", columns])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 1])],
        initializer=[helper.make_tensor("nothing", TensorProto.FLOAT, [], [0.0])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--how", choices=WAYS)
    how = parser.parse_args().how
    if how == "well":
        x, _ = training.matrix("train")
        training.log(1, loss=2.0, speed=float("inf"))
        training.log(2, validation_loss=1.0)
        training.finish(mean_of_columns(x.shape[1]), steps=2, epochs=1, validation_loss=1.0)
    elif how == "twice":
        columns = training.matrix("train")[0].shape[1]
        for loss in (1.0, 2.0):
            training.finish(mean_of_columns(columns), steps=2, validation_loss=loss)
    elif how == "weighted":
        weights = training.weights("train")
        assert weights is not None
        training.finish(
            mean_of_columns(training.matrix("train")[0].shape[1]),
            steps=len(weights),
            validation_loss=float(weights.mean()),
        )
    elif how == "nan":
        training.log(3, loss=float("nan"))
    elif how == "import":
        import no_such_module  # noqa: F401
    elif how == "words":
        sys.exit("this is the end")
    elif how == "code":
        sys.exit(75)
    elif how == "error":
        raise RuntimeError("something broke")
    elif how == "holdout":
        training.rows("holdout")
    elif how == "list":
        training.finish([1, 2, 3], steps=1, validation_loss=1.0)
    elif how == "pickled":
        training.finish(b"a pickled estimator", steps=1, validation_loss=1.0)
    elif how == "unfit":
        training.check_model(mean_of_columns(training.matrix("train")[0].shape[1]))
        training.check_model(mean_of_columns(99))
    elif how == "memory":
        np.empty(1 << 60, np.uint8)
    elif how in ("after_a_checkpoint", "later_each_time"):
        save_and_fail(at_step=2 if how == "after_a_checkpoint" else training.resumed_step + 1)
    elif how == "network":
        raise ConnectionResetError("by the server of some data")
    elif how == "alone":
        fail_alone()
    elif how == "uneven" and training.rank == 0:
        with training.checkpoint(1, all_ranks=True):
            pass
    elif how == "still":
        stand_still_once()
        training.finish(mean_of_columns(training.matrix("train")[0].shape[1]), steps=2, validation_loss=1.0)


def save_and_fail(at_step: int) -> None:
    """Save checkpoints up to `at_step`, then fail as a typo does."""
    for step in range(training.resumed_step + 1, at_step + 1):
        with training.checkpoint(step) as folder:
            (folder / "state").write_text(f"after {step}")
    raise KeyError("loss")


def fail_alone() -> None:
    """The last rank raises, and takes its connections along; the others notice in their own words."""
    from torch import distributed

    distributed.init_process_group("gloo")
    try:
        if training.rank == training.world_size - 1:
            raise ZeroDivisionError("in the batch of the last rank")
        distributed.barrier()
    except RuntimeError:
        sys.exit(1)
    finally:
        distributed.destroy_process_group()


def stand_still_once() -> None:
    """Wait forever after a first checkpoint; the next attempt continues."""
    if not training.resumed_from:
        training.log(1, loss=2.0)
        with training.checkpoint(1) as folder:
            (folder / "state").write_text("after step 1")
        threading.Event().wait()
    training.log(2, loss=1.0)


if __name__ == "__main__":
    main()
