"""`hugging_face.py` as a pipeline's script: same model, same `Trainer`; other rows, and the platform's callback."""

import argparse

import torch
from torch import nn
from torch.nn import functional
from transformers import Trainer, TrainingArguments

from ml_assets.model.training.script import attach
from ml_assets.model.training.script.adapters.hugging_face import SplitDataset, TransformersCallback

training = attach()


class Net(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, 16), nn.ReLU(), nn.Dropout(0.05), nn.Linear(16, 1))

    def forward(self, numeric: torch.Tensor, category: torch.Tensor, labels=None) -> dict[str, torch.Tensor]:
        x = torch.cat([numeric, functional.one_hot(category[:, 0], training.inputs.cardinalities[0])], dim=1)
        logits = 20 * self.layers(x).squeeze(1)
        if labels is None:
            return {"logits": logits}
        return {"loss": functional.mse_loss(logits, labels), "logits": logits}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=float, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.03)
    args = parser.parse_args()
    torch.manual_seed(0)
    train, validation = SplitDataset(training, "train"), SplitDataset(training, "validation")
    callback = TransformersCallback(training)
    trainer = Trainer(
        model=Net(len(training.inputs.numeric) + training.inputs.cardinalities[0]),
        args=TrainingArguments(
            output_dir=callback.output_dir,
            num_train_epochs=args.epochs,
            per_device_train_batch_size=args.batch_size,
            learning_rate=args.lr,
            eval_strategy="epoch",
            save_strategy="epoch",
            save_total_limit=1,
            logging_steps=20,
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=train,
        eval_dataset=validation,
        callbacks=[callback],
    )
    trainer.train(resume_from_checkpoint=callback.resume_from_checkpoint)
    callback.finish(trainer)


if __name__ == "__main__":
    main()
