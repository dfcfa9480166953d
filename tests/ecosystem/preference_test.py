#!/usr/bin/env python3
"""DPO, ORPO and SimPO against plain PyTorch, of a whole model and, with PEFT,
of adapters beside it: the same losses over ten steps.

    preference_test.py BRIGADE          # see scripts/test_ecosystem.sh
"""
import json
import sys
import unittest

try:
    import peft
    import torch
    import transformers
except ImportError as error:
    print(f"preference_test: skipped: {error}", file=sys.stderr)
    sys.exit(0)

import torch.nn.functional as F

from support import TestInFolder, run

STEPS, PAIRS, LENGTH, RATE, BETA, GAMMA = 10, 4, 40, 3e-3, 0.1, 0.4
NAMES = ("fox", "river", "old mill", "lantern", "quiet town", "crow")
# The end-of-document token of Brigade's byte tokenizer.
END = 257
SHAPE = {"vocab_size": 259, "hidden_size": 32, "intermediate_size": 48,
         "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 64,
         "initializer_range": 0.2, "tie_word_embeddings": False}
LAYOUTS = {
    "one": [f"training.micro_batch_size={2 * PAIRS}"],
    "tp2_pp2": ["--nproc", "4", "distributed.tp_size=2",
                "distributed.pp_size=2", "training.micro_batch_size=2",
                f"training.gradient_accumulation_steps={PAIRS}"],
}


def records():
    for i in range(STEPS * PAIRS):
        name, other = NAMES[i % 6], NAMES[(i // 6 + i + 1) % 6]
        yield {"prompt": f"Who came {i}?",
               "chosen": f" The {name}.",
               "rejected": f" A {other} and {name[:1 + i % 5]}"}


def answer_log_probs(model, record, key):
    """The log-probabilities of an answer's tokens, behind its prompt."""
    prompt, answer = (list(record[k].encode()) for k in ("prompt", key))
    ids = torch.tensor(prompt + answer + [END])
    log_probs = model(ids[None, :-1]).logits[0].float().log_softmax(-1)
    return log_probs.gather(1, ids[1:, None])[len(prompt) - 1:, 0]


def dpo(model, record, reference):
    ratios = [answer_log_probs(model, record, key).sum() - reference[key]
              for key in ("chosen", "rejected")]
    return -F.logsigmoid(BETA * (ratios[0] - ratios[1]))


def simpo(model, record, _):
    chosen, rejected = (answer_log_probs(model, record, key).mean()
                        for key in ("chosen", "rejected"))
    return -F.logsigmoid(BETA * (chosen - rejected) - GAMMA)


def orpo(model, record, _):
    chosen, rejected = (answer_log_probs(model, record, key).mean()
                        for key in ("chosen", "rejected"))
    odds = [mean - torch.log1p(-torch.exp(mean))
            for mean in (chosen, rejected)]
    return -chosen - BETA * F.logsigmoid(odds[0] - odds[1])


# Sums of log-probabilities move further than means: at the others' rate DPO's
# losses would fall below 1e-8, where they are rounding.
LOSSES = {
    "dpo": (dpo, RATE / 15, []),
    "orpo": (orpo, RATE, []),
    "simpo": (simpo, RATE, [f"training.simpo_gamma={GAMMA}"]),
}

# How much faster it learns, and the overrides. DPO's reference is the model
# without adapters.
FORMS = {
    "whole": (1, []),
    "lora": (2, ["adapter.rank=4", "adapter.alpha=16",
                 "adapter.targets=all-linear"]),
}


class Preferences(TestInFolder):
    @classmethod
    def setUpClass(cls):
        torch.manual_seed(5)
        super().setUpClass()
        cls.records = list(records())
        lines = cls.folder / "pairs.jsonl"
        lines.write_text("".join(json.dumps(r) + "\n" for r in cls.records))
        # --chat needs a template, which data without conversations never uses.
        template = cls.folder / "chat.jinja"
        template.write_text("{{ messages }}")
        run("prepare", "--chat", lines, "--template", template,
            "--tokenizer", "bytes", "--out", cls.folder / "pairs")
        transformers.AutoModelForCausalLM.from_config(
            transformers.LlamaConfig(**SHAPE)).float().save_pretrained(
                cls.folder / "model")
        run("evaluate", "--run", cls.folder / "model", "--dataset",
            cls.folder / "pairs", "--write-reference")
        with torch.no_grad():
            cls.reference = [
                {key: answer_log_probs(cls.model(), record, key).sum().item()
                 for key in ("chosen", "rejected")}
                for record in cls.records]

    @classmethod
    def model(cls):
        return transformers.AutoModelForCausalLM.from_pretrained(
            cls.folder / "model", dtype=torch.float32)

    def adapted(self):
        """The model with the adapters that a run begins with."""
        if not (self.folder / "adapter").exists():
            # A step of no length leaves what training starts from.
            self.train("start", *FORMS["lora"][1], *LAYOUTS["one"],
                       "training.loss=simpo", "training.learning_rate=0",
                       "training.total_train_steps=1")
            run("export", "--run", self.folder / "start", "--out",
                self.folder / "adapter")
        return peft.PeftModel.from_pretrained(
            self.model(), self.folder / "adapter", is_trainable=True)

    def expected(self, loss_of, rate, model):
        optimizer = torch.optim.AdamW(
            [p for p in model.parameters() if p.requires_grad], lr=rate,
            weight_decay=0.01)
        losses = []
        for step in range(STEPS):
            loss = sum(
                loss_of(model, self.records[i], self.reference[i])
                for i in range(step * PAIRS, (step + 1) * PAIRS)) / PAIRS
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    def train(self, name, *more):
        return self.train_run(
            name, self.stored("model"), "pairs",
            {"total_train_steps": STEPS, "learning_rate": RATE,
             "seq_length": LENGTH, "preference_beta": BETA}, *more)

    def test_the_reference_is_pytorchs(self):
        found = json.loads(
            (self.folder / "pairs.reference.json").read_text())["log_probs"]
        expected = [of_pair[key] for of_pair in self.reference
                    for key in ("chosen", "rejected")]
        self.assertLess(
            max(abs(a / b - 1) for a, b in zip(found, expected)), 1e-5)

    def test_losses_of_ten_steps_are_pytorchs(self):
        for form, (faster, adapter) in FORMS.items():
            for name, (loss_of, rate, options) in LOSSES.items():
                model = self.adapted() if adapter else self.model()
                expected = self.expected(loss_of, faster * rate, model)
                self.assertGreater(
                    max(abs(a - expected[0]) for a in expected), 0.05)
                for layout, more in LAYOUTS.items():
                    with self.subTest(form=form, loss=name, layout=layout):
                        _, losses = self.train(
                            f"{form}_{name}_{layout}",
                            f"training.loss={name}",
                            f"training.learning_rate={faster * rate}",
                            *adapter, *options, *more)
                        self.check_losses(
                            f"{form} {name} {layout}", losses, expected)


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
