"""The same as reference_decoder.py, computed by Hugging Face's transformers.

  transformers_model.py FOLDER OUT

Exit code 3: this Python has no torch or no transformers.
"""
import json
import sys

try:
    import torch
    import transformers
except ImportError:
    sys.exit(3)

from reference_decoder import read_safetensors, write_safetensors


def load(folder):
    with open(f"{folder}/config.json") as file:
        values = json.load(file)
    config = transformers.AutoConfig.for_model(
        values.pop("model_type"), **values)
    # A padding token's row would get no gradient.
    config.pad_token_id = None
    model = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="eager")
    weights = read_safetensors(f"{folder}/model.safetensors")
    missing, surplus = model.load_state_dict(weights, strict=False)
    assert not surplus, surplus
    tied = ["lm_head.weight"] if config.tie_word_embeddings else []
    assert list(missing) == tied, missing
    return model.float()


def main(folder, out):
    model = load(folder)
    inputs = read_safetensors(f"{folder}/inputs.safetensors")
    logits = model(input_ids=inputs["ids"], use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), inputs["targets"].flatten(),
        ignore_index=-100, reduction="sum")
    loss.backward()
    results = {"logits": logits, "loss": loss}
    for name, parameter in model.named_parameters():
        results[f"grad.{name}"] = parameter.grad
    write_safetensors(out, results)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:3])
