"""PyTorch: `nn.Transformer`, eager and compiled, with the optimizer that updates in one kernel.

bfloat16 is `torch.autocast`. `torch.compile` gets the model and the loss, with `dynamic=True`.
Attention scores and the inside of the feed-forward network are not dropped, as in ours; then
PyTorch takes its fused attention. malloc keeps large blocks (`KEEPING_MALLOC`): without this, up to
a third of the time was page faults. `dynamic=True`: otherwise it compiles the first shape alone.
"""

import os
import tempfile

import torch
from torch import nn
from torch.nn import functional

from train_peers import ADAM, LABEL_SMOOTHING, PAD_TOKEN_ID, learning_rate
from train_peers.engine import Engine

MAX_LENGTH = 512


class Torch(Engine):
    compiles = False

    def __init__(self, request):
        super().__init__(request)
        torch.manual_seed(0)
        self.config = request["config"]
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = Model(self.config).to(self.device)
        self.optimizer = torch.optim.Adam(
            self.model.parameters(),
            betas=(ADAM["beta_1"], ADAM["beta_2"]),
            eps=ADAM["epsilon"],
            fused=True,
        )
        self.dtype = getattr(torch, request["dtype"])
        self.step = 0
        self.batches = [
            [torch.from_numpy(ids).long().to(self.device) for ids in batch]
            for batch in self.batches
        ]
        self.loss = self.token_losses
        if self.compiles:
            # Compiled anew in every run: what is left of an earlier one would hide the time.
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
            self.loss = torch.compile(self.token_losses, dynamic=True)

    def token_losses(self, source, target, labels):
        """Returns the mean loss of the real tokens."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.dtype == torch.bfloat16):
            logits = self.model(source, target)
            return functional.cross_entropy(
                logits.flatten(0, 1),
                labels.flatten(),
                ignore_index=PAD_TOKEN_ID,
                label_smoothing=LABEL_SMOOTHING,
            )

    def first_update(self):
        self.update(*self.batches[0])

    def update(self, source, target, labels):
        self.step += 1
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.step, self.config["hidden_dim"])
        loss = self.loss(source, target, labels)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach() * (labels != PAD_TOKEN_ID).sum()

    def train_pass(self):
        return sum(self.update(*batch) for batch in self.batches).item() / self.tokens


class TorchCompiled(Torch):
    compiles = True


class Model(nn.Module):
    """Token ids `(B, S)` and `(B, T)` to logits `(B, T, V)`; the softmax shares the embedding."""

    def __init__(self, config):
        super().__init__()
        self.width = config["hidden_dim"]
        self.embedding = nn.Embedding(config["vocabulary_size"], self.width)
        nn.init.normal_(self.embedding.weight, std=self.width**-0.5)
        self.register_buffer("positions", positions(self.width))
        self.dropout = nn.Dropout(config["dropout"])
        self.transformer = nn.Transformer(
            self.width,
            config["num_heads"],
            config["num_encoder_layers"],
            config["num_decoder_layers"],
            config["intermediate_dim"],
            config["dropout"],
            batch_first=True,
        )
        # The paper's model ends without another layer norm.
        self.transformer.encoder.norm = self.transformer.decoder.norm = None
        for layer in self.transformer.modules():
            if isinstance(layer, nn.MultiheadAttention):
                layer.dropout = 0.0
            elif isinstance(layer, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)):
                layer.dropout = nn.Identity()  # inside the feed-forward network

    def forward(self, source, target):
        padding = source == PAD_TOKEN_ID
        length = target.shape[1]
        hidden = self.transformer(
            self.embed(source),
            self.embed(target),
            tgt_mask=torch.ones(length, length, dtype=torch.bool, device=target.device).triu(1),
            tgt_is_causal=True,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
        return functional.linear(hidden, self.embedding.weight)

    def embed(self, ids):
        x = self.embedding(ids) * self.width**0.5 + self.positions[: ids.shape[1]]
        return self.dropout(x)


def positions(width):
    """Returns the paper's sines and cosines, `(MAX_LENGTH, width)`."""
    rates = 10000 ** (-torch.arange(0, width, 2) / width)
    angles = torch.arange(MAX_LENGTH)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)
