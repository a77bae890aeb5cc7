"""A process that was forked from the one that runs models gets one line, and does not wait."""

import multiprocessing
import os
import sys

import pytest

from keras_transformer import Translator, load_run
from tests.decoding.test_translator import make_translator

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="other systems do not fork by default"),
    pytest.mark.filterwarnings("ignore:.*fork"),  # of JAX, and of Python from 3.12 on
]
SECONDS = 60  # without the error, the process waits forever


@pytest.fixture(scope="module")
def translator():
    made = make_translator()
    made("one", beam_size=1)
    return made


USES = {
    "call": lambda translator: translator("one"),
    "score": lambda translator: translator.score("one", "two"),
    "another": lambda translator: Translator(translator.model, *translator.tokenizers),
    "load": lambda translator: load_run("run"),
}


def answer(use, translator, sender):
    try:
        sender.send(use(translator))
    except Exception as error:
        sender.send(f"{type(error).__name__}: {error}")


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_forked_process_gets_one_line(translator, use):
    receiver, sender = multiprocessing.Pipe(duplex=False)
    context = multiprocessing.get_context("fork")
    process = context.Process(target=answer, args=(use, translator, sender))
    process.start()
    try:
        assert receiver.poll(SECONDS), "the process waits"
        said = receiver.recv()
    finally:
        process.kill()
        process.join()
    assert said.startswith("RuntimeError: A translator must be loaded and used in one process")
    assert f"forked from {os.getpid()}. Load it after the fork" in said and "\n" not in said
