// brigade generate --run DIR --prompt TEXT [--nproc N]
//                  [distributed.tp_size=2 ...]
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "brigade/base/error.h"
#include "brigade/base/utf8.h"
#include "brigade/comm/agreement.h"
#include "brigade/data/whole_text.h"
#include "brigade/files/read_once.h"
#include "brigade/generate/inference_config.h"
#include "brigade/generate/text_generator.h"
#include "brigade/json/parse.h"
#include "brigade/train/start_world.h"
#include "cli/options.h"
#include "cli/rate_bar.h"
#include "cli/standard_streams.h"
#include "cli/torch_commands.h"

namespace brigade::cli {

namespace {

using nlohmann::json;

// One prompt per line: the line itself, or the "prompt" of a JSON object.
std::vector<std::string> prompts_of(
    const std::string& text,
    const std::string& name) {
  std::vector<std::string> prompts;
  size_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (!line.empty() && line.back() == '\r')
      line.pop_back();
    if (line.empty())
      continue;
    if (line.front() == '{') {
      const auto object = parse_json_or_nothing(line);
      if (!object || !object->is_object() || !object->contains("prompt") ||
          !(*object)["prompt"].is_string())
        throw DataError(fmt::format(
            "[generate] '{}' line {}: expected a JSON object with a text "
            "\"prompt\", or a prompt that does not begin with {{",
            name,
            number));
      line = (*object)["prompt"].get<std::string>();
    }
    prompts.push_back(std::move(line));
  }
  if (prompts.empty())
    throw DataError(fmt::format("[generate] '{}' holds no prompt", name));
  return prompts;
}

// The prompts of the command line and of the file. Standard input is rank 0's
// alone.
std::vector<std::string> read_prompts(const GenerateArguments& arguments) {
  std::vector<std::string> prompts = arguments.prompts;
  for (std::string& prompt : prompts) {
    if (prompt == "-")
      prompt = read_whole_text("-");
    const size_t valid = valid_utf8_prefix(prompt);
    if (valid < prompt.size())
      throw ConfigError(fmt::format(
          "--prompt: 0x{:02x} at byte {} is not UTF-8; convert the text, for "
          "example with iconv",
          static_cast<unsigned char>(prompt[valid]),
          valid));
  }
  const std::string file = arguments.prompt_file.string();
  if (!file.empty()) {
    const auto more = prompts_of(read_whole_text(file), input_name(file));
    prompts.insert(prompts.end(), more.begin(), more.end());
  }
  return prompts.empty() ? std::vector<std::string>{""} : prompts;
}

bool reads_standard_input(const GenerateArguments& arguments) {
  const auto& prompts = arguments.prompts;
  return is_read_once(arguments.prompt_file) ||
         std::ranges::find(prompts, "-") != prompts.end();
}

// Shows one text as it grows, several each when it and all before it are
// complete.
class Printer {
 public:
  Printer(const GenerateOptions& options, bool as_json)
      : options_(options),
        as_json_(as_json),
        streams_(!as_json && options.prompts.size() == 1),
        texts_(options.prompts.size()) {}

  void write(size_t prompt, std::string_view piece) {
    texts_[prompt] += piece;
    if (!streams_)
      return;
    fmt::print("{}", piece);
    std::fflush(stdout);
  }

  void finish(const GenerateResult& result) const {
    if (streams_)
      fmt::print("\n");
    for (size_t i = 0; i < texts_.size() && !streams_; ++i) {
      if (as_json_) {
        const json line = {
            {"prompt", options_.prompts[i]},
            {"text", texts_[i]},
            {"prompt_tokens", result.texts[i].prompt_tokens},
            {"generated_tokens", result.texts[i].generated_tokens},
            {"ended", result.texts[i].is_ended}};
        fmt::print("{}\n", json_to_text(line));
      } else {
        fmt::print("{}{}\n", i == 0 ? "" : "----\n", texts_[i]);
      }
    }
    std::fflush(stdout);
    note(
        "{} tokens in {:.2f} s: {:.1f} tokens/s\n",
        result.generated_tokens(),
        result.seconds,
        static_cast<double>(result.generated_tokens()) /
            std::max(1e-9, result.seconds));
  }

 private:
  const GenerateOptions& options_;
  bool as_json_;
  bool streams_;
  std::vector<std::string> texts_;
};

// Rank 0's on every rank.
std::vector<std::string> shared_prompts(
    const GenerateArguments& arguments,
    const ProcessMesh& mesh) {
  json prompts = json::array();
  if (mesh.rank() == 0)
    prompts = read_prompts(arguments);
  return json::parse(Agreement(*mesh.world()).text_of(0, json_to_text(prompts)))
      .get<std::vector<std::string>>();
}

}  // namespace

void generate(const GenerateArguments& arguments) {
  GenerateOptions options = arguments.text;
  const Launch launch = read_launch(arguments.layout.nproc);
  // Before anything is printed: it may start this process once more.
  if (!launch.is_supervisor)
    share_out_threads(launch.environment, std::nullopt);
  const TrainConfig config = inference_config(
      StoredModel(options.model),
      config_overrides(arguments.layout),
      launch.world_size);
  if (launch.is_supervisor) {
    // What can fail without ranks fails here, once, before there are any.
    options.prompts.clear();
    if (!reads_standard_input(arguments))
      options.prompts = read_prompts(arguments);
    check_generate_options(options);
    return supervise_self(launch);
  }
  const auto mesh = start_world(config, launch.environment);
  options.prompts = shared_prompts(arguments, *mesh);
  const bool prints = mesh->rank() == 0;
  if (prints) {
    for (const std::string& warning : generate_warnings(options))
      note("warning: {}\n", warning);
  }
  Printer printer(options, arguments.as_json);
  RateBar bar(
      prints ? visible_on_stderr(launch.environment)
             : ProgressBar::Visible::kNo);
  const GenerateResult result = generate_text(
      options,
      config,
      *mesh,
      [&](size_t prompt, std::string_view piece) {
        bar.clear();
        if (prints)
          printer.write(prompt, piece);
      },
      bar.labelled("verifying the checkpoint"));
  if (prints)
    printer.finish(result);
}

}  // namespace brigade::cli
