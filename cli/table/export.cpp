// brigade export: its options.
#include <memory>

#include "brigade/base/error.h"
#include "brigade/config/choices.h"
#include "brigade/options/expert_tensors.h"
#include "cli/commands.h"
#include "cli/torch_commands.h"

namespace brigade::cli {

namespace {

void add_upcycle(CLI::App& command, ExportArguments& arguments) {
  CLI::Option* upcycle = command.add_option(
      "--upcycle",
      arguments.upcycle,
      "Write a model with N experts per layer, each a copy of the MLP, with a "
      "router at\nrandom: Llama and Mistral become Mixtral, Qwen3 Qwen3-MoE");
  upcycle->type_name("N")->check(whole_number(1, 16384));
  command
      .add_option(
          "--experts-per-token",
          arguments.experts_per_token,
          "Of them those that a token visits")
      ->type_name("K")
      ->check(whole_number(1, 16384))
      ->capture_default_str()
      ->needs(upcycle);
}

void check_combination(const ExportArguments& arguments) {
  if (arguments.upcycle > 0 && arguments.out.empty())
    throw ConfigError(
        "[export] --upcycle writes a Hugging Face folder: give --out");
  if (!arguments.adapter.empty() && !arguments.merges)
    throw ConfigError("[export] --adapter needs --merge");
  if (arguments.out.empty() == arguments.gguf.empty())
    throw ConfigError(
        "[export] give --out for a Hugging Face folder or --gguf for one "
        "file, one of the two");
  if (!arguments.type.empty() && arguments.gguf.empty())
    throw ConfigError("[export] --type is of a GGUF file: give --gguf");
  if (!arguments.dtype.empty() && arguments.out.empty())
    throw ConfigError(
        "[export] --dtype is of a Hugging Face folder: give --out, or --type "
        "for a GGUF file");
  if (!arguments.experts.empty() && arguments.out.empty())
    throw ConfigError(
        "[export] --experts is of a Hugging Face folder: give --out; a GGUF "
        "file has a layer's experts together in any case");
  if (arguments.shard_gb && arguments.out.empty())
    throw ConfigError(
        "[export] --shard-gb is of a Hugging Face folder: give --out; a GGUF "
        "file is one in any case");
}

}  // namespace

void add_export(CLI::App& app) {
  auto arguments = std::make_shared<ExportArguments>();
  CLI::App* command = app.add_subcommand(
      "export",
      "Write a model as a Hugging Face folder, which transformers and vLLM "
      "load,\nor as a GGUF file for llama.cpp");
  command->footer(
      "Examples: brigade export --run runs/run --out model\n"
      "          brigade export --run runs/run --gguf model.gguf --type q8_0");
  add_run_option(*command, arguments->run, "-c,--checkpoint", kRunHelp);
  command
      ->add_option(
          "--out", arguments->out, "The folder to write; it must not exist")
      ->type_name("DIR");
  command
      ->add_option(
          "--gguf",
          arguments->gguf,
          "Write this one file for llama.cpp instead, with the tokenizer")
      ->type_name("FILE");
  command
      ->add_option(
          "--type",
          arguments->type,
          "Of the GGUF's matrices; without it as they are stored")
      ->check(one_of({"f32", "f16", "bf16", "q8_0"}));
  command
      ->add_option(
          "--dtype",
          arguments->dtype,
          "Round the weights (default: the model's; float16 becomes float32)")
      ->check(one_of(choice_texts<ModelDtype>()));
  command
      ->add_option(
          "--experts",
          arguments->experts,
          "One tensor per expert (default), or a layer's together, as "
          "transformers 5 has\nthem in memory")
      ->check(one_of(choice_texts<ExpertTensors>()));
  command
      ->add_option(
          "--shard-gb",
          arguments->shard_gb,
          "Split the weights in files of at most so many GB (default: 5)")
      ->type_name("GB")
      ->check(number_between(1e-6, 1e6));
  command->add_flag(
      "--merge",
      arguments->merges,
      "Write the model with the adapter in its weights (default: an adapter's "
      "run is\nwritten as PEFT's adapter)");
  command
      ->add_option(
          "--adapter",
          arguments->adapter,
          "PEFT's folder of an adapter for a Hugging Face folder, with --merge")
      ->type_name("DIR");
  add_upcycle(*command, *arguments);
  command->callback([arguments, command] {
    check_run(*command, arguments->run);
    check_combination(*arguments);
    export_model(*arguments);
  });
}

}  // namespace brigade::cli
