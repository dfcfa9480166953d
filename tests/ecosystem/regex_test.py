#!/usr/bin/env python3
"""Random regular expressions, as `brigade prepare` and PyPI's tokenizers read
them.

    regex_test.py BRIGADE [SEED [COUNT]]     # see scripts/test_ecosystem.sh

Each pattern splits words for a WordPiece model whose vocabulary is the pieces
that the engine makes, so that another split gives other tokens.
"""
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

import tokenizers

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tokenizer/goldens"))
import make_regexes  # noqa: E402


def tokenizer_of(pattern, cases):
    vocabulary = {"[UNK]": 0}
    for _, pieces in cases:
        for piece in pieces:
            vocabulary.setdefault(piece, len(vocabulary))
    return {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": pattern},
                          "behavior": "Isolated", "invert": False},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordPiece", "unk_token": "[UNK]",
                  "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100, "vocab": vocabulary},
    }


def tokens(prefix, index):
    kind = struct.unpack("<B", index[17:18])[0]
    width, code = {8: (2, "H"), 4: (4, "i")}[kind]
    data = prefix.read_bytes()
    return list(struct.unpack(f"<{len(data) // width}{code}", data))


def main(brigade, seed=1, count=150):
    wrong = refused = 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        for pattern, cases in make_regexes.generated(seed, count, 8):
            text = json.dumps(tokenizer_of(pattern, cases))
            (folder / "tokenizer.json").write_text(text)
            (folder / "in.jsonl").write_text("".join(
                json.dumps({"text": of_case}) + "\n" for of_case, _ in cases))
            engine = tokenizers.Tokenizer.from_str(text)
            expected = [token for of_case, _ in cases
                        for token in engine.encode(of_case).ids]
            result = subprocess.run(
                [brigade, "prepare", "-i", folder / "in.jsonl", "-t",
                 folder / "tokenizer.json", "--no-append-eos", "--overwrite",
                 "-o", folder / "out"], capture_output=True, text=True)
            if result.returncode == 4 and "is not supported" in result.stderr:
                refused += 1
            elif result.returncode != 0:
                wrong += 1
                print(f"{pattern!r}: {result.stderr}")
            elif tokens(folder / "out.bin",
                        (folder / "out.idx").read_bytes()) != expected:
                wrong += 1
                print(f"{pattern!r} splits otherwise: {cases}")
    print(f"{count} patterns: {wrong} wrong, {refused} refused")
    return 1 if wrong or 10 * refused > count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *map(int, sys.argv[2:])))
