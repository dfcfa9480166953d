// brigade export --run DIR --out DIR [--dtype float32]
#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "brigade/base/error.h"
#include "brigade/checkpoint/export_model.h"
#include "brigade/files/output_path.h"
#include "brigade/generate/stored_model.h"
#include "brigade/json/parse.h"
#include "brigade/model/init_weights.h"
#include "brigade/tokenizer/sentencepiece_json.h"
#include "brigade/tokenizer/tokenizer.h"
#include "cli/named_run.h"
#include "cli/rate_bar.h"
#include "cli/torch_commands.h"

namespace brigade::cli {

namespace fs = std::filesystem;

namespace {

// What transformers needs beside the tokenizer's own file.
std::string tokenizer_config(
    const Tokenizer& tokenizer,
    bool is_sentencepiece,
    int64_t positions) {
  nlohmann::json config = {
      {"tokenizer_class",
       is_sentencepiece ? "LlamaTokenizer" : "PreTrainedTokenizerFast"},
      {"clean_up_tokenization_spaces", false},
      {"model_max_length", positions}};
  const auto put = [&](const char* key, const std::optional<int32_t>& id) {
    const auto text = id ? tokenizer.token_text(*id) : std::nullopt;
    // Absent would be another one: a guess, or the class's.
    config[key] = text ? nlohmann::json(*text) : nullptr;
  };
  put("bos_token", tokenizer.bos_id());
  put("eos_token", tokenizer.eos_id());
  // As generation and evaluation do, and what was prepared with it.
  if (is_sentencepiece) {
    const auto around =
        tokenizer.encode("", {.special_tokens = SpecialTokens::kTemplate});
    const bool adds_bos = !around.empty() && around[0] == tokenizer.bos_id();
    config["add_bos_token"] = adds_bos;
    config["add_eos_token"] = around.size() > (adds_bos ? 1 : 0);
  }
  return config.dump(2) + "\n";
}

// What the model's tokenizer says of itself; nothing where it has none that
// transformers knows.
void describe_tokenizer(const StoredModel& model, ExportOptions& options) {
  const fs::path path = model.tokenizer();
  if (path.empty() || path == "bytes" || !fs::exists(path))
    return;
  const auto tokenizer = load_tokenizer(path.string());
  options.bos_token_id = tokenizer->bos_id();
  options.eos_token_id = tokenizer->eos_id();
  const fs::path file = tokenizer_file(path);
  bool is_sentencepiece = file.extension() == ".model";
  if (is_sentencepiece) {
    if (auto json = convert_sentencepiece(file)) {
      options.more_files["tokenizer.json"] = std::move(*json);
      is_sentencepiece = false;
    }
  }
  options.more_files["tokenizer_config.json"] = tokenizer_config(
      *tokenizer, is_sentencepiece, model.model().max_position_embeddings);
}

}  // namespace

void export_model(const ExportArguments& arguments) {
  if (!arguments.adapter.empty() && !is_hugging_face(arguments.run))
    throw ConfigError(fmt::format(
        "[export] --adapter goes with a Hugging Face folder; '{}' is none",
        arguments.run));
  if (arguments.merges && arguments.adapter.empty() &&
      is_hugging_face(arguments.run))
    throw ConfigError(fmt::format(
        "[export] --merge with '{}', a Hugging Face folder: give --adapter",
        arguments.run));
  if (!arguments.gguf.empty())
    return export_gguf(arguments);
  std::error_code error;
  if (fs::exists(arguments.out, error) &&
      !fs::is_directory(arguments.out, error))
    throw ConfigError(fmt::format(
        "[export] --out '{}' holds something already; give another folder",
        arguments.out));
  check_can_make(arguments.out);
  ExportOptions options;
  if (arguments.shard_gb)
    options.max_shard_bytes = static_cast<uint64_t>(*arguments.shard_gb * 1e9);
  options.dtype = arguments.dtype;
  if (arguments.experts == to_string(ExpertTensors::kFused))
    options.experts = ExpertTensors::kFused;
  options.merges_adapter = arguments.merges;
  options.adapter = arguments.adapter;
  if (arguments.upcycle > 0)
    options.upcycle = {arguments.upcycle, arguments.experts_per_token};
  options.initial_router = [](const ParameterRow& router) {
    return initial_weight(router, /*seed=*/0);
  };
  describe_tokenizer(StoredModel({arguments.run}), options);
  RateBar bar;
  options.on_progress =
      [&](const char* what, uint64_t done_bytes, uint64_t total_bytes) {
        bar.show(what, done_bytes, total_bytes);
      };
  const auto do_export =
      is_hugging_face(arguments.run) ? export_folder : export_checkpoint;
  const ExportedModel model = do_export(arguments.run, arguments.out, options);
  bar.clear();
  fmt::print(
      "{}: {} parameters{}, {}\n",
      arguments.out,
      model.parameters,
      model.step ? fmt::format(" of step {}", *model.step) : "",
      model.dtype);
  const std::string folder =
      json_to_text(nlohmann::json(fs::absolute(arguments.out).string()));
  if (model.is_adapter) {
    fmt::print(
        "Load it: peft.PeftModel.from_pretrained(base_model, {})\n", folder);
    return;
  }
  if (!model.has_tokenizer) {
    fmt::print(
        "No tokenizer was written: {}.\n",
        model.tokenizer == "bytes" ? "transformers has none for plain bytes"
                                   : "the model has none");
  }
  fmt::print(
      "Load it: transformers.AutoModelForCausalLM.from_pretrained({})\n",
      folder);
}

}  // namespace brigade::cli
