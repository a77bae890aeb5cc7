"""Small files of every format that is read, for the tests of reading and of the command line."""

import bz2
import gzip
import io
import json
import lzma
import sys

import polib
import pyarrow
import pyarrow.parquet

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

COMPRESSIONS = {".gz": gzip, ".bz2": bz2, ".xz": lzma, ".zst": zstd}


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def packed(data, ending):
    """Compresses data in two members, or frames."""
    compress = COMPRESSIONS[ending].compress
    return compress(data[: len(data) // 2]) + compress(data[len(data) // 2 :])


def po(pairs):
    """A catalogue with a header, and an entry of each kind that is no pair."""
    catalog = polib.POFile()
    catalog.metadata = {"Content-Type": "text/plain; charset=utf-8"}
    for source, target in pairs:
        catalog.append(polib.POEntry(msgid=source, msgstr=target, msgctxt=target))
    catalog.append(polib.POEntry(msgid="not translated"))
    catalog.append(polib.POEntry(msgid="fuzzy", msgstr="unscharf", flags=["fuzzy"]))
    catalog.append(polib.POEntry(msgid="old", msgstr="alt", obsolete=True))
    return catalog


def tmx(pairs, encoding="utf-8"):
    units = "".join(
        f'<tu><tuv xml:lang="DE"><seg>{target}</seg></tuv>'
        f'<tuv xml:lang="en-US"><seg>{source}</seg></tuv></tu>'
        for source, target in pairs
    )
    head = f'<?xml version="1.0" encoding="{encoding}"?><tmx version="1.4">'
    return f'{head}<header srclang="en"/><body>{units}</body></tmx>'.encode(encoding)


def parquet(rows):
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file, row_group_size=2)
    return file.getvalue()


def named(pairs):
    return [{"id": n, "en": s, "de": t} for n, (s, t) in enumerate(pairs)]


def inner(pairs):
    return [{"translation": {"en": source, "de": target}} for source, target in pairs]


def json_lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


NAMES = {"columns": ["en", "de"]}
# {name: (ending, function that writes pairs as bytes, options to read them)}.
FORMATS = {
    "TSV": (".tsv", lambda pairs: "\n".join(map("\t".join, pairs)).encode(), {}),
    "TSV with a header": (
        ".tsv",
        lambda pairs: "\n".join(
            map("\t".join, [("de", "en", "x"), *((t, s, "") for s, t in pairs)])
        ).encode(),
        NAMES,
    ),
    "CSV": (
        ".csv",
        lambda pairs: "\r\n".join(["id,en,de", *(f'7,"{s}","{t}"' for s, t in pairs)]).encode(),
        NAMES,
    ),
    "JSON lines": (".jsonl", lambda pairs: json_lines(named(pairs)), NAMES),
    "JSON lines of the Hub": (".ndjson", lambda pairs: json_lines(inner(pairs)), NAMES),
    "parquet": (".parquet", lambda pairs: parquet(named(pairs)), NAMES),
    "parquet of the Hub": (".parquet", lambda pairs: parquet(inner(pairs)), NAMES),
    "gettext": (".po", lambda pairs: str(po(pairs)).encode(), {}),
    "compiled gettext": (".mo", lambda pairs: po(pairs).to_binary(), {}),
    "TMX": (".tmx", tmx, {"languages": ["en", "de"]}),
    "TMX in UTF-16": (".tmx", lambda pairs: tmx(pairs, "utf-16"), {}),
}
