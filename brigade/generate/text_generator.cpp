#include "brigade/generate/text_generator.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/generate/stored_model.h"
#include "brigade/generate/text_tokens.h"
#include "brigade/generate/token_generator.h"
#include "brigade/metrics/clock.h"
#include "brigade/model_spec/model_description.h"
#include "brigade/model_spec/model_warnings.h"
#include "brigade/model_spec/rotary_frequencies.h"
#include "brigade/tokenizer/streaming_decoder.h"
#include "brigade/tokenizer/tokenizer.h"

namespace brigade {
namespace {

// The prompt's tokens; at least one, since the model continues something.
std::vector<int64_t> encode_prompt(
    const Tokenizer& tokenizer,
    const std::string& prompt) {
  std::vector<int64_t> ids = encode_text(tokenizer, prompt);
  if (!ids.empty())
    return ids;
  const auto start = start_token(tokenizer);
  if (!start)
    throw ConfigError("--prompt is empty and the tokenizer has no <s>");
  return {*start};
}

struct Prompts {
  std::unique_ptr<Tokenizer> tokenizer;
  std::vector<std::vector<int64_t>> tokens;
};

Prompts read_prompts(
    const GenerateOptions& options,
    const StoredModel& stored) {
  check_values(options);
  Prompts prompts{stored.open_tokenizer(options.tokenizer), {}};
  for (const std::string& text : options.prompts)
    prompts.tokens.push_back(encode_prompt(*prompts.tokenizer, text));
  return prompts;
}

// One text of a batch while it grows.
class GrowingText {
 public:
  GrowingText(
      size_t prompt,
      const std::vector<int64_t>& tokens,
      const Tokenizer& tokenizer,
      const WriteText& write)
      : prompt_(prompt), tokens_(tokens), decoder_(tokenizer), write_(write) {
    for (const int64_t token : tokens)
      write_(prompt_, decoder_.push(static_cast<int32_t>(token)));
    result_.prompt_tokens = static_cast<int64_t>(tokens.size());
  }

  bool is_done() const { return is_done_; }
  bool is_in_prompt(size_t position) const { return position < tokens_.size(); }
  int64_t prompt_token(size_t position) const { return tokens_[position]; }

  void end(bool at_end_token) {
    if (std::exchange(is_done_, true))
      return;
    result_.is_ended = at_end_token;
    write_(prompt_, decoder_.finish());
  }
  void add(int64_t token, int64_t most) {
    write_(prompt_, decoder_.push(static_cast<int32_t>(token)));
    if (++result_.generated_tokens >= most)
      end(false);
  }
  const GeneratedText& result() const { return result_; }

 private:
  size_t prompt_;
  const std::vector<int64_t>& tokens_;
  StreamingDecoder decoder_;
  const WriteText& write_;
  GeneratedText result_;
  bool is_done_ = false;
};

// The prompts of a batch, generated to the end of the last.
class PromptBatch {
 public:
  PromptBatch(
      TokenGenerator& generator,
      const Prompts& all,
      const std::set<int64_t>& ends,
      const GenerateOptions& options)
      : generator_(generator), all_(all), ends_(ends), options_(options) {}

  void run(
      const std::vector<size_t>& prompts,
      const WriteText& write,
      GenerateResult& result) {
    std::vector<uint64_t> seeds;
    size_t position = SIZE_MAX;
    for (const size_t prompt : prompts) {
      const std::vector<int64_t>& tokens = all_.tokens[prompt];
      texts_.emplace_back(prompt, tokens, *all_.tokenizer, write);
      position = std::min(position, tokens.size());
      seeds.push_back(
          prompt_seed(static_cast<uint64_t>(options_.seed), prompt));
    }
    generator_.begin(seeds);
    std::vector<int64_t> first;
    for (GrowingText& text : texts_) {
      for (size_t i = 0; i < position; ++i)
        first.push_back(text.prompt_token(i));
      if (options_.max_tokens == 0)
        text.end(false);
    }
    auto tokens =
        torch::tensor(first).view({static_cast<int64_t>(texts_.size()), -1});
    for (; !are_done(); ++position)
      tokens = step(tokens, position);
    for (size_t row = 0; row < texts_.size(); ++row)
      result.texts[prompts[row]] = texts_[row].result();
  }

 private:
  bool are_done() const {
    return std::all_of(texts_.begin(), texts_.end(), [](const auto& text) {
      return text.is_done();
    });
  }

  // The tokens at `position` of all texts, [B, 1].
  torch::Tensor step(const torch::Tensor& before, size_t position) {
    std::vector<bool> is_drawn;
    for (const GrowingText& text : texts_)
      is_drawn.push_back(!text.is_done() && !text.is_in_prompt(position));
    std::vector<int64_t> next = generator_.next(before, is_drawn);
    for (size_t row = 0; row < texts_.size(); ++row) {
      GrowingText& text = texts_[row];
      if (text.is_in_prompt(position))
        next[row] = text.prompt_token(position);
      if (!is_drawn[row])
        continue;
      if (ends_.count(next[row]) > 0)
        text.end(true);
      else
        text.add(next[row], options_.max_tokens);
    }
    return torch::tensor(next).unsqueeze(1);
  }

  TokenGenerator& generator_;
  const Prompts& all_;
  const std::set<int64_t>& ends_;
  const GenerateOptions& options_;
  std::vector<GrowingText> texts_;
};

// Whether a prompt would be computed otherwise beside one of another length: a
// batch has its positions in common, and what is rotated by them with it.
bool depends_on_length(const DecoderConfig& model) {
  const std::vector<LayerDescription> layers = describe_model(model).layers;
  return std::ranges::any_of(layers, [](const LayerDescription& layer) {
    return depend_on_length(layer.attention.rotary);
  });
}

}  // namespace

int64_t GenerateResult::generated_tokens() const {
  int64_t sum = 0;
  for (const GeneratedText& text : texts)
    sum += text.generated_tokens;
  return sum;
}

void check_generate_options(const GenerateOptions& options) {
  read_prompts(options, StoredModel(options.model));
}

std::vector<std::string> generate_warnings(const GenerateOptions& options) {
  const StoredModel stored(options.model);
  const int64_t positions = stored.model().max_position_embeddings;
  size_t longest = 0;
  for (const auto& tokens : read_prompts(options, stored).tokens)
    longest = std::max(longest, tokens.size());
  std::vector<std::string> warnings = model_warnings(stored.config());
  if (options.max_tokens > positions - static_cast<int64_t>(longest)) {
    warnings.push_back(fmt::format(
        "the longest prompt of {} tokens and --max-tokens {} go past the {} "
        "positions that the model was made for; what follows them is often "
        "nonsense",
        longest,
        options.max_tokens,
        positions));
  }
  return warnings;
}

GenerateResult generate_text(
    const GenerateOptions& options,
    const TrainConfig& config,
    const ProcessMesh& mesh,
    const WriteText& write,
    const HashProgress& on_verify) {
  const StoredModel stored(options.model);
  stored.verify(*mesh.world(), on_verify);
  const Prompts prompts = read_prompts(options, stored);
  const std::set<int64_t> ends = stored.end_tokens(*prompts.tokenizer);
  TokenGenerator generator(
      stored,
      config,
      mesh,
      {options.temperature, options.top_k, options.top_p});

  // Prompts of about the same length together.
  std::vector<size_t> order(prompts.tokens.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return prompts.tokens[a].size() < prompts.tokens[b].size();
  });
  GenerateResult result;
  result.texts.resize(order.size());
  const int64_t begin_ns = steady_now_ns();
  const auto rows = static_cast<size_t>(options.batch);
  const bool needs_equal_lengths = depends_on_length(stored.model());
  const auto length = [&](size_t at) {
    return prompts.tokens[order[at]].size();
  };
  size_t end = 0;
  for (size_t at = 0; at < order.size(); at = end) {
    end = std::min(order.size(), at + rows);
    while (needs_equal_lengths && length(end - 1) != length(at))
      --end;
    PromptBatch(generator, prompts, ends, options)
        .run(
            {order.begin() + static_cast<ptrdiff_t>(at),
             order.begin() + static_cast<ptrdiff_t>(end)},
            write,
            result);
  }
  result.seconds = static_cast<double>(steady_now_ns() - begin_ns) / 1e9;
  return result;
}

}  // namespace brigade
