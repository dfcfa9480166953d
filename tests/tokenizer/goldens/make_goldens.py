#!/usr/bin/env python3
"""Writes texts.json and goldens.json: what Hugging Face's own engine makes of
the texts with each tokenizer of this folder and of ../shared/data/tokenizers.

    pip install tokenizers==0.23.3
    python3 make_goldens.py

The engine refuses llama2.json: three of its merges, written "left right", are
of tokens that hold spaces themselves. There is one way to read each, and load()
hands them over as ["left", "right"].

A text's digest is 32-bit FNV-1a over: the ids without template, the ids with
it, the decoded text of the latter with special tokens and without; ids and
bytes as little-endian u32 with their count in front. The digest of several
texts continues over them.
"""
import json
import os
import pathlib
import struct
import sys

os.environ["TOKENIZERS_PARALLELISM"] = "false"
import tokenizers

HERE = pathlib.Path(__file__).resolve().parent
SHARED = HERE.parents[2].parent / "shared/data"
BLOCK_TEXTS = 50


class Random:
    """A linear congruence; C++ has the same."""

    def __init__(self, seed):
        self.state = seed

    def below(self, n):
        self.state = (self.state * 1664525 + 1013904223) % 2**32
        return self.state * n >> 32

    def pick(self, options):
        return options[self.below(len(options))]


# Ranges of code points, weighted by repetition. None holds characters assigned
# after Unicode 14, on which regex engines differ by their age.
ASCII = (0x20, 0x7E)
SPACE = (0x20, 0x20)
RANGES = [
    ASCII, ASCII, ASCII, ASCII, SPACE, SPACE, (0x0, 0x1F), (0x7F, 0x9F),
    (0xA0, 0xFF), (0x100, 0x24F), (0x250, 0x2AF), (0x300, 0x36F),
    (0x300, 0x36F), (0x391, 0x3C9), (0x400, 0x45F), (0x531, 0x556),
    (0x5D0, 0x5EA), (0x600, 0x6FF), (0x904, 0x939), (0x93E, 0x94D),
    (0xE01, 0xE3A), (0xE40, 0xE4E), (0x10A0, 0x10C5), (0x1100, 0x1112),
    (0x1161, 0x1175), (0x11A8, 0x11C2), (0x1680, 0x1680), (0x1780, 0x17B3),
    (0x1E00, 0x1EFF), (0x1F00, 0x1F15), (0x2000, 0x200F), (0x2010, 0x206F),
    (0x2070, 0x209C), (0x20AC, 0x20AC), (0x20D0, 0x20F0), (0x2100, 0x218B),
    (0x2190, 0x21FF), (0x2200, 0x22FF), (0x2460, 0x24FF), (0x2500, 0x25FF),
    (0x2600, 0x26FF), (0x2700, 0x27BF), (0x2581, 0x2581), (0x3000, 0x3029),
    (0x3041, 0x3096), (0x309B, 0x30FF), (0x4E00, 0x9FA5), (0x4E00, 0x9FA5),
    (0xAC00, 0xD7A3), (0xE000, 0xE010), (0xF900, 0xFA6D), (0xFB00, 0xFB06),
    (0xFB1D, 0xFB36), (0xFE00, 0xFE0F), (0xFE10, 0xFE19), (0xFF01, 0xFF9F),
    (0xFFFC, 0xFFFF), (0x10000, 0x1000B), (0x10400, 0x1044F),
    (0x1D400, 0x1D454), (0x1F1E6, 0x1F1FF), (0x1F300, 0x1F5FF),
    (0x1F600, 0x1F64F), (0x1F3FB, 0x1F3FF), (0x20000, 0x20020),
    (0x2F800, 0x2FA1D), (0xE0100, 0xE0110), (0x10FFFD, 0x10FFFF),
    (0x378, 0x379)]
WORDS = [
    "the", " the", "a", "'s", "'LL", "'re", " gradient", "tokens", "\n",
    "\n\n", "\r\n", "  ", "   ", "\t", "\t\t", "123", "12345", " 7", "é",
    "é", "👩‍🚀", "🇩🇪", "Ａ", "ſ", "K", "ß", "İ", "ﬁ", "한국",
    "한", "中文", "日本", "▁", "▁▁", "<s>", "</s>", "<unk>", "<0x0A>",
    "<|endoftext|>", "\0", "\u00A0", "\u2028", "\uFEFF", "...", "!?", "_",
    "x_1"]
NAMED = [
    "",
    " ",
    "  ",
    "a",
    "Hello, world!",
    " Hello  world ",
    "The quick brown fox jumps over the lazy dog.",
    "It's what they've said: I'll, we're, you'd; she didn't. IT'S "
    "THEY'VE 'tis",
    "def f(x):\n    if x > 0:\n\treturn {\"a\": [1, 2], 'b': x ** "
    "2}\n\n\n# end\n",
    "#include <vector>\nint main() { return std::vector<int>{1,2,3}.size() "
    ">= 0x1F ? 0 : -1; }\r\n\r\n",
    "Привет, мир! Γειά σου Κόσμε. שלום עולם مرحبا بالعالم नमस्ते "
    "दुनिया สวัสดีชาวโลก 안녕하세요 你好，世界。日本語のテキスト。",
    "😀 👩‍🚀👨‍👩‍👧‍👦 🇩🇪🇫🇷 ❤️ ☕︎ 👍🏽",
    "é é Å ạ\u0308 q\u0323\u0307 ℌ ﬁ ½ ²³ Ⅻ １２３ ①",
    "\x00\x01\x1F\x7F\x80\x9F",
    "\xA0\u1680\u2003\u2028\u2029\u202F\u205F\u3000\u200B\uFEFF\u2060x",
    "a\n\n\nb\n \n c\r\n\r\nd\t\te \t f",
    "x                                        y\t\t\t\t\t\t\t\t\t\t\t\tz\n\n"
    "\n\n\n\n\n\n\n",
    "1 12 123 1234 12345 123456 3.14159e-10 1,000,000 ٣٤٥ ௧௨௩ Ⅷ",
    "____ --- *** ... !!! ??? $$$ %%% === //// \\\\\\\\ <<>> [[]] {{}}",
    "https://example.com/a?b=c&d=%20#frag user@example.org C:\\path\\file.txt",
    "ſtraße İstanbul ǅ ΣΑΣ ŒUVRE ẞ",
    "don'ſ 'ſ 'K 'RE're",
    "▁a▁▁b ▁c",
    "<s>a</s> <unk> <0x0A><0x41>",
    "  fox foxes fox_ _fox fox, (fox) fox",
    "a <mask> b<mask>c  <mask>  <mask>",
    "x [L] y [R] z  [L][R]  [R] [L] ",
    "한글 한글 각\u11A8",
    "\u0344\u0958ΩÅ\u1FFE\uFB4F",
    "a\u0315\u0300\u05AEb x\u0327\u0301",
    "e" * 300,
    "ab" * 200,
    " " * 257,
    "▁" * 100,
    "\n" * 100,
    "日" * 90,
    "😀" * 50,
    "\u0301" * 60,
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
    "aaaaaa the the the",
    "\uFFFD\uFFFE\uFFFF\U0010FFFF\u0378\uE000",
    # Clusters of characters, and what normalizers remove, also in front.
    "\x01a\x00b\x0Bc\x8F", "\u200B\u200Da\u0301 b\u0300\u0301", "\r\r\n\n",
    "\uFF76\uFF9E\uFF76 \u1100\u1161\u1112\u1161\u11AB A\u0308\u0304",
    "`` quoted '' ''' ```", "a\u0300" * 40, "\u0301a", "\uFFFDx\uFFFD",
    "\u0939\u093F\u0928\u094D\u0926\u0940 \u0915\u094D\u0937",
    "x" * 100 + " " + "y" * 101, "Łódź Ǿ ñ Ṩ ŉ", "你a好 豈 \U00020000b",
    "unaffable, un-affable unAFFable's do not don't n't", "<unk><unk> <unk>q",
    "日" * 30 + "の" * 5 + "ab" * 60 + " " + "Ж" * 25,
]


def random_text(random):
    mode = random.below(4)
    length = 1 + random.below(30 if mode == 3 else 14)
    few = [random.pick(RANGES) for _ in range(3)]

    def character(bounds):
        return chr(bounds[0] + random.below(bounds[1] - bounds[0] + 1))

    text = ""
    for _ in range(length):
        if mode == 0:
            text += character(random.pick(RANGES))
        elif mode == 1:
            text += character(random.pick(few))
        elif mode == 2:
            text += (random.pick(WORDS) if random.below(3)
                     else character(random.pick(few)))
        else:
            text += character(ASCII if random.below(6) else random.pick(few))
    return text


def load(file):
    data = json.loads(file.read_text(encoding="utf-8"))
    model = data["model"]

    def read(merge):
        if not isinstance(merge, str):
            return merge
        ways = [(merge[:i], merge[i + 1:])
                for i, c in enumerate(merge) if c == " "]
        if len(ways) > 1:
            vocab = model["vocab"]
            ways = [(a, b) for a, b in ways
                    if a in vocab and b in vocab and a + b in vocab]
        if len(ways) != 1:
            sys.exit(f"{file}: {merge!r} can be read in {len(ways)} ways")
        return list(ways[0])

    if "merges" in model:
        model["merges"] = [read(merge) for merge in model["merges"]]
    return tokenizers.Tokenizer.from_str(json.dumps(data))


class Digest:
    def __init__(self):
        self.hash = 0x811C9DC5

    def add(self, data):
        value = self.hash
        for byte in data:
            value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
        self.hash = value

    def ids(self, ids):
        self.add(struct.pack(f"<{len(ids) + 1}I", len(ids), *ids))

    def text(self, text):
        data = text.encode("utf-8")
        self.add(struct.pack("<I", len(data)) + data)

    def hex(self):
        return f"{self.hash:08x}"


def results_of(tokenizer, texts):
    def ids(template):
        encodings = tokenizer.encode_batch(texts, add_special_tokens=template)
        return [encoding.ids for encoding in encodings]

    full = ids(True)
    return list(zip(
        ids(False), full,
        tokenizer.decode_batch(full, skip_special_tokens=False),
        tokenizer.decode_batch(full, skip_special_tokens=True)))


def digest(results):
    total = Digest()
    for plain, full, kept, skipped in results:
        total.ids(plain)
        total.ids(full)
        total.text(kept)
        total.text(skipped)
    return total.hex()


def golden_of(tokenizer, texts, is_shared):
    named = results_of(tokenizer, texts["named"])
    random = results_of(tokenizer, texts["random"])
    # Ids that no text gives: 400 runs of 1 to 12.
    numbers = Random(777)
    vocab_size = max(tokenizer.get_vocab(True).values()) + 1
    runs = [[numbers.below(vocab_size) for _ in range(1 + numbers.below(12))]
            for _ in range(400)]
    decoded = Digest()
    for skip in (False, True):
        for text in tokenizer.decode_batch(runs, skip_special_tokens=skip):
            decoded.text(text)
    golden = {
        "shared": is_shared,
        "ids": [full for _, full, _, _ in named[:30]],
        "named": [digest([result]) for result in named],
        "random": [digest(random[i:i + BLOCK_TEXTS])
                   for i in range(0, len(random), BLOCK_TEXTS)],
        "decoded": decoded.hex(),
        "vocab_size": vocab_size,
    }
    if is_shared:
        english = (SHARED / "tinyshakespeare.txt").read_text(encoding="utf-8")
        golden["shakespeare"] = digest(results_of(tokenizer,
                                                  [english[:300000]]))
    return golden


def main():
    files = {file.stem: file for file in sorted(HERE.glob("*.json"))
             if file.stem not in ("texts", "goldens")}
    shared = {name: SHARED / f"tokenizers/{name}.json"
              for name in ("llama2", "phi2")}
    files |= {name: file for name, file in shared.items() if file.exists()}
    marks = {}  # in the order in which they come
    for file in files.values():
        for token in json.loads(file.read_text("utf-8"))["added_tokens"]:
            marks[token["content"]] = True
    random = Random(12345)
    texts = {
        "named": NAMED + [f"one{m}two {m} three{m}{m} {m}\n{m}"
                          for m in marks],
        "random": [random_text(random) for _ in range(10000)],
    }
    goldens = {name: golden_of(load(file), texts, name in shared)
               for name, file in files.items()}
    for name, content in (("texts", texts), ("goldens", goldens)):
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
        if name == "goldens":
            text = text.replace('},"', '},\n"') + "\n"
        (HERE / f"{name}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
