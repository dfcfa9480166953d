#include "brigade/train/text_generator.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <random>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/checkpoint/checkpoint.h"
#include "brigade/data/tokenizer.h"
#include "brigade/data/tokenizer_streaming_decoder.h"
#include "brigade/model/llama.h"
#include "brigade/train/sampling.h"

namespace brigade {
namespace {

void check(const GenerateOptions& options) {
  std::vector<std::string> problems;
  if (options.max_tokens < 0)
    problems.push_back(
        fmt::format("--max-tokens {} is negative", options.max_tokens));
  if (options.temperature < 0)
    problems.push_back(
        fmt::format("--temperature {} is negative", options.temperature));
  if (options.top_k < 0)
    problems.push_back(fmt::format("--top-k {} is negative", options.top_k));
  if (options.top_p <= 0 || options.top_p > 1)
    problems.push_back(
        fmt::format("--top-p {} is not in (0, 1]", options.top_p));
  if (!problems.empty())
    throw ConfigError(problems);
}

std::unique_ptr<Tokenizer> open_tokenizer(
    const GenerateOptions& options,
    const Checkpoint& checkpoint) {
  if (!options.tokenizer.empty())
    return load_tokenizer(options.tokenizer);
  const std::string& name = checkpoint.manifest().tokenizer;
  if (name.empty()) {
    throw ConfigError(fmt::format(
        "the checkpoint '{}' names no tokenizer; give --tokenizer",
        checkpoint.directory().string()));
  }
  const auto beside = checkpoint.directory() / name;
  return load_tokenizer(
      std::filesystem::exists(beside) ? beside.string() : name);
}

std::shared_ptr<Llama> load_model(const Checkpoint& checkpoint) {
  std::vector<std::string> problems;
  const LlamaConfig config = parse_llama_config(
      checkpoint.manifest().model,
      (checkpoint.directory() / "manifest.json").string() + " /model",
      problems);
  if (!problems.empty())
    throw DataError(fmt::format("[generate] {}", problems.front()));
  ModelContext context = single_rank_context(config);
  if (checkpoint.manifest().dtype == "bfloat16")
    context.dtype = torch::kBFloat16;
  auto model = std::make_shared<Llama>(
      std::make_shared<ModelContext>(std::move(context)), whole_model(config));
  const torch::NoGradGuard no_grad;
  for (const auto& item : model->named_parameters())
    checkpoint.read({item.key(), -1, 0, 0, item.value().detach()});
  return model;
}

}  // namespace

GenerateResult generate_text(
    const GenerateOptions& options,
    const std::function<void(std::string_view)>& write) {
  check(options);
  const Checkpoint checkpoint(options.checkpoint);
  const auto tokenizer = open_tokenizer(options, checkpoint);
  const auto model = load_model(checkpoint);
  const int64_t vocabulary = model->context().config.vocab_size;
  if (tokenizer->vocab_size() > vocabulary) {
    throw DataError(fmt::format(
        "[generate] the tokenizer has {} tokens, the model {}: they do not "
        "belong together",
        tokenizer->vocab_size(),
        vocabulary));
  }

  std::vector<int32_t> prompt = tokenizer->encode(
      options.prompt, {.special_tokens = SpecialTokens::kTemplate});
  if (prompt.empty()) {
    const auto start =
        tokenizer->bos_id() ? tokenizer->bos_id() : tokenizer->eos_id();
    if (!start)
      throw ConfigError("--prompt is empty and the tokenizer has no <s>");
    prompt.push_back(*start);
  }
  GenerateResult result;
  result.prompt_tokens = static_cast<int64_t>(prompt.size());
  StreamingDecoder decoder(*tokenizer);
  for (const int32_t id : prompt)
    write(decoder.push(id));

  std::mt19937_64 random(static_cast<uint64_t>(options.seed));
  std::uniform_real_distribution<double> uniform(0, 1);
  const SamplingOptions sampling{
      options.temperature, options.top_k, options.top_p};
  Llama::GenerationState state;
  auto ids = torch::tensor(std::vector<int64_t>(prompt.begin(), prompt.end()))
                 .unsqueeze(0);
  while (result.generated_tokens < options.max_tokens) {
    const auto logits = model->generate(ids, {}, state);
    const int64_t token = draw_token(
        next_token_probabilities(logits[0], sampling), uniform(random));
    if (tokenizer->eos_id() == static_cast<int32_t>(token))
      break;
    ++result.generated_tokens;
    write(decoder.push(static_cast<int32_t>(token)));
    ids = torch::full({1, 1}, token, torch::kLong);
  }
  write(decoder.finish());
  return result;
}

}  // namespace brigade
