"""Runs on the backend `KERAS_BACKEND`: reads the path of a model, then calls of `Ours`, as JSON."""

import json
import sys

import keras

import keras_transformer as kt
from decode_peers.ours import Ours


def main():
    request = json.loads(sys.stdin.readline())
    if keras.config.backend() == "torch":
        import torch

        torch.set_num_threads(request["threads"])
    ours = Ours(kt.load_model(request["model"]))
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        method, *arguments = json.loads(line)
        print(json.dumps(getattr(ours, method)(*arguments)), flush=True)


if __name__ == "__main__":
    main()
