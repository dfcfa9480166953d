#!/usr/bin/env python3
"""Low-rank adapters against PEFT: the same losses from the same start, and
each one's files read by the other.

    peft_test.py BRIGADE          # see scripts/test_ecosystem.sh
"""
import json
import sys
import unittest

try:
    import peft
    import safetensors.torch
    import torch
    import transformers
except ImportError as error:
    print(f"peft_test: skipped: {error}", file=sys.stderr)
    sys.exit(0)

from support import LAYOUTS, TEXT, TestInFolder, run

STEPS, SEQUENCES, LENGTH, RATE = 10, 4, 32, 1e-2
SHAPE = {"vocab_size": 259, "hidden_size": 32, "intermediate_size": 48,
         "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 64,
         "initializer_range": 0.2}
MODELS = {
    "llama": (transformers.LlamaConfig, {"tie_word_embeddings": False}),
    "qwen2": (transformers.Qwen2Config, {"tie_word_embeddings": True}),
    # One of two layers has experts. PEFT takes the names of its MLPs' linears
    # for experts, in the dense layer too.
    "qwen3_moe": (transformers.Qwen3MoeConfig, {
        "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 24, "norm_topk_prob": True,
        "mlp_only_layers": [0]}),
    # Every linear is adapted. PEFT stores those of a layer's experts as two:
    # gate with up, and down.
    "olmoe": (transformers.OlmoeConfig, {
        "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True}),
    "mixtral": (transformers.MixtralConfig, {
        "num_local_experts": 4, "num_experts_per_tok": 2}),
}
# llama.cpp has no dense layers among sparse ones, and OLMoE without
# norm_topk_prob.
NO_GGUF = ("qwen3_moe", "olmoe")
ADAPTED = {"qwen3_moe": 2 * 4}  # linears; the others have 2 * 7
# A model, its runs' further adapter keys, and the tensors per adapter.
FORMS = {name: (name, [], 2) for name in MODELS} | {
    "qwen2_dora": ("qwen2", ["adapter.use_dora=true"], 3),
    "qwen3_moe": ("qwen3_moe", [
        'adapter.targets=["q_proj","k_proj","v_proj","o_proj"]'], 2)}
LAYOUTS_OF = {
    "mixtral": LAYOUTS | {"cp2_ep2": [
        "--nproc", "2", "distributed.cp_size=2", "distributed.ep_size=2"]},
}


def keep_gate_and_up_apart(model):
    """PEFT joins two adapters into one, whose B has blocks of zeros beside
    each of theirs: keeps these zero."""
    for name, b in model.named_parameters():
        if "experts.base_layer.lora_B" in name:
            blocks = torch.eye(2).view(2, 1, 2, 1)
            shape = (2, b.shape[0] // 2, 2, b.shape[1] // 2)
            mask = blocks.expand(shape).reshape(b.shape)
            b.register_hook(lambda gradient, mask=mask: gradient * mask)


class Peft(TestInFolder):
    @classmethod
    def setUpClass(cls):
        torch.manual_seed(5)
        super().setUpClass()
        text = cls.folder / "text.txt"
        text.write_text(TEXT)
        cls.text = text
        run("prepare", "--input", text, "--tokenizer", "bytes", "--out",
            cls.folder / "tokens")
        cls.tokens = torch.frombuffer(
            bytearray((cls.folder / "tokens.bin").read_bytes()),
            dtype=torch.int16).long()
        for name, (kind, more) in MODELS.items():
            config = kind(**SHAPE, **more)
            model = transformers.AutoModelForCausalLM.from_config(config)
            model.float().save_pretrained(cls.folder / name)

    def base(self, name):
        return transformers.AutoModelForCausalLM.from_pretrained(
            self.folder / name, dtype=torch.float32)

    def train(self, name, run_name, *more):
        return self.train_run(
            run_name,
            {**self.stored(name), "adapter": {
                "rank": 4, "alpha": 16, "targets": "all-linear"}},
            "tokens",
            {"total_train_steps": STEPS, "learning_rate": RATE,
             "seq_length": LENGTH, "router_aux_loss": 0,
             "gradient_accumulation_steps": SEQUENCES}, *more)

    def batch(self, step):
        starts = [(step * SEQUENCES + i) * LENGTH for i in range(SEQUENCES)]
        return torch.stack(
            [self.tokens[s:s + LENGTH + 1] for s in starts])

    def loss_of(self, model, windows):
        logits = model(windows[:, :-1]).logits
        return torch.nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), windows[:, 1:].flatten())

    def evaluate(self, *arguments):
        report = run("evaluate", *arguments, "--dataset",
                     self.folder / "tokens", "--seq-length", LENGTH, "--json")
        return next(iter(json.loads(report).values()))["loss"]

    def loss_of_all(self, model):
        count = len(self.tokens)
        nats = 0.0
        with torch.no_grad():
            for begin in range(0, count - 1, LENGTH):
                window = self.tokens[begin:begin + LENGTH + 1].unsqueeze(0)
                nats += self.loss_of(model, window).item() * (
                    window.shape[1] - 1)
        return nats / (count - 1)

    def test_training_is_pefts(self):
        for form, (name, options, tensors) in FORMS.items():
            # A step of no length leaves what training starts from.
            start, _ = self.train(
                name, f"{form}_start", *options,
                "training.learning_rate=0", "training.total_train_steps=1")
            run("export", "--run", start, "--out",
                self.folder / f"{form}_first")
            model = peft.PeftModel.from_pretrained(
                self.base(name), self.folder / f"{form}_first",
                is_trainable=True)
            trained = [p for p in model.parameters() if p.requires_grad]
            self.assertEqual(
                len(trained), tensors * ADAPTED.get(name, 2 * 7))
            keep_gate_and_up_apart(model)
            optimizer = torch.optim.AdamW(
                trained, lr=RATE, weight_decay=0.01)
            expected = []
            for step in range(STEPS):
                loss = self.loss_of(model, self.batch(step))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                expected.append(loss.item())
            self.assertLess(expected[-1], expected[0])
            for layout, more in LAYOUTS_OF.get(form, LAYOUTS).items():
                with self.subTest(form=form, layout=layout):
                    out, losses = self.train(
                        name, f"{form}_{layout}", *options, *more)
                    self.check_losses(f"{form} {layout}", losses, expected)
                    self.check_exports(name, out, model)

    def check_exports(self, name, out, trained):
        """The run's adapter in PEFT, merged in transformers, and evaluated
        here, is what PEFT trained."""
        adapter, merged = out / "adapter", out / "merged"
        run("export", "--run", out, "--out", adapter)
        run("export", "--run", out, "--merge", "--out", merged)
        loaded = peft.PeftModel.from_pretrained(self.base(name), adapter)
        whole = transformers.AutoModelForCausalLM.from_pretrained(
            merged, dtype=torch.float32)
        ids = self.batch(0)[:, :-1]
        with torch.no_grad():
            expected = trained(ids).logits
            for model in (loaded, whole):
                self.assertLess(
                    (model(ids).logits - expected).abs().max().item(), 1e-3)
            # The files alone: no difference of the trainings.
            self.assertLess(
                (whole(ids).logits - loaded(ids).logits).abs().max().item(),
                2e-5)
        if name not in NO_GGUF:
            self.check_gguf(merged, "f32", "--run", out)
        loss = self.loss_of_all(loaded)
        for arguments in (
                ["--run", out],
                ["--run", self.folder / name, "--adapter", adapter],
                ["--run", merged]):
            self.assertAlmostEqual(self.evaluate(*arguments), loss, delta=1e-5)

    def check_gguf(self, merged, kind, *model):
        """A GGUF file of the model with the adapter in it has the weights of
        the folder."""
        path, back = merged.with_suffix(".gguf"), merged.with_suffix(".back")
        run("export", *model, "--merge", "--gguf", path, "--type", kind)
        run("import", "--gguf", path, "--out", back)
        ours, expected = (
            safetensors.torch.load_file(folder / "model.safetensors")
            for folder in (back, merged))
        self.assertEqual(set(ours), set(expected))
        for name, tensor in expected.items():
            self.assertTrue(
                torch.equal(ours[name].to(tensor.dtype), tensor), name)

    def test_an_adapter_of_peft_is_read(self):
        linears = ["q_proj", "v_proj", "down_proj"]
        for form, (name, options) in {
                "lora": ("llama", {
                    "target_modules": linears, "use_rslora": True}),
                "dora": ("llama", {
                    "target_modules": linears, "use_dora": True,
                    "lora_dropout": 0.1}),
                "linears_of_experts": ("mixtral", {
                    "target_modules": ["q_proj", "gate", "w1", "w2", "w3"],
                    "use_rslora": True}),
                "parameters_of_experts": ("qwen3_moe", {
                    "target_modules": ["q_proj"],
                    "target_parameters": ["mlp.experts.gate_up_proj",
                                          "mlp.experts.down_proj"]}),
                "down_of_experts": ("olmoe", {
                    "target_modules": [],
                    "target_parameters": ["mlp.experts.down_proj"]}),
        }.items():
            with self.subTest(form=form):
                self.check_read(form, name, peft.LoraConfig(
                    r=3, lora_alpha=6, task_type="CAUSAL_LM", **options))

    def check_read(self, form, name, config):
        plain = self.loss_of_all(self.base(name))
        model = peft.get_peft_model(self.base(name), config).eval()
        for of, parameter in model.named_parameters():
            if "lora_B" in of:
                torch.nn.init.normal_(parameter, std=0.3)
            if "magnitude" in of:
                parameter.data *= torch.rand_like(parameter) + 0.5
        folder = self.folder / f"{form}_of_peft"
        model.save_pretrained(folder)
        expected = self.loss_of_all(model)
        self.assertGreater(abs(expected - plain), 1e-2)
        self.assertAlmostEqual(
            self.evaluate("--run", self.folder / name, "--adapter", folder),
            expected, delta=1e-5)
        merged = self.folder / f"merged_{form}_of_peft"
        run("export", "--run", self.folder / name, "--adapter", folder,
            "--merge", "--out", merged)
        self.assertAlmostEqual(
            self.evaluate("--run", merged), expected, delta=1e-5)
        if name not in NO_GGUF:
            self.check_gguf(merged, "f32", "--run", self.folder / name,
                            "--adapter", folder)

    def test_merging_in_bfloat16_rounds_as_peft(self):
        folder = self.folder / "of_peft_bf16"
        base = self.base("llama").to(torch.bfloat16)
        base.save_pretrained(self.folder / "llama_bf16")
        model = peft.get_peft_model(base, peft.LoraConfig(
            r=4, lora_alpha=8, task_type="CAUSAL_LM",
            target_modules=["q_proj", "up_proj"]))
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.1)
        model.save_pretrained(folder)
        merged = self.folder / "merged_bf16"
        run("export", "--run", self.folder / "llama_bf16", "--adapter", folder,
            "--merge", "--out", merged)
        ours = transformers.AutoModelForCausalLM.from_pretrained(
            merged, dtype=torch.bfloat16).state_dict()
        for name, tensor in model.merge_and_unload().state_dict().items():
            self.assertTrue(torch.equal(ours[name], tensor), name)
        self.check_gguf(merged, "bf16", "--run", self.folder / "llama_bf16",
                        "--adapter", folder)


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
