// brigade create-config: its options, which have picotron's names, and ours.
#include "cli/create_config.h"

#include <fmt/format.h>

#include <cctype>
#include <memory>

#include "brigade/topology/parallel_dims.h"
#include "cli/commands.h"
#include "cli/options.h"

namespace brigade::cli {

namespace {

void add_layout(CLI::App& command, CreateConfigArguments& arguments) {
  for (const Axis axis : kNamedAxes) {
    std::string help = std::string(meaning_of(axis)) + " ranks";
    help[0] = static_cast<char>(std::toupper(help[0]));
    command
        .add_option(
            fmt::format("--{}", to_string(axis)), arguments.dims[axis], help)
        ->check(whole_number(1, 1 << 20))
        ->capture_default_str();
  }
  command
      .add_option(
          "--pp_engine,--pp-engine", arguments.pp_engine, "Pipeline schedule")
      ->capture_default_str();
  command
      .add_option(
          "--zero_stage,--zero-stage",
          arguments.zero_stage,
          fmt::format(
              "What {} ranks divide between them (default: 0)",
              names_of(kReplicaAxes)))
      ->check(whole_number(0, 3));
  command
      .add_option(
          "--grad_acc_steps,--grad-acc-steps",
          arguments.grad_acc_steps,
          "Micro-batches per step")
      ->check(at_least(1))
      ->capture_default_str();
  command
      .add_option(
          "--mbs", arguments.micro_batch_size, "Sequences of a micro-batch")
      ->check(at_least(1))
      ->capture_default_str();
  command
      .add_option(
          "--seq_len,--seq-len", arguments.seq_len, "Tokens of a sequence")
      ->check(at_least(1))
      ->capture_default_str();
}

void add_model(CLI::App& command, CreateConfigArguments& arguments) {
  command
      .add_option(
          "--model_name,--model-name",
          arguments.model_name,
          "An id of the Hugging Face hub, or a folder with config.json")
      ->default_str(kDefaultModel);
  command
      .add_option(
          "--num_hidden_layers,--num-hidden-layers",
          arguments.layers,
          "In place of the model's own")
      ->check(at_least(1));
  command
      .add_option(
          "--num_attention_heads,--num-attention-heads",
          arguments.heads,
          "In place of the model's own")
      ->check(at_least(1));
  command
      .add_option(
          "--num_key_value_heads,--num-key-value-heads",
          arguments.kv_heads,
          "In place of the model's own")
      ->check(at_least(1));
  command.add_option(
      "--dtype", arguments.dtype, "float32 or bfloat16 (default: float32)");
  command.add_flag(
      "--use_fused_adam,--use-fused-adam",
      arguments.use_fused_adam,
      "Accepted: it is always fused");
}

}  // namespace

void add_create_config(CLI::App& app) {
  auto arguments = std::make_shared<CreateConfigArguments>();
  CLI::App* command = app.add_subcommand(
      "create-config", "Write a run's config, and say what it comes to");
  command
      ->add_option(
          "--out_dir,--out-dir",
          arguments->out_dir,
          "The folder of the configs")
      ->type_name("DIR")
      ->default_str("tmp");
  command
      ->add_option(
          "--exp_name,--exp-name", arguments->exp_name, "The run's name")
      ->capture_default_str();
  command
      ->add_option(
          "--template",
          arguments->base,
          "A config to start from, such as picotron's base_config.json; the "
          "layout,\nthe batch and the model are those of the options, or their "
          "defaults\n(default: none)")
      ->type_name("FILE");
  command->add_flag(
      "--overwrite", arguments->overwrite, "Replace a config that is there");
  add_layout(*command, *arguments);
  add_model(*command, *arguments);
  command
      ->add_option(
          "--total_train_steps,--total-train-steps",
          arguments->total_train_steps,
          "Steps (default: 200)")
      ->check(at_least(1));
  command->add_option("--dataset", arguments->dataset, "As dataset.name")
      ->type_name("PREFIX");
  command->add_option(
      "--subset_name,--subset-name",
      arguments->subset_name,
      "As dataset.subset_name");
  command->add_flag(
      "--use_wandb,--use-wandb", arguments->use_wandb, "As logging.use_wandb");
  command->add_flag(
      "--use_cpu,--use-cpu", arguments->use_cpu, "As distributed.use_cpu");
  command
      ->add_option(
          "--hf_token,--hf-token",
          arguments->hf_token,
          "For --download, which it implies (default: HF_TOKEN); not written")
      ->type_name("TOKEN");
  command->add_flag(
      "--download",
      arguments->downloads,
      "Fetch the config.json of a model that is not here, to say what it "
      "takes\n(default: off)");
  command
      ->add_option(
          "overrides", arguments->overrides, "Any further values of the config")
      ->type_name("group.key=value");
  command->footer(
      "Example: brigade create-config --out_dir runs --exp_name test --tp 2 "
      "--dp 2 --pp 2\n         --model_name HuggingFaceTB/SmolLM-1.7B --mbs 4 "
      "--seq_len 512\n\nThe names with _ are those of picotron's "
      "create_config.py.");
  command->callback([arguments] { create_config(*arguments); });
}

}  // namespace brigade::cli
