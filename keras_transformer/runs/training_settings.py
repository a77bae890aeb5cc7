"""The settings of a recipe that say how its model is trained.

Pure Python, like `recipe.py`.
"""

import math
from dataclasses import dataclass

from keras_transformer.data.batch_settings import BatchSettings
from keras_transformer.evaluation import SCORES
from keras_transformer.settings import Settings, same_setting, setting

LOSSES = ("loss", "val_loss")
# Part of a model that may be frozen -> pattern of the paths of its weights.
FREEZE = {
    "embeddings": r"embedding/|output_projection/",
    "encoder": r"^encoder/(block_|layer_norm)",
    "decoder": r"^decoder/(block_|layer_norm)",
}
# Layers that may have LoRA -> pattern of their paths.
LORA_LAYERS = {
    "query": "attention/query$",
    "key": "attention/key$",
    "value": "attention/value$",
    "attention_output": "attention/output$",
    "feed_forward": "feed_forward/",
}


@dataclass(frozen=True, kw_only=True)
class TrainingSettings(Settings):
    """How the model is trained."""

    batch_tokens: int = setting(
        4096,
        "Maximum token slots per update, padding included, for each side, over all devices.",
        at_least=1,
    )
    shapes: int | str | None = setting(
        "auto",
        "Maximum number of shapes of the batches, see `make_dataset`; `null`: no maximum. JAX "
        "compiles each shape.",
        at_least=1,
        default_text="`auto`: 8 on JAX, else `null`",
    )
    epochs: int = setting(20, "Maximum number of epochs.", at_least=1, may_change=True)
    optimizer: str = setting(
        "adam",
        "Adam, whose state is two numbers for each weight, or Adafactor, whose state is about one.",
        choices=("adam", "adafactor"),
    )
    learning_rate: float | None = setting(
        None,
        "The rate at the end of the warm-up.",
        above=0,
        default_text="the paper's formula, from `hidden_dim` and `warmup_steps`",
    )
    warmup_steps: int = setting(4000, "Length of the warm-up, in updates.", at_least=1)
    schedule: str = setting(
        "inverse_sqrt",
        "How the rate decays after the warm-up: with the inverse square root of the update, as in "
        "the paper, or by half a cosine over `decay_epochs`.",
        choices=("inverse_sqrt", "cosine"),
    )
    decay_epochs: int | None = setting(
        None,
        "Number of epochs after which the cosine ends at `min_learning_rate`. If that rate is 0, "
        "`epochs` must not be more. The updates of these epochs must be more than `warmup_steps`. "
        "Must be set with `schedule: cosine`, and only then.",
        at_least=1,
    )
    min_learning_rate: float = setting(0.0, "The rate does not decay below this one.", at_least=0)
    beta_1: float = setting(0.9, "Decay of Adam's mean gradient.", at_least=0, below=1)
    beta_2: float = setting(0.98, "Decay of Adam's mean squared gradient.", at_least=0, below=1)
    adam_epsilon: float = setting(1e-9, "Epsilon of Adam.", above=0)
    weight_decay: float = setting(
        0.0,
        "Each update also multiplies the weights by 1 - `weight_decay` times the rate (AdamW), but "
        "not biases and layer norms.",
        at_least=0,
    )
    label_smoothing: float = setting(
        0.1, "The share of a label that is spread over all tokens.", at_least=0, below=1
    )
    r_drop: float = setting(
        0.0,
        "Weight of the divergence between two passes with different dropout, see "
        "`Transformer.r_drop`. An update takes twice the time; with 0 there is one pass.",
        at_least=0,
    )
    subword_regularization: float | None = same_setting(BatchSettings, "subword_regularization")
    word_dropout: float = same_setting(BatchSettings, "word_dropout")
    protected_text: float = setting(
        0.02,
        "Fraction of the training pairs that get symbols for protected text, if the vocabulary "
        "holds some, see `add_placeholders`.",
        at_least=0,
        below=1,
    )
    clip_norm: float | None = setting(
        None,
        "Maximum global norm of the gradient.",
        above=0,
        default_text="no clipping, as in the paper",
    )
    monitor: str | None = setting(
        None,
        "Logged metric that selects the best epoch.",
        choices=(*LOSSES, *(f"val_{name}" for name in SCORES), None),
        default_text="`val_loss`, or `loss` without a validation split",
    )
    patience: int | None = setting(
        None,
        "Stop after this many epochs without an improvement of `monitor`.",
        at_least=1,
        default_text="all epochs",
        may_change=True,
    )
    precision: str = setting(
        "float32",
        "Type of the computations; the weights are float32.",
        choices=("float32", "mixed_bfloat16", "mixed_float16"),
    )
    seed: int = setting(1, "Seed of weights, dropout and data order.", at_least=0, below=2**32)
    distribution: str = setting(
        "auto",
        "On which devices the model is trained, see `get_strategy`.",
        choices=("auto", "single", "mirrored", "multi_worker"),
        may_change=True,
    )
    devices: list | None = setting(
        None,
        "Names of devices, such as `GPU:0`, see `get_strategy`.",
        default_text="all GPUs, or the CPU",
        may_change=True,
    )
    accumulation_steps: int = setting(
        1,
        "Micro-batches per device and update (gradient accumulation), to save memory.",
        at_least=1,
        may_change=True,
    )
    micro_batch_tokens: int | None = setting(
        None,
        "Alternative to `accumulation_steps`: maximum token slots of a device's micro-batch, "
        "rounded up to whole sentences. Both passes of `r_drop` count; tokens that BPE-dropout "
        "adds do not.",
        at_least=1,
        may_change=True,
    )
    checkpoint_updates: int = setting(
        1000,
        "Updates between checkpoints. Every epoch also writes one.",
        at_least=1,
        may_change=True,
    )
    keep_last: int = setting(
        5,
        "Number of recent checkpoints to keep: this many written after an epoch, and this many "
        "written every `checkpoint_updates`.",
        at_least=1,
        may_change=True,
    )
    keep_best: int = setting(
        1, "Number of best epochs to keep in addition.", at_least=0, may_change=True
    )
    average: int | None = setting(
        None,
        "Number of last epochs, at most `keep_last`, to average into the model at the end, see "
        "`average_run`.",
        at_least=1,
        default_text="the model of the best epoch",
    )
    ema_momentum: float | None = setting(
        None,
        "Momentum of an exponential moving average (EMA) of the weights. The EMA is validated, "
        "used to translate, and saved in place of the weights.",
        above=0,
        below=1,
        default_text="no EMA",
    )
    init_from: str | None = setting(
        None,
        "Path of a run whose weights and vocabulary this run starts with. If that run has more "
        "layers, evenly spaced ones are taken. A `Recipe` makes the path absolute.",
    )
    freeze: list | None = setting(
        None,
        "Parts of the model of `init_from` that are not trained and get no LoRA: "
        f"{', '.join(FREEZE)}.",
    )
    lora_rank: int | None = setting(
        None,
        "Trains only differences of this rank (LoRA), which are added to some matrices of the "
        "model of `init_from`. Model files hold the sums.",
        at_least=1,
        default_text="no LoRA: the weights themselves are trained",
    )
    lora_layers: list | None = setting(
        None,
        f"The layers that get LoRA: {', '.join(LORA_LAYERS)}.",
        default_text="`[query, value]`",
    )
    translation_sample: int | None = setting(
        None,
        "Number of validation sentences to translate, for `val_bleu`, `val_chrf`, `val_wer`, "
        "`val_per` and `val_cer` in the logs.",
        at_least=1,
        default_text="no translation",
    )
    translation_epochs: int = setting(1, "Epochs between translations of the sample.", at_least=1)

    def __post_init__(self):
        super().__post_init__()
        if isinstance(self.shapes, str) and self.shapes != "auto":
            self._reject("shapes", 'at least 1, "auto" or null')
        if self.optimizer != "adam":
            for name in ("beta_1", "beta_2", "adam_epsilon"):
                default = type(self).__dataclass_fields__[name].default
                must = f"left out with `optimizer: {self.optimizer}`"
                self._require(name, getattr(self, name) == default, must)
        self._check_schedule()
        self._check_parts()
        if self.monitor not in (None, *LOSSES) and self.translation_sample is None:
            self._reject("monitor", "loss or val_loss unless `translation_sample` is set")
        if self.translation_epochs > self.epochs:
            self._reject("translation_epochs", f"at most `epochs`, {self.epochs}")
        if self.devices is not None:
            is_valid = self.devices and all(isinstance(name, str) for name in self.devices)
            self._require("devices", is_valid, 'a list of names such as "GPU:0"')
        if self.micro_batch_tokens is not None and self.accumulation_steps > 1:
            self._reject("micro_batch_tokens", "null if `accumulation_steps` is set")
        if self.average is not None and self.average > self.keep_last:
            self._reject("average", f"at most `keep_last`, {self.keep_last}")

    def _check_schedule(self):
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

    def _check_parts(self):
        """Checks `freeze`, `lora_rank` and `lora_layers`."""
        for name, choices in (("freeze", FREEZE), ("lora_layers", LORA_LAYERS)):
            value = getattr(self, name)
            is_valid = value is None or (value and all(part in choices for part in value))
            self._require(name, is_valid, f"a list with some of {', '.join(choices)}")
        if self.lora_layers is not None and self.lora_rank is None:
            self._reject("lora_layers", "null without `lora_rank`")
        for name in ("freeze", "lora_rank"):
            if getattr(self, name) is not None and self.init_from is None:
                self._reject(name, "null without `init_from`, which has the trained weights")

    @property
    def has_base(self) -> bool:
        """Whether only a part of the model of `init_from` is trained."""
        return self.freeze is not None or self.lora_rank is not None

    def micro_batches(self, replicas: int) -> int:
        """Returns the number of micro-batches per update on each of `replicas` devices."""
        if self.micro_batch_tokens is None:
            return self.accumulation_steps
        passes = 2 if self.r_drop else 1
        return math.ceil(passes * self.batch_tokens / (replicas * self.micro_batch_tokens))
