"""Runs the program of the page "A hundred million lines" with two workers, and kills one.

    python benchmarks/ray_data.py FOLDER SOURCE --ray-python ray/bin/python

FOLDER is an exported model for CTranslate2, SOURCE a file of lines. The Python has `ray[data]`,
`ctranslate2`, `sentencepiece` and `unicodedata2`. It prints whether all bytes are those of a run
without a kill, and exits with an error if not. No test runs it: Ray is some 600 MB. Linux only.
"""

import argparse
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

from decode_peers.timing import print_verdict

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "pages" / "hundred_million_lines.md"
PART_BYTES = 4096


def translate(command, kills):
    """Runs the program, and kills the worker that wrote the first part."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if kills and (found := re.match(r"\d+(?= /)", line)):
                os.kill(int(found[0]), signal.SIGKILL)
                kills = False
    if process.returncode or kills:
        raise SystemExit("The program failed, or ended before the kill.")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("--ray-python", default=sys.executable)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        program, parts = folder / "translate_parts.py", folder / "parts"
        program.write_text(re.search(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.S)[1])
        parts.mkdir()
        cut = ["split", f"--line-bytes={PART_BYTES}", "--suffix-length=6", "--numeric-suffixes"]
        subprocess.run([*cut, str(arguments.source), f"{parts}/"], check=True)
        texts = []
        for done in (folder / "whole", folder / "killed"):
            done.mkdir()
            command = [arguments.ray_python, "-u", program, arguments.folder, parts, done, "2"]
            translate(list(map(str, command)), kills=done.name == "killed")
            texts.append(b"".join(path.read_bytes() for path in sorted(done.iterdir())))
    count = arguments.source.read_bytes().removesuffix(b"\n").count(b"\n") + 1
    is_equal = texts[0] == texts[1] and texts[0].count(b"\n") == count
    print_verdict(is_equal, f"{count:,} lines, the same bytes after a worker was killed")
    sys.exit(not is_equal)


if __name__ == "__main__":
    main()
