#!/usr/bin/env python3
"""Fine-tuning on answers alone against TRL's SFTTrainer, of a whole model and,
with PEFT, of adapters: the same losses over ten steps.

    sft_test.py BRIGADE          # see scripts/test_ecosystem.sh
"""
import json
import struct
import sys
import unittest

try:
    import datasets
    import peft
    import torch
    import transformers
    import trl
except ImportError as error:
    print(f"sft_test: skipped: {error}", file=sys.stderr)
    sys.exit(0)

from support import TestInFolder, run

STEPS, SEQUENCES, LENGTH, RATE = 10, 4, 40, 3e-3
NAMES = ("fox", "river", "old mill", "lantern", "quiet town", "crow")
SHAPE = {"vocab_size": 259, "hidden_size": 32, "intermediate_size": 48,
         "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 64,
         "initializer_range": 0.2, "tie_word_embeddings": False}
# Micro-batches with different numbers of counting tokens.
LAYOUTS = {
    "one": [f"training.gradient_accumulation_steps={SEQUENCES}"],
    "tp2_cp2": ["--nproc", "4", "distributed.tp_size=2",
                "distributed.cp_size=2",
                f"training.gradient_accumulation_steps={SEQUENCES}"],
    "dp2_pp2": ["--nproc", "4", "distributed.dp_size=2",
                "distributed.pp_size=2",
                f"training.gradient_accumulation_steps={SEQUENCES // 2}"],
}
FORMS = {
    "whole": {},
    "lora": {"rank": 4, "alpha": 16, "targets": "all-linear"},
    "dora": {"rank": 4, "alpha": 16, "targets": "all-linear",
             "use_dora": True},
}


def records():
    for i in range(4 * STEPS * SEQUENCES):
        name, other = NAMES[i % 6], NAMES[(i // 6 + i + 1) % 6]
        yield {"prompt": f"Who came {i}, the {other} or another? " * (i % 4),
               "completion": f" The {name}." * (1 + i % 3)}


class Recorded(trl.SFTTrainer):
    """Takes sequences in order, and keeps the loss of each step."""

    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        self.losses = {}

    def _get_train_sampler(self, dataset=None):
        return torch.utils.data.SequentialSampler(dataset)

    def get_decay_parameter_names(self, model):
        # With weight_decay_on=matrices neither norms nor magnitudes decay.
        return [name for name in super().get_decay_parameter_names(model)
                if "magnitude" not in name]

    def compute_loss(self, model, inputs, *arguments, **more):
        loss = super().compute_loss(model, inputs, *arguments, **more)
        step = self.state.global_step
        self.losses[step] = self.losses.get(step, 0) + loss.item()
        return loss


class Sft(TestInFolder):
    @classmethod
    def setUpClass(cls):
        torch.manual_seed(5)
        super().setUpClass()
        lines = cls.folder / "answers.jsonl"
        lines.write_text("".join(json.dumps(r) + "\n" for r in records()))
        # --chat needs a template, which data without conversations never uses.
        template = cls.folder / "chat.jinja"
        template.write_text("{{ messages }}")
        run("prepare", "--chat", lines, "--template", template,
            "--tokenizer", "bytes", "--out", cls.folder / "answers")
        transformers.AutoModelForCausalLM.from_config(
            transformers.LlamaConfig(**SHAPE)).float().save_pretrained(
                cls.folder / "model")
        cls.rows = list(cls.windows())

    @classmethod
    def windows(cls):
        """Sequences as a run without packing cuts them: their tokens, and
        those of them that count."""
        tokens = torch.frombuffer(
            bytearray((cls.folder / "answers.bin").read_bytes()),
            dtype=torch.int16).long().tolist()
        mask = (cls.folder / "answers.mask").read_bytes()
        count, = struct.unpack_from("<Q", mask, 16)
        assert count == len(tokens)
        for row in range(STEPS * SEQUENCES):
            places = range(row * LENGTH, (row + 1) * LENGTH + 1)
            ids = [tokens[at] for at in places]
            # No token predicts the first one.
            yield {"input_ids": ids, "labels": [
                ids[i] if i > 0 and mask[32 + at // 8] >> at % 8 & 1 else -100
                for i, at in enumerate(places)]}

    def train(self, name, adapter, *more):
        return self.train_run(
            name,
            {**self.stored("model"),
             **({"adapter": adapter} if adapter else {})},
            "answers",
            {"total_train_steps": STEPS, "learning_rate": RATE,
             "seq_length": LENGTH, "weight_decay_on": "matrices"}, *more)

    def expected(self, form, adapter):
        model = transformers.AutoModelForCausalLM.from_pretrained(
            self.folder / "model", dtype=torch.float32)
        if adapter:
            # A step of no length leaves what training starts from.
            start, _ = self.train(
                f"{form}_start", adapter, "training.learning_rate=0",
                "training.total_train_steps=1")
            run("export", "--run", start, "--out",
                self.folder / f"{form}_first")
            model = peft.PeftModel.from_pretrained(
                model, self.folder / f"{form}_first", is_trainable=True)
        trainer = Recorded(
            model=model,
            args=trl.SFTConfig(
                output_dir=str(self.folder / f"{form}_trl"),
                max_steps=STEPS, per_device_train_batch_size=2,
                gradient_accumulation_steps=SEQUENCES // 2,
                learning_rate=RATE, lr_scheduler_type="constant",
                weight_decay=0.01, max_grad_norm=0, optim="adamw_torch",
                bf16=False, use_cpu=True, gradient_checkpointing=False,
                max_length=None, save_strategy="no", report_to="none",
                disable_tqdm=True, dataloader_pin_memory=False,
                dataset_kwargs={"skip_prepare_dataset": True}),
            processing_class=transformers.ByT5Tokenizer(),
            train_dataset=datasets.Dataset.from_list(self.rows))
        trainer.train()
        return [trainer.losses[step] for step in range(STEPS)]

    def test_training_is_trls(self):
        counts = [sum(label != -100 for label in row["labels"])
                  for row in self.rows]
        self.assertGreater(max(counts), 4 * (min(counts) + 1))
        for form, adapter in FORMS.items():
            expected = self.expected(form, adapter)
            self.assertLess(expected[-1], expected[0])
            for layout, options in LAYOUTS.items():
                with self.subTest(form=form, layout=layout):
                    _, losses = self.train(
                        f"{form}_{layout}", adapter, *options)
                    self.check_losses(f"{form} {layout}", losses, expected)


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
