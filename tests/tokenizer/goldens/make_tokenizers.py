#!/usr/bin/env python3
"""Writes the small tokenizer.json files of this folder: vocabularies trained by
Hugging Face's engine on a page of text, with the parts that real families use.

    pip install tokenizers==0.23.3 sentencepiece==0.2.3
    python3 make_tokenizers.py
    python3 make_goldens.py
"""
import base64
import json
import os
import pathlib
import tempfile
import unicodedata

os.environ["TOKENIZERS_PARALLELISM"] = "false"
import sentencepiece
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).resolve().parent
SAMPLE = """
The quick brown fox jumps over the lazy dog. The bucket brigade passes buckets hand to hand; so does a ring
all-reduce. "It's what they've said: I'll, we're, you'd," she didn't answer. Numbers: 1 12 123 1234 12345, 3.14159, 2026-11-21.
def main(args):
    for i in range(10):
        print(f"{i}: {args[i]}")
    return {"key": [1, 2, 3]}

int32_t next(const std::vector<int>& v, size_t at) { return at + 1 < v.size() ? v[at + 1] : -1; } // comment
naïve café résumé über straße façade Ångström. Привет, мир! Γειά σου Κόσμε. 你好，世界。日本語のテキスト。 안녕하세요 세계
שלום עולם مرحبا بالعالم नमस्ते दुनिया สวัสดีชาวโลก 😀 👩‍🚀 🇩🇪 ½ ² Ⅻ ﬁ
gradients are summed, gradients are averaged, the gradient of the loss; tokens, tokenizers, tokenization.
""" * 3


def utf16(text):
    """Orders as JavaScript does, which wrote these files first."""
    return text.encode("utf-16-be")


def trained(trainer, model, pre_tokenizer=None, normalizer=None):
    """The model as the trainer leaves it, as JSON."""
    tokenizer = tokenizers.Tokenizer(model)
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    with tempfile.TemporaryDirectory() as folder:
        corpus = pathlib.Path(folder) / "corpus.txt"
        corpus.write_text(SAMPLE, encoding="utf-8")
        tokenizer.train([str(corpus)], trainer)
    return json.loads(tokenizer.to_str())["model"]


def train_bpe(vocab_size, special, pre_tokenizer, alphabet):
    """BPE of a given alphabet: the special tokens, then all characters in
    order, then the first merges."""
    model = trained(
        trainers.BpeTrainer(show_progress=False), models.BPE(), pre_tokenizer)
    single = {token for token in model["vocab"] if len(token) == 1}
    tokens = [*special, *sorted({*alphabet, *single}, key=utf16)]
    vocab = {}
    for token in tokens:
        vocab[token] = len(vocab)
    merges = []
    for left, right in model["merges"]:
        if len(vocab) >= vocab_size:
            break
        if left not in vocab or right not in vocab:
            continue
        merges.append([left, right])
        vocab.setdefault(left + right, len(vocab))
    return {"vocab": vocab, "merges": merges}


BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]


def byte_alphabet():
    printable = [b for b in range(256)
                 if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    rest = iter(range(256, 512))
    return [chr(b if b in printable else next(rest)) for b in range(256)]


def bpe(model, **options):
    if options.pop("legacy_merges", False):
        model = {**model, "merges": [" ".join(m) for m in model["merges"]]}
    return {"type": "BPE", "dropout": None, "unk_token": None,
            "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            **model, **options}


def added(number, content, **options):
    return {"id": number, "content": content, "single_word": False,
            "lstrip": False, "rstrip": False, "normalized": False,
            "special": True, **options}


def write(name, **parts):
    file = {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [], "normalizer": None, "pre_tokenizer": None,
            "post_processor": None, "decoder": None, **parts}
    text = json.dumps(file, ensure_ascii=False, separators=(",", ":"))
    (HERE / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    tokenizers.Tokenizer.from_str(text)


def sequence(key, *parts):
    return {"type": "Sequence", key: list(parts)}


def split(pattern, behavior, invert=False):
    return {"type": "Split", "pattern": pattern, "behavior": behavior,
            "invert": invert}


def replace(pattern, content):
    return {"type": "Replace", "pattern": pattern, "content": content}


def template(single, **tokens):
    """`single` names the special tokens, and the text as "$A"."""
    def part(name):
        if name == "$A":
            return {"Sequence": {"id": "A", "type_id": 0}}
        return {"SpecialToken": {"id": name, "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [part(name) for name in single],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}},
                 {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {
            name: {"id": name, "ids": ids,
                   "tokens": [f"{name}{i}" for i in range(len(ids))]}
            for name, ids in tokens.items()}}


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False,
              "trim_offsets": True, "use_regex": True}
RAW_BYTE_LEVEL = {**BYTE_LEVEL, "use_regex": False}
METASPACE = {"type": "Metaspace", "replacement": "▁",
             "prepend_scheme": "always", "split": True}
WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s|"
         r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def byte_model(vocab_size):
    return train_bpe(vocab_size, [],
                     pre_tokenizers.ByteLevel(add_prefix_space=False),
                     byte_alphabet())


def metaspace_model(vocab_size, special, alphabet=()):
    return train_bpe(vocab_size, special, pre_tokenizers.Metaspace(),
                     ["▁", *alphabet])


def bytes_families():
    # Llama 3: a regex and raw bytes; whole words before merges.
    model = byte_model(700)
    n = len(model["vocab"])
    write("llama3_like",
          added_tokens=[added(n, "<|begin_of_text|>"),
                        added(n + 1, "<|end_of_text|>"),
                        added(n + 2, "<|eot_id|>")],
          pre_tokenizer=sequence(
              "pretokenizers",
              split({"Regex": WORDS % r"\p{N}{1,3}"}, "Isolated"),
              RAW_BYTE_LEVEL),
          post_processor=sequence(
              "processors", {**BYTE_LEVEL, "add_prefix_space": True},
              template(["<|begin_of_text|>", "$A"],
                       **{"<|begin_of_text|>": [n]})),
          decoder={**BYTE_LEVEL, "add_prefix_space": True},
          model=bpe(model, ignore_merges=True))
    # Qwen 2: NFC, legacy merges.
    model = byte_model(600)
    n = len(model["vocab"])
    write("qwen2_like",
          added_tokens=[added(n, "<|endoftext|>"), added(n + 1, "<|im_start|>"),
                        added(n + 2, "<|im_end|>"),
                        added(n + 3, "<tool_call>", special=False)],
          normalizer={"type": "NFC"},
          pre_tokenizer=sequence(
              "pretokenizers", split({"Regex": WORDS % r"\p{N}"}, "Isolated"),
              RAW_BYTE_LEVEL),
          post_processor=BYTE_LEVEL, decoder=BYTE_LEVEL,
          model=bpe(model, legacy_merges=True, continuing_subword_prefix="",
                    end_of_word_suffix=""))
    # RoBERTa: a space in front, added tokens that take white space along.
    model = byte_model(500)
    n = len(model["vocab"])
    write("roberta_like",
          added_tokens=[
              added(n, "<s>"), added(n + 1, "</s>"),
              added(n + 2, "<mask>", lstrip=True, rstrip=True),
              added(n + 3, "fox", single_word=True, special=False,
                    normalized=True),
              added(n + 4, "[L]", lstrip=True),
              added(n + 5, "[R]", rstrip=True, normalized=True,
                    special=False)],
          pre_tokenizer={**BYTE_LEVEL, "add_prefix_space": True},
          post_processor={"type": "RobertaProcessing", "sep": ["</s>", n + 1],
                          "cls": ["<s>", n], "trim_offsets": True,
                          "add_prefix_space": True},
          decoder=BYTE_LEVEL, model=bpe(model))
    # StarCoder and SmolLM: digits apart, then GPT-2's regex.
    model = byte_model(600)
    write("smollm_like",
          added_tokens=[added(len(model["vocab"]), "<|endoftext|>")],
          pre_tokenizer=sequence(
              "pretokenizers", {"type": "Digits", "individual_digits": True},
              BYTE_LEVEL),
          decoder=BYTE_LEVEL, model=bpe(model))
    # DeepSeek: several regexes one after the other, then bytes.
    model = byte_model(600)
    n = len(model["vocab"])
    punctuation = (
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"
        r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
        r"\s*[\r\n]+|\s+(?!\S)|\s+").replace(r'\"', '"')
    write("deepseek_like",
          added_tokens=[added(n, "<｜begin▁of▁sentence｜>"),
                        added(n + 1, "<｜end▁of▁sentence｜>")],
          normalizer=sequence("normalizers"),
          pre_tokenizer=sequence(
              "pretokenizers", split({"Regex": r"\p{N}{1,3}"}, "Isolated"),
              split({"Regex": "[一-龥぀-ゟ゠-ヿ]+"}, "Isolated"),
              split({"Regex": r"\p{Han}+\p{^Greek}"}, "Isolated"),
              split({"Regex": punctuation}, "Isolated"), RAW_BYTE_LEVEL),
          post_processor=template(["bos", "$A", "eos"], bos=[n],
                                  eos=[n + 1, n]),
          decoder=BYTE_LEVEL, model=bpe(model))
    # CLIP: the last character of a word carries "</w>".
    model = trained(
        trainers.BpeTrainer(vocab_size=600, end_of_word_suffix="</w>",
                            initial_alphabet=byte_alphabet(),
                            show_progress=False),
        models.BPE(end_of_word_suffix="</w>"),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        normalizers.Lowercase())
    n = len(model["vocab"])
    words = (r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+")
    model["vocab"] |= {"<|startoftext|>": n, "<|endoftext|>": n + 1}
    write("clip_like",
          added_tokens=[added(n, "<|startoftext|>", normalized=True),
                        added(n + 1, "<|endoftext|>")],
          normalizer=sequence("normalizers", {"type": "NFC"},
                              replace({"Regex": r"\s+"}, " "),
                              {"type": "Lowercase"}),
          pre_tokenizer=sequence(
              "pretokenizers", split({"Regex": words}, "Removed", True),
              BYTE_LEVEL),
          post_processor={"type": "RobertaProcessing",
                          "sep": ["<|endoftext|>", n + 1],
                          "cls": ["<|startoftext|>", n],
                          "trim_offsets": False, "add_prefix_space": False},
          decoder=BYTE_LEVEL,
          model=bpe({key: model[key] for key in ("vocab", "merges")},
                    unk_token="<|endoftext|>", continuing_subword_prefix="",
                    end_of_word_suffix="</w>"))


def llama_decoder():
    return sequence("decoders", replace({"String": "▁"}, " "),
                    {"type": "ByteFallback"}, {"type": "Fuse"},
                    {"type": "Strip", "content": " ", "start": 1, "stop": 0})


def metaspace_families():
    # Mistral, newer Llama 2 conversions: Metaspace before the first piece only.
    special = ["<unk>", "<s>", "</s>"]
    unknown = {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
    write("mistral_like",
          added_tokens=[added(i, token) for i, token in enumerate(special)],
          pre_tokenizer={**METASPACE, "prepend_scheme": "first",
                         "split": False},
          decoder=llama_decoder(),
          model=bpe(metaspace_model(800, [*special, *BYTE_TOKENS]), **unknown))
    # Llama 2's older conversion with added tokens of every kind: the whole text
    # is one word.
    model = metaspace_model(900, [*special, *BYTE_TOKENS])
    n = len(model["vocab"])
    write("llama2_like",
          added_tokens=[added(0, "<unk>", normalized=True), added(1, "<s>"),
                        added(2, "</s>", normalized=True),
                        added(n, "<pad>", special=False, normalized=True,
                              rstrip=True),
                        added(n + 1, "  ", special=False)],
          normalizer=sequence("normalizers",
                              {"type": "Prepend", "prepend": "▁"},
                              replace({"String": " "}, "▁")),
          decoder=llama_decoder(), model=bpe(model, **unknown))
    # Gemma: spaces replaced, split behind them.
    special = ["<pad>", "<eos>", "<bos>", "<unk>"]
    write("gemma_like",
          added_tokens=[added(i, token) for i, token in enumerate(special)],
          normalizer=replace({"String": " "}, "▁"),
          pre_tokenizer=split({"String": "▁"}, "MergedWithPrevious"),
          decoder=sequence("decoders", replace({"String": "▁"}, " "),
                           {"type": "ByteFallback"}, {"type": "Fuse"}),
          model=bpe(metaspace_model(700, [*special, *BYTE_TOKENS]), **unknown))
    # Metaspace in front of every piece, NFKC, unknown characters fused.
    write("metaspace_unk",
          added_tokens=[added(0, "<unk>", normalized=True)],
          normalizer=sequence(
              "normalizers", {"type": "NFKC"},
              {"type": "Strip", "strip_left": True, "strip_right": True},
              replace({"Regex": " {2,}"}, " ")),
          pre_tokenizer=sequence(
              "pretokenizers", METASPACE,
              {"type": "Punctuation", "behavior": "MergedWithPrevious"},
              {"type": "Digits", "individual_digits": False}),
          decoder=METASPACE,
          model=bpe(metaspace_model(400, ["<unk>"]), unk_token="<unk>",
                    fuse_unk=True))
    # Some bytes have tokens and some do not; unknown characters are not fused.
    some = [t for i, t in enumerate(BYTE_TOKENS) if i < 128 or i % 3 != 0]
    write("partial_bytes",
          normalizer=sequence("normalizers", {"type": "NFD"},
                              {"type": "Lowercase"}),
          decoder=sequence("decoders", {"type": "ByteFallback"},
                           {"type": "Fuse"},
                           {"type": "Strip", "content": "e", "start": 2,
                            "stop": 0}),
          model=bpe(metaspace_model(500, ["<unk>", *some], [" "]),
                    unk_token="<unk>", byte_fallback=True))


def white_space_families():
    # Words of letters, lower-cased and decomposed; characters without a token
    # vanish; no decoder.
    write("whitespace",
          normalizer=sequence("normalizers", {"type": "NFKD"},
                              {"type": "Lowercase"}),
          pre_tokenizer={"type": "Whitespace"},
          model=bpe(train_bpe(350, [], pre_tokenizers.Whitespace(), [])))
    write("whitespace_split",
          pre_tokenizer=sequence(
              "pretokenizers", {"type": "WhitespaceSplit"},
              {"type": "Punctuation"},
              {"type": "Digits", "individual_digits": True}),
          decoder={"type": "Fuse"},
          model=bpe(train_bpe(350, ["[UNK]"], pre_tokenizers.WhitespaceSplit(),
                              []), unk_token="[UNK]"))
    # GPT-1: BERT's words, "</w>" behind each, decoded as spaces.
    bert = {"type": "BertNormalizer", "clean_text": True,
            "handle_chinese_chars": True, "strip_accents": None,
            "lowercase": True}
    model = trained(
        trainers.BpeTrainer(vocab_size=420, end_of_word_suffix="</w>",
                            special_tokens=["<unk>"], show_progress=False),
        models.BPE(end_of_word_suffix="</w>"),
        pre_tokenizers.BertPreTokenizer(), normalizers.BertNormalizer())
    write("gpt1_like", added_tokens=[added(0, "<unk>")], normalizer=bert,
          pre_tokenizer={"type": "BertPreTokenizer"},
          decoder={"type": "BPEDecoder", "suffix": "</w>"},
          model=bpe({key: model[key] for key in ("vocab", "merges")},
                    unk_token="<unk>", end_of_word_suffix="</w>"))
    # A prefix in front of what continues a word, and bytes for some of it.
    model = trained(
        trainers.BpeTrainer(vocab_size=700, continuing_subword_prefix="##",
                            special_tokens=["[UNK]", *BYTE_TOKENS[:232]],
                            show_progress=False),
        models.BPE(continuing_subword_prefix="##"),
        pre_tokenizers.BertPreTokenizer())
    write("prefix_bytes", added_tokens=[added(0, "[UNK]")],
          pre_tokenizer={"type": "BertPreTokenizer"},
          decoder={"type": "WordPiece", "prefix": "##", "cleanup": False},
          model=bpe({key: model[key] for key in ("vocab", "merges")},
                    unk_token="[UNK]", continuing_subword_prefix="##",
                    byte_fallback=True))
    word_piece_families(bert)


def word_piece_families(bert):
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens = [added(i, token) for i, token in enumerate(special)]

    def model(normalizer, vocab_size, **options):
        return trained(
            trainers.WordPieceTrainer(vocab_size=vocab_size,
                                      special_tokens=special,
                                      show_progress=False),
            models.WordPiece(unk_token="[UNK]"),
            pre_tokenizers.BertPreTokenizer(), normalizer) | options

    write("bert_like", added_tokens=tokens, normalizer=bert,
          pre_tokenizer={"type": "BertPreTokenizer"},
          post_processor=template(["[CLS]", "$A", "[SEP]"],
                                  **{"[CLS]": [2], "[SEP]": [3]}),
          decoder={"type": "WordPiece", "prefix": "##", "cleanup": True},
          model=model(normalizers.BertNormalizer(), 450))
    # Cased, accents stripped; words of more than 12 characters are unknown.
    write("bert_cased_like",
          added_tokens=[*tokens[:4], {**tokens[4], "lstrip": True}],
          normalizer={**bert, "clean_text": False, "lowercase": False,
                      "handle_chinese_chars": False, "strip_accents": True},
          pre_tokenizer={"type": "BertPreTokenizer"},
          post_processor={"type": "BertProcessing", "sep": ["[SEP]", 3],
                          "cls": ["[CLS]", 2]},
          decoder={"type": "WordPiece", "prefix": "##", "cleanup": False},
          model=model(None, 400, max_input_chars_per_word=12))


def charsmap():
    """SentencePiece's compiled form of a few hundred rules like those of its
    nmt_nfkc: spaces, controls, NFKC of characters and of short sequences."""
    rules = {}
    for code in [*range(0x1, 0x9), 0xB, *range(0xE, 0x20), 0x7F, 0x8F, 0x9F]:
        rules[chr(code)] = ""
    for code in [0x9, 0xA, 0xC, 0xD, 0x1680, *range(0x200B, 0x2010), 0x2028,
                 0x2029, 0x2581, 0xFEFF, 0xFFFD]:
        rules[chr(code)] = " "
    singles = [0xA0, 0xAA, 0xB2, 0xB3, 0xB5, *range(0xBC, 0xBF), 0x344, 0x958,
               *range(0x2000, 0x200B), 0x2026, 0x202F, 0x2070, *range(0x2102, 0x2140, 3),
               *range(0x2160, 0x2170), *range(0x2460, 0x24EA, 7), 0x3000,
               *range(0xF900, 0xFA00, 9), *range(0xFB00, 0xFB07),
               *range(0xFF01, 0xFFA0, 2), *range(0x1D400, 0x1D454, 5)]
    pairs = [chr(base) + chr(mark) for base in map(ord, "aeiounAEx")
             for mark in (0x300, 0x301, 0x302, 0x303, 0x308)]
    pairs += ["\u1100\u1161", "\u1112\u1161", "\uff76\uff9e", "\u0391\u0301"]
    for source in [*map(chr, singles), *pairs]:
        target = unicodedata.normalize("NFKC", source)
        if target != source:
            rules[source] = target
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        hexadecimal = lambda text: " ".join(f"{ord(c):X}" for c in text)
        (folder / "rules.tsv").write_text("".join(
            f"{hexadecimal(source)}\t{hexadecimal(target)}\n"
            for source, target in rules.items()))
        (folder / "corpus.txt").write_text(SAMPLE, encoding="utf-8")
        sentencepiece.SentencePieceTrainer.train(
            input=str(folder / "corpus.txt"), model_prefix=str(folder / "m"),
            vocab_size=200, minloglevel=2,
            normalization_rule_tsv=str(folder / "rules.tsv"))
        return charsmap_of((folder / "m.model").read_bytes())


def charsmap_of(model):
    """The field normalizer_spec.precompiled_charsmap of a model's protobuf."""
    def fields(data):
        at = 0
        def number():
            nonlocal at
            value = shift = 0
            while True:
                byte = data[at]
                at += 1
                value |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    return value
        while at < len(data):
            key = number()
            if key & 7 == 0:
                yield key >> 3, number()
            else:
                size = number() if key & 7 == 2 else {1: 8, 5: 4}[key & 7]
                yield key >> 3, data[at:at + size]
                at += size
    normalizer = dict(fields(model))[3]
    return dict(fields(normalizer))[2]


def unigram_families():
    blob = charsmap()
    precompiled = {"type": "Precompiled",
                   "precompiled_charsmap": base64.b64encode(blob).decode()}

    def model(vocab_size, special, normalizer=None, pre_tokenizer=None,
              unk_token="<unk>", **options):
        return trained(
            trainers.UnigramTrainer(vocab_size=vocab_size,
                                    special_tokens=special,
                                    unk_token=unk_token, show_progress=False),
            models.Unigram(), pre_tokenizer, normalizer) | options

    compiled = normalizers.Precompiled(blob)
    # T5: spaces become "▁", also a run of them; </s> behind the text.
    special = ["<pad>", "</s>", "<unk>"]
    t5 = model(450, special, compiled, pre_tokenizers.Metaspace())
    n = len(t5["vocab"])
    write("t5_like",
          added_tokens=[*(added(i, token) for i, token in enumerate(special)),
                        added(n, "<extra_id_0>"),
                        added(n + 1, "<extra_id_1>", lstrip=True)],
          normalizer=sequence(
              "normalizers", precompiled,
              {"type": "Strip", "strip_left": False, "strip_right": True},
              replace({"Regex": " {2,}"}, "▁")),
          pre_tokenizer=METASPACE,
          post_processor=template(["$A", "</s>"], **{"</s>": [1]}),
          decoder=METASPACE, model=t5)
    # XLM-R: words first, then "▁" before each; <mask> takes the space along.
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    xlm = model(500, special, compiled,
                pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(),
                                         pre_tokenizers.Metaspace()]))
    n = len(xlm["vocab"])
    xlm["vocab"].append(["<mask>", 0.0])
    write("xlmr_like",
          added_tokens=[*(added(i, token) for i, token in enumerate(special)),
                        added(n, "<mask>", lstrip=True)],
          normalizer=precompiled,
          pre_tokenizer=sequence("pretokenizers", {"type": "WhitespaceSplit"},
                                 METASPACE),
          post_processor=template(["<s>", "$A", "</s>"],
                                  **{"<s>": [0], "</s>": [2]}),
          decoder=METASPACE, model=xlm)
    # ALBERT: quotes, accents and case removed.
    special = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    write("albert_like",
          added_tokens=[added(i, token) for i, token in enumerate(special)],
          normalizer=sequence(
              "normalizers", replace({"String": "``"}, '"'),
              replace({"String": "''"}, '"'), {"type": "NFKD"},
              {"type": "StripAccents"}, {"type": "Lowercase"}, precompiled,
              replace({"Regex": " {2,}"}, " ")),
          pre_tokenizer=METASPACE,
          post_processor=template(["[CLS]", "$A", "[SEP]"],
                                  **{"[CLS]": [2], "[SEP]": [3]}),
          decoder=METASPACE,
          model=model(350, special, normalizers.Lowercase(),
                      pre_tokenizers.Metaspace()))
    # Whole texts as one word, bytes for unknown characters, Metaspace before
    # the first piece unless something in front of it was removed.
    write("unigram_bytes",
          added_tokens=[added(0, "<unk>", normalized=True)],
          normalizer=sequence("normalizers", {"type": "Nmt"},
                              {"type": "NFKC"}),
          pre_tokenizer={**METASPACE, "prepend_scheme": "first",
                         "split": False},
          decoder=llama_decoder(),
          model=model(700, ["<unk>", *BYTE_TOKENS], None,
                      pre_tokenizers.Metaspace(), byte_fallback=True))


def split_behaviors():
    """Every behavior of Split, by string and by regex, inverted and not."""
    model = byte_model(400)
    model["merges"] = model["merges"][:60]
    for behavior in ("Removed", "Isolated", "MergedWithPrevious",
                     "MergedWithNext", "Contiguous"):
        for invert in (False, True):
            write(f"split_{behavior.lower()}{'_inverted' if invert else ''}",
                  pre_tokenizer=sequence(
                      "pretokenizers", split({"String": "e"}, behavior, invert),
                      split({"Regex": r"[aeiou\s]{1,2}|\w\d*(?=.)|\b"},
                            behavior, invert), RAW_BYTE_LEVEL),
                  decoder=BYTE_LEVEL, model=bpe(model))


if __name__ == "__main__":
    bytes_families()
    metaspace_families()
    white_space_families()
    unigram_families()
    split_behaviors()
