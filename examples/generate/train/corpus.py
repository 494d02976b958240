#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds the training text from public-domain books that Debian packages carry.

    python3 corpus.py OUT_DIR

writes OUT_DIR/{kjv,webster,devil}.{train,val}.txt. A document is a chapter or a
dictionary entry; documents are separated by one empty line, and one in a
hundred (by a hash of its text, so that the choice never moves) is held out.
Nothing is installed: packages are downloaded with `apt-get download` and
unpacked beside the output.
"""
import gzip
import hashlib
import random
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

PACKAGES = ["bible-kjv", "bible-kjv-text", "dict-gcide", "dict-devil"]
HELD_OUT = 100  # one document in this many is validation data
SHUFFLE_SEED = 1

# Period slurs: the demo shall not learn to print them.
REFUSED = re.compile(r"nigg|darky|darkies", re.IGNORECASE)


def fetch(work: Path) -> Path:
    """Download and unpack the packages; returns the root of the unpacked tree."""
    root = work / "root"
    if (root / "usr").is_dir():
        return root
    work.mkdir(parents=True, exist_ok=True)
    subprocess.run(["apt-get", "download", *PACKAGES], cwd=work, check=True)
    for deb in sorted(work.glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", deb, root], check=True)
    return root


def to_ascii(text: str) -> str:
    text = unicodedata.normalize("NFKD", text)
    return text.encode("ascii", "ignore").decode("ascii")


def unwrap(lines) -> str:
    return re.sub(r"\s+", " ", " ".join(lines)).strip()


# ---- King James Bible -------------------------------------------------------

def kjv(root: Path) -> list[str]:
    """One document a chapter: its name, then one verse a line, unnumbered."""
    raw = subprocess.run(
        [root / "usr/bin/bible", "-p", root / "usr/lib", "-l20000", "gen1:1-rev22:21"],
        check=True, capture_output=True, text=True).stdout
    documents, chapter = [], []
    for line in raw.splitlines():
        verse = re.match(r"\s+\d+ (.*)", line)
        if verse:
            chapter.append(unwrap([verse[1]]))
        elif line.strip():
            documents.append("\n".join(chapter))
            chapter = [unwrap([line])]
    documents.append("\n".join(chapter))
    return [d for d in documents if d.count("\n")]


# ---- Webster's Revised Unabridged Dictionary, 1913 --------------------------

# GCIDE tags every paragraph with its origin. Only the 1913 text is out of
# copyright, so a paragraph that carries another tag, or none, is dropped.
WEBSTER_TAG = "[1913 Webster]"
ACCENT = re.compile(r"\[(?:[=^'`\"~.,_-]([A-Za-z]{1,2})|([A-Za-z]{1,2})[=^'`\"~_-])\]")
# Respelled forms, "--Un*right"wise`ly, adv.", and second spellings in backslashes.
RESPELLED = re.compile(r"(\s--[A-Za-z'-]*[*\"`][^,;. ]*(, [a-z. ]+\.)?|\s*\\[^\\]*\\)")
HEADWORD = re.compile(r"^([A-Za-z][A-Za-z' -]*?)\s*\\[^\\]*\\(.*)$")
QUOTE_INDENT = 9


def drop_brackets(text: str) -> str:
    """Remove [...] with what is nested in it: etymologies and usage labels."""
    out, depth = [], 0
    for char in text:
        if char == "[":
            depth += 1
        elif char == "]":
            depth = max(0, depth - 1)
        elif depth == 0:
            out.append(char)
    return "".join(out)


def webster_clean(text: str) -> str:
    text = text.replace("[deg]", " degrees")
    text = ACCENT.sub(lambda m: m[1] or m[2], text)
    text = drop_brackets(text).replace("{", "").replace("}", "")
    text = re.sub(r"\s*--\s?([A-Z])", r" --\1", text)
    text = re.sub(r"\s*\([^()]*[*`][^()]*\)", "", RESPELLED.sub("", text))
    text = re.sub(r"\s+([,.;:])", r"\1", text)
    return re.sub(r"\s+", " ", text).strip()


def webster_head(text: str) -> str | None:
    match = HEADWORD.match(text)
    if not match:
        return None
    rest = re.sub(r"^\s*\([^)]*\)", "", match[2])      # a second pronunciation
    rest = webster_clean(rest).lstrip(",;. ")
    return f"{match[1]}, {rest}" if rest else None


def webster_entry(paragraphs) -> str | None:
    """One dictionary entry from its paragraphs, or None if its head is not from 1913."""
    kept = []
    for index, lines in enumerate(paragraphs):
        if lines[-1].strip() != WEBSTER_TAG or len(lines) < 2:
            if index == 0:
                return None
            continue
        body = unwrap(lines[:-1])
        if index == 0:
            head = webster_head(body)
            if head is None:
                return None
            kept.append(head)
            continue
        indent = len(lines[0]) - len(lines[0].lstrip())
        body = webster_clean(body)
        if not body:
            continue
        if indent >= QUOTE_INDENT and " --" in body and '"' not in body:
            quote, author = body.rsplit(" --", 1)
            body = f'"{quote.strip()}" --{author.strip()}'
        kept.append(body)
    return "\n".join(kept)


def webster(root: Path) -> list[str]:
    path = root / "usr/share/dictd/gcide.dict.dz"
    text = to_ascii(gzip.open(path, "rt", encoding="utf-8", errors="ignore").read())
    entries, paragraphs = [], []
    for block in re.split(r"\n\s*\n", text):
        lines = [line for line in block.splitlines() if line.strip()]
        if not lines:
            continue
        if not lines[0].startswith(" "):
            if paragraphs:
                entries.append(webster_entry(paragraphs))
            paragraphs = []
        paragraphs.append(lines)
    entries.append(webster_entry(paragraphs))
    return [e for e in entries if e and len(e) > 40]


# ---- The Devil's Dictionary -------------------------------------------------

def devil(root: Path) -> list[str]:
    """Entries keep their verse: only prose paragraphs are unwrapped."""
    path = root / "usr/share/dictd/devil.dict.dz"
    text = to_ascii(gzip.open(path, "rt", encoding="utf-8", errors="ignore").read())
    documents, entry = [], []
    for block in re.split(r"\n\s*\n", text):
        lines = [line.rstrip() for line in block.splitlines() if line.strip()]
        if not lines:
            continue
        if re.match(r"[A-Z][A-Z' -]+(\.|, (n|v|adj|adv|pp|pl)[a-z.]*)", lines[0]):
            documents.append("\n".join(entry))
            entry = []
        if lines[0].startswith("    "):
            entry += [re.sub(r"\s+", " ", line).strip() for line in lines]
        else:
            entry.append(unwrap(lines))
    documents.append("\n".join(entry))
    start = next(i for i, d in enumerate(documents) if d.startswith("ABASEMENT"))
    return [d.replace("_", "") for d in documents[start:] if d]


# ---- Output -----------------------------------------------------------------

def held_out(document: str) -> bool:
    digest = hashlib.sha256(document.encode()).digest()
    return int.from_bytes(digest[:4], "little") % HELD_OUT == 0


def write(out: Path, name: str, documents: list[str]) -> None:
    documents = [d for d in documents if not REFUSED.search(d)]
    random.Random(SHUFFLE_SEED).shuffle(documents)
    for split, wanted in (("train", False), ("val", True)):
        text = "\n\n".join(d for d in documents if held_out(d) == wanted) + "\n\n"
        (out / f"{name}.{split}.txt").write_text(text, encoding="ascii")
        print(f"{name}.{split}: {len(text)} bytes")


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    out = Path(sys.argv[1])
    root = fetch(out / "packages")
    for source in (kjv, webster, devil):
        write(out, source.__name__, source(root))


if __name__ == "__main__":
    main()
