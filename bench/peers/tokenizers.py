#!/usr/bin/env python3
"""How fast Hugging Face's engine encodes on one thread.

    tokenizers.py TOKENIZER.json TEXT

prints seconds per pass over the text's documents (cut as bench_tokenizer cuts
them: at blank lines, at least 4096 bytes each), the best of several, and the
number of tokens. Needs PyPI's tokenizers 0.23.3.
"""
import json
import os
import pathlib
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
sys.path.pop(0)  # this folder, where "tokenizers" would be this file
import tokenizers


def load(path):
    """The engine refuses merges "left right" of tokens that hold spaces; see
    tests/tokenizer/goldens/make_goldens.py."""
    data = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    model = data["model"]

    def read(merge):
        if not isinstance(merge, str):
            return merge
        for i, c in enumerate(merge):
            left, right = merge[:i], merge[i + 1:]
            if c == " " and all(part in model["vocab"]
                                for part in (left, right, left + right)):
                return [left, right]
        sys.exit(f"merge {merge!r}")

    if "merges" in model:
        model["merges"] = [read(merge) for merge in model["merges"]]
    return tokenizers.Tokenizer.from_str(json.dumps(data))


def documents_of(data):
    documents = []
    begin = 0
    while begin < len(data):
        blank = data.find(b"\n\n", begin + 4096)
        end = len(data) if blank < 0 else blank + 2
        documents.append(data[begin:end].decode("utf-8"))
        begin = end
    return documents


def main():
    tokenizer = load(sys.argv[1])
    documents = documents_of(pathlib.Path(sys.argv[2]).read_bytes())
    best = float("inf")
    begin = time.perf_counter()
    while time.perf_counter() - begin < 4:
        start = time.perf_counter()
        tokens = sum(
            len(tokenizer.encode(document, add_special_tokens=False))
            for document in documents)
        best = min(best, time.perf_counter() - start)
    print(best, tokens)


if __name__ == "__main__":
    main()
