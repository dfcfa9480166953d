#!/usr/bin/env python3
"""Distillation against plain PyTorch: the same losses over ten steps.

    distill_test.py BRIGADE          # see scripts/test_ecosystem.sh
"""
import json
import sys
import unittest

try:
    import torch
    import transformers
except ImportError as error:
    print(f"distill_test: skipped: {error}", file=sys.stderr)
    sys.exit(0)

import torch.nn.functional as F

from support import TestInFolder, run

STEPS, WINDOWS, LENGTH, RATE = 10, 4, 40, 3e-3
NAMES = ("fox", "river", "old mill", "lantern", "quiet town", "crow")
# The end-of-document token of Brigade's byte tokenizer, and its tokens.
END, VOCABULARY = 257, 258
SHAPE = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48,
         "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 64,
         "initializer_range": 0.2, "tie_word_embeddings": False}
LAYOUTS = {
    "one": [f"training.micro_batch_size={WINDOWS}"],
    "tp2_pp2": ["--nproc", "4", "distributed.tp_size=2",
                "distributed.pp_size=2", "training.micro_batch_size=1",
                f"training.gradient_accumulation_steps={WINDOWS}"],
    "cp2": ["--nproc", "2", "distributed.cp_size=2",
            f"training.micro_batch_size={WINDOWS}"],
}
# The number of the teacher's tokens, and its share of the loss.
CASES = ((8, 0.7), (VOCABULARY, 1.0))


def records():
    for i in range(120):
        name, other = NAMES[i % 6], NAMES[(i // 6 + i + 1) % 6]
        yield {"prompt": f"Who came {i}?",
               "completion": f" The {name} and {other[:1 + i % 5]}."}


def divergence(student, teacher, k):
    """F.kl_div at each place of student and teacher [N, V]: over the teacher's
    k likeliest tokens and all others as one, or over the whole vocabulary."""
    log_q, log_p = (x.log_softmax(-1) for x in (student, teacher))
    if k < VOCABULARY:
        ids = log_p.topk(k).indices
        log_q, log_p = (
            torch.cat([x.gather(1, ids),
                       x.scatter(1, ids, -torch.inf).logsumexp(1, True)], 1)
            for x in (log_q, log_p))
    return F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(1)


class Distillation(TestInFolder):
    @classmethod
    def setUpClass(cls):
        torch.manual_seed(5)
        super().setUpClass()
        lines = cls.folder / "lines.jsonl"
        lines.write_text("".join(json.dumps(r) + "\n" for r in records()))
        run("prepare", "--chat", lines, "--tokenizer", "bytes",
            "--out", cls.folder / "data")
        tokens, counts = [], []
        for record in records():
            prompt, answer = (list(record[key].encode())
                              for key in ("prompt", "completion"))
            tokens += prompt + answer + [END]
            counts += [0] * len(prompt) + [1] * (len(answer) + 1)
        cls.tokens, cls.counts = torch.tensor(tokens), torch.tensor(counts)
        assert len(tokens) > STEPS * WINDOWS * LENGTH
        for name in ("teacher", "student"):
            transformers.AutoModelForCausalLM.from_config(
                transformers.LlamaConfig(**SHAPE)).float().save_pretrained(
                    cls.folder / name)
        for k, _ in CASES:
            run("evaluate", "--run", cls.folder / "teacher", "--dataset",
                cls.folder / "data", "--seq-length", LENGTH,
                "--top-k", cls.folder / f"{k}.topk", "--k", k)

    @classmethod
    def model(cls, name):
        return transformers.AutoModelForCausalLM.from_pretrained(
            cls.folder / name, dtype=torch.float32)

    def expected(self, k, share):
        student, teacher = self.model("student"), self.model("teacher")
        optimizer = torch.optim.AdamW(
            student.parameters(), lr=RATE, weight_decay=0.01)
        losses = []
        for step in range(STEPS):
            begins = range(step * WINDOWS * LENGTH,
                           (step + 1) * WINDOWS * LENGTH, LENGTH)
            windows, counts = (
                torch.stack([x[b:b + LENGTH + 1] for b in begins])
                for x in (self.tokens, self.counts))
            counts = counts[:, 1:].flatten()
            logits = student(windows[:, :-1]).logits.flatten(0, 1)
            with torch.no_grad():
                soft = teacher(windows[:, :-1]).logits.flatten(0, 1)
            hard = F.cross_entropy(
                logits, windows[:, 1:].flatten(), reduction="none")
            of_tokens = (share * divergence(logits, soft, k)
                         + (1 - share) * hard)
            loss = (of_tokens * counts).sum() / counts.sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    def train(self, name, *more):
        return self.train_run(
            name, self.stored("student"), "data",
            {"total_train_steps": STEPS, "learning_rate": RATE,
             "seq_length": LENGTH, "loss": "distill"}, *more)

    def test_losses_of_ten_steps_are_pytorchs(self):
        for k, share in CASES:
            expected = self.expected(k, share)
            self.assertGreater(abs(expected[-1] / expected[0] - 1), 0.05)
            for layout, more in LAYOUTS.items():
                with self.subTest(k=k, layout=layout):
                    _, losses = self.train(
                        f"{k}_{layout}", f"training.distill_weight={share}",
                        f"dataset.teacher={self.folder}/{k}.topk", *more)
                    self.check_losses(f"k {k} {layout}", losses, expected)


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
