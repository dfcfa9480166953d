#!/usr/bin/env python3
"""Conversations that `brigade prepare --chat` tokenizes and masks, against
transformers' apply_chat_template: of a template with {% generation %} ids and
mask, of others ids, and with the trl package's templates where it is installed.

    chat_test.py BRIGADE      # see scripts/test_ecosystem.sh
"""
import importlib.util
import json
import pathlib
import random
import struct
import subprocess
import unittest

import tokenizers
import transformers

from support import BRIGADE, TestInFolder

WORDS = ["Hello", " world", "\n", "  edge ", "üben 日本", "<think>\na\n</think>\n\n",
         "'\"\\", "", "1234", "</think>"]
GENERATION = """\
{% for message in messages -%}
{{ '<|im_start|>' + message.role + '\n' }}
{%- if message.role == 'assistant' %}
{% generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}
{% else %}
{{ message.content + '<|im_end|>' }}
{% endif %}
{{ '\n' }}
{%- endfor %}
"""
CHATML = r"""{% for m in messages %}{{ '<|im_start|>' + m.role + '\n'
+ m.content | trim + '<|im_end|>\n' }}{% endfor %}"""
CHATML_GENERATION = r"""{% for m in messages %}{{ '<|im_start|>' + m.role + '\n'
}}{% if m.role == 'assistant' %}{% generation %}{{ m.content | trim + '<|im_end|>'
}}{% endgeneration %}{% else %}{{ m.content | trim + '<|im_end|>' }}{% endif %}{{
'\n' }}{% endfor %}"""


def make_tokenizer(folder):
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
        add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|im_start|>", "<|im_end|>", "<|endoftext|>"])
    tokenizer.train_from_iterator(WORDS * 4, trainer)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|endoftext|>",
        eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.save_pretrained(folder)
    return fast


def make_chats(count, seed):
    numbers = random.Random(seed)

    def words():
        return "".join(numbers.choices(WORDS, k=numbers.randint(1, 5))) + "."

    chats = []
    for _ in range(count):
        chat = [{"role": "system", "content": words()}
                ] if numbers.random() < 0.4 else []
        for _ in range(numbers.randint(1, 4)):
            chat += [{"role": "user", "content": words()},
                     {"role": "assistant", "content": words()}]
        chats.append(chat)
    return chats


class Chats(TestInFolder):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tokenizer = make_tokenizer(cls.folder / "tokenizer")
        cls.chats = make_chats(40, 1)

    def prepare(self, template, chats, loss="auto"):
        """The documents: ids and mask of each; None where refused."""
        lines = self.folder / "chats.jsonl"
        lines.write_text("".join(json.dumps({"messages": chat}) + "\n"
                                 for chat in chats))
        file = self.folder / "template.jinja"
        file.write_text(template)
        prefix = self.folder / "data"
        result = subprocess.run(
            [BRIGADE, "prepare", "--chat", lines, "--tokenizer",
             self.folder / "tokenizer", "--template", file, "--out", prefix,
             "--loss", loss, "--overwrite"], capture_output=True, text=True)
        if result.returncode != 0:
            return None, result.stderr
        index = (self.folder / "data.idx").read_bytes()
        count = struct.unpack_from("<Q", index, 18)[0]
        lengths = struct.unpack_from(f"<{count}i", index, 34)
        data = (self.folder / "data.bin").read_bytes()
        ids = struct.unpack(f"<{len(data) // 2}H", data)
        bits = (self.folder / "data.mask").read_bytes()[32:]
        documents, at = [], 0
        for length in lengths:
            places = range(at, at + length)
            documents.append(([ids[i] for i in places],
                              [bits[i // 8] >> i % 8 & 1 for i in places]))
            at += length
        return documents, ""

    def expected(self, template, chat, mask=False):
        result = self.tokenizer.apply_chat_template(
            chat, chat_template=template, tokenize=True, return_dict=True,
            return_assistant_tokens_mask=mask)
        return result["input_ids"], result.get("assistant_masks")

    def test_ids_and_masks_of_generation_blocks(self):
        documents, error = self.prepare(GENERATION, self.chats)
        self.assertEqual(error, "")
        for (ids, mask), chat in zip(documents, self.chats, strict=True):
            self.assertEqual((ids, mask), self.expected(GENERATION, chat, True))

    def test_marked_turns_are_those_of_generation_blocks(self):
        documents, error = self.prepare(CHATML, self.chats)
        self.assertEqual(error, "")
        for (ids, mask), chat in zip(documents, self.chats, strict=True):
            expected_ids, expected_mask = self.expected(
                CHATML_GENERATION, chat, True)
            self.assertEqual(ids, expected_ids)
            self.assertEqual(mask, expected_mask)

    @unittest.skipUnless(importlib.util.find_spec("trl"), "trl is not installed")
    def test_templates_of_trl(self):
        package = pathlib.Path(importlib.util.find_spec("trl").origin).parent
        for path in sorted((package / "chat_templates").glob("*.jinja")):
            template = path.read_text()
            for chat in self.chats[:5]:
                with self.subTest(path.name):
                    documents, error = self.prepare(template, [chat], "all")
                    try:
                        ids = self.expected(template, chat)[0]
                    except Exception:  # refused, whatever the reason
                        self.assertIsNone(documents)
                        continue
                    self.assertEqual(error, "")
                    self.assertEqual(documents[0][0], ids)

    @unittest.skipUnless(importlib.util.find_spec("trl"), "trl is not installed")
    def test_masks_of_trl(self):
        package = pathlib.Path(importlib.util.find_spec("trl").origin).parent
        user = {"role": "user", "content": "Hello"}
        chat = [user, {"role": "assistant", "content": ""}, user,
                {"role": "assistant", "content": " world\n"}]
        for path in sorted((package / "chat_templates").glob("*_training.jinja")):
            template = path.read_text()
            with self.subTest(path.name):
                try:
                    expected = self.expected(template, chat, True)
                except Exception:  # refused, whatever the reason
                    continue
                documents, error = self.prepare(template, [chat])
                self.assertEqual(error, "")
                self.assertEqual(documents[0], expected)

    def test_null_members_are_not_there(self):
        chat = [{"role": "user", "content": "Hello", "name": None},
                {"role": "assistant", "content": None, "tool_calls": [
                    {"type": "function", "function": {
                        "name": "f", "arguments": {"a": None}}}]},
                {"role": "tool", "content": "5", "tool_calls": None}]
        template = "{% for m in messages %}{{ m }}{{ m.content }}{% endfor %}"
        documents, error = self.prepare(template, [chat], "all")
        self.assertEqual(error, "")
        self.assertEqual(documents[0][0], self.expected(template, chat)[0])


if __name__ == "__main__":
    unittest.main()
