"""The settings of a recipe that say how its model is trained.

Pure Python, like `recipe.py`.
"""

import math
from dataclasses import dataclass, fields

from keras_transformer.evaluation import SCORES
from keras_transformer.settings import Settings

PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")
DISTRIBUTIONS = ("auto", "single", "mirrored", "multi_worker")
LOSSES = ("loss", "val_loss")
SCHEDULES = ("inverse_sqrt", "cosine")
MAY_BE_ZERO = ("seed", "keep_best")
# Keys of `training` that may change on resume. Changing any other key requires a new run.
RESUMABLE = (
    "epochs patience distribution devices accumulation_steps micro_batch_tokens checkpoint_updates "
    "keep_last keep_best"
).split()


@dataclass(frozen=True, kw_only=True)
class TrainingSettings(Settings):
    """How the model is trained.

    Args:
        batch_tokens: int. Maximum token slots per update, for each side, over all devices. Defaults
            to `4096`.
        shapes: int. Maximum number of shapes of the batches, see `make_dataset`; `null`: no
            maximum. Defaults to `"auto"`: 8 on JAX, else `null`.
        epochs: int. Maximum number of epochs. Defaults to `20`.
        learning_rate: float. The rate at the end of the warm-up. Defaults to `null`: the paper's
            formula from `hidden_dim` and `warmup_steps`.
        warmup_steps: int, in updates. Defaults to `4000`.
        schedule: how the rate decays after the warm-up: `"inverse_sqrt"`, with the inverse square
            root of the update; or `"cosine"`, half a cosine over `decay_epochs`. Defaults to
            `"inverse_sqrt"`.
        decay_epochs: int. The epochs after which a cosine has ended, at `min_learning_rate`; they
            must have more updates than `warmup_steps`. Given for `"cosine"` only.
        min_learning_rate: float. The rate does not decay below this one. Defaults to `0.0`.
        beta_1: float in [0, 1). Decay of Adam's mean gradient. Defaults to `0.9`.
        beta_2: float in [0, 1). Decay of Adam's mean squared gradient. Defaults to `0.98`.
        adam_epsilon: float. Defaults to `1e-9`.
        weight_decay: float. Each update also multiplies the weights by 1 - `weight_decay` times
            the rate (AdamW), but not biases and layer norms. Defaults to `0.0`: none.
        label_smoothing: float in [0, 1). Defaults to `0.1`.
        r_drop: float. Weight of the divergence between two passes with different dropout, see
            `Transformer.r_drop`. An update takes twice the time. Defaults to `0.0`: one pass.
        subword_regularization: float. Words are split anew in each epoch, see `make_dataset`.
            Defaults to `null`: always the same split.
        word_dropout: float in [0, 1). Fraction of the tokens read that become the unknown token,
            see `make_dataset`. Defaults to `0.0`.
        protected_text: float in [0, 1). Fraction of the training pairs that get symbols for
            protected text, if the vocabulary holds some, see `add_placeholders`. Defaults to
            `0.02`.
        clip_norm: float. Maximum global norm of the gradient. Defaults to `null`: no clipping, as
            in the paper.
        monitor: logged metric that selects the best epoch: `loss`, `val_loss`, `val_bleu`,
            `val_chrf`, `val_wer`, `val_per` or `val_cer`. Defaults to `val_loss`, or `loss` if the
            recipe has no validation split.
        patience: int. Stop after this many epochs without an improvement of `monitor`. Defaults to
            `null`: train all epochs.
        precision: `"float32"`, `"mixed_bfloat16"` or `"mixed_float16"`. Defaults to `"float32"`.
        seed: int, less than 2**32. Seed of weights, dropout and data order. Defaults to `1`.
        distribution: `"auto"`, `"single"`, `"mirrored"` or `"multi_worker"`, see `get_strategy`.
            Defaults to `"auto"`.
        devices: list of device names, see `get_strategy`. Defaults to `null`: all GPUs.
        accumulation_steps: int. Micro-batches per device and update (gradient accumulation), to
            save memory. Defaults to `1`.
        micro_batch_tokens: int. Alternative to `accumulation_steps`: maximum token slots of a
            device's micro-batch, rounded up to whole sentences; both passes of `r_drop` count.
            BPE-dropout makes more tokens, which do not count. Defaults to `null`.
        checkpoint_updates: int. Updates between checkpoints. Every epoch also writes one. Defaults
            to `1000`.
        keep_last: int. Number of recent checkpoints to keep: this many written after an epoch, and
            this many written every `checkpoint_updates`. Defaults to `5`.
        keep_best: int. Number of best epochs to keep in addition. Defaults to `1`.
        average: int. Number of last epochs to average into the model at the end, see
            `average_run`. Defaults to `null`: keep the model of the best epoch.
        ema_momentum: float in (0, 1). Momentum of an exponential moving average (EMA) of the
            weights. The EMA is validated, used to translate, and saved in place of the weights.
            Defaults to `null`: no EMA.
        init_from: path of a run whose weights and vocabulary this run starts with; of more layers,
            evenly spaced ones are taken. A `Recipe` makes it absolute. Defaults to `null`.
        translation_sample: int. Number of validation sentences to translate, for `val_bleu`,
            `val_chrf`, `val_wer`, `val_per` and `val_cer` in the logs. Defaults to `null`: no
            translation.
        translation_epochs: int. Epochs between translations of the sample. Defaults to `1`.
    """

    batch_tokens: int = 4096
    shapes: int | str | None = "auto"
    epochs: int = 20
    learning_rate: float | None = None
    warmup_steps: int = 4000
    schedule: str = "inverse_sqrt"
    decay_epochs: int | None = None
    min_learning_rate: float = 0.0
    beta_1: float = 0.9
    beta_2: float = 0.98
    adam_epsilon: float = 1e-9
    weight_decay: float = 0.0
    label_smoothing: float = 0.1
    r_drop: float = 0.0
    subword_regularization: float | None = None
    word_dropout: float = 0.0
    protected_text: float = 0.02
    clip_norm: float | None = None
    monitor: str | None = None
    patience: int | None = None
    precision: str = "float32"
    seed: int = 1
    distribution: str = "auto"
    devices: list | None = None
    accumulation_steps: int = 1
    micro_batch_tokens: int | None = None
    checkpoint_updates: int = 1000
    keep_last: int = 5
    keep_best: int = 1
    average: int | None = None
    ema_momentum: float | None = None
    init_from: str | None = None
    translation_sample: int | None = None
    translation_epochs: int = 1

    def __post_init__(self):
        super().__post_init__()
        for setting in fields(self):
            name, value = setting.name, getattr(self, setting.name)
            minimum = 0 if name in MAY_BE_ZERO else 1
            if setting.type in (int, int | None) and value is not None:
                self._require(name, value >= minimum, f"at least {minimum}")
        for name in ("learning_rate", "clip_norm", "adam_epsilon", "subword_regularization"):
            value = getattr(self, name)
            self._require(name, value is None or value > 0, "positive")
        is_number = isinstance(self.shapes, int) and self.shapes >= 1
        self._require(
            "shapes", is_number or self.shapes in ("auto", None), 'at least 1, "auto" or null'
        )
        self._require("seed", self.seed < 2**32, "less than 2**32")
        alpha = self.subword_regularization
        self._require("subword_regularization", alpha is None or alpha <= 1, "at most 1")
        for name in ("min_learning_rate", "weight_decay", "r_drop"):
            self._require(name, getattr(self, name) >= 0, "at least 0")
        for name in ("label_smoothing", "beta_1", "beta_2", "word_dropout", "protected_text"):
            self._require(name, 0 <= getattr(self, name) < 1, "in [0, 1)")
        self._check_schedule()
        self._require_choice("precision", PRECISIONS)
        self._require_choice("distribution", DISTRIBUTIONS)
        if self.monitor is not None:
            self._require_choice("monitor", (*LOSSES, *(f"val_{name}" for name in SCORES)))
        if self.monitor not in (None, *LOSSES) and self.translation_sample is None:
            self._reject("monitor", "loss or val_loss unless `translation_sample` is set")
        if self.translation_epochs > self.epochs:
            self._reject("translation_epochs", f"at most `epochs`, {self.epochs}")
        if self.devices is not None:
            is_valid = self.devices and all(isinstance(name, str) for name in self.devices)
            self._require("devices", is_valid, 'a list of names such as "GPU:0"')
        if self.ema_momentum is not None:
            self._require("ema_momentum", 0 < self.ema_momentum < 1, "in (0, 1)")
        if self.micro_batch_tokens is not None and self.accumulation_steps > 1:
            self._reject("micro_batch_tokens", "null if `accumulation_steps` is set")
        if self.average is not None and self.average > self.keep_last:
            self._reject("average", f"at most `keep_last`, {self.keep_last}")

    def _check_schedule(self):
        self._require_choice("schedule", SCHEDULES)
        is_cosine = self.schedule == "cosine"
        if is_cosine != (self.decay_epochs is not None):
            expected = "given with" if is_cosine else "null without"
            self._reject("decay_epochs", f"{expected} `schedule: cosine`")
        if is_cosine and not self.min_learning_rate:
            expected = f"at most `decay_epochs`, {self.decay_epochs}: then the rate is 0"
            self._require("epochs", self.epochs <= self.decay_epochs, expected)
        peak = self.learning_rate
        is_below = peak is None or self.min_learning_rate <= peak
        self._require("min_learning_rate", is_below, f"at most `learning_rate`, {peak}")
        if is_cosine and peak is None:
            self._reject("learning_rate", "given with `schedule: cosine`")

    def micro_batches(self, replicas: int) -> int:
        """Returns the number of micro-batches per update on each of `replicas` devices."""
        if self.micro_batch_tokens is None:
            return self.accumulation_steps
        passes = 2 if self.r_drop else 1
        return math.ceil(passes * self.batch_tokens / (replicas * self.micro_batch_tokens))
