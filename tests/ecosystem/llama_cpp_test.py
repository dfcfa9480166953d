#!/usr/bin/env python3
"""llama.cpp's tokens, logits and loss of a GGUF file, and Brigade's.

    llama_cpp_test.py BRIGADE ROOT FILE.gguf [MODEL]

See scripts/test_llama_cpp.sh. Needs no package.
"""
import array
import json
import math
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import unicodedata

STRINGS = 2000
SEQ_LENGTH = 128
# llama.cpp's rounding moves the mean of few tokens by chance: on a Xeon with
# AMX, by 6e-3 of the perplexity of 18 KB and 7e-4 of 180 KB.
TEXT_BYTES = 120000
LOGITS = 2**20  # compared, about
# Relative tolerances: of the loss and logits where both compute with the same
# values, and of the perplexity where llama.cpp rounds activations too.
SAME_VALUES = 1e-4
ROUNDED = 0.005
# The tolerance of logits where ggml looks GELU up in a table of float16.
# gguf_test.py shows that the table explains their distance.
GELU_OF_A_TABLE = 1e-3
PIECES = [
    "it's", "I'LL", "we've", "12345", "3.14", " ", "  ", "   ", "\n", "\n\n",
    "\t", "\r\n", "é", "中文", "日本語", "русский", "한국어", "🚒", "½", "²",
    "(x)", "==", "...", "CamelCase", "HTTPServer", "snake_case", "\u00a0",
    "\u3000", "_", "a", "Ab", "Ω", "ß", "0", "٣", "１２", "foo/bar", "//",
    "\u200b", "▁", "\x7f", " " * 7, " " * 17, " " * 40, "\n" * 5]


def strings(special):
    """Lines of the documents, and pieces in random order."""
    draw = random.Random(0)
    documents = sorted(pathlib.Path("docs").glob("*.md"))
    # Only some tokenizers recognise a special token that a text spells.
    lines = [line for path in documents for line in path.read_text().split("\n")
             if line and "<" not in line]
    pieces = PIECES + special
    made = []
    for i in range(STRINGS):
        if i % 2 == 0:
            made.append(draw.choice(lines))
        else:
            count = draw.randint(1, 12)
            made.append("".join(draw.choice(pieces) for _ in range(count)))
    # llama.cpp does not normalise.
    return [unicodedata.normalize("NFC", text) for text in made]


class Test:
    def __init__(self, brigade, root, file, model, folder):
        self.brigade = brigade
        self.root = pathlib.Path(root)
        self.folder = pathlib.Path(folder)
        self.inside = self.root / "tmp" / f"test-{self.folder.name}.gguf"
        self.is_own_model = not model
        shutil.copyfile(file, self.inside)
        if self.is_own_model:
            model = self.folder / "imported"
            self.run("import", "--gguf", file, "--out", model)
        self.model = model
        self.tokenizer = self.find_tokenizer()
        # SentencePiece's own library finds no special tokens in a text.
        self.is_library = "SentencePiece model" in self.run(
            "inspect", self.tokenizer)

    def run(self, *arguments):
        result = subprocess.run(
            [self.brigade, *map(str, arguments)], capture_output=True,
            text=True)
        if result.returncode != 0:
            sys.exit(f"brigade {arguments}: {result.stderr}")
        return result.stdout

    def find_tokenizer(self):
        path = pathlib.Path(self.model)
        manifests = sorted(
            path.glob("**/manifest.json"), key=lambda p: p.stat().st_mtime)
        if not manifests:
            if not any(path.glob("tokenizer.*")):
                sys.exit(f"{path} has no tokenizer to compare with")
            return path
        name = json.loads(manifests[-1].read_text())["tokenizer"]
        beside = manifests[-1].parent / name
        return beside if beside.exists() else name

    def oracle(self, what, lines):
        """What it prints, as bytes."""
        result = subprocess.run(
            ["chroot", self.root, "/tmp/llama_cpp_oracle",
             f"/tmp/{self.inside.name}", what],
            input="".join(line + "\n" for line in lines).encode(),
            capture_output=True)
        if result.returncode != 0:
            sys.exit(f"llama.cpp: {result.stderr.decode()}")
        return result.stdout

    def words(self, what, lines):
        """What it prints, as a list of words per line."""
        printed = self.oracle(what, lines).decode()
        return [line.split() for line in printed.split("\n")[:-1]]

    def tokens(self, texts, name):
        """Brigade's, one list per text."""
        documents = self.folder / f"{name}.jsonl"
        documents.write_text("".join(
            json.dumps({"text": text}) + "\n" for text in texts))
        prefix = self.folder / name
        self.run("prepare", "-i", documents, "--tokenizer", self.tokenizer,
                 "--out", prefix)
        index = pathlib.Path(f"{prefix}.idx").read_bytes()
        code, count = index[17], struct.unpack_from("<Q", index, 18)[0]
        lengths = struct.unpack_from(f"<{count}i", index, 34)
        data = pathlib.Path(f"{prefix}.bin").read_bytes()
        width = {8: 2, 4: 4}[code]
        ids = struct.unpack(f"<{len(data) // width}{'H' if width == 2 else 'i'}",
                            data)
        lists, at = [], 0
        for length in lengths:
            lists.append(list(ids[at:at + length]))
            at += length
        return lists

    def special_texts(self):
        """Tokens that a text may name; one that is normalised is found
        behind a space alone, and the export says so."""
        path = pathlib.Path(self.tokenizer)
        file = path / "tokenizer.json" if path.is_dir() else path
        texts = ["<s>", "</s>"]
        if file.suffix == ".json" and file.exists():
            texts = [token["content"] for token in json.loads(
                file.read_text())["added_tokens"]
                if not token["normalized"]]
        return texts

    def check_tokens(self):
        texts = strings(self.special_texts())
        quoted = [json.dumps(text, ensure_ascii=False) for text in texts]
        theirs = [list(map(int, ids)) for ids in self.words(
            "plain" if self.is_library else "tokens", quoted)]
        mine = self.tokens(texts, "strings")
        # The tokens around a document are Brigade's and not in the text.
        specials = self.special_ids()
        for ids in mine + theirs:
            while ids and ids[0] in specials:
                ids.pop(0)
            while ids and ids[-1] in specials:
                ids.pop()
        wrong = [i for i in range(STRINGS) if mine[i] != theirs[i]]
        for i in wrong[:3]:
            print(f"  {texts[i]!r}\n    Brigade   {mine[i]}\n"
                  f"    llama.cpp {theirs[i]}")
        print(f"tokens: {STRINGS - len(wrong)} of {STRINGS} strings alike")
        return not wrong

    def special_ids(self):
        shown = self.run("inspect", self.tokenizer)
        return {int(line.split()[1]) for line in shown.split("\n")
                if line.split()[:1] in (["bos"], ["eos"])
                and line.split()[1].isdigit()}

    def check_loss(self, rounds):
        text = "".join(page.read_text() for page in
                       sorted(pathlib.Path("docs").glob("*.md")))[:TEXT_BYTES]
        file = self.folder / "text.txt"
        file.write_text(text)
        mine = json.loads(self.run(
            "evaluate", "--run", self.model, "--text", file, "--tokenizer",
            self.tokenizer, "--seq-length", SEQ_LENGTH, "--dtype", "float32",
            "--json"))[str(file)]
        ids = [i for i in map(int, self.words(
            "tokens", [json.dumps(text, ensure_ascii=False)])[0])]
        windows = [ids[begin:begin + SEQ_LENGTH + 1]
                   for begin in range(0, len(ids) - 1, SEQ_LENGTH)]
        scores = self.words(
            "scores", [" ".join(map(str, window)) for window in windows])
        values = [float(value) for line in scores for value in line]
        if len(values) != mine["tokens"]:
            print(f"loss: {len(values)} tokens, Brigade {mine['tokens']}")
            return False
        loss = -sum(values) / len(values)
        difference = (math.expm1(abs(loss - mine["loss"])) if rounds
                      else abs(loss - mine["loss"]) / mine["loss"])
        print(f"loss: Brigade {mine['loss']:.6f}, llama.cpp {loss:.6f}, "
              f"{'perplexity' if rounds else 'loss'} {difference:.1e} apart")
        return difference <= (ROUNDED if rounds else SAME_VALUES)


    def check_logits(self, tolerance):
        """All log-probabilities in each place, as `evaluate --top-k` has them:
        the worst place's largest difference over its largest value."""
        # The tokenizer's vocabulary; the model's may have more rows.
        size = json.loads((self.folder / "strings.json").read_text())[
            "vocab_size"]
        text = pathlib.Path("docs/config.md").read_text()[:LOGITS // size]
        ids = self.tokens([text], "logits")[0]
        windows = [ids[begin:begin + SEQ_LENGTH + 1]
                   for begin in range(0, len(ids) - 1, SEQ_LENGTH)]
        theirs = array.array("f", self.oracle(
            "logits", [" ".join(map(str, window)) for window in windows]))
        row = len(theirs) // (len(ids) - 1)
        file = self.folder / "logits.topk"
        self.run("evaluate", "--run", self.model, "--dataset",
                 self.folder / "logits", "--top-k", file, "--k", size,
                 "--seq-length", SEQ_LENGTH, "--dtype", "float32")
        # A record per token, behind a header: ids, log-probabilities, checksum.
        data = file.read_bytes()
        record = 8 * size + 4
        worst = 0
        for place in range(1, len(ids)):
            at = len(data) - (len(ids) - place) * record
            mine = dict(zip(struct.unpack_from(f"<{size}I", data, at),
                            struct.unpack_from(f"<{size}f", data,
                                               at + 4 * size)))
            logits = theirs[(place - 1) * row:(place - 1) * row + size]
            largest = max(logits)
            total = largest + math.log(
                sum(math.exp(value - largest) for value in logits))
            difference = max(abs(mine[i] - (value - total))
                             for i, value in enumerate(logits))
            worst = max(worst, difference / -min(mine.values()))
        print(f"logits: of {len(ids) - 1} places the worst is {worst:.1e} apart")
        return worst <= tolerance


def entry(path, key):
    """Where the value of a GGUF file's entry begins, and the file."""
    data = pathlib.Path(path).read_bytes()
    return data.index(key) + len(key) + 4, data


def file_type(path):
    """general.file_type: 0 is f32."""
    at, data = entry(path, b"general.file_type")
    return struct.unpack_from("<I", data, at)[0]


def has_gelu(path):
    """Gemma's architectures."""
    at, data = entry(path, b"general.architecture")
    return data[at + 8:].startswith(b"gemma")


def main():
    brigade, root, file, model = (sys.argv[1:] + [""])[:4]
    with tempfile.TemporaryDirectory() as folder:
        test = Test(brigade, root, file, model, folder)
        try:
            rounds = file_type(file) != 0
            alike = [test.check_tokens(), test.check_loss(rounds)]
            if not rounds:
                alike.append(test.check_logits(
                    GELU_OF_A_TABLE if has_gelu(file) else SAME_VALUES))
        finally:
            test.inside.unlink()
    sys.exit(0 if all(alike) else 1)


main()
