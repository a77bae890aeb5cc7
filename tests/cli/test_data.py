"""The command `vocabulary`: it warns of text that it changes, and reads every file only once."""

import os
import threading

import pytest

from tests.cli.small_run import cli


def write_lines(folder):
    (folder / "a.en").write_text("half an hour\n" * 30, "utf-8")
    (folder / "a.de").write_text("½ Stunde\n" * 10 + "eine halbe Stunde\n" * 20, "utf-8")


def vocabulary(*words):
    return cli("vocabulary", *words, "--size", 280, "--output", "m")


@pytest.mark.parametrize("rule", ["nfc", "nfkc"])
def test_vocabulary_warns_of_the_file_whose_text_it_changes(tmp_path, monkeypatch, rule):
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path)
    ran = vocabulary("a.en", "a.de", "--normalization", rule)
    assert ran.exit_code == 0 and ran.stdout == "m: 280 tokens\n", ran.stderr
    warnings = [line for line in ran.stderr.splitlines() if line.startswith("Warning: ")]
    assert len(warnings) == (rule == "nfkc")
    for warning in warnings:
        assert "33.3% of the a.de lines (10 of 30)" in warning
        assert warning.count("'½ Stunde' -> '1⁄2 Stunde'") == 3


def test_vocabulary_reads_a_pipe_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path)
    os.mkfifo("pipe")
    text = (tmp_path / "a.de").read_bytes()
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_bytes(text), daemon=True)
    writer.start()
    ran = vocabulary("pipe", "a.en")
    assert ran.stdout == "m: 280 tokens\n", ran.stderr


def test_vocabulary_names_the_files_without_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.en").write_text(" \n")
    (tmp_path / "a.de").write_text("")
    ran = vocabulary("a.en", "a.de")
    assert ran.exit_code == 2
    assert (
        ran.stderr.startswith("Error: There must be a line of text") and "a.en, a.de" in ran.stderr
    )


def test_size_without_room_for_a_character_is_refused_by_the_option(tmp_path):
    ran = cli("vocabulary", "a.en", "--size", 260, "--output", tmp_path / "m")
    assert ran.exit_code == 2 and "--size" in ran.stderr and "261" in ran.stderr
