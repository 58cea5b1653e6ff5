"""A script as users of transformers write it: a dataset of dicts, a model that returns its loss, a `Trainer`.

`hugging_face_adapted.py` is the same script as a pipeline's script.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments


class Rainfall(Dataset):
    def __init__(self, rows: int) -> None:
        self.x = torch.rand(rows, 3)
        self.y = 10 + self.x @ torch.tensor([20.0, 5.0, 1.0])

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": self.x[index], "labels": self.y[index]}


class Net(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, 16), nn.ReLU(), nn.Dropout(0.05), nn.Linear(16, 1))

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
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
    train, validation = Rainfall(2500), Rainfall(500)
    trainer = Trainer(
        model=Net(3),
        args=TrainingArguments(
            output_dir="trainer",
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
    )
    trainer.train()
    trainer.save_model("trained")


if __name__ == "__main__":
    main()
