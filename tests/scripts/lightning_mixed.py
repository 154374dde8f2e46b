"""Lightning: 16-mixed, validation, torchmetrics, checkpoint callback, learning-rate monitor."""

import tempfile
import warnings

import lightning as L
import torch
import torchmetrics
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore", ".*does not have many workers.*")
L.seed_everything(11, workers=True)


class Autoencoder(L.LightningModule):
    def __init__(self, width=64, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.encoder = nn.Sequential(nn.Linear(784, width), nn.ReLU(), nn.Linear(width, 16))
        self.decoder = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 784))
        self.classify = nn.Linear(16, 10)
        self.accuracy = torchmetrics.classification.MulticlassAccuracy(10)

    def forward(self, x):
        return self.classify(self.encoder(x))

    def step(self, batch, stage):
        x, y = batch
        z = self.encoder(x)
        loss = nn.functional.mse_loss(self.decoder(z), x)
        loss = loss + nn.functional.cross_entropy(self.classify(z), y)
        self.log(f"{stage}_loss", loss, prog_bar=True, on_epoch=True)
        return loss

    def training_step(self, batch, index):
        return self.step(batch, "train")

    def validation_step(self, batch, index):
        self.accuracy(self(batch[0]), batch[1])
        self.log("val_acc", self.accuracy, on_epoch=True)
        return self.step(batch, "val")

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "monitor": "val_loss"},
        }


def loader(count, shuffle=False):
    x, y = torch.randn(count, 784), torch.randint(0, 10, (count,))
    return DataLoader(TensorDataset(x, y), batch_size=8, shuffle=shuffle)


with tempfile.TemporaryDirectory() as folder:
    keep = ModelCheckpoint(folder, monitor="val_loss", save_last=True)
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="gpu",
        devices=1,
        precision="16-mixed",
        callbacks=[keep, EarlyStopping("val_loss", patience=3), LearningRateMonitor()],
        logger=CSVLogger(folder),
        gradient_clip_val=1.0,
        accumulate_grad_batches=2,
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=True,
    )
    model = Autoencoder()
    trainer.fit(model, loader(32, True), loader(16))
    print("best", keep.best_model_path.rsplit("/", 1)[-1], float(keep.best_model_score))
    print("metrics", {k: round(float(v), 3) for k, v in trainer.callback_metrics.items()})
    again = Autoencoder.load_from_checkpoint(keep.last_model_path)
    trainer.validate(again, loader(16), verbose=False)
    assert trainer.global_step == 4, trainer.global_step
print("finished")
