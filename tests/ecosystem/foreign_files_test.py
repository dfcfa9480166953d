#!/usr/bin/env python3
"""Folders that transformers writes, read by Brigade, and a tokenizer that
Brigade trains, read by transformers.

    foreign_files_test.py BRIGADE      # see scripts/test_ecosystem.sh
"""
import json
import pathlib
import random
import struct
import unittest

import sentencepiece
import tokenizers
import torch
import transformers

from support import TestInFolder, run

TEXT = " ".join(f"the {a} {b} of the {c}." for a in ("old", "grey", "last")
                for b in ("fox", "river", "lantern", "mill")
                for c in ("town", "night", "hand", "bucket"))
WINDOW = 96
SHAPE = {"vocab_size": 300, "hidden_size": 64, "intermediate_size": 96,
         "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 256,
         "initializer_range": 0.3}
ROPES = {
    "linear": {"rope_type": "linear", "factor": 2.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0,
             "original_max_position_embeddings": 16},
    "yarn with keys": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 16.0,
                       "beta_slow": 2.0, "truncate": False,
                       "attention_factor": 0.75,
                       "original_max_position_embeddings": 32},
    "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0,
               "original_max_position_embeddings": 32},
}


class ForeignFiles(TestInFolder):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.text = cls.folder / "text.txt"
        cls.text.write_text(TEXT)
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
            add_prefix_space=False)
        tokenizer.decoder = tokenizers.decoders.ByteLevel()
        tokenizer.train_from_iterator([TEXT], tokenizers.trainers.BpeTrainer(
            vocab_size=300, initial_alphabet=tokenizers.pre_tokenizers
            .ByteLevel.alphabet()))
        cls.tokenizer = cls.folder / "tokenizer.json"
        tokenizer.save(str(cls.tokenizer))
        cls.ids = tokenizer.encode(TEXT).ids

    def check(self, name, saved, model):
        """Brigade's loss of the saved folder is that of the model."""
        folder = self.folder / name.replace(" ", "-")
        saved.save_pretrained(folder)
        nats, count = 0.0, 0
        with torch.no_grad():
            for begin in range(0, len(self.ids) - 1, WINDOW):
                window = torch.tensor(self.ids[begin:begin + WINDOW + 1])
                logits = model(window[None, :-1], use_cache=False).logits[0]
                nats += torch.nn.functional.cross_entropy(
                    logits.double(), window[1:], reduction="sum").item()
                count += len(window) - 1
        mine = next(iter(json.loads(run(
            "evaluate", "--run", folder, "--text", self.text, "--tokenizer",
            self.tokenizer, "--seq-length", WINDOW, "--json")).values()))
        self.assertEqual(mine["tokens"], count)
        self.assertLess(abs(mine["loss"] - nats / count), 1e-5)

    def test_every_rope_type_has_transformers_loss(self):
        for name, rope in ROPES.items():
            for kind in ("Llama", "Qwen2"):
                with self.subTest(rope=name, kind=kind):
                    torch.manual_seed(1)
                    config = getattr(transformers, f"{kind}Config")(
                        **SHAPE,
                        rope_parameters={**rope, "rope_theta": 500.0})
                    model = getattr(transformers, f"{kind}ForCausalLM")(config)
                    self.check(f"{kind} {name}", model.eval(), model)

    def test_a_model_saved_without_its_head_is_read_if_it_is_tied(self):
        torch.manual_seed(2)
        config = transformers.LlamaConfig(
            **SHAPE, tie_word_embeddings=True)
        model = transformers.LlamaForCausalLM(config).eval()
        self.check("headless", model.model, model)

    def test_a_trained_tokenizer_has_the_same_tokens_everywhere(self):
        prefix = self.folder / "trained"
        run("prepare", "-i", self.text, "--train-tokenizer", 330, "--out",
            prefix)
        folder = pathlib.Path(f"{prefix}.tokenizer")
        library = sentencepiece.SentencePieceProcessor(
            model_file=str(folder / "tokenizer.model"))
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
        source = random.Random(3)
        words = TEXT.split() + ["  ", "\n", "\t", "ü", "日本", "2026", "▁"]
        texts = ["", " ", "  leading", "trailing  ", "a\n\nb"] + [
            "".join(source.choice(words) + source.choice(["", " "])
                    for _ in range(source.randint(1, 12)))
            for _ in range(300)]
        for text in texts:
            ids = library.encode(text)
            self.assertEqual(
                theirs.encode(text, add_special_tokens=False), ids, repr(text))
            self.assertEqual(theirs.decode(ids), library.decode(ids))
        lines = self.folder / "texts.jsonl"
        lines.write_text("".join(
            json.dumps({"text": text}) + "\n" for text in texts if text))
        run("prepare", "-i", lines, "-t", folder, "--no-append-eos", "--out",
            self.folder / "again")
        data = (self.folder / "again.bin").read_bytes()
        self.assertEqual(
            list(struct.unpack(f"<{len(data) // 2}H", data)),
            [token for text in texts for token in library.encode(text)])

    def test_files_beside_a_sentencepiece_model_say_what_transformers_reads(
            self):
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([TEXT]), minloglevel=3, vocab_size=300,
            model_prefix=str(self.folder / "model"), model_type="bpe",
            byte_fallback=True, normalization_rule_name="identity",
            remove_extra_whitespaces=False)
        added = {"300": {"content": "<x>", "special": True},
                 "301": {"content": "<y>", "rstrip": True}}
        source = random.Random(4)
        words = TEXT.split() + [" ", "  ", "<x>", "<y>", "<s>", "</s>", "e"]
        texts = ["".join(source.choice(words) + source.choice(["", " "])
                         for _ in range(source.randint(1, 12)))
                 for _ in range(200)]
        lines = self.folder / "beside.jsonl"
        lines.write_text("".join(
            json.dumps({"text": text}) + "\n" for text in texts))
        cases = [
            ({"added_tokens_decoder": added}, {}),
            ({"added_tokens_decoder": added, "legacy": False}, {}),
            ({"added_tokens_decoder": added, "legacy": True}, {}),
            ({"eos_token": "e"}, {}),
            ({"eos_token": "<y>", "pad_token": "<x>"}, {}),
            ({}, {"eos_token": "<x>"}),
        ]
        for number, (config, names) in enumerate(cases):
            with self.subTest(config=config, names=names):
                folder = self.folder / f"beside-{number}"
                folder.mkdir()
                (folder / "tokenizer.model").write_bytes(
                    (self.folder / "model.model").read_bytes())
                (folder / "tokenizer_config.json").write_text(json.dumps(
                    {"tokenizer_class": "LlamaTokenizer",
                     "add_bos_token": True, **config}))
                (folder / "special_tokens_map.json").write_text(
                    json.dumps(names))
                theirs = transformers.AutoTokenizer.from_pretrained(folder)
                out = self.folder / f"beside-{number}-data"
                run("prepare", "-i", lines, "-t", folder, "--prepend-bos",
                    "--out", out)
                data = out.with_suffix(".bin").read_bytes()
                self.assertEqual(
                    list(struct.unpack(f"<{len(data) // 2}H", data)),
                    [token for text in texts for token in
                     theirs.encode(text) + [theirs.eos_token_id]])


if __name__ == "__main__":
    unittest.main()
