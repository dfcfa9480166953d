#!/usr/bin/env python3
"""mup against its tables 8 and 9 in plain PyTorch: there the logits and the
scores of attention have factors of their own, here weights include them. Both
train the same way, and the exported model is an ordinary one.

    mup_test.py BRIGADE          # see scripts/test_ecosystem.sh
"""
import sys
import unittest

try:
    import torch
    import transformers
except ImportError as error:
    print(f"mup_test: skipped: {error}", file=sys.stderr)
    sys.exit(0)

from support import LAYOUTS, TEXT, TestInFolder, run

STEPS, SEQUENCES, LENGTH, RATE, DECAY = 10, 4, 32, 1e-2, 0.1
WIDTH, SCORES = 4, (4 / 8) ** 0.5  # over the base's; sqrt(base / head width)
SHAPE = {"vocab_size": 259, "hidden_size": 32, "intermediate_size": 48,
         "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8,
         "num_key_value_heads": 2, "max_position_embeddings": 64,
         "initializer_range": 0.2}
MODELS = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama",
              "tie_word_embeddings": False},
    "llama_tied": {"architectures": ["LlamaForCausalLM"],
                   "model_type": "llama", "tie_word_embeddings": True},
    "qwen3_tied": {"architectures": ["Qwen3ForCausalLM"],
                   "model_type": "qwen3", "tie_word_embeddings": True},
}


def load(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32)


def matrices(model):
    return [p for layer in model.model.layers
            for p in layer.parameters() if p.dim() == 2]


def with_factors(model):
    """The same function, whose factors are no longer in its weights."""
    with torch.no_grad():
        if model.config.tie_word_embeddings:
            model.model.norm.weight *= WIDTH
        else:
            model.lm_head.weight *= WIDTH
        for layer in model.model.layers:
            attention = layer.self_attn
            in_front = getattr(attention, "q_norm", attention.q_proj)
            in_front.weight /= SCORES
            attention.scaling *= SCORES
    return model


class Mup(TestInFolder):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        text = cls.folder / "text.txt"
        text.write_text(TEXT)
        run("prepare", "--input", text, "--tokenizer", "bytes", "--out",
            cls.folder / "tokens")
        cls.tokens = torch.frombuffer(
            bytearray((cls.folder / "tokens.bin").read_bytes()),
            dtype=torch.int16).long()

    def train(self, name, run_name, *more):
        """The exported model, and the losses."""
        out, losses = self.train_run(
            run_name, {"model": {"config": SHAPE | MODELS[name]}}, "tokens",
            {"total_train_steps": STEPS, "learning_rate": RATE,
             "weight_decay": DECAY, "seq_length": LENGTH,
             "parametrization": "mup",
             "mup_base_hidden_size": 8, "mup_base_head_dim": 4,
             "gradient_accumulation_steps": SEQUENCES}, *more)
        run("export", "--run", out, "--out", out / "exported")
        return load(out / "exported"), losses

    def batch(self, step):
        starts = [(step * SEQUENCES + i) * LENGTH for i in range(SEQUENCES)]
        return torch.stack(
            [self.tokens[s:s + LENGTH + 1] for s in starts])

    def test_training_is_that_of_explicit_factors(self):
        for name in MODELS:
            # A step of no length leaves what training starts from.
            start, _ = self.train(
                name, f"{name}_start", "training.learning_rate=0",
                "training.total_train_steps=1")
            model = with_factors(start)
            hidden = matrices(model)
            self.assertAlmostEqual(
                hidden[1].std().item(), 0.2 / WIDTH ** 0.5, delta=0.01)
            rest = [p for p in model.parameters()
                    if not any(p is q for q in hidden)]
            optimizer = torch.optim.AdamW(
                [{"params": rest, "weight_decay": DECAY},
                 {"params": hidden, "lr": RATE / WIDTH,
                  "weight_decay": DECAY * WIDTH}], lr=RATE)
            expected = []
            for step in range(STEPS):
                windows = self.batch(step)
                logits = model(windows[:, :-1]).logits / WIDTH
                loss = torch.nn.functional.cross_entropy(
                    logits.flatten(0, 1), windows[:, 1:].flatten())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                expected.append(loss.item())
            self.assertLess(expected[-1], expected[0])
            ids = self.batch(0)[:, :-1]
            with torch.no_grad():
                wanted = model(ids).logits / WIDTH
            for layout, options in LAYOUTS.items():
                with self.subTest(model=name, layout=layout):
                    exported, losses = self.train(
                        name, f"{name}_{layout}", *options)
                    self.check_losses(f"{name} {layout}", losses, expected)
                    with torch.no_grad():
                        logits = (exported(ids).logits - wanted).abs().max()
                    print(f"exported logits differ by {logits.item():.1e}")
                    self.assertLess(logits.item(), 1e-3)


if __name__ == "__main__":
    unittest.main()
